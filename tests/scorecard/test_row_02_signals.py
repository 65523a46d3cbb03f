"""Row 2: signals at every call that changes a file, and in every phase of the computation."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import SIGNAL, Ended, Fault
from tests.scorecard.project import STEPS, Project, Store, done, newest, sent, sets
from tests.scorecard.rows import FULL

TERM, INT = signal.SIGTERM, signal.SIGINT
SENT = (TERM, INT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)  # sent by people and by schedulers
# First reads of files, forward passes (of the rehearsal and of each micro-batch), backward passes, updates of the
# weights, and batches of evaluations.
POINTS = [
    *(("open:tiny.yaml", 1), ("open:corpus.txt", 1)),
    *(("forward", nth) for nth in range(1, 2 * STEPS + 2)),
    *(("backward", nth) for nth in range(1, 2 * STEPS + 2)),
    *(("step", nth) for nth in range(1, STEPS + 1)),
    *(("evaluation", nth) for nth in range(2, 14)),
]


def code(number: int) -> int:
    return 130 if number == INT else 75


def stopped_well(project: Project, out: Path, ended: Ended, number: int, least: int = 0) -> None:
    """Check how a run ended, and continue it by the command that it printed.

    least  the step that must have been saved
    """
    if ended.code == 0 and (out / "report.html").exists():  # the signal came while the report was written, or later
        ended.must(0)
        return project.is_alike(out)
    ended.must(code(number))
    assert newest(out) >= max(done(out), least), f"step {max(done(out), least)} was done, {newest(out)} is saved"
    printed = re.findall(r"electra-lab (resume .*)$", ended.err, re.M)
    if printed:
        project.lab(*shlex.split(printed[-1].rstrip(".")), cwd=project.folder).must(0)
    else:
        assert newest(out) == 0, f"does not say how to continue: {ended}"
        assert "again" in ended.last, f"does not say how to start again: {ended}"
        project.run(out).must(0)
    return project.is_alike(out)


def test_in_every_phase_of_the_computation(score: Score, project: Project) -> None:
    cases = [(point, nth, number) for point, nth in POINTS for number in (SENT if FULL else SENT[:4])]
    # Every point and every signal, but not all combinations.
    cases = [case for place, case in enumerate(cases) if place % len(SENT) in (0, place // len(SENT) % len(SENT))]
    for point, nth, number in score.chosen(cases, lambda c: f"{c[2].name} at {c[0]} {c[1]}"):
        with project.trial(score, f"{number.name} at {point} {nth}") as out:
            ended = project.run(out, hooks=[sent(point, nth, number)])
            stopped_well(project, out, ended, number, nth if point == "step" else 0)


@pytest.mark.scorecard
def test_before_every_call_that_changes_a_file(score: Score, project: Project) -> None:
    """While a run starts, saves, records and reports, and while it builds a token store."""
    out = project.new()
    own = len(project.calls(out))
    shutil.rmtree(out)
    for nth in score.chosen(range(1, own + 1)):
        number, out = SENT[nth % len(SENT)], project.new()
        fault = Fault(out, SIGNAL, nth, number)
        with project.trial(score, fault.words, out):
            stopped_well(project, out, project.run(out, fault=fault), number)


@pytest.mark.scorecard
def test_while_the_token_store_is_built(score: Score, project: Project) -> None:
    store = Store(project, "stopped-store")
    for nth in score.chosen(range(1, len(store.calls) + 1), number=1):
        shutil.rmtree(store.folder, ignore_errors=True)
        number = SENT[nth % len(SENT)]
        fault = Fault(store.folder, SIGNAL, nth, number)
        with project.trial(score, f"{fault.words} in the token store") as out:
            ended = project.run(out, *store.setting, fault=fault).must(code(number))
            assert "again" in ended.last or "resume" in ended.last, f"does not say how to start again: {ended}"
            project.run(out, *store.setting).must(0)
            project.is_alike(out)
            assert not list(store.folder.glob(".*"))


@pytest.mark.scorecard
def test_several_signals(score: Score, project: Project) -> None:
    """Schedulers signal a process and its group: the echo changes nothing. A later second Ctrl-C stops at once."""
    for first, second, gap, saved in [
        (TERM, TERM, 0.03, True), (TERM, TERM, 0.7, True), (TERM, signal.SIGHUP, 0.03, True), (INT, INT, 0.03, True),
        (TERM, INT, 0.03, True), (signal.SIGUSR1, TERM, 0.1, True), (INT, INT, 0.7, False),
    ]:  # fmt: skip
        with project.trial(score, f"{first.name}, and {second.name} {gap} s later, at step 8") as out:
            project.run(out, hooks=[sent("step", 8, first, second, gap=gap)]).must(code(first))
            assert newest(out) == (8 if saved else 6), f"{newest(out)} is saved"
            project.ends_alike(out)


@pytest.mark.scorecard
def test_an_evaluation_is_ended(score: Score, project: Project) -> None:
    for number in SENT[:2]:
        marks = project.folder / f"evaluated-{number}"
        hooks = [("journal", {"point": "evaluation", "file": str(marks)}), sent("evaluation", 3, number)]
        with project.trial(score, f"{number.name} at evaluation 3") as out:
            project.run(out, *sets("evaluate.batch_size=1"), hooks=hooks).must(code(number))
            assert newest(out) == 4, f"{newest(out)} is saved"
            after = len(marks.read_text()) - 3
            assert after <= 1, f"{after} more batches were evaluated"
