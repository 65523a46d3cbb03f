"""Costs against formulas worked out by hand, and the steps that a budget buys."""

import math
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from electra_lab.assembly.budget import budgeted_steps, count_parameters, largest_mask_prob, training_flops
from electra_lab.assembly.build import Built, sketch
from electra_lab.config.load import load
from electra_lab.model.flops import MATRIX_PRODUCTS, Convention
from registry import Flops, Objective
from registry.errors import ConfigError
from tests.helpers import line_of, write_experiment

BATCH, LENGTH, WORDS, TABLE = 4, 16, 200, 8  # rows, positions, vocabulary, embedding width
WIDE, NARROW = (16, 2), (8, 2)  # width and depth of discriminator and generator
NO_WARM_UP = "{learning_rate: {warmup_steps: 0}}"


def sketched(folder: Path, **sections: str) -> Built:
    sections = {
        "embedding": f"{{dim: {TABLE}, max_length: {LENGTH}, tie: none}}",
        "discriminator": "{type: bert, dim: 16, depth: 2, heads: 2}",
        "train": f"{{steps: 5, batch_size: {BATCH}, precision: fp32}}",
        "schedules": NO_WARM_UP,
        **sections,
    }
    return sketch(load(write_experiment(folder, **sections)))


def body(width: int, depth: int, length: int = LENGTH) -> int:
    """BERT's encoder over a row, two operations a multiply-add: projections, attention, feed-forward of four widths."""
    projections, attention, feed_forward = 4 * 2 * length * width**2, 2 * 2 * length**2 * width, 2 * 2 * 4 * width**2
    project = 2 * length * TABLE * width if width != TABLE else 0
    return depth * (projections + attention + feed_forward * length) + project


def words(width: int, slots: int) -> int:
    """A head over the vocabulary: a dense layer to the embedding's width, then the table, at `slots` positions."""
    return 2 * slots * (width * TABLE + TABLE * WORDS)


def detection(width: int) -> int:
    return 2 * LENGTH * (width * width + width)


