"""The program of a worker process, spoken to as the local launcher speaks to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers import _worker
from electra_lab.testing import probes
from registry import Outcome

PATIENCE = 20.0


class Worker:
    """A worker process, and the two connections of its launcher."""

    def __init__(self, grace: float = 60.0, cpus: tuple[int, ...] = ()) -> None:
        self.connection, theirs = Pipe()
        ending, self.lifeline = Pipe(duplex=False)
        with theirs, ending:
            descriptors = (theirs.fileno(), ending.fileno())
            command = [sys.executable, "-P", _worker.__file__, *map(str, descriptors)]
            self.process = subprocess.Popen(command, pass_fds=descriptors, start_new_session=True)
        self.connection.send((sys.path, ["electra-lab", "ablate"], cpus, grace))


@pytest.fixture
def worker() -> Iterator[Any]:
    started: list[Worker] = []

    def start(**options: Any) -> Worker:
        started.append(Worker(**options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def received(connection: Connection) -> Any:
    assert connection.poll(PATIENCE), "the worker said nothing"
    return connection.recv()


def command(folder: str, piece: str) -> Outcome:
    return Outcome("done", " ".join(sys.argv))


def test_pieces_one_after_the_other_until_the_connection_ends(worker: Any, tmp_path: Path) -> None:
    """With the launcher's command line; heavy modules are loaded by the work alone."""
    it = worker()
    for work, piece, expected in (
        (probes.behave, "failed-1", Outcome("failed", "said failed-1")),
        (probes.behave, "raises-1", Outcome("failed", "ValueError: raises-1 is no good")),
        (command, "one", Outcome("done", "electra-lab ablate")),
        (probes.report, "two", Outcome("done")),
    ):
        it.connection.send((work, str(tmp_path), piece))
        assert received(it.connection) == expected
    assert json.loads((tmp_path / "two.json").read_text())["pid"] == it.process.pid
    it.connection.close()
    assert it.process.wait(PATIENCE) == 0


def test_work_that_cannot_be_imported_concerns_its_own_piece(worker: Any, tmp_path: Path) -> None:
    it = worker()
    it.connection.send_bytes(b"cnowhere\nwork\n.")  # what a function of a module is sent as
    outcome = received(it.connection)
    assert outcome.status == "failed"
    assert "cannot import the work (ModuleNotFoundError: No module named 'nowhere')" in outcome.error
    it.connection.send((probes.behave, str(tmp_path), "done-1"))
    assert received(it.connection) == Outcome("done", "said done-1")


def test_the_end_of_the_lifeline_asks_to_stop(worker: Any, tmp_path: Path) -> None:
    """By one SIGTERM, so that the piece can save."""
    it = worker()
    it.connection.send((partial(probes.linger, patience=PATIENCE), str(tmp_path), "slow"))
    assert probes.until((tmp_path / "slow.json").exists, PATIENCE)
    it.lifeline.close()
    assert received(it.connection) == Outcome("preempted", "saved")
    assert (tmp_path / "slow.stopped").read_text() == "1"


def test_what_does_not_stop_in_time_is_killed(worker: Any, tmp_path: Path) -> None:
    it = worker(grace=0.2)
    it.connection.send((partial(probes.meet, number=99, patience=PATIENCE), str(tmp_path), "slow"))
    assert probes.until((tmp_path / "slow.json").exists, PATIENCE)
    it.lifeline.close()
    assert it.process.wait(PATIENCE) < 0


def test_a_launcher_that_dies_before_it_says_anything() -> None:
    (reading, theirs), (ending, lifeline) = Pipe(), Pipe(duplex=False)
    with theirs, ending:
        descriptors = (theirs.fileno(), ending.fileno())
        command = [sys.executable, "-P", _worker.__file__, *map(str, descriptors)]
        process = subprocess.Popen(command, pass_fds=descriptors, stderr=subprocess.PIPE)
    reading.close()
    lifeline.close()
    assert process.communicate(timeout=PATIENCE)[1] == b""
    assert process.returncode == 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
def test_cores_are_bound_before_the_first_piece(worker: Any, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    it = worker(cpus=(core,))
    it.connection.send((probes.report, str(tmp_path), "one"))
    assert received(it.connection) == Outcome("done")
    assert json.loads((tmp_path / "one.json").read_text())["cpus"] == [core]
