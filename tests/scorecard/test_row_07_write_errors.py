"""Row 7: the disk is full, broken, read-only or refuses, at every call that changes a file."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import FAIL, SHORT, Ended, Fault
from tests.scorecard.project import EVERY, Project, contents, done, newest
from tests.scorecard.rows import FULL

GROWING = "open write mkdir rename link truncate"  # the calls that need room
# errno, lasting, calls that it concerns, and of how many calls one is tried
ERRORS = [
    (errno.ENOSPC, True, GROWING, 1), (errno.EIO, False, "", 1), (errno.EIO, True, "", 3), (errno.EROFS, True, "", 3),
    (errno.EACCES, False, "open mkdir rename remove", 3), (errno.EDQUOT, True, GROWING, 5),
]  # fmt: skip


def faults(below: Path, calls: Sequence[str]) -> list[Fault]:
    """Return the faults to try. A number counts the calls that the fault concerns."""
    found = []
    for number, lasting, kinds, each in ERRORS:
        concerned = [call for call in calls if not kinds or call.split()[0] in kinds]
        found += [
            Fault(below, FAIL, nth, number, lasting, kinds)
            for nth in range(1 + number % each, len(concerned) + 1, each)
        ]
    writes = sum(call.startswith("write ") for call in calls)
    found += [Fault(below, SHORT, nth, errno.ENOSPC, False, "write") for nth in range(1, writes + 1, 3)]
    found += [Fault(below, SHORT, nth, errno.ENOSPC, True, "write") for nth in range(1, writes + 1)]
    return found


def words(fault: Fault) -> str:
    return f"{fault.words} of {fault.kinds or 'all'}"


def is_clear(ended: Ended, fault: Fault, codes: tuple[int, ...]) -> None:
    """One sentence, which names the reason or the file."""
    assert not ended.traced, f"a traceback: {ended}"
    assert ended.code in codes, f"exit {ended.code}, not one of {codes}: {ended}"
    named = os.strerror(fault.value) in ended.err or str(fault.below) in ended.last
    assert named, f"names neither the reason nor the file: {ended}"


def test_in_the_run_directory(score: Score, project: Project) -> None:
    out = project.new()
    calls = project.lab.calls("run", project.file, "--out", out, cwd=project.folder, below=out)
    shutil.rmtree(out)
    for fault in score.chosen(faults(out, calls), words):
        with score.trial(words(fault)):
            try:
                ended = project.run(out, fault=fault)
                if ended.code == 0:  # it could do without that call, or has written the rest
                    assert not ended.traced, ended
                    project.is_alike(out)
                else:
                    is_clear(ended, fault, (2, 4))
                    assert done(out) - newest(out) <= EVERY, f"step {done(out)} done, {newest(out)} saved"
                    project.ends_alike(out) if out.exists() else None
            finally:
                shutil.rmtree(out, ignore_errors=True)


@pytest.mark.scorecard
def test_in_the_token_store(score: Score, project: Project) -> None:
    folder = project.folder / "failing-store"
    setting = ("--set", f"data.store={folder}")
    calls = project.lab.calls("prepare", project.file, *setting, cwd=project.folder, below=folder)
    expected = contents(folder)
    for fault in score.chosen(faults(folder, calls), words):
        shutil.rmtree(folder, ignore_errors=True)
        with score.trial(f"{words(fault)} in the token store"):
            ended = project.lab("prepare", project.file, *setting, cwd=project.folder, fault=fault)
            if ended.code:
                is_clear(ended, fault, (2, 3))
            again = project.lab("prepare", project.file, *setting, cwd=project.folder)
            assert again.code == 0, again
            found = contents(folder)
            assert found.keys() == expected.keys(), f"left over or missing: {found.keys() ^ expected.keys()}"
            assert found == expected, f"differs: {[name for name in found if found[name] != expected[name]]}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which only root may make."""
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
    """A real one of 20 MB, of which something else takes all but a part of what a run writes; later there is room."""
    needed = sum(path.stat().st_size for path in project.reference.rglob("*") if path.is_file())
    room = [needed * share // 20 for share in range(1, 20)]
    for free in score.chosen(room, lambda free: f"{free} bytes free"):
        out, other = small_disk / "run", small_disk / "other"
        with score.trial(f"{free} bytes free"), other.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - free)
            try:
                ended = project.run(out)
                file.truncate(0)
                if ended.code == 0:
                    project.is_alike(out)
                else:
                    assert not ended.traced, ended
                    assert ended.code in (2, 4), ended
                    assert os.strerror(errno.ENOSPC) in ended.err, ended
                    assert done(out) - newest(out) <= EVERY, f"step {done(out)} done, {newest(out)} saved"
                    project.ends_alike(out) if out.exists() else None
            finally:
                shutil.rmtree(out, ignore_errors=True)


@pytest.mark.scorecard
def test_a_terminal_that_closes(score: Score, project: Project) -> None:
    """`run ... | head -3`: the reader of the output goes away, and the training goes on."""
    for stream in ("out", "err") if FULL else ("err",):
        out = project.new()
        with score.trial(f"the reader of standard {stream} goes away"):
            ended = project.run(out, hooks=[("close_reader", {"stream": stream, "point": "step", "nth": 4})])
            assert ended.code == 0, ended
            project.is_alike(out)
            shutil.rmtree(out)
