"""Gumbel-max sampling."""

from collections.abc import Callable
from typing import Annotated

import torch
from jaxtyping import Float32, Int
from pydantic import Field
from torch import Tensor

from registry import Random, samplers

# Rows are drawn in chunks of this many weights, and of at least MIN_ROWS rows: on the CPU, larger chunks would not stay
# in its cache; elsewhere, the random numbers of a large batch would take several times the memory of its logits.
MIN_ROWS = 16
CPU_CHUNK, DEVICE_CHUNK = 1 << 16, 1 << 26


def by_rows(
    draw: Callable[[Tensor, Tensor], Int[Tensor, "n ..."]], weights: Float32[Tensor, "N V"], rng: Random, width: int
) -> Int[Tensor, "N ..."]:
    """Return draw(weights, numbers) with `width` random numbers a row, some rows at a time."""
    chunk = CPU_CHUNK if weights.device.type == "cpu" else DEVICE_CHUNK
    rows, some = len(weights), max(MIN_ROWS, chunk // weights.shape[-1])
    if torch.compiler.is_compiling() or rows <= some:
        return draw(weights, rng.uniform(rows, width))
    drawn, begin = None, 0
    for numbers in rng.in_parts(some, rows, width):
        part = draw(weights[begin : begin + some], numbers)
        if drawn is None:
            drawn = part.new_empty(rows, *part.shape[1:])
        drawn[begin : begin + some] = part
        begin += some
    assert drawn is not None
    return drawn


def weights_of(logits: Float32[Tensor, "N V"], temperature: float | Tensor) -> Float32[Tensor, "N V"]:
    """Return softmax(logits / temperature)."""
    if isinstance(temperature, float) and temperature == 1.0:
        return logits.softmax(-1)
    # The largest logit is subtracted first, so that a small temperature cannot produce infinity minus infinity.
    return ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)


def ascending(weights: Float32[Tensor, "N V"]) -> Float32[Tensor, "N V"]:
    """Return the weights of each row in order. On the CPU by numpy, which sorts in a tenth of torch's time."""
    if weights.device.type != "cpu" or torch.compiler.is_compiling():
        return weights.sort(-1).values
    ordered = weights.numpy().copy()
    ordered.sort(-1)
    return torch.from_numpy(ordered)


@samplers.register("gumbel", unbiased=lambda *, temperature: temperature == 1.0)
def gumbel(
    logits: Float32[Tensor, "N V"], rng: Random, /, *, temperature: Annotated[float, Field(ge=1e-6)] = 1.0
) -> Int[Tensor, " N"]:
    """Draw from softmax(logits / temperature) by Gumbel-max, as google-research/electra does.

    The noise is float32 in every precision: in bf16 the largest uniform number is 0.996, and the tail of the vocabulary
    would never be drawn. It takes one random number per token; `temperature` draws the same distribution from one per
    row.
    """

    def draw(logits: Tensor, numbers: Tensor) -> Tensor:
        # The largest log(weight) - log(-log(number)) is where weight / log(number) is least.
        return (weights_of(logits, temperature) / numbers.log()).argmin(-1)

    return by_rows(draw, logits, rng, logits.shape[-1])
