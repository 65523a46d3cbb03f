"""What the launchers share: the environment of a command, its log, and its end in words."""

import signal
from pathlib import Path

from registry import Outcome


def variables(threads: int) -> dict[str, str]:
    """Return the environment variables that limit the threads of a process; tokenizers use one."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**dict.fromkeys(names, str(threads)), "TOKENIZERS_PARALLELISM": "false"}


def log_of(folder: Path, name: str) -> Path:
    """Return the file that the output of a command is appended to."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    return folder / "logs" / f"{name}.txt"


def ended(code: int, log: Path) -> Outcome:
    """Return the outcome of a command. Shells add 128 to a signal; 130 is also the exit code of a run after Ctrl-C."""
    if code == 0:
        return Outcome(0)
    number = -code if code < 0 else code - 128 if code > 130 else 0
    name = next((candidate.name for candidate in signal.Signals if candidate == number), "")
    how = f"was ended by signal {number} ({name})" if name else f"ended with exit code {code}"
    hint = "; the system sends it when memory runs out" if number == signal.SIGKILL else ""
    return Outcome(-number if name else code, f"{how}{hint}; its output is in {log}.")
