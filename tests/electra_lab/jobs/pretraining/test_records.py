"""What a run reads, and what it records: as its objective saw it, and worked out by hand from that."""

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
from electra_lab.training import scaling
from electra_lab.training.scaling import LossScale
from registry.errors import DivergedError
from tests.electra_lab.jobs.pretraining.tiny import (
    assert_same,
    experiment,
    for_a_module,
    lines,
    passes,
    run,
    signalled,
    spying,
    state,
    stop_at,
    tensors,
)

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
    for each in passed:
        for tokens, real in zip(each.tokens, each.real, strict=True):
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


@pytest.fixture(scope="module")
def spied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A folder with a run under schedules, and what its objective saw."""
    folder = tmp_path_factory.mktemp("spied")
    file = spying(folder, schedules=SCHEDULES, train=WHOLE.replace("12", "23"), evaluate="{every: 7, batch_size: 5}")
    with for_a_module():
        run(file, folder / "run")
        return folder, passes()


def test_each_split_is_read_for_its_own_purpose(spied: tuple[Path, list[Any]]) -> None:
    folder, seen = spied
    training, evaluated = [p for p in seen if p.training], [p for p in seen if p.evaluating]
    assert len(training) + len(evaluated) == len(seen)
    ours, *others = (cut(folder / "store", split) for split in ("train", "validation", "test"))
    assert not set(ours) & {row for each in others for row in each}
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


def test_evaluation_is_in_eval_mode_without_gradients_and_training_is_not(spied: tuple[Path, list[Any]]) -> None:
    for passed in spied[1]:
        assert passed.gradients == passed.training != passed.evaluating


def test_training_follows_the_schedules_and_evaluation_has_their_end(spied: tuple[Path, list[Any]]) -> None:
    for passed in spied[1]:
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
        totals = {
            name: [sum(p.terms[name][part] for p in window) for part in (0, 1)]
            for name in ("generator", "discriminator")
        }
        for name, (total, count) in totals.items():
            assert record[f"{name}_loss"] == pytest.approx(total / count, rel=1e-5)
        weighted = sum(p.terms["discriminator"][2] * p.terms["discriminator"][0] for p in window)
        loss = record["generator_loss"] + weighted / totals["discriminator"][1]
        assert record["loss"] == pytest.approx(loss, rel=1e-5)
        assert record["tokens"] == step * 4 * 16
        assert record["flops"] == step * flops
        assert record["learning_rate"] == pytest.approx(5e-4 * (1 - (step - 1) / 23) * min(1.0, step / 3))
        assert record["skipped_steps"] == 0


def test_the_gradient_norm_is_the_mean_over_the_window(spied: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, _ = spied
    every = lines(run(folder / "tiny.yaml", tmp_path / "run", "train.log_every=1"), "train")
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
        loss = 0.0
        for name, weight in (("generator", 1.0), ("discriminator", 50.0)):
            mean = sum(p.terms[name][0] for p in window) / sum(p.terms[name][1] for p in window)
            assert record[f"{name}_loss"] == pytest.approx(mean, rel=1e-5)
            loss += weight * mean
        assert record["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("stop", [7, 22])
def test_the_test_is_evaluated_once_however_often_a_run_is_resumed(
    spied: tuple[Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    folder, _ = spied
    tested = set(cut(folder / "store", "test"))
    with monkeypatch.context() as patched:
        signalled(patched, signal.SIGTERM, stop)
        with pytest.raises(Exception, match=f"saved after step {stop}"):
            run(folder / "tiny.yaml", tmp_path / "run")
    execute.resume(tmp_path / "run", "cpu")
    execute.resume(tmp_path / "run", "cpu")
    read = [row for row in rows([p for p in passes() if p.evaluating]) if row in tested]
    assert len(read) == len(set(read)) == len(tested)
    assert [record["step"] for record in lines(tmp_path / "run", "test")] == [23]
    assert (tmp_path / "run" / "examples.json").is_file()


@pytest.mark.parametrize("stop", [6, 13])
def test_a_resume_inside_a_window_records_the_same(spied: tuple[Path, list[Any]], tmp_path: Path, stop: int) -> None:
    folder, _ = spied
    stop_at(stop, lambda: run(folder / "tiny.yaml", tmp_path / "run"), signal.SIGTERM)
    execute.resume(tmp_path / "run", "cpu")
    assert_same(folder / "run", tmp_path / "run")


POISONED = 6  # step 6 is in the second window, which ends at 10


def poisoned(folder: Path, policy: str, spoils_loss: bool = False, poison: int = POISONED) -> Path:
    return spying(
        folder,
        objective=f"{{type: spy, poison: {poison}, spoils_loss: {str(spoils_loss).lower()}}}",
        train=WHOLE.replace("}", f", on_non_finite: {policy}}}"),
        checkpoint="{every: 100}",
    )


@pytest.mark.parametrize("spoils_loss", [False, True])
def test_a_skipped_step_leaves_weights_and_optimizer_as_they_were(tmp_path: Path, spoils_loss: bool) -> None:
    file = poisoned(tmp_path, "skip", spoils_loss)
    kept = tmp_path / "kept"
    stop_at(POISONED + 1, lambda: run(file, kept, "checkpoint.every=6"))
    before, after = tensors(kept, POISONED), tensors(kept, POISONED + 1)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {float(after[name]) for name in after if name.startswith("optimizer.step.")} == {POISONED}
    passes()

    path = run(file, tmp_path / "run")
    seen = [p for p in passes() if p.training]
    assert {float(value) for name, value in tensors(path).items() if name.startswith("optimizer.step.")} == {11}
    records = lines(path, "train")
    assert [record["skipped_steps"] for record in records] == [0, 1, 1]
    window = [p for p in seen if 5 <= p.step < 10 and p.step != POISONED]
    for name in ("generator", "discriminator"):
        mean = sum(p.terms[name][0] for p in window) / sum(p.terms[name][1] for p in window)
        assert records[1][f"{name}_loss"] == pytest.approx(mean, rel=1e-5)
    assert records[1]["tokens"] == 10 * 4 * 16
    assert state(path)["skipped"] == 1
    assert all(np.isfinite(record[key]) for record in records for key in ("loss", "gradient_norm"))

    clean = run(file, tmp_path / "clean", "objective.poison=-1")
    assert lines(clean, "train")[0]["loss"] == records[0]["loss"]
    assert lines(clean, "train")[1]["loss"] != records[1]["loss"]


def test_a_skipped_step_is_counted_once_through_a_resume(tmp_path: Path) -> None:
    file = poisoned(tmp_path, "skip")
    whole = run(file, tmp_path / "whole")
    for stop in (7, 11):
        path = tmp_path / f"stopped at {stop}"
        stop_at(stop, partial(run, file, path))
        execute.resume(path, "cpu")
        assert_same(whole, path)
        assert [record["skipped_steps"] for record in lines(path, "train")] == [0, 1, 1]


@pytest.mark.parametrize("spoils_loss", [False, True])
def test_stop_ends_the_run_at_the_next_log_line(tmp_path: Path, spoils_loss: bool) -> None:
    file = poisoned(tmp_path, "stop", spoils_loss)
    path = tmp_path / "run"
    sentence = (
        r"^step 10: the loss or gradient of 1 of the steps .*, first that of step 7\. .* no weight is damaged\. "
        r".*on_non_finite: skip\. The newest intact checkpoint is that of step 5\. .*electra-lab replay .*run$"
    )
    with pytest.raises(DivergedError, match=sentence):
        run(file, path, "checkpoint.every=5")
    assert DivergedError.exit_code == 5
    for _ in range(2):
        assert [record["step"] for record in lines(path)] == [5, 6]
        assert [p.name for p in (path / "checkpoints").iterdir()] == ["step-00000005"]
        with pytest.raises(DivergedError, match=sentence):
            execute.resume(path, "cpu")


def test_under_stop_a_checkpoint_never_holds_what_has_diverged(tmp_path: Path) -> None:
    file = poisoned(tmp_path, "stop")
    path = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"^step 7: the loss or gradient of 1 of the steps"):
        run(file, path, "checkpoint.every=1", "checkpoint.keep=20")
    assert max(p.name for p in (path / "checkpoints").iterdir()) == "step-00000006"
    assert all(torch.isfinite(value).all() for value in tensors(path).values())


def test_a_learning_rate_that_is_far_too_high_diverges(tmp_path: Path) -> None:
    file = experiment(tmp_path, schedules="{learning_rate: {warmup_steps: 0}}")
    with pytest.raises(DivergedError, match="was not finite"):
        run(file, tmp_path / "run", "train.learning_rate=1.0e+30", "train.clip_norm=1.0e+30")


def test_a_loss_scale_is_kept_through_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale.__init__, "__defaults__", (2.0**27, 0, 0))
    monkeypatch.setattr(scaling, "CALM", 2)
    file = experiment(tmp_path, train=WHOLE.replace("fp32", "fp16"), checkpoint="{every: 100}")
    whole = run(file, tmp_path / "whole")
    records = lines(whole, "train")
    assert 0 < records[0]["skipped_steps"] < 12
    assert len({record["loss_scale"] for record in records}) > 1
    for stop in (1, 7):
        path = tmp_path / f"stopped at {stop}"
        stop_at(stop, partial(run, file, path))
        assert state(path)["loss_scale"]["scale"] < 2.0**27
        execute.resume(path, "cpu")
        assert_same(whole, path)
        assert state(whole)["loss_scale"] == state(path)["loss_scale"]
