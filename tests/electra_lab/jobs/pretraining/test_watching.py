"""Watching runs: pages during training, numbers from before the first step, records of scheduled values."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from electra_lab.jobs.lifecycle import Progress
from electra_lab.jobs.pretraining import execute
from electra_lab.metrics import PRETRAINING
from electra_lab.presentation import run_page
from electra_lab.presentation.console import Console
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.loop import Record
from registry.errors import Preempted
from tests.electra_lab.jobs.pretraining.tiny import Killed, experiment, for_a_module, killed_at, lines, outcome, run
from tests.electra_lab.presentation.synthetic import leave_out_pictures
from tests.pages import Page

EVALUATE = "{every: 6, examples: 2, batch_size: 4}"
HEATED = "{learning_rate: {warmup_steps: 3}, sampler.temperature: {type: linear, start: 2.0, end: 1.0}}"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run from whose weights other runs start."""
    folder = tmp_path_factory.mktemp("first")
    with for_a_module():
        return run(
            experiment(folder, sampler="{type: temperature}", schedules=HEATED, evaluate=EVALUATE), folder / "first"
        )


def starts(path: Path) -> list[int]:
    """Return the steps of the validations."""
    return [record["step"] for record in lines(path, "validation")]


def test_records_hold_scheduled_numbers_both_norms_and_memory(first: Path) -> None:
    records = lines(first, "train")
    heats = {record["step"]: record["sampler.temperature"] for record in records}
    assert heats == {step: pytest.approx(2 - (step - 1) / 11) for step in (5, 10, 12)}
    for record in records:
        assert record["clipped_gradient_norm"] == pytest.approx(min(record["gradient_norm"], 1.0))
        assert 50e6 < record["peak_memory_bytes"] < 50e9


@pytest.mark.usefixtures("no_report")
def test_loaded_weights_are_evaluated_before_the_first_step_which_changes_nothing(
    tmp_path: Path, first: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, also if the run is stopped during the evaluation, or killed then or at step 1, before a checkpoint."""
    file = experiment(tmp_path, init=f"{{discriminator: {first}, generator: {first}}}", evaluate=EVALUATE)
    whole, without = run(file, tmp_path / "whole"), run(file, tmp_path / "without", "evaluate.at_start=false")
    assert (starts(whole), starts(without), starts(first)) == ([0, 6, 12], [6, 12], [6, 12])
    (records, weights), (others, other_weights) = outcome(whole), outcome(without)
    assert records[1:] == others
    assert all(weights[name].equal(other_weights[name]) for name in weights)
    # It equals the last evaluation of the earlier run: the same weights, text, masks and draws.
    before, after, last = records[0], lines(first, "validation")[-1], records[-2]
    assert before["generator_mask_loss"] == pytest.approx(after["generator_mask_loss"], rel=1e-6)
    table = run_page.before_and_after(records, PRETRAINING)
    assert table
    row = next(row for row in table.rows if row[0] == "generator loss at [MASK]")
    values = before["generator_mask_loss"], last["generator_mask_loss"]
    assert row[1:] == [f"{values[0]:.3f}", f"{values[1]:.3f}", f"{values[1] - values[0]:+.3f}"]
    assert run_page.before_and_after(others, PRETRAINING) is None
    assert capsys.readouterr().err.count("Before and after") == 1

    for how in ("killed", "stopped", "killed at step 1"):
        path = tmp_path / how

        def evaluated(progress: Progress, record: Record, how: str = how) -> None:
            if not record.evaluating:
                return
            if how == "killed":
                raise Killed
            os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patched:
            if how == "killed at step 1":  # with the evaluation in its records
                killed_at(patched, 1)
            else:
                patched.setattr(Progress, "__call__", evaluated)
            with pytest.raises(Preempted if how == "stopped" else Killed):
                run(file, path)
        assert starts(path) == ([0] if how == "killed at step 1" else [])
        execute.resume(path, "cpu")
        assert starts(path) == [0, 6, 12]
        assert outcome(path)[0] == records


def test_the_page_is_there_from_the_first_record_on_and_tells_how_the_run_ended(tmp_path: Path, monkeypatch) -> None:
    leave_out_pictures(monkeypatch)
    path, seen = tmp_path / "run", list[Any]()
    directory = RunDirectory(path)

    def advance(_: Console, done: int) -> None:
        page = path / "report.html"
        seen.append((page.exists(), page.exists() and "http-equiv" in page.read_text()))
        if done == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Console, "advance", advance)
    with pytest.raises(Preempted):
        run(experiment(tmp_path), path)
    assert seen[:8] == [(False, False)] * 4 + [(True, True)] * 4  # log_every is 5
    written = (path / "report.html").read_text()
    assert "http-equiv" not in written
    assert "Interrupted" in Page(path / "report.html").text
    monkeypatch.undo()
    # A run with a final checkpoint and such a page is not finished; with the final page it is.
    leave_out_pictures(monkeypatch)
    execute.resume(path, "cpu")
    assert directory.finished()
    done = (path / "report.html").read_text()
    assert 'id="state"' not in done
    assert "http-equiv" not in done
    run_page.write_report(directory, run_page.Unfinished("running"))
    assert not directory.finished()


def test_pages_of_older_runs_have_no_charts_of_numbers_that_they_lack(tmp_path: Path, first: Path, monkeypatch) -> None:
    monkeypatch.setattr("electra_lab.presentation.pages.svg", lambda *_: "<svg></svg>")
    titles = [caption.text for caption in Page(run_page.write_report(RunDirectory(first))).all("figcaption")]
    course = ["Learning rate", "Gradient norm before and after clipping", "Tokens a second", "Peak memory, GB"]
    assert titles[-5:] == [*course, "sampler.temperature"]
    new = ("clipped_gradient_norm", "peak_memory_bytes", "sampler.temperature")
    old = lines(first)
    for record in old:
        for name in new:
            record.pop(name, None)
    (first / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in old))
    titles = [caption.text for caption in Page(run_page.write_report(RunDirectory(first))).all("figcaption")]
    assert titles[-3:] == course[:3]
