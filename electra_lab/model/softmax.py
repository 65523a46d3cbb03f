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
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, "N V"], Float[Tensor, " N"]]:
        probabilities, at = logits.softmax(-1), targets.unsqueeze(-1)
        # log sum exp = x - log softmax(x) for any x of a row; the largest probability is never rounded to 0.
        normalizer = logits.amax(-1, keepdim=True) - probabilities.amax(-1, keepdim=True).log()
        # Not by save_for_backward: samplers hide special tokens in the same memory for a moment.
        ctx.probabilities, ctx.at = probabilities, at
        ctx.mark_non_differentiable(probabilities)
        ctx.set_materialize_grads(False)  # or else backward is given zeros of this size for them
        return (normalizer - logits.gather(-1, at)).squeeze(-1), probabilities, normalizer.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_loss: Float[Tensor, " N"] | None, _: None, of_normalizer: Float[Tensor, " N"] | None
    ) -> tuple[Float[Tensor, "N V"] | None, None]:
        given = [gradient.unsqueeze(-1) for gradient in (of_loss, of_normalizer) if gradient is not None]
        if not given:
            return None, None
        # Both have the softmax as their slope, and the loss is less the logit of its target.
        weight, probabilities = given[0] if len(given) == 1 else given[0] + given[1], ctx.probabilities
        if probabilities is None:
            raise RuntimeError("A second backward pass needs retain_graph=True in the first one.")
        if _is_repeatable():
            slope = probabilities * weight
        else:  # in place: a second tensor of this size would be a tenth of the memory of a training step
            slope, ctx.probabilities = probabilities.mul_(weight), None
        return slope if of_loss is None else slope.scatter_add_(-1, ctx.at, -of_loss.unsqueeze(-1)), None


def _is_repeatable() -> bool:
    """Return True unless the backward pass that runs now is known to be the last one through its graph."""
    if torch.compiler.is_compiling():
        return True
    retained = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return retained is None or bool(retained())


def cross_entropy(
    logits: Float[Tensor, "*N V"], targets: Int[Tensor, "*N"]
) -> tuple[Float[Tensor, "*N"], Float[Tensor, "*N V"], Float[Tensor, "*N"]]:
    """Return -log softmax(logits)[target] in nats, the softmax, and log sum exp(logits), its normalizer.

    The softmax has no gradient and must not change.

    The backward pass, unless it retains the graph, writes the gradient over the softmax.
    """
    rows = logits.flatten(0, -2), targets.flatten()
    losses, probabilities, normalizers = _CrossEntropy.apply(*rows)  # type: ignore[no-untyped-call]
    return losses.view_as(targets), probabilities.view_as(logits), normalizers.view_as(targets)


class _OnlySlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Float[Tensor, "*N V"], table: Float[Tensor, "V E"]) -> Float[Tensor, "*N E"]:
        ctx.save_for_backward(table)
        return weights.new_zeros(*weights.shape[:-1], table.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Float[Tensor, "*N E"]) -> tuple[Float[Tensor, "*N V"], None]:
        (table,) = ctx.saved_tensors
        return given @ table.t().to(given.dtype), None


def only_slope(weights: Float[Tensor, "*N V"], table: Float[Tensor, "V E"]) -> Float[Tensor, "*N E"]:
    """Return zeros with the gradient that weights @ table would give to the weights; the table gets none.

    Added to a row of the table, it is the straight-through estimator of a draw (Bengio et al. 2013; Jang et al. 2017)
    without the product's forward pass.
    """
    zeros: Tensor = _OnlySlope.apply(weights, table)  # type: ignore[no-untyped-call]
    return zeros
