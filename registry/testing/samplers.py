"""Laws of samplers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from electra_lab.objectives._shared import draw
from registry import samplers
from registry.testing.common import (
    SIGNIFICANCE,
    Contract,
    chi_square_p,
    law,
    on_each_device,
    random_numbers,
    vocabulary,
)

if TYPE_CHECKING:
    from torch import Tensor


class SamplerContract(Contract):
    """Laws of samplers. Override `distribution` if the sampler does not draw from softmax(logits)."""

    registry = samplers

    def distribution(self, logits: Tensor) -> Tensor:
        """Float64[V]: the probabilities that the sampler claims, for float32 logits [V]."""
        return logits.double().softmax(-1)

    @on_each_device
    @law
    @given(seed=st.integers(0, 2**32), rows=st.integers(1, 7), size=st.integers(6, 50), scale=st.floats(0, 100))
    def test_draws_are_ordinary_ids(self, device: str, seed: int, rows: int, size: int, scale: float) -> None:
        words = vocabulary(size, device)
        logits = (torch.randn(rows, 1, size, generator=torch.Generator().manual_seed(seed)) * scale).to(device)
        drawn = draw(self.component(), logits, words, random_numbers(seed, rows, device))
        assert drawn.shape == (rows, 1)
        assert drawn.dtype == torch.int64
        assert ((drawn >= 0) & (drawn < size)).all(), "a sampler returned an id outside the vocabulary"
        assert not words.is_special[drawn].any(), "a sampler returned a special id"

    @on_each_device
    @pytest.mark.parametrize("arrives", ["float32", "bfloat16", "float16", "autocast"])
    def test_distribution_at_full_vocabulary(self, device: str, arrives: str) -> None:
        """Draws follow the claimed distribution at V = 30,522, in whatever precision the logits arrive."""
        size, rows, rounds = 30_522, 500, 16
        words = vocabulary(size, device)
        made = torch.randn(size, generator=torch.Generator().manual_seed(7)) * 3
        logits = made.to(device=device, dtype=getattr(torch, arrives) if arrives != "autocast" else torch.bfloat16)
        expected = self.distribution(logits.float().masked_fill(words.is_special, -math.inf)).cpu()
        drawn = []
        for number in range(rounds):
            with torch.autocast(device, torch.bfloat16, enabled=arrives == "autocast"):
                drawn.append(
                    draw(self.component(), logits.expand(rows, 1, size), words, random_numbers(number, rows, device))
                )
        counts = torch.bincount(torch.cat(drawn).flatten().cpu(), minlength=size).double()
        assert counts[expected == 0].sum() == 0, "a token without probability was drawn"
        assert chi_square_p(counts, expected) > SIGNIFICANCE

    @on_each_device
    def test_distribution_at_small_vocabulary(self, device: str) -> None:
        """Draws follow it among eight tokens too; among thousands the tail hides what is wrong with the rest."""
        size, rows = 12, 20_000
        words = vocabulary(size, device)
        logits = torch.randn(size, generator=torch.Generator().manual_seed(7)).to(device)
        expected = self.distribution(logits.masked_fill(words.is_special, -math.inf)).cpu()
        drawn = draw(self.component(), logits.expand(rows, 1, size), words, random_numbers(0, rows, device))
        counts = torch.bincount(drawn.flatten().cpu(), minlength=size).double()
        assert counts[expected == 0].sum() == 0, "a token without probability was drawn"
        assert chi_square_p(counts, expected) > SIGNIFICANCE

    @on_each_device
    def test_draws_depend_on_the_random_numbers_alone(self, device: str) -> None:
        """Same numbers, same draw; the global generator plays no part; a half batch draws what the whole one does."""
        logits = torch.randn(8, 5, 200, generator=torch.Generator().manual_seed(3)).to(device)
        words, sampler = vocabulary(200, device), self.component()
        torch.manual_seed(0)
        once = draw(sampler, logits, words, random_numbers(1, 8, device))
        torch.manual_seed(1)
        again = draw(sampler, logits, words, random_numbers(1, 8, device))
        half = draw(sampler, logits[4:], words, random_numbers(1, 4, device, start=4))
        assert torch.equal(once, again)
        assert torch.equal(once[4:], half)

    def test_steps_draw_differently(self) -> None:
        """Unless it draws nothing, another step gives another draw."""
        logits = torch.zeros(64, 1, 100)
        words, sampler = vocabulary(100), self.component()
        if (self.distribution(torch.zeros(100)) < 1).all():
            assert not torch.equal(*(draw(sampler, logits, words, random_numbers(step, 64, "cpu")) for step in (1, 2)))
