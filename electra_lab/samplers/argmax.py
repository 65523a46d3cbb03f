"""The most likely token."""

from jaxtyping import Float32, Int
from torch import Tensor

from registry import Random, samplers


@samplers.register("argmax")
def argmax(logits: Float32[Tensor, "N V"], rng: Random, /) -> Int[Tensor, " N"]:
    """Take the most likely token, without drawing. The replacements are the hardest and the least diverse."""
    return logits.argmax(-1)
