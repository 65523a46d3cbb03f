"""Laws of samplers."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from electra_lab.objectives._shared import draw
from electra_lab.testing.common import Contract, assert_follows, law, random_numbers, vocabulary, worst
from registry import samplers


class SamplerContract(Contract):
    """Laws of samplers. Override `distribution` if the sampler does not draw from softmax(logits).

    precisions  precisions of the logits at the full vocabulary: float32, bfloat16, float16, autocast
    rounds      number of rounds of 500 draws each at the full vocabulary
    """

    registry = samplers
    precisions: Sequence[str] = ("float32",)
    rounds = 4

    def distribution(self, logits: Tensor) -> Tensor:
        """Return the probabilities that the sampler claims, Float64[V], for float32 logits [V]."""
        return logits.double().softmax(-1)

    @law
    @given(seed=st.integers(0, 2**32), rows=st.integers(1, 7), size=st.integers(6, 50), scale=st.floats(0, 100))
    def test_draws_are_ordinary_ids(self, device: str, seed: int, rows: int, size: int, scale: float) -> None:
        words = vocabulary(size, device)
        logits = (torch.randn(rows, 1, size, generator=torch.Generator().manual_seed(seed)) * scale).to(device)
        drawn = draw(self.component(), logits, words, random_numbers(seed, rows, device))
        assert drawn.shape == (rows, 1)
        assert drawn.dtype == torch.int64
        assert ((drawn >= 0) & (drawn < size)).all(), f"ids outside 0 to {size - 1}: {drawn.flatten().tolist()}"
        assert not words.is_special[drawn].any(), f"a special id was drawn: {drawn.flatten().tolist()}"

    def test_distribution_at_full_vocabulary(self, device: str) -> None:
        """Draws follow the claimed distribution at V = 30,522, in whatever precision the logits arrive."""
        size, rows = 30_522, 500
        words = vocabulary(size, device)
        made = torch.randn(size, generator=torch.Generator().manual_seed(7)) * 3
        for arrives in self.precisions:
            autocast = arrives == "autocast"
            logits = made.to(device=device, dtype=torch.bfloat16 if autocast else getattr(torch, arrives))
            expected = self.distribution(logits.float().masked_fill(words.is_special, -math.inf)).cpu()
            counts = torch.zeros(size, dtype=torch.float64)
            for number in range(self.rounds):
                random = random_numbers(number, rows, device)
                with torch.autocast(device, torch.bfloat16, enabled=autocast):
                    drawn = draw(self.component(), logits.expand(rows, 1, size), words, random)
                counts += torch.bincount(drawn.flatten().cpu(), minlength=size)
            assert_follows(counts, expected, f"logits in {arrives}")

    @pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
    def test_distribution_at_small_vocabulary(self, device: str, scale: float) -> None:
        """Draws follow it among eight tokens too; among thousands the tail hides errors in the rest."""
        size, rows = 12, 10_000
        words = vocabulary(size, device)
        logits = (torch.randn(size, generator=torch.Generator().manual_seed(7)) * scale).to(device)
        expected = self.distribution(logits.masked_fill(words.is_special, -math.inf)).cpu()
        drawn = draw(self.component(), logits.expand(rows, 1, size), words, random_numbers(0, rows, device))
        counts = torch.bincount(drawn.flatten().cpu(), minlength=size).double()
        assert_follows(counts, expected, f"logits {[round(float(logit), 2) for logit in logits]}")

    def test_unbiased_means_the_softmax_itself(self) -> None:
        """A sampler that declares itself unbiased with these options claims softmax(logits)."""
        if not self.declared("unbiased"):
            pytest.skip("this sampler does not declare itself unbiased with these options")
        logits = torch.randn(50, generator=torch.Generator().manual_seed(7)) * 2
        claimed, exact = self.distribution(logits), logits.double().softmax(-1)
        assert torch.allclose(claimed, exact, atol=1e-9), worst(claimed, exact)

    def test_draws_depend_on_the_random_numbers_alone(self, device: str) -> None:
        """Same numbers, same draw; the global generator plays no part; a half batch draws what the whole one does."""
        logits = torch.randn(8, 5, 200, generator=torch.Generator().manual_seed(3)).to(device)
        words, sampler = vocabulary(200, device), self.component()
        torch.manual_seed(0)
        once = draw(sampler, logits, words, random_numbers(1, 8, device))
        torch.manual_seed(1)
        again = draw(sampler, logits, words, random_numbers(1, 8, device))
        half = draw(sampler, logits[4:], words, random_numbers(1, 4, device, start=4))
        assert torch.equal(once, again), "the same random numbers gave other draws"
        assert torch.equal(once[4:], half), "half a batch draws differently from the whole"

    def test_steps_draw_differently(self) -> None:
        """Unless it draws nothing, another step gives another draw."""
        logits = torch.zeros(64, 1, 100)
        words, sampler = vocabulary(100), self.component()
        if (self.distribution(torch.zeros(100)) < 1).all():
            first, second = (draw(sampler, logits, words, random_numbers(step, 64, "cpu")) for step in (1, 2))
            assert not torch.equal(first, second), "two steps drew the same"
