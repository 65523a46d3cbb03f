"""Several processes on this machine, started by torchrun or in the way of Slurm."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.helpers import ROOT
from tests.scorecard.lab import Lab, Running

QUIET = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(forks: Lab, *arguments: str, cwd: Path, size: int = 2) -> list[Running]:
    """Start a command once per rank, with the variables that launchers set."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port()), "WORLD_SIZE": str(size)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    return [forks.start(*arguments, cwd=cwd, environment=shared | own) for own in ranks]


def ended(processes: list[Running], timeout: float = 300) -> list[tuple[int, str, str]]:
    try:
        done = [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.code, process.out, process.err) for process in done]


@contextmanager
def torchrun(*arguments: str, cwd: Path, size: int = 2, nodes: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Start `torchrun ... -m arguments` with `size` processes, once for each node, all of which are this machine.

    If a test fails, processes that still run at the end of the block are ended by their launcher.
    """
    shared = ["--nnodes", str(nodes), "--nproc-per-node", str(size // nodes), "--master-addr", "127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *shared, "--master-port", str(port())]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launch = partial(subprocess.Popen, cwd=cwd, text=True, env={**os.environ, **QUIET}, **pipes)
    launchers = [launch([*command, "--node-rank", str(node), "-m", *arguments]) for node in range(nodes)]
    try:
        yield launchers
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                launcher.terminate()
                launcher.communicate(timeout=60)
