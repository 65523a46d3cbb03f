"""Row 13: memory ends, in every part of a step, in an evaluation, in a save, and while the text is read."""

from __future__ import annotations

import errno

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import FAIL, Ended, Fault
from tests.scorecard.project import Project, newest

# The hook's point, at which of its times, and the step that must have been saved by then.
POINTS = [
    ("forward", 1, 0),
    ("forward", 20, 6),
    ("backward", 3, 0),
    ("backward", 20, 6),
    ("step", 1, 0),
    ("step", 8, 6),
]
EVALUATION = [("evaluation", 1, 0), ("evaluation", 3, 4), ("evaluation", 9, 8)]


def is_clear(ended: Ended) -> None:
    assert ended.code == 6, f"not exit 6, but {ended}"
    assert not ended.traced, ended
    assert "memory" in ended.last, f"does not say why: {ended}"
    assert "micro_batch_size" in ended.last or "evaluate.batch_size" in ended.last, f"gives no advice: {ended}"


def test_while_training_and_evaluating(score: Score, project: Project) -> None:
    cases = [(kind, *point) for kind in ("out_of_memory", "bad_alloc") for point in (*POINTS, *EVALUATION)]
    for kind, point, nth, least in score.chosen(cases, lambda case: "{} at {} {}".format(*case)):
        out = project.new()
        with score.trial(f"{kind} at {point} {nth}"):
            ended = project.run(out, hooks=[(kind, {"point": point, "nth": nth})])
            is_clear(ended)
            assert newest(out) >= least, f"{newest(out)} is saved"
            project.ends_alike(out) if out.exists() else None


@pytest.mark.scorecard
def test_the_advice_can_be_followed(score: Score, project: Project) -> None:
    """A run that stopped is resumed with smaller micro-batches; masks and draws stay."""
    out = project.new()
    with score.trial("out_of_memory at step 8, then resume --set train.micro_batch_size=1"):
        hook = ("out_of_memory", {"point": "step", "nth": 8})
        assert project.run(out, hooks=[hook]).code == 6
        ended = project.resume(out, "--set", "train.micro_batch_size=1")
        assert ended.code == 0, ended
        assert newest(out) == 12


@pytest.mark.scorecard
def test_while_saving(score: Score, project: Project) -> None:
    """The kernel refuses memory to a write: the checkpoint before stays, and the run can be resumed."""
    for nth in score.chosen(range(1, 13)):
        out = project.new()
        fault = Fault(out / "checkpoints", FAIL, nth, errno.ENOMEM, False, "open write")
        with score.trial(fault.words):
            ended = project.run(out, fault=fault)
            assert ended.code in (4, 6), ended
            assert not ended.traced, ended
            project.ends_alike(out)


@pytest.mark.scorecard
def test_with_a_real_limit(score: Score, project: Project) -> None:
    for settings in score.chosen(
        [("train.batch_size=200000", "train.micro_batch_size=200000"), ("evaluate.batch_size=1",)]
    ):
        out = project.new()
        more = [part for each in settings for part in ("--set", each)]
        with score.trial(f"address space limited, {' '.join(settings)}"):
            ended = project.run(out, *more, hooks=[("limit_memory", {"point": "forward", "nth": 2, "spare": 1 << 28})])
            if settings[0].startswith("train"):
                is_clear(ended)
            assert ended.code in (0, 6), ended
            assert not ended.traced, ended
