"""Two stages: which network learns and runs, copied weights, and stops anywhere around the boundary."""

import itertools
import signal
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.jobs.pretraining import execute
from electra_lab.objectives.two_stage import take_over
from electra_lab.optimizers.adamw import AdamW
from electra_lab.training.loop import Run
from electra_lab.training.random import Streams
from electra_lab.training.step import Learner, training_step
from registry.errors import Interrupted
from tests.electra_lab.jobs.pretraining.tiny import assert_same, for_a_module, lines, run, signalled
from tests.electra_lab.objectives.tiny import berts, sentences
from tests.helpers import write_experiment

FIRST = 3  # steps of the first stage
PARTS = "query", "key", "value", "attended", "attention_norm", "expand", "contract", "output_norm"
LAYER = [f"backbone.layers.0.{part}.{kind}" for part, kind in itertools.product(PARTS, ("weight", "bias"))]
EMBEDDINGS = [f"embeddings.{part}.weight" for part in ("tokens", "positions", "segments", "norm")]
EMBEDDINGS.append("embeddings.norm.bias")


class Training:
    def __init__(self, **options: Any) -> None:
        self.objective = berts("two_stage", generator_steps=FIRST, **options).train()
        named = list(self.objective.named_parameters())
        run = Run(Learner(self.objective), AdamW(named, 1e-2, weight_decay=0.1))
        self.learner, self.optimizer = run.learner, run.optimizer

    def step(self, number: int, rate: float = 1.0) -> Any:
        return training_step(
            self.learner, self.optimizer, sentences(), seed=0, step=number, rate=rate, clip_norm=1.0,
            micro_batch_size=3, precision="fp32",
        )  # fmt: skip

    def foretold(self) -> dict[str, int]:
        batch = sentences()
        return {n: int(c) for n, c in self.objective.counts(batch, Streams.of(0, 0, batch.example_ids)).items()}

    def weights(self, network: str) -> dict[str, torch.Tensor]:
        return {n: p.detach().clone() for n, p in getattr(self.objective, network).named_parameters()}

    def with_moments(self, network: str) -> list[str]:
        parameters = getattr(self.objective, network).named_parameters()
        return [name for name, p in parameters if self.optimizer.state.get(p)]


def same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[str]:
    assert before.keys() == after.keys()
    return [name for name in before if torch.equal(before[name], after[name])]


def test_in_the_first_stage_the_discriminator_neither_runs_nor_learns() -> None:
    training, ran = Training(), []
    training.objective.discriminator.backbone.register_forward_hook(lambda *_: ran.append(1))
    generator, discriminator = training.weights("generator"), training.weights("discriminator")
    for number in range(FIRST):
        result = training.step(number)
        assert result.counts == training.foretold() == {"generator": 6 * 2, "discriminator": 0}
    assert not ran
    assert training.with_moments("discriminator") == []
    assert same(discriminator, training.weights("discriminator")) == list(discriminator)
    assert same(generator, training.weights("generator")) == []


def test_in_the_second_stage_the_generator_changes_by_no_bit() -> None:
    """Nor do its moments, so that weight decay and momentum have no effect; and nothing is kept for a backward pass."""
    training, kept = Training(dropout=0.1), []
    for number in range(FIRST):
        training.step(number)
    generator, discriminator = training.weights("generator"), training.weights("discriminator")
    parameters = list(training.objective.generator.parameters())
    moments = deepcopy([training.optimizer.state[parameter] for parameter in parameters])
    training.objective.generator.backbone.register_forward_hook(lambda *call: kept.append(call[2].requires_grad))
    for number in range(FIRST, FIRST + 2):
        result = training.step(number)
        assert result.counts == training.foretold() == {"generator": 0, "discriminator": 6 * 15}
        assert not any(module.training for module in training.objective.generator.modules())
        assert all(module.training for module in training.objective.discriminator.modules())
        training.objective.eval()
        training.objective.train()  # as an evaluation does
        assert not any(module.training for module in training.objective.generator.modules())
    assert kept == [False] * 4
    assert same(generator, training.weights("generator")) == list(generator)
    for parameter, before in zip(parameters, moments, strict=True):
        assert before.keys() == training.optimizer.state[parameter].keys() != set()
        assert all(torch.equal(before[key], value) for key, value in training.optimizer.state[parameter].items())
    assert same(discriminator, training.weights("discriminator")) == []


