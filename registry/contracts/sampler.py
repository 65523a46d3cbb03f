"""Samplers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from registry.contracts.data import Random

if TYPE_CHECKING:
    from jaxtyping import Float32, Int
    from torch import Tensor


class Sampler(Protocol):
    """Draw one token per row. The lab casts logits to float32 and sets special ids to -inf before the call.

    Registered as a function. `@samplers.register(name, unbiased=...)` declares whether its draws follow softmax(logits)
    exactly: True, or a function of its options that says so. Without it the sampler counts as biased.
    """

    def __call__(
        self, logits: Float32[Tensor, "N V"], rng: Random, /, *args: Any, **options: Any
    ) -> Int[Tensor, " N"]: ...
