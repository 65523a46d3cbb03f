"""The lock: exclusive between processes, and gone with its process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
def holder(file: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start another process that asks for the lock, and holds it until it reads a line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], env=environment, text=True, stdin=-1, stdout=-1, stderr=-1
    )
    try:
        assert process.stdout
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_only_one_process_holds_it_and_kill_9_ends_it(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with holder(file) as (first, held):
        assert held == "True"
        with lock(file) as ours:
            assert not ours
        with holder(file) as (_, second):
            assert second == "False"
        with lock(file) as ours:  # asking in vain has not broken it
            assert not ours
        first.kill()
        first.wait()
        with lock(file) as ours:
            assert ours
            with holder(file) as (_, third):
                assert third == "False"
    with lock(file) as ours:
        assert ours


def test_who_waits_gets_it_when_it_is_free(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with holder(file) as (process, held):
        assert held == "True"
        got: list[float] = []

        def wait() -> None:
            with lock(file, wait=True) as ours:
                assert ours
                got.append(time.monotonic())

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)
        assert not got
        assert process.stdin
        freed = time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        waiting.join(timeout=30)
        assert got
        assert got[0] > freed


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOLCK, "No locks available"), OSError(errno.ENOSYS, "no"), NotImplementedError("no flock")]
)
def test_a_file_system_without_locks_is_a_sentence(tmp_path: Path, monkeypatch, error: Exception) -> None:
    def unsupported(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(FileLock, "acquire", unsupported)
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
