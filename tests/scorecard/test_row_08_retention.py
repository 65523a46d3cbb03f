"""Row 8: what is kept and what is removed, also under kills while it is removed, and beside what is not ours."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import KILL, Fault, is_valid, records, saved
from tests.scorecard.project import Project, newest
from tests.scorecard.rows import FULL

# Settings, and the steps of which checkpoints are kept in the end; None for what the best metric decides.
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


def arguments(settings: tuple[str, ...]) -> list[str]:
    return [part for each in settings for part in ("--set", each)]


@pytest.mark.scorecard
def test_exactly_what_is_promised(score: Score, project: Project) -> None:
    for settings, kept in score.chosen(KEPT, lambda case: " ".join(case[0])):
        out = project.new()
        with score.trial(" ".join(settings)):
            ended = project.run(out, *arguments(settings))
            assert ended.code == 0, ended
            assert steps(out) == expected(out, kept), f"kept {sorted(steps(out))}"
            assert all(map(is_valid, saved(out)))
            shutil.rmtree(out)


@pytest.mark.scorecard
def test_killed_while_removing(score: Score, project: Project) -> None:
    for settings, kept in KEPT:
        out, kinds = project.new(), "remove rename"
        more = arguments(settings)
        journal = project.lab.calls(
            "run", project.file, "--out", out, *more, cwd=project.folder, below=out / "checkpoints", kinds=kinds
        )
        shutil.rmtree(out)
        for nth in score.chosen(range(1, len(journal) + 1), lambda n: f"call {n} "):
            fault = Fault(out / "checkpoints", KILL, nth, kinds=kinds)
            with score.trial(f"{fault.words} ({journal[nth - 1]}) with {' '.join(settings)}"):
                assert project.run(out, *more, fault=fault).code == -signal.SIGKILL
                seen = list((out / "checkpoints").glob("step-*"))
                broken = [path.name for path in seen if not is_valid(path)]
                assert not broken, f"half removed: {broken}"
                assert newest(out) or not journal[nth - 1].startswith("remove"), "none is valid"
                assert project.again(out, *(() if (out / "provenance.json").exists() else more)).code == 0
                assert steps(out) == expected(out, kept), f"kept {sorted(steps(out))} in the end"
                hidden = [path.name for path in (out / "checkpoints").glob(".*")]
                assert not hidden, f"left over: {hidden}"
            shutil.rmtree(out, ignore_errors=True)


def test_what_is_not_ours_stays(score: Score, project: Project) -> None:
    begun = project.stopped(5)
    folder = begun / "checkpoints"
    (folder / "notes.txt").write_text("mine")
    (folder / "step-best").mkdir()
    (folder / "step-best" / "weights.bin").write_bytes(b"mine")
    (folder / ".step-mine").mkdir()
    (folder / ".step-mine" / "notes.txt").write_text("mine")
    (folder / "step-00000002").mkdir()
    (folder / "step-00000002" / "thesis.txt").write_text("mine")
    elsewhere = project.folder / "elsewhere"
    shutil.copytree(project.reference / "checkpoints" / "step-00000009", elsewhere)
    (folder / "step-00000001").symlink_to(elsewhere)
    for linked in (False, True) if FULL else (False,):
        out = project.copy(begun)
        with score.trial(f"foreign files{', checkpoints is a link to another disk' * linked}"):
            if linked:
                (out / "checkpoints").rename(project.folder / "another disk")
                (out / "checkpoints").symlink_to(project.folder / "another disk")
            ended = project.resume(out)
            assert ended.code == 0, ended
            now = out / "checkpoints"
            for name in ("notes.txt", "step-best/weights.bin", ".step-mine/notes.txt", "step-00000002/thesis.txt"):
                assert (now / name).is_file(), f"{name} was removed"
            assert is_valid(elsewhere), "what a link points to was changed"
            assert not linked or now.is_symlink(), "the link was replaced"
            ours = {path.name for path in now.glob("step-000*") if is_valid(path) and not path.is_symlink()}
            assert ours == {"step-00000009", "step-00000012"}, f"kept {sorted(ours)}"
