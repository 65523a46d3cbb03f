"""The laws find defects of electra-pytorch 0.1.2 and mlm-pytorch 0.1.0 without hints.

Numbers such as B1 name the defects in the order in which they were found in those packages. tests/electra_lab/interop
has all of them, compared with the lab; `make laws-peers` tests the packages' trainers against the laws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from electra_lab import testing
from electra_lab.testing import count
from registry import Masked, Vocabulary
from tests.helpers import peer

electra_seed, mlm_seed = peer("electra_pytorch.electra_pytorch"), peer("mlm_pytorch.mlm_pytorch")


def slots(chosen: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return a boolean mask Bool[B T] as positions and valid of `number` slots."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)[:, :number]
    return order, chosen.gather(1, order)


@pytest.mark.parametrize("seed", [electra_seed, mlm_seed], ids=["electra-pytorch", "mlm-pytorch"])
def test_b1_and_b2_are_found_by_the_property_itself(seed: Any) -> None:
    """Hypothesis needs no hint: the law over random batches catches the position sampler."""

    class Theirs(testing.MaskingContract):
        def mask(self, tokens: Tensor, maskable: Tensor, words: Vocabulary, step: int, **options: float) -> Masked:
            torch.manual_seed(step)
            chosen = seed.get_mask_subset_with_prob(maskable, options["mask_prob"])
            return Masked(tokens, *slots(chosen, count(options["mask_prob"], maskable.shape[1])))

    with pytest.raises(AssertionError, match=r"was masked|were masked"):
        Theirs().test_masks_only_allowed_positions_and_the_required_number(device="cpu")


def test_b6_special_tokens_are_sampled() -> None:
    """Its sampler gets all logits; called through the lab's draw, the same function never returns a special id."""

    class Raw(testing.SamplerContract):
        def component(self) -> Callable[..., Tensor]:
            torch.manual_seed(0)  # hypothesis runs an example again: its draw must be the same
            return lambda logits, _: electra_seed.gumbel_sample(logits.nan_to_num(neginf=0.0))

    with pytest.raises(AssertionError, match="special id"):
        Raw().test_draws_are_ordinary_ids(device="cpu")


def test_b9_draws_follow_the_global_generator() -> None:
    class Theirs(testing.SamplerContract):
        def component(self) -> Callable[..., Tensor]:
            return lambda logits, _: electra_seed.gumbel_sample(logits)

    with pytest.raises(AssertionError):
        Theirs().test_draws_depend_on_the_random_numbers_alone(device="cpu")
