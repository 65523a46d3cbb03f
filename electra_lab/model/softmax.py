"""The softmax over the vocabulary, computed once for the loss, its gradient and the sampler."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Float[Tensor, "N V"], targets: Int[Tensor, " N"]
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, "N V"]]:
        probabilities, at = logits.softmax(-1), targets.unsqueeze(-1)
        # log sum exp = x - log softmax(x) for any x of a row; the largest probability is never rounded to 0.
        normalizer = logits.amax(-1, keepdim=True) - probabilities.amax(-1, keepdim=True).log()
        # Not by save_for_backward: samplers hide special tokens in the same memory for a moment.
        ctx.probabilities, ctx.at = probabilities, at
        ctx.mark_non_differentiable(probabilities)
        ctx.set_materialize_grads(False)  # or else backward is given zeros of this size for them
        return (normalizer - logits.gather(-1, at)).squeeze(-1), probabilities

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Float[Tensor, " N"] | None, _: None) -> tuple[Float[Tensor, "N V"] | None, None]:
        if given is None:
            return None, None
        weight, probabilities = given.unsqueeze(-1), ctx.probabilities
        if probabilities is None:
            raise RuntimeError("A second backward pass needs retain_graph=True in the first one.")
        if _is_repeatable():
            slope = probabilities * weight
        else:  # in place: a second tensor of this size would be a tenth of the memory of a training step
            slope, ctx.probabilities = probabilities.mul_(weight), None
        return slope.scatter_add_(-1, ctx.at, -weight), None


def _is_repeatable() -> bool:
    """Return True unless the backward pass that runs now is known to be the last one through its graph."""
    if torch.compiler.is_compiling():
        return True
    retained = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return retained is None or bool(retained())


def cross_entropy(
    logits: Float[Tensor, "*N V"], targets: Int[Tensor, "*N"]
) -> tuple[Float[Tensor, "*N"], Float[Tensor, "*N V"]]:
    """Return -log softmax(logits)[target] in nats, and the softmax, which has no gradient and must not change.

    The backward pass, unless it retains the graph, writes the gradient over the softmax.
    """
    losses, probabilities = _CrossEntropy.apply(logits.flatten(0, -2), targets.flatten())  # type: ignore[no-untyped-call]
    return losses.view_as(targets), probabilities.view_as(logits)
