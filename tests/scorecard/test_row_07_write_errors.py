"""Row 7: the disk is full, broken, read-only or refuses, at every call that changes a file."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from electra_lab.cli._streams import CLOSED_PIPE
from tests.scorecard.conftest import Score
from tests.scorecard.lab import FAIL, SHORT, Ended, Fault
from tests.scorecard.project import Project, Store, little_is_lost

GROWING = "open write mkdir rename link truncate"  # the calls that need free space
# errno, lasting, the calls that may fail, and n: every n-th of them is tried
ERRORS = [
    (errno.ENOSPC, True, GROWING, 1), (errno.EIO, False, "", 1), (errno.EIO, True, "", 3), (errno.EROFS, True, "", 3),
    (errno.EACCES, False, "open mkdir rename remove", 3), (errno.EDQUOT, True, GROWING, 5),
]  # fmt: skip


def faults(below: Path, calls: Sequence[str]) -> list[Fault]:
    """Return the faults to try. Each is numbered among the calls that may fail with it."""
    found = []
    for number, lasting, kinds, stride in ERRORS:
        concerned = [call for call in calls if not kinds or call.split()[0] in kinds]
        found += [
            Fault(below, FAIL, nth, number, lasting, kinds)
            for nth in range(1 + number % stride, len(concerned) + 1, stride)
        ]
    writes = sum(call.startswith("write ") for call in calls)
    found += [Fault(below, SHORT, nth, errno.ENOSPC, False, "write") for nth in range(1, writes + 1, 3)]
    found += [Fault(below, SHORT, nth, errno.ENOSPC, True, "write") for nth in range(1, writes + 1)]
    return found


def words(fault: Fault) -> str:
    return f"{fault.words} of {fault.kinds or 'all'}"


def is_clear(ended: Ended, fault: Fault, *codes: int) -> None:
    """Check that the error names the reason or the file."""
    ended.must(*codes)
    named = os.strerror(fault.value) in ended.err or str(fault.below) in ended.last
    assert named, f"names neither the reason nor the file: {ended}"


def goes_on(project: Project, out: Path, ended: Ended) -> None:
    """Check that little is lost and the run can be continued; it may also have ended well despite the fault."""
    ended.must(0, 2, 4)
    little_is_lost(out)
    if ended.code == 0:
        project.is_alike(out)
    elif out.exists():
        project.ends_alike(out)


def test_in_the_run_directory(score: Score, project: Project) -> None:
    out = project.new()
    calls = project.calls(out)
    shutil.rmtree(out)
    for fault in score.chosen(faults(out, calls), words):
        with project.trial(score, words(fault), out):
            ended = project.run(out, fault=fault)
            if ended.code:
                is_clear(ended, fault, 2, 4)
            goes_on(project, out, ended)


@pytest.mark.scorecard
def test_in_the_token_store(score: Score, project: Project) -> None:
    store = Store(project, "failing-store")
    for fault in score.chosen(faults(store.folder, store.calls), words):
        with score.trial(f"{words(fault)} in the token store"):
            ended = store.build(fault)
            if ended.code:
                is_clear(ended, fault, 2, 3)
            store.is_mended()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system, which only root can create."""
    folder = tmp_path / "small"
    folder.mkdir()
    if shutil.which("mount") is None or mount("-t", "tmpfs", "-o", "size=20m", "tmpfs", folder):
        pytest.skip("nobody may mount a file system here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def mount(*arguments: object) -> int:
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode


@pytest.mark.scorecard
def test_on_a_file_system_that_is_full(score: Score, project: Project, small_disk: Path) -> None:
    """A real file system of 20 MB, nearly filled by another file, so that a run fails midway; later there is room."""
    needed = sum(path.stat().st_size for path in project.reference.rglob("*") if path.is_file())
    room = [needed * share // 20 for share in range(1, 20)]
    for free in score.chosen(room, lambda free: f"{free} bytes free"):
        other = small_disk / "other"
        with project.trial(score, f"{free} bytes free", small_disk / "run") as out, other.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - free)
            ended = project.run(out)
            file.truncate(0)
            assert ended.code == 0 or os.strerror(errno.ENOSPC) in ended.err, ended
            goes_on(project, out, ended)


CLOSED = {"out": CLOSED_PIPE, "err": 0}  # exit codes: results go to standard output


@pytest.mark.scorecard
def test_a_terminal_that_closes(score: Score, project: Project) -> None:
    """As in `run ... | head -3`: the reader of the output exits, and the training goes on."""
    for stream in CLOSED:
        with project.trial(score, f"the reader of standard {stream} goes away") as out:
            project.run(out, hooks=[("close_reader", {"stream": stream, "point": "step", "nth": 4})]).must(
                CLOSED[stream]
            )
            project.is_alike(out)
