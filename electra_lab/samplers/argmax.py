"""The most likely token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry import samplers

if TYPE_CHECKING:
    from jaxtyping import Float32, Int
    from torch import Tensor

    from registry.contracts import Random


@samplers.register("argmax")
def argmax(logits: Float32[Tensor, "N V"], rng: Random, /) -> Int[Tensor, "N"]:
    """Take the most likely token; nothing is drawn. Replacements are then the hardest and the least diverse."""
    return logits.argmax(-1)
