"""Metrics of held-out text against plain computations; outputs of rows in the form that tasks receive."""

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from electra_lab.assembly.experiment import Experiment
from electra_lab.training.evaluation import Collected, Evaluation, evaluate
from electra_lab.training.random import EVALUATION, Streams
from electra_lab.training.scheduled import Number, Schedules
from electra_lab.training.step import Learner
from registry import Batch, Losses, Results, Row, Term
from tests.electra_lab.training.tiny import CPU, experiment


@pytest.fixture
def made(tmp_path: Path) -> Experiment:
    made = experiment(tmp_path)
    for parameter in made.run.learner.objective.parameters():  # larger weights, so that predictions differ
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return made


def evaluation(made: Experiment, *, seed: int = 0, batch_size: int = 4, examples: int = 0) -> Evaluation:
    settings: Any = {"seed": seed, "batch_size": batch_size, "precision": "fp32", "device": CPU, "examples": examples}
    return evaluate(made.run.learner, made.test, made.accumulate, **settings)


def metrics(made: Experiment, **settings: int) -> dict[str, float]:
    return evaluation(made, **settings).metrics


def test_metrics_are_those_of_the_whole_split(made: Experiment) -> None:
    """Row by row, over all maskable positions, with scikit-learn; test_metrics.py tests all metrics."""
    labels, scores, surprise, nats, unigram = [], [], [], [], []
    counts = torch.as_tensor(made.store.counts).double() + 1
    counts[list(made.vocabulary.special_ids)] = 0  # separators never count
    objective: Any = made.run.learner.objective.eval()
    for batch in made.test.in_order(1, CPU):
        with torch.no_grad():
            losses = objective(batch, Streams.of(0, EVALUATION, batch.example_ids))
        asked, seen = losses.predictions["generator"], losses.detection
        maskable = batch.attention_mask & ~made.vocabulary.is_special[batch.tokens]
        labels += seen.replaced[maskable].tolist()
        scores += seen.logits[maskable].tolist()
        surprise += (-counts[seen.inputs[maskable]].log()).tolist()
        nats += asked.loss[asked.valid].tolist()
        hidden = batch.tokens.gather(1, asked.positions)[asked.valid]
        unigram += (-(counts[hidden] / counts.sum()).log()).tolist()
    found = metrics(made)
    expected = {
        "discriminator_auc": roc_auc_score(labels, scores), "unigram_auc": roc_auc_score(labels, surprise),
        "replaced_share": np.mean(labels), "generator_loss": np.mean(nats), "unigram_entropy": np.mean(unigram),
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert found["loss"] == pytest.approx(found["generator_loss"] + 50 * found["discriminator_loss"])


def test_gains_are_over_the_documents_of_the_split(made: Experiment) -> None:
    """Every document of the test with a maskable token, for any batch size."""
    found = metrics(made)
    assert found["discriminator_auc_gain_documents"] == made.store.documents["test"]
    auc_gain = found["discriminator_auc"] - max(found["unigram_auc"], 0.5)
    loss_gain = found["unigram_mask_entropy"] - found["generator_mask_loss"]
    assert found["discriminator_auc_gain"] == pytest.approx(auc_gain, abs=1e-12)
    assert found["generator_mask_loss_gain"] == pytest.approx(loss_gain)
    assert found["discriminator_auc_gain_low"] < found["discriminator_auc_gain"] < found["discriminator_auc_gain_high"]


def test_only_the_seed_moves_them(made: Experiment) -> None:
    once = metrics(made)
    torch.manual_seed(99)
    assert metrics(made) == once
    for batch_size in (1, 3, 100):
        assert metrics(made, batch_size=batch_size) == pytest.approx(once, rel=1e-5)
    assert metrics(made, seed=1) != once


def test_weights_that_are_not_finite_give_nan_and_no_exception(made: Experiment) -> None:
    made.run.learner.objective.discriminator.heads["replaced"].out.bias.data.fill_(float("nan"))
    assert math.isnan(metrics(made)["discriminator_auc"])


class Parts(torch.nn.Module):
    """Two terms with known numbers per row, and a scheduled weight."""

    weight = torch.tensor(0.0)

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[bool, bool, list[int]]] = []

    def forward(self, batch: Batch, rng: Any) -> Losses:
        self.given.append((self.training, torch.is_grad_enabled(), batch.example_ids.tolist()))
        number = batch.example_ids.float()
        some = number >= 2
        every = Term(number.sum(), torch.tensor(len(batch)), 2.0)
        return Losses({"all": every, "some": Term((number * some).sum(), some.sum(), self.weight)})


