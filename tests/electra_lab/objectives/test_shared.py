"""What a sampler is given, whatever the networks run in."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from electra_lab.objectives._shared import draw
from registry.testing import vocabulary


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_sampler_is_given_float32_without_autocast_and_gradients(dtype: torch.dtype) -> None:
    words, given = vocabulary(12), []

    def sampler(logits: torch.Tensor, rng: Any) -> torch.Tensor:
        given.append((logits.dtype, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), tuple(logits.shape)))
        assert torch.equal(logits == -math.inf, words.is_special.expand_as(logits))
        return logits.argmax(-1)

    logits = torch.randn(2, 3, 12, dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        drawn = draw(sampler, logits, words, rng=None)  # type: ignore[arg-type]
    assert given == [(torch.float32, False, False, (6, 12))]
    assert torch.equal(drawn, logits.float().masked_fill(words.is_special, -math.inf).argmax(-1))
