"""Compare the start of the command line with `import torch`, in alternating processes.

    python benchmarks/startup.py --clock processor

Processor time is that of the child process, including system calls.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _alternating import alternate, parser, table, write

TORCH = "import torch"
LAB = [sys.executable, "-m", "electra_lab"]
COMMANDS = {
    TORCH: [sys.executable, "-c", "import torch"],
    "python": [sys.executable, "-c", "pass"],
    "electra-lab --version": [*LAB, "--version"],
    "electra-lab --help": [*LAB, "--help"],
    "electra-lab registry list": [*LAB, "registry", "list"],
    "electra-lab check": [*LAB, "check", str(Path(__file__).parents[1] / "experiments" / "bert_small.yaml")],
}


def start(command: list[str]) -> None:
    # Compiled files are written at the first, uncounted start, as on a user's machine.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def children() -> float:
    """Return the processor time of all child processes that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    options = parser(__doc__, rounds=9)
    options.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    given = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    ways: dict[str, Callable[[], object]] = {name: partial(start, COMMANDS[name]) for name in given.commands}
    seconds = alternate(ways, given.rounds, clock=children if given.clock == "processor" else time.perf_counter)
    title = f"Start-up: {given.threads} threads, {given.clock} time"
    case = {"case": "start-up", "threads": given.threads, "clock": given.clock}
    write(given.out, title, table(seconds, given.commands[:1]), case, {"seconds": seconds})


if __name__ == "__main__":
    main()
