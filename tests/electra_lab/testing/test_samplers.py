"""The laws of samplers find mistakes: each one by the law for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from electra_lab.testing import SamplerContract
from electra_lab.testing.samplers import assert_follows
from registry import samplers
from tests.electra_lab.testing.hold import hold

Draw = Callable[[Tensor, Any], Tensor]


def gumbel(logits: Tensor, rng: Any) -> Tensor:
    return (logits - rng.uniform(*logits.shape).log().neg().log()).argmax(-1)


def suite(draw: Draw, **changed: Any) -> SamplerContract:
    return type("Suite", (SamplerContract,), {"name": "mine", "component": lambda _: draw, **changed})()


def in_place_of_the_batch(logits: Tensor, rng: Any) -> Tensor:
    """Draws depend on the row's place in the batch."""
    return (gumbel(logits, rng) + torch.arange(len(logits))) % (logits.shape[-1] - 5) + 5


# fmt: off
MISTAKES: dict[str, tuple[Draw, str, str]] = {
    "a special id": (lambda logits, rng: gumbel(logits.nan_to_num(neginf=9.0), rng), "draws_are_ordinary_ids",
                     "a special id was drawn"),
    "an id above": (lambda logits, rng: gumbel(logits, rng) + 99, "draws_are_ordinary_ids", "ids outside 0 to"),
    "an id below": (lambda logits, rng: -1 - gumbel(logits, rng), "draws_are_ordinary_ids", "ids outside 0 to"),
    "another type": (lambda logits, rng: gumbel(logits, rng).int(), "draws_are_ordinary_ids", "int64"),
    "another shape": (lambda logits, rng: gumbel(logits, rng)[:1], "draws_are_ordinary_ids", "shape"),
    "its own generator": (lambda logits, rng: gumbel(logits, type("R", (), {"uniform": torch.rand})),
                          "draws_depend_on_the_random_numbers_alone", "gave other draws"),
    "the place in the batch": (in_place_of_the_batch, "draws_depend_on_the_random_numbers_alone", "half a batch"),
    "no draw at all": (lambda logits, rng: logits.argmax(-1), "steps_draw_differently", "drew the same"),
}
# fmt: on


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    draw, law, reason = MISTAKES[mistake]
    with pytest.raises((AssertionError, RuntimeError), match=reason):
        hold(suite(draw), law)
    hold(suite(gumbel), law)


@pytest.mark.parametrize("temperature", [0.8, 1.25])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_another_temperature_is_found_in_a_small_vocabulary(temperature: float, scale: float) -> None:
    with pytest.raises(AssertionError, match=r"p = .* token \d+ has the share 0\.\d+, not 0\.\d+"):
        suite(lambda logits, rng: gumbel(logits / temperature, rng)).test_distribution_at_small_vocabulary("cpu", scale)
    suite(gumbel).test_distribution_at_small_vocabulary("cpu", scale)


def test_a_token_that_is_left_out_is_found() -> None:
    """The least likely of eight, with a probability below 2%."""

    def without_the_last(logits: Tensor, rng: Any) -> Tensor:
        least = logits.masked_fill(logits.isinf(), 99.0).argmin(-1, keepdim=True)
        return gumbel(logits.scatter(1, least, float("-inf")), rng)

    with pytest.raises(AssertionError, match="p = "):
        suite(without_the_last).test_distribution_at_small_vocabulary("cpu", 1.0)


def test_a_tail_that_is_left_out_is_found_at_the_full_vocabulary() -> None:
    """Noise in half precision has no numbers near 1 (defect B7 of electra-pytorch)."""

    def coarse(logits: Tensor, rng: Any) -> Tensor:
        noise = rng.uniform(*logits.shape).bfloat16().clamp(max=0.996)
        return (logits.bfloat16() - noise.log().neg().log()).argmax(-1)

    with pytest.raises(AssertionError, match="logits in float32: p = "):
        suite(coarse, rounds=1).test_distribution_at_full_vocabulary("cpu")


def test_each_precision_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def draw(sampler: Any, logits: Tensor, words: Any, rng: Any) -> Tensor:
        seen.append((logits.dtype, torch.is_autocast_enabled("cpu")))
        return torch.full((500, 1), 7)

    monkeypatch.setattr("electra_lab.testing.samplers.draw", draw)
    monkeypatch.setattr("electra_lab.testing.samplers.assert_follows", lambda *_: None)
    precisions = ("float32", "bfloat16", "float16", "autocast")
    suite(gumbel, rounds=1, precisions=precisions).test_distribution_at_full_vocabulary("cpu")
    assert seen == [
        (torch.float32, False), (torch.bfloat16, False), (torch.float16, False), (torch.bfloat16, True)
    ]  # fmt: skip


def test_a_claim_to_be_unbiased_is_checked_with_the_options() -> None:
    def heated(logits, rng, /, *, heat: float = 1.0):
        """Tempered draws."""
        return gumbel(logits / heat, rng)

    class Hot(SamplerContract):
        name, options = "heated", {"heat": 2.0}

        def distribution(self, logits: Tensor) -> Tensor:
            return (logits.double() / 2).softmax(-1)

    with samplers.isolated():
        samplers.register("heated", unbiased=lambda *, heat: heat == 1.0)(heated)
        with pytest.raises(pytest.skip.Exception):
            Hot().test_unbiased_means_the_softmax_itself()
    with samplers.isolated():
        samplers.register("heated", unbiased=True)(heated)
        with pytest.raises(AssertionError, match="they differ by"):
            Hot().test_unbiased_means_the_softmax_itself()


def test_an_impossible_token_is_named() -> None:
    counts, expected = torch.tensor([50.0, 49.0, 1.0]), torch.tensor([0.5, 0.5, 0.0])
    with pytest.raises(AssertionError, match="here: tokens without probability were drawn 1 times"):
        assert_follows(counts, expected, "here")
    assert_follows(torch.tensor([50.0, 50.0, 0.0]), expected, "here")
