"""Batches and records of a run: as its objective saw them, and worked out by hand from that."""

from __future__ import annotations

import json
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from electra_lab.jobs.pretraining import execute
from electra_lab.training import execution
from electra_lab.training.execution import LossScale
from registry.errors import DivergedError
from tests.electra_lab.jobs.pretraining import tiny
from tests.electra_lab.jobs.pretraining.tiny import assert_same, lines, passes, run, spying, state, stop_at, tensors

pytestmark = pytest.mark.usefixtures("no_report")

SCHEDULES = (
    "{learning_rate: {warmup_steps: 3}, sampler.temperature: {type: linear, start: 3.0, end: 1.5}, "
    "masking.mask_prob: {type: linear, start: 0.5, end: 0.2}, "
    "objective.discriminator_weight: {type: linear, start: 5.0, end: 50.0}}"
)
WHOLE = "{steps: 12, batch_size: 4, precision: fp32, log_every: 5}"


def rows(passed: list[Any]) -> list[tuple[int, ...]]:
    """Return the real tokens of every row, without [CLS] and a last [SEP]."""
    found = []
    for batch in passed:
        for tokens, real in zip(batch.tokens, batch.real, strict=True):
            found.append(tuple(tokens[real].tolist()[1:-1]))
    return found


def cut(store: Path, split: str) -> list[tuple[int, ...]]:
    """Cut the stream of the token store into rows by hand: 14 tokens between [CLS] and [SEP]."""
    (folder,) = (p for p in store.iterdir() if p.is_dir() and not p.name.startswith("."))
    dtype = json.loads((folder / "manifest.json").read_text())["dtype"]
    stream = [token for file in sorted(folder.glob(f"{split}-*.bin")) for token in np.fromfile(file, dtype).tolist()]
    pieces = [stream[start : start + 14] for start in range(0, len(stream), 14)]
    separator = stream[-1]  # every document ends with it; a row has it once
    return [tuple(piece[:-1] if piece[-1] == separator else piece) for piece in pieces]


def mean(window: list[Any], name: str) -> float:
    """Return the mean of a term of the loss over passes."""
    return sum(p.terms[name][0] for p in window) / sum(p.terms[name][1] for p in window)