SLOTS = math.ceil(0.15 * LENGTH)
GENERATOR = body(*NARROW) + words(8, SLOTS)
# The table is as wide as both towers.
TWO_TOWERS = 2 * body(NARROW[0] // 2, NARROW[1]) - 2 * (2 * LENGTH * TABLE * NARROW[0] // 2)
DETECTOR = body(*WIDE) + detection(16)


@pytest.mark.parametrize(
    ("sections", "at_first", "later"),
    [
        ({"objective": "{type: electra}"}, None, 3 * GENERATOR + 3 * DETECTOR),
        ({"objective": "{type: two_stage, generator_steps: 2}"}, 3 * GENERATOR, GENERATOR + 3 * DETECTOR),
        ({"objective": "{type: frozen_generator, run: earlier}"}, None, GENERATOR + 3 * DETECTOR),
        ({"objective": "{type: all_tokens_mlm}"}, None, 3 * GENERATOR + 3 * (body(*WIDE) + words(16, LENGTH))),
        ({"objective": "{type: electric}", "generator": "{type: two_towers, scale: 0.5}"},
         None, 3 * (TWO_TOWERS + words(8, LENGTH)) + 3 * DETECTOR),
        ({"objective": "{type: mlm}", "generator": "null", "sampler": "null"},
         None, 3 * (body(*WIDE) + words(16, SLOTS))),
        ({"objective": "{type: electra}", "generator": "{type: unigram}"}, None, 3 * DETECTOR),
        ({"objective": "{type: electra}",
          "schedules": NO_WARM_UP[:-1] + ", masking.mask_prob: {type: linear, start: 0.1, end: 0.5}}"},
         None, 3 * (body(*NARROW) + words(8, LENGTH // 2)) + 3 * DETECTOR),
    ],
    ids=["electra", "two_stage", "frozen_generator", "all_tokens_mlm", "electric", "mlm",
         "fixed generator", "scheduled mask_prob"],
)  # fmt: skip
def test_a_step_costs_what_the_formula_says(tmp_path, sections, at_first, later) -> None:
    flops = sketched(tmp_path, **sections).flops
    assert flops.per_step == BATCH * later
    assert (flops.first, flops.at_first) == ((2, BATCH * at_first) if at_first else (0, 0))


def test_a_length_that_is_padded_for_the_backbone_costs_its_padding(tmp_path: Path) -> None:
    """Torch counts the same for a reformer with rows of 10 padded to 16 and with rows of 16, except for the head."""
    reformer = "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 8, hashes: 1}"
    costs = []
    for length in (10, 16):
        data = f"{{sequence_length: {length}}}"
        masking = "{type: replace_prob, mask_prob: 1.0e-9}"  # one slot at any length
        made = sketched(tmp_path, discriminator=reformer, data=data, masking=masking)
        costs.append(made.flops.per_step // BATCH // 3)
    assert costs[1] - costs[0] == 2 * 6 * (16 * 16 + 16)


STAGES = Flops(per_step=10, first=3, at_first=7)  # three steps at 7 and then each at 10 cost 7, 14, 21, 31, 41


@pytest.mark.parametrize(
    ("budget", "steps", "flops"),
    [("steps: 7", 7, Flops(10)), ("tokens: 640", 10, Flops(10)), ("tokens: 703.9", 10, Flops(10)),
     ("tokens: 64", 1, Flops(10)), ("flops: 100", 10, Flops(10)), ("flops: 109.9", 10, Flops(10)),
     ("flops: 10.0", 1, Flops(10)), ("paper_flops: 100", 25, Flops(10)), ("paper_flops: 7.9", 1, Flops(10)),
     ("flops: 7", 1, STAGES), ("flops: 20", 2, STAGES), ("flops: 21", 3, STAGES), ("flops: 30", 3, STAGES),
     ("flops: 31", 4, STAGES), ("flops: 41", 5, STAGES)],
)  # fmt: skip
def test_a_budget_buys_whole_steps(tmp_path: Path, budget: str, steps: int, flops: Flops) -> None:
    """64 tokens a step; 10 FLOPs, or 4 as the paper counts."""
    loaded = load(write_experiment(tmp_path, train=f"{{{budget}, batch_size: {BATCH}}}", schedules=NO_WARM_UP))
    assert budgeted_steps(loaded, flops, Flops(4)) == steps


@pytest.mark.parametrize(
    ("budget", "cost"), [("tokens: 63", "63 is .* 64"), ("flops: 6.5", "6.5 is .* 7"), ("paper_flops: 3", "3 is .* 4")]
)
def test_too_little_for_one_step_is_refused_with_its_price(tmp_path: Path, budget: str, cost: str) -> None:
    file = write_experiment(tmp_path, train=f"{{{budget}, batch_size: {BATCH}}}", schedules=NO_WARM_UP)
    place = f"{file}:{line_of('train')}: train.{budget.split(':')[0]}"
    with pytest.raises(ConfigError, match=rf"^{place}: {cost}\.$"):
        budgeted_steps(load(file), STAGES, Flops(4))


def test_parameters_are_counted_once_where_they_are_shared() -> None:
    """By hand: 6 and 12, of which 4 are shared."""
    one = nn.Linear(2, 2)
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    other[0].weight = one.weight
    counted = count_parameters({"generator": one, "discriminator": other})
    assert counted == {"generator": 6, "discriminator": 12, "shared": 4, "total": 14}
    assert count_parameters({"discriminator": one}) == {"discriminator": 6, "shared": 0, "total": 6}


@pytest.mark.parametrize(
    ("schedule", "largest"),
    [(None, 0.15), ("{type: linear, start: 0.1, end: 0.4}", 0.4), ("{type: linear, start: 0.4, end: 0.1}", 0.4),
     ("{type: hill}", 0.6)],
)  # fmt: skip
def test_slots_are_for_the_largest_share_of_the_whole_training(tmp_path, schedule, largest) -> None:
    (tmp_path / "hill.py").write_text(
        "from registry import schedules\n\n\n@schedules.register('hill')\ndef hill(progress, /) -> float:\n"
        "    'Up and down.'\n    return 0.1 + 2.0 * progress * (1 - progress)\n"
    )
    schedules = NO_WARM_UP if schedule is None else f"{{masking.mask_prob: {schedule}}}"
    loaded = load(write_experiment(tmp_path, imports="[hill.py]", schedules=schedules, train="{steps: 20000}"))
    assert largest_mask_prob(loaded.config) == pytest.approx(largest)


def test_an_objective_may_price_itself(tmp_path: Path) -> None:
    """It asks for the price of a network by name, with or without backward pass; a missing network costs nothing."""
    made = sketched(tmp_path)
    asked: list[Any] = []

    class Priced(Objective, nn.Module):
        def flops(self, price: Any) -> Flops:
            asked.append((price("generator", learns=False), price("discriminator"), price("critic")))
            asked.append(price("discriminator", learns=False, everywhere=True))
            return Flops(5, 1, 2)

    file = tmp_path / "tiny.yaml"
    assert training_flops(Priced(), made.networks, load(file).config, MATRIX_PRODUCTS) == Flops(5, 1, 2)
    assert asked == [(BATCH * GENERATOR, 3 * BATCH * DETECTOR, 0), BATCH * DETECTOR]
    once = Convention(lambda network, length, masked, _, rows: rows * (100.4 * length + masked), backward=1)
    assert training_flops(Priced(), made.networks, load(file).config, once) == Flops(5, 1, 2)
    row, everywhere = 100.4 * LENGTH + SLOTS, 101.4 * LENGTH
    assert asked[2:] == [(round(BATCH * row), round(2 * BATCH * row), 0), round(BATCH * everywhere)]
