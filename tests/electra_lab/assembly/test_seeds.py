"""With equal weights, all random draws differ between two seeds and between two steps, and nothing else does."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import Experiment, assemble
from electra_lab.config.load import load
from electra_lab.training.loop import Training, train
from tests.electra_lab.jobs.pretraining.tiny import for_a_module, passes, spying

# Each draws from torch's own generator in its own way: dropout, LSH rotations alone, features that are redrawn.
BACKBONES = {
    "dropout": "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.5}",
    "rotations": "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, hashes: 1, dropout: 0.0}",
    "features": "{type: performer, dim: 16, depth: 1, heads: 2, features: 8, redraw_every: 1, dropout: 0.0}",
}
DRAWN = ("tokens", "inputs", "drawn", "hidden")


def assembled(folder: Path, backbone: str, seed: int, *overrides: str) -> Experiment:
    file = spying(
        folder, discriminator=BACKBONES[backbone], embedding="{dim: 8, max_length: 16, dropout: 0.0}",
        evaluate="{every: 1, examples: 0}", train="{steps: 3, batch_size: 4, precision: fp32}",
    )  # fmt: skip
    loaded = load(file, [f"seed={seed}", *overrides])
    return assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))


def at_rest(made: Experiment) -> tuple[list[Any], list[Any]]:
    """Train at a learning rate of 0; returns the objective's passes in training and in evaluation."""
    passes()
    settings = replace(made.settings, rate=lambda *_: 0.0)
    before = {name: p.detach().clone() for name, p in made.run.learner.objective.named_parameters()}
    rows = made.validation  # evaluated after each step, and once more at the end
    held_out = {"validation": rows, "test": rows}
    for _ in train(Training(made.run, settings, made.train, held_out, made.accumulate, made.device)):
        pass
    for name, parameter in made.run.learner.objective.named_parameters():
        assert torch.equal(parameter, before[name]), "weights must not change here"
    found = passes()
    return [p for p in found if p.training], [p for p in found if p.evaluating]


@pytest.fixture(params=BACKBONES, scope="module")
def two_seeds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs of two seeds, and of the first once more, all with the first seed's weights."""
    folder = tmp_path_factory.mktemp("seeds")
    runs = []
    weights: list[torch.Tensor] = []
    for seed in (0, 1, 0):
        with for_a_module():
            made = assembled(folder, request.param, seed)
            own = list(made.run.learner.objective.parameters())
            weights = weights or [p.detach().clone() for p in own]
            for parameter, value in zip(own, weights, strict=True):
                parameter.data.copy_(value)
            runs.append(at_rest(made))
    return SimpleNamespace(first=runs[0], other=runs[1], again=runs[2], name=request.param)


def same(one: Any, two: Any, what: str) -> bool:
    return torch.equal(getattr(one, what), getattr(two, what))


@pytest.mark.parametrize("what", DRAWN)
def test_seeds_and_steps_differ_in_training(two_seeds: Any, what: str) -> None:
    (first, _), (other, _), (again, _) = two_seeds.first, two_seeds.other, two_seeds.again
    assert [p.step for p in first] == [0, 1, 2]
    for step in range(3):
        assert not same(first[step], other[step], what), f"step {step}: two seeds agree"
        assert same(first[step], again[step], what), f"step {step}: one seed disagrees with itself"
    for one, two in ((0, 1), (1, 2), (0, 2)):
        assert not same(first[one], first[two], what), f"steps {one} and {two} agree"


def test_evaluation_depends_on_the_seed_and_not_on_the_step(two_seeds: Any) -> None:
    """Rows and states depend on neither, except that a Performer is evaluated with the features it was trained with."""
    (_, first), (_, other), (_, again) = two_seeds.first, two_seeds.other, two_seeds.again
    batches = len(first) // 4
    for what in DRAWN if two_seeds.name != "features" else DRAWN[:2]:
        for place in range(batches):
            one = first[place]
            assert same(one, first[place + batches], what), f"{what}: two steps disagree"
            assert same(one, first[place + 2 * batches], what), f"{what}: two steps disagree"
            assert same(one, again[place], what), f"{what}: one seed disagrees with itself"
        differs = any(not same(one, two, what) for one, two in zip(first, other, strict=True))
        assert differs == (what in ("inputs", "drawn")), what


def test_training_and_evaluation_do_not_share_their_masks(tmp_path: Path) -> None:
    made = assembled(tmp_path, "dropout", 0)
    made = replace(made, train=made.validation)
    training, evaluated = at_rest(made)
    masks = {tuple(row.tolist()): inputs for p in evaluated for row, inputs in zip(p.tokens, p.inputs, strict=True)}
    rows = [row for p in training for row in zip(p.tokens, p.inputs, strict=True)]
    same = [torch.equal(inputs, masks[tuple(row.tolist())]) for row, inputs in rows]
    assert same
    assert not all(same)


def test_micro_batches_of_one_step_differ_in_dropout(tmp_path: Path) -> None:
    training, _ = at_rest(assembled(tmp_path, "dropout", 0, "train.micro_batch_size=2"))
    first, second = training[:2]
    assert len(first.tokens) == 2
    assert not torch.equal(first.hidden, second.hidden)