@pytest.fixture(scope="module")
def spied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A folder with a run under schedules, and the passes of its objective."""
    folder = tmp_path_factory.mktemp("spied")
    file = spying(folder, schedules=SCHEDULES, train=WHOLE.replace("12", "23"), evaluate="{every: 7, batch_size: 5}")
    with tiny.for_a_module():
        run(file, folder / "run")
        return folder, passes()


def test_each_split_is_read_for_its_own_purpose(spied: tuple[Path, list[Any]]) -> None:
    folder, seen = spied
    training, evaluated = [p for p in seen if p.training], [p for p in seen if p.evaluating]
    assert len(training) + len(evaluated) == len(seen)
    ours, *others = (cut(folder / "store", split) for split in ("train", "validation", "test"))
    assert not set(ours) & {row for split in others for row in split}
    assert not set(others[0]) & set(others[1])
    read = rows(training)
    assert len(ours) < len(read) == 23 * 4
    epochs = [read[start : start + len(ours)] for start in range(0, len(read), len(ours))]
    for epoch in epochs[:-1]:
        assert Counter(epoch) == Counter(ours)
    assert not Counter(epochs[-1]) - Counter(ours)
    assert epochs[0] != ours  # not in the order of the corpus
    assert [p.examples for p in training] == [[0, 1, 2, 3]] * 23

    for theirs in [others[0]] * 4 + [others[1]]:
        batches = -(-len(theirs) // 5)
        evaluation, evaluated = evaluated[:batches], evaluated[batches:]
        assert rows(evaluation) == theirs
        assert [example for p in evaluation for example in p.examples] == list(range(len(theirs)))
    assert evaluated == []


def test_evaluation_has_no_gradients_and_the_end_of_the_schedules_that_training_follows(spied) -> None:
    for passed in spied[1]:
        assert passed.gradients == passed.training != passed.evaluating
        progress = passed.step / 22 if passed.training else 1.0
        assert passed.temperature == pytest.approx(3.0 - 1.5 * progress)
        assert passed.mask_prob == pytest.approx(0.5 - 0.3 * progress)
        assert passed.terms["discriminator"][2] == pytest.approx(5.0 + 45.0 * progress)


def test_log_lines_are_the_means_of_what_the_objective_returned(spied: tuple[Path, list[Any]]) -> None:
    folder, seen = spied
    training = [p for p in seen if p.training]
    flops = json.loads((folder / "run" / "provenance.json").read_text())["flops_per_step"]
    records = lines(folder / "run", "train")
    assert [record["step"] for record in records] == [5, 10, 15, 20, 23]
    for record in records:
        step = record["step"]
        window = training[(step - 1) // 5 * 5 : step]
        for name in ("generator", "discriminator"):
            assert record[f"{name}_loss"] == pytest.approx(mean(window, name), rel=1e-5)
        weighted = sum(p.terms["discriminator"][2] * p.terms["discriminator"][0] for p in window)
        counted = sum(p.terms["discriminator"][1] for p in window)
        loss = record["generator_loss"] + weighted / counted
        assert record["loss"] == pytest.approx(loss, rel=1e-5)
        assert record["tokens"] == step * 4 * 16
        assert record["flops"] == step * flops
        assert record["learning_rate"] == pytest.approx(5e-4 * (1 - (step - 1) / 23) * min(1.0, step / 3))
        assert record["skipped_steps"] == 0


def test_the_gradient_norm_is_the_mean_over_the_window(spied: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, _ = spied
    every = lines(run(folder / "tiny.yaml", tmp_path / "run", "train.log_every=1", "evaluate.every=null"), "train")
    norms = [record["gradient_norm"] for record in every]
    assert len(set(norms)) == 23
    for record in lines(folder / "run", "train"):
        window = norms[(record["step"] - 1) // 5 * 5 : record["step"]]
        assert record["gradient_norm"] == pytest.approx(sum(window) / len(window), rel=1e-5)


def test_losses_of_evaluation_are_the_means_of_what_the_objective_returned(spied: tuple[Path, list[Any]]) -> None:
    folder, seen = spied
    evaluated = [p for p in seen if p.evaluating]
    records = [record for record in lines(folder / "run") if record["split"] != "train"]
    assert [(record["step"], record["split"]) for record in records] == [
        *((step, "validation") for step in (7, 14, 21, 23)), (23, "test"),
    ]  # fmt: skip
    for record in records:
        batches = -(-len(cut(folder / "store", record["split"])) // 5)
        window, evaluated = evaluated[:batches], evaluated[batches:]
        assert record["tokens"] == sum(p.tokens.numel() for p in window)
        found = {name: mean(window, name) for name in ("generator", "discriminator")}
        for name, value in found.items():
            assert record[f"{name}_loss"] == pytest.approx(value, rel=1e-5)
        assert record["loss"] == pytest.approx(found["generator"] + 50 * found["discriminator"], rel=1e-5)


@pytest.mark.parametrize("stop", [13, 22])
def test_resumed_inside_a_window_it_records_the_same_and_the_test_is_evaluated_once(spied, tmp_path, stop) -> None:
    folder, path = spied[0], tmp_path / "run"
    stop_at(stop, lambda: run(folder / "tiny.yaml", path), signal.SIGTERM)
    execute.resume(path, "cpu")
    execute.resume(path, "cpu")
    assert_same(folder / "run", path)
    tested = set(cut(folder / "store", "test"))
    evaluated = [p for p in passes() if p.evaluating]
    read = [row for row in rows(evaluated) if row in tested]
    assert len(read) == len(set(read)) == len(tested)
    assert [record["step"] for record in lines(path, "test")] == [23]
    assert (path / "examples.json").is_file()


POISONED = 6  # step 6 is in the second window, which ends at 10


def poisoned(folder: Path, policy: str, spoils_loss: bool = False) -> Path:
    return spying(
        folder,
        objective=f"{{type: spy, poison: {POISONED}, spoils_loss: {str(spoils_loss).lower()}}}",
        train=WHOLE.replace("}", f", on_non_finite: {policy}}}"),
        checkpoint="{every: 100}",
    )


@pytest.mark.parametrize(("spoils_loss", "stop"), [(False, 7), (True, 11)])
def test_a_skipped_step_leaves_all_as_it_was_and_is_counted_once(tmp_path: Path, spoils_loss: bool, stop: int) -> None:
    file = poisoned(tmp_path, "skip", spoils_loss)
    whole, path = run(file, tmp_path / "whole", "checkpoint.every=1", "checkpoint.keep=20"), tmp_path / "run"
    seen = [p for p in passes() if p.training]
    before, after = tensors(whole, POISONED), tensors(whole, POISONED + 1)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for found, taken in ((after, POISONED), (tensors(whole), 11)):
        assert {float(value) for name, value in found.items() if name.startswith("optimizer.step.")} == {taken}
    # Its loss is not part of any mean, but its tokens were read.
    records = lines(whole, "train")
    assert [record["skipped_steps"] for record in records] == [0, 1, 1]
    window = [p for p in seen if 5 <= p.step < 10 and p.step != POISONED]
    for name in ("generator", "discriminator"):
        assert records[1][f"{name}_loss"] == pytest.approx(mean(window, name), rel=1e-5)
    assert records[1]["tokens"] == 10 * 4 * 16
    assert state(whole)["skipped"] == 1
    assert all(np.isfinite(record[key]) for record in records for key in ("loss", "gradient_norm"))
    # Also through a resume.
    stop_at(stop, lambda: run(file, path))
    execute.resume(path, "cpu")
    assert_same(whole, path)


@pytest.mark.parametrize("spoils_loss", [False, True])
def test_stop_ends_the_run_at_the_next_log_line(tmp_path: Path, spoils_loss: bool) -> None:
    file, path = poisoned(tmp_path, "stop", spoils_loss), tmp_path / "run"
    sentence = (
        r"^step 10: the loss or gradient of 1 of the steps .* \(first at step 7\)\. .* no weight is damaged\. "
        r".*on_non_finite: skip\. The newest intact checkpoint is that of step 5\. .*electra-lab replay .*run$"
    )
    for train in (partial(run, file, path, "checkpoint.every=5"), partial(execute.resume, path, "cpu")):
        with pytest.raises(DivergedError, match=sentence):
            train()
        assert [record["step"] for record in lines(path)] == [5, 6]
        assert tiny.steps(path) == [5]


def test_under_stop_a_checkpoint_never_holds_what_has_diverged(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"^step 7: the loss or gradient of 1 of the steps"):
        run(poisoned(tmp_path, "stop"), path, "checkpoint.every=1", "checkpoint.keep=20")
    assert max(tiny.steps(path)) == 6
    assert all(torch.isfinite(value).all() for value in tensors(path).values())


def test_a_loss_scale_is_kept_through_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale.__init__, "__defaults__", (2.0**27, 0, 0))
    monkeypatch.setattr(execution, "CALM", 2)
    file = tiny.experiment(tmp_path, train=WHOLE.replace("fp32", "fp16"), checkpoint="{every: 100}")
    whole, path = run(file, tmp_path / "whole"), tmp_path / "run"
    records = lines(whole, "train")
    assert 0 < records[0]["skipped_steps"] < 12
    assert len({record["loss_scale"] for record in records}) > 1
    stop_at(7, lambda: run(file, path))
    assert state(path)["loss_scale"]["scale"] < 2.0**27
    execute.resume(path, "cpu")
    assert_same(whole, path)
