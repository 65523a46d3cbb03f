"""Parts shared by the launchers: a command's environment, its log, its start without interruption, its end in words."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from registry import Outcome


def variables(threads: int) -> dict[str, str]:
    """Return the environment variables that limit the threads of a process; tokenizers use one."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**dict.fromkeys(names, str(threads)), "TOKENIZERS_PARALLELISM": "false"}


def log_of(folder: Path, name: str) -> Path:
    """Return the file that the output of a command is appended to."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    return folder / "logs" / f"{name}.txt"


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold signals back until the block ends.

    If a signal handler raised between the start of a command and its entry in a launcher's records, the command would
    run on, and nothing would stop it.
    """
    # Only the main thread runs signal handlers.
    numbers = map(int, signal.valid_signals()) if threading.current_thread() is threading.main_thread() else ()
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    held = list[int]()
    holding = True

    def hold(number: int, frame: FrameType | None) -> None:
        if holding:
            held.append(number)
        else:  # an exception has interrupted the loop below
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        holding = False
        for number, handler in handlers.items():
            if signal.getsignal(number) is hold:
                signal.signal(number, handler)
        for number in held:
            signal.raise_signal(number)


def ended(code: int, log: Path) -> Outcome:
    """Return the outcome of a command. Shells add 128 to a signal; 130 is also the exit code of a run after Ctrl-C."""
    if code == 0:
        return Outcome(0)
    number = -code if code < 0 else code - 128 if code > 130 else 0
    name = next((candidate.name for candidate in signal.Signals if candidate == number), "")
    how = f"was ended by signal {number} ({name})" if name else f"ended with exit code {code}"
    hint = "; the system sends it when memory runs out" if number == signal.SIGKILL else ""
    return Outcome(-number if name else code, f"{how}{hint}; its output is in {log}.")
