"""The softmax over the vocabulary, computed once for the loss, its gradient and the sampler."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Float[Tensor, "N V"], targets: Int[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N"], Float[Tensor, "N V"]]:
        probabilities, at = logits.softmax(-1), targets.unsqueeze(-1)
        # log sum exp = x - log softmax(x) for any x of a row; the largest probability is never rounded to 0.
        normalizer = logits.amax(-1, keepdim=True) - probabilities.amax(-1, keepdim=True).log()
        # Not by save_for_backward: samplers hide special tokens in the same memory for a moment.
        ctx.probabilities, ctx.at = probabilities, at
        ctx.mark_non_differentiable(probabilities)
        return (normalizer - logits.gather(-1, at)).squeeze(-1), probabilities

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Float[Tensor, "N"], _: Any) -> tuple[Float[Tensor, "N V"], None]:
        weight = given.unsqueeze(-1)
        return (ctx.probabilities * weight).scatter_add_(-1, ctx.at, -weight), None


def cross_entropy(
    logits: Float[Tensor, "*N V"], targets: Int[Tensor, "*N"]
) -> tuple[Float[Tensor, "*N"], Float[Tensor, "*N V"]]:
    """Return -log softmax(logits)[target] in nats, and the softmax, which has no gradient and must not change."""
    losses, probabilities = _CrossEntropy.apply(logits.flatten(0, -2), targets.flatten())  # type: ignore[no-untyped-call]
    return losses.view_as(targets), probabilities.view_as(logits)