@pytest.mark.parametrize(("equal", "taken"), [(True, EMBEDDINGS + LAYER), (False, EMBEDDINGS)])
def test_weights_are_taken_over_at_the_boundary_where_name_and_shape_agree(equal: bool, taken: list[str]) -> None:
    """Exactly at the boundary, once, and without heads. A rate of 0 shows the weights at the beginning of a step."""
    training = Training(equal=equal)
    for number in range(FIRST):
        training.step(number)
        assert not same_as_generator(training)
    before = training.weights("discriminator")
    training.step(FIRST, rate=0.0)
    assert sorted(same_as_generator(training)) == sorted(taken)
    assert sorted(same(before, training.weights("discriminator"))) == sorted(set(before) - set(taken))
    with torch.no_grad():
        training.objective.discriminator.embeddings.tokens.weight += 1
    training.step(FIRST + 1, rate=0.0)
    assert sorted(same_as_generator(training)) == sorted(set(taken) - {"embeddings.tokens.weight"})


def same_as_generator(training: Training) -> list[str]:
    given = training.weights("generator")
    return [n for n, p in training.weights("discriminator").items() if n in given and torch.equal(p, given[n])]


def test_take_over_copies_and_says_what() -> None:
    source, target = (nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, n)}) for n in (3, 4))
    assert take_over(target, source) == ["a.weight", "a.bias"]
    assert torch.equal(target["a"].weight, source["a"].weight)
    assert target["a"].weight is not source["a"].weight


# Real runs

TRAIN = "{steps: 6, batch_size: 4, micro_batch_size: 2, precision: fp32, log_every: 2}"
WEIGHTS = {"generator": 3.0, "discriminator": 50.0}


def experiment(folder: Path) -> Path:
    """With dropout; log lines and evaluations before, across and after the boundary; a checkpoint after each step."""
    return write_experiment(
        folder,
        data=f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}",
        embedding="{dim: 8, max_length: 16, tie: none}",
        objective=f"{{type: two_stage, generator_steps: {FIRST}, generator_weight: 3.0}}",
        train=TRAIN,
        evaluate="{every: 3, examples: 0}",
        checkpoint="{every: 1, keep: 9}",
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with for_a_module():
        return run(experiment(folder), folder / "whole")


def test_a_run_trains_one_network_after_the_other(whole: Path) -> None:
    # Steps 1-2, 3-4 and 5-6: a term that counted nothing has no mean.
    told = [{"generator"}, {"generator", "discriminator"}, {"discriminator"}]
    records = [record for record in lines(whole) if record["split"] == "train"]
    for record, names in zip(records, told, strict=True):
        assert {name for name in WEIGHTS if f"{name}_loss" in record} == names
        weighted = [weight * record.get(f"{name}_loss", 0.0) for name, weight in WEIGHTS.items()]
        assert record["loss"] == pytest.approx(sum(weighted))
    first, second = (r for r in lines(whole) if r["split"] == "validation")
    assert first["generator_loss"] == second["generator_loss"]  # the generator is frozen in between
    assert first["discriminator_loss"] != second["discriminator_loss"]


@pytest.mark.parametrize("step", range(FIRST - 1, FIRST + 2))
def test_stopped_around_the_boundary_and_resumed_is_as_if_never_stopped(whole, tmp_path, monkeypatch, step) -> None:
    file, stopped = experiment(tmp_path), tmp_path / "stopped"
    with monkeypatch.context() as patched:
        signalled(patched, signal.SIGINT, step)
        with pytest.raises(Interrupted):
            run(file, stopped)
    execute.resume(stopped, "cpu")
    assert_same(whole, stopped)
