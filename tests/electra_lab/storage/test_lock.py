"""The lock: exclusive between processes, and gone with its process."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from filelock import FileLock

from electra_lab.storage.lock import lock, reading
from registry.errors import ConfigError
from tests.helpers import ROOT

HOLDER = """
import pathlib, sys
from electra_lab.storage.lock import lock
with lock(pathlib.Path(sys.argv[1])) as held:
    print(held, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that holds the lock until it is killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], env=environment, text=True, stdin=-1, stdout=-1, stderr=-1
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_only_one_process_holds_it_and_kill_9_ends_it(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with holder(file) as other:
        for _ in range(2):  # asking in vain does not break it
            with lock(file) as ours:
                assert not ours
        other.kill()
        other.wait()
        with lock(file) as ours, lock(file) as again:
            assert (ours, again) == (True, False)
    with lock(file) as ours:
        assert ours


def test_who_waits_gets_it_when_it_is_free(tmp_path: Path) -> None:
    order = []

    def wait() -> None:
        with lock(tmp_path / ".lock", wait=True) as ours:
            order.append(ours)

    with lock(tmp_path / ".lock"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.3)
        order.append("released")
    waiting.join(30)
    assert order == ["released", True]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOLCK, "No locks available"), OSError(errno.ENOSYS, "no"), NotImplementedError("no flock")]
)
def test_a_file_system_without_locks_is_a_sentence(tmp_path: Path, monkeypatch, error: Exception) -> None:
    monkeypatch.setattr(FileLock, "acquire", Mock(side_effect=error))
    with pytest.raises(ConfigError, match=f"{tmp_path}: this file system does not support locks"), lock(tmp_path / "f"):
        pytest.fail("it is not held")


def test_another_error_of_the_file_system_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|Not a directory"), lock(tmp_path / "file" / "lock"):
        pytest.fail("it is not held")


def test_a_listing_that_looks_at_a_lock_keeps_nobody_out(tmp_path: Path) -> None:
    (file := tmp_path / ".lock").touch()
    with reading(file) as free, lock(file) as held:
        assert (free, held) == (True, False)

    def look() -> None:
        with reading(file):
            looked.set()
            time.sleep(0.01)

    looked, thread = threading.Event(), threading.Thread(target=look)
    thread.start()
    looked.wait()
    with lock(file) as held:
        assert held
    thread.join()
