"""Row 13: memory runs out in every part of a step, in an evaluation, in a save, and while the text is read."""

from __future__ import annotations

import errno

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import FAIL, Ended, Fault
from tests.scorecard.project import Project, newest, sets

# The hook's point, the number of its call, and the step that must have been saved by then.
POINTS = [
    ("forward", 1, 0), ("forward", 20, 6), ("backward", 3, 0), ("backward", 20, 6), ("step", 1, 0), ("step", 8, 6),
    ("evaluation", 1, 0), ("evaluation", 3, 4), ("evaluation", 9, 8),
]  # fmt: skip


def is_clear(ended: Ended) -> None:
    ended.must(6)
    assert "memory" in ended.last, f"does not say why: {ended}"
    assert "micro_batch_size" in ended.last or "evaluate.batch_size" in ended.last, f"gives no advice: {ended}"


def test_while_training_and_evaluating(score: Score, project: Project) -> None:
    cases = [(kind, *point) for kind in ("out_of_memory", "bad_alloc") for point in POINTS]
    for kind, point, nth, least in score.chosen(cases, lambda case: "{} at {} {}".format(*case)):
        with project.trial(score, f"{kind} at {point} {nth}") as out:
            is_clear(project.run(out, hooks=[(kind, {"point": point, "nth": nth})]))
            assert newest(out) >= least, f"{newest(out)} is saved"
            project.ends_alike(out)


@pytest.mark.scorecard
def test_the_advice_can_be_followed(score: Score, project: Project) -> None:
    """A run that stopped is resumed with smaller micro-batches; masks and draws stay."""
    with project.trial(score, "out_of_memory at step 8, then resume --set train.micro_batch_size=1") as out:
        project.run(out, hooks=[("out_of_memory", {"point": "step", "nth": 8})]).must(6)
        project.resume(out, *sets("train.micro_batch_size=1")).must(0)
        assert newest(out) == 12


@pytest.mark.scorecard
def test_while_saving(score: Score, project: Project) -> None:
    """The kernel refuses memory to a write: the previous checkpoint stays, and the run can be resumed."""
    for nth in score.chosen(range(1, 13)):
        out = project.new()
        fault = Fault(out / "checkpoints", FAIL, nth, errno.ENOMEM, False, "open write")
        with project.trial(score, fault.words, out):
            project.run(out, fault=fault).must(4, 6)
            project.ends_alike(out)


@pytest.mark.scorecard
def test_with_a_real_limit(score: Score, project: Project) -> None:
    limited = ("limit_memory", {"point": "forward", "nth": 2, "spare": 1 << 28})
    large = ("train.batch_size=200000", "train.micro_batch_size=200000")
    for settings in score.chosen([large, ("evaluate.batch_size=1",)], " ".join):
        with project.trial(score, f"address space limited, {' '.join(settings)}") as out:
            ended = project.run(out, *sets(*settings), hooks=[limited]).must(0, 6)
            if settings == large:
                is_clear(ended)
