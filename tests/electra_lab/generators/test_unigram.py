"""Generators that are not networks: their draws, and where they are allowed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble, check
from electra_lab.config.load import load
from electra_lab.testing import chi_square_p, vocabulary
from electra_lab.training.evaluation import evaluate
from electra_lab.training.random import Streams
from registry import Vocabulary, generators, samplers
from registry.errors import ConfigError
from tests.helpers import line_of, write_experiment

COUNTS = torch.tensor([9, 9, 9, 9, 9, 99, 49, 0, 24, 3])
WORDS: Vocabulary = replace(vocabulary(10), counts=COUNTS)


def drawn(generator: nn.Module, rows: int = 20_000) -> torch.Tensor:
    tokens = torch.full((rows, 3), 6)
    hidden = generator.hidden(tokens, tokens > 0, tokens * 0)
    logits = generator.token_logits(hidden, torch.ones(rows, 1, dtype=torch.long))
    assert logits.shape == (rows, 1, 10)
    ids = samplers.get("temperature").component(logits.flatten(0, 1), Streams.of(0, 0, torch.arange(rows))("sampling"))
    return torch.bincount(ids, minlength=10).double()


@pytest.mark.parametrize(
    ("name", "options", "weights"),
    [
        ("unigram", {}, [0, 10, 0, 0, 0, 100, 50, 1, 25, 4]),
        ("unigram", {"power": 0.5}, [0, 10**0.5, 0, 0, 0, 10, 50**0.5, 1, 5, 2]),
        ("uniform", {}, [0, 1, 0, 0, 0, 1, 1, 1, 1, 1]),
    ],
)
def test_what_is_drawn(name: str, options: dict[str, float], weights: list[float]) -> None:
    """By powers of the add-one frequencies; special tokens are never drawn, and [UNK], id 1, is an ordinary token."""
    shares = torch.tensor(weights, dtype=torch.float64)
    counts = drawn(generators.get(name).component(WORDS, **options))
    assert counts[shares == 0].sum() == 0
    assert chi_square_p(counts, shares / shares.sum()) > 1e-6


def test_every_component_is_tested_and_none_has_anything_to_learn_or_to_save() -> None:
    assert generators.names() == ["uniform", "unigram"]
    for name in generators.names():
        generator = generators.get(name).component(WORDS)
        assert not list(generator.parameters())
        assert not generator.state_dict()


def experiment(folder: Path, **sections: str):
    loaded = load(write_experiment(folder, data="{sequence_length: 16, held_out: 0.3, store: store}", **sections))
    check(loaded)
    return assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))


def test_its_loss_is_the_entropy_that_is_reported_with_it(tmp_path: Path) -> None:
    made = experiment(tmp_path, generator="{type: unigram}")
    found = evaluate(
        made.run.learner, made.test, made.accumulate, seed=0, batch_size=4, precision="fp32", device=made.device
    ).metrics
    assert found["generator_loss"] == pytest.approx(found["unigram_entropy"], rel=1e-6)
    assert made.parameters["generator"] == made.parameters["shared"] == 0
    assert made.parameters["total"] == made.parameters["discriminator"]


def test_it_costs_nothing(tmp_path: Path) -> None:
    with_network = experiment(tmp_path / "a", generator="{scale: 1.0}")
    without = experiment(tmp_path / "b", generator="{type: uniform}")
    assert 0 < without.settings.flops.per_step < 0.6 * with_network.settings.flops.per_step


@pytest.mark.parametrize(
    ("generator", "objective", "reason"),
    [
        ("{type: unigram, powr: 1}", "electra", "powr: unknown parameter. Did you mean 'power'?"),
        ("{type: uniform, dim: 8}", "electra", "dim: unknown parameter."),
        ("{type: unigram}", "adversarial", "type: adversarial needs a network as generator."),
    ],
)
def test_where_it_may_not_stand(tmp_path: Path, generator: str, objective: str, reason: str) -> None:
    file = write_experiment(tmp_path, generator=generator, objective=f"{{type: {objective}}}")
    with pytest.raises(ConfigError) as refused:
        check(load(file))
    assert str(refused.value).startswith(f"{file}:{line_of('generator')}: generator.{reason}")


def test_label_smoothing_stays_finite(tmp_path: Path) -> None:
    objective = "{type: electra, generator_smoothing: 0.1}"
    made = experiment(tmp_path, generator="{type: unigram}", objective=objective)
    batch = made.train.training_batch(0, 0, 2, torch.device("cpu"))
    assert made.run.learner.objective(batch, Streams.of(0, 0, batch.example_ids)).terms["generator"].sum.isfinite()
