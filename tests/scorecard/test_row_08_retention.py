"""Row 8: which checkpoints are kept and removed, also under kills during removal and next to the user's own files."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import KILL, Fault, is_valid, records, saved
from tests.scorecard.project import Project, newest, sets
from tests.scorecard.rows import FULL

# Settings, and the steps of the checkpoints that are kept in the end; None where the best metric decides.
KEPT = [
    (("checkpoint.keep=1",), {12}),
    (("checkpoint.keep=3",), {6, 9, 12}),
    (("checkpoint.every=5", "checkpoint.keep=2"), {10, 12}),
    (("checkpoint.keep=1", "checkpoint.milestones={tokens: [200]}"), {0, 4, 12}),
    (("checkpoint.keep=1", "checkpoint.every=2", "checkpoint.milestones={tokens: [256, 512]}"), {0, 4, 8, 12}),
    (("checkpoint.keep=1", "checkpoint.best=discriminator_loss", "train.learning_rate=0.01"), None),
]


def expected(out: Path, kept: set[int] | None) -> set[int]:
    if kept is not None:
        return kept
    found = [(r["discriminator_loss"], r["step"]) for r in records(out) if r["split"] == "validation"]
    return {min(found)[1], 12}


def steps(out: Path) -> set[int]:
    return {int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*")}


@pytest.mark.scorecard
def test_exactly_what_is_promised_also_when_killed_while_removing(score: Score, project: Project) -> None:
    for settings, kept in KEPT:
        out, more, kinds, calls = project.new(), sets(*settings), "remove rename", []
        with project.trial(score, " ".join(settings), out):
            calls = project.calls(out, *more, below=out / "checkpoints", kinds=kinds)
            assert steps(out) == expected(out, kept), f"kept {sorted(steps(out))}"
            assert all(map(is_valid, saved(out)))
        for nth in score.chosen(range(1, len(calls) + 1), lambda n: f"call {n} "):
            fault = Fault(out / "checkpoints", KILL, nth, kinds=kinds)
            with project.trial(score, f"{fault.words} ({calls[nth - 1]}) with {' '.join(settings)}", out):
                project.run(out, *more, fault=fault).must(-signal.SIGKILL)
                broken = [path.name for path in (out / "checkpoints").glob("step-*") if not is_valid(path)]
                assert not broken, f"half removed: {broken}"
                assert newest(out) or not calls[nth - 1].startswith("remove"), "none is valid"
                project.again(out, *more).must(0)
                assert steps(out) == expected(out, kept), f"kept {sorted(steps(out))} in the end"
                hidden = [path.name for path in (out / "checkpoints").glob(".*")]
                assert not hidden, f"left over: {hidden}"


FOREIGN = ("notes.txt", "step-best/weights.bin", ".step-mine/notes.txt", "step-00000002/thesis.txt")


def test_what_is_not_ours_stays(score: Score, project: Project) -> None:
    begun, elsewhere = project.stopped(5), project.folder / "elsewhere"
    for name in FOREIGN:
        (begun / "checkpoints" / name).parent.mkdir(exist_ok=True)
        (begun / "checkpoints" / name).write_text("mine")
    shutil.copytree(project.reference / "checkpoints" / "step-00000009", elsewhere)
    (begun / "checkpoints" / "step-00000001").symlink_to(elsewhere)
    for linked in (False, True) if FULL else (False,):
        words = f"foreign files{', checkpoints is a link to another disk' * linked}"
        with project.trial(score, words, project.copy(begun)) as out:
            now = out / "checkpoints"
            if linked:
                now.rename(project.folder / "another disk")
                now.symlink_to(project.folder / "another disk")
            project.resume(out).must(0)
            gone = [name for name in FOREIGN if not (now / name).is_file()]
            assert not gone, f"{gone} were removed"
            assert is_valid(elsewhere), "what a link points to was changed"
            assert not linked or now.is_symlink(), "the link was replaced"
            ours = {path.name for path in now.glob("step-000*") if is_valid(path) and not path.is_symlink()}
            assert ours == {"step-00000009", "step-00000012"}, f"kept {sorted(ours)}"