class Five:
    def __len__(self) -> int:
        return 5

    def example_ids(self, places: list[int]) -> list[int]:
        return places

    def in_order(self, size: int, device: torch.device, *, part: slice = slice(None)) -> Any:
        for start in range(0, 5, size)[part]:
            ids = torch.arange(start, min(start + size, 5))
            yield Batch(ids[:, None], ids[:, None] >= 0, ids[:, None] * 0, ids)


class Listens:
    def __init__(self, show: Any) -> None:
        self.show, self.ids, self.metrics = show, list[int](), {}

    def update(self, batch: Batch, losses: Losses) -> None:
        self.ids += batch.example_ids.tolist()

    def values(self) -> dict[str, float]:
        return {"mine": float(sum(self.ids)), "loss": -1.0}

    def examples(self) -> list[Any]:
        return [sorted(self.show)]


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_means_are_over_all_rows_and_the_objective_has_the_last_word(size: int) -> None:
    """Means by hand over 0..4 and 2..4, for any batches; each row once; the accumulator's values take precedence."""
    parts = Parts()
    rise = Number(lambda progress: 3.0 * progress, lambda number: setattr(parts, "weight", number))
    learner = Learner(parts.train(), Schedules([rise], 10))
    settings: Any = {"seed": 0, "batch_size": size, "precision": "fp32", "device": CPU}
    found = evaluate(learner, Five(), Listens, **settings, examples=2)
    assert found.metrics == {"loss": -1.0, "all_loss": 2.0, "some_loss": 3.0, "mine": 10.0}
    assert found.examples == [[1, 3]]
    assert found.tokens == 5
    assert [number for _, _, ids in parts.given for number in ids] == [0, 1, 2, 3, 4]
    assert {(mode, gradients) for mode, gradients, _ in parts.given} == {(False, False)}
    assert parts.training

    class Silent(Listens):
        def values(self) -> dict[str, float]:
            return {}

    found = evaluate(learner, Five(), Silent, **settings)
    assert found.metrics["loss"] == pytest.approx(2.0 * 2.0 + 3.0 * 3.0)  # the weight at the end of its schedule


class Keeping:
    metrics: ClassVar[dict[str, Any]] = {}

    def results(self, examples: Any, rows: Any, outputs: Any) -> Results:
        self.given = outputs
        return Results({}, [{"id": example, "prediction": 0} for example in examples])


def test_each_example_has_the_outputs_of_its_rows_without_padding() -> None:
    """Rows come in any order, here the longest first; an output per row of the batch's length is not cut."""
    task = Keeping()
    short, long, rest, last = (Row([7] * size, [0] * size, {}) for size in (3, 5, 2, 4))
    rows = [[short], [long, rest], [last]]
    halves = [Collected(task, ["a", "b", "c"], rows, {"tags"}) for _ in range(2)]
    for collected, numbers in zip(halves, ([1, 3], [0, 2]), strict=True):
        ids, tokens = torch.tensor(numbers), torch.zeros(2, 6, dtype=torch.long)
        numbered = 10 * ids.unsqueeze(1) + torch.arange(6)
        collected.update(
            Batch(tokens, tokens == 0, tokens, ids), Losses({}, outputs={"tags": numbered, "row": numbered})
        )
    halves[0].merge(halves[1])
    assert halves[0].values() == {}
    expected = [[[0, 1, 2]], [[10, 11, 12, 13, 14], [20, 21]], [[30, 31, 32, 33]]]
    for outputs, tags in zip(task.given, expected, strict=True):
        assert [output["tags"].tolist() for output in outputs] == tags
    assert {len(output["row"]) for outputs in task.given for output in outputs} == {6}
