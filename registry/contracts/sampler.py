"""Samplers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from registry.contracts.data import Random

if TYPE_CHECKING:
    from jaxtyping import Float32, Int
    from torch import Tensor


class Sampler(Protocol):
    """Draw one token per row. The lab casts logits to float32 and sets special ids to -inf before the call.

    Registered as a function. `@samplers.register(name, unbiased=..., of_softmax=...)` declares two things:

    unbiased    whether its draws follow softmax(logits) exactly: True, or a function of its options that says so.
                Without it the sampler counts as biased
    of_softmax  the same sampler as a function of softmax(logits), for speed: (weights Float32[N V], rng, /, **options),
                where `options` are all but `temperature`, and special ids have the weight 0. The lab has computed the
                softmax for the loss, and calls this wherever `temperature` is 1 or not an option
    """

    def __call__(
        self, logits: Float32[Tensor, "N V"], rng: Random, /, *args: Any, **options: Any
    ) -> Int[Tensor, " N"]: ...
