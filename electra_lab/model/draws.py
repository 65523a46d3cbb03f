"""Drawing tokens from one distribution per row: independent ones, or distinct ones."""

import torch
from jaxtyping import Float, Float32, Float64, Int
from torch import Tensor

BLOCK = 256  # weights that are summed before they are compared one by one


def inverse_cdf(weights: Float[Tensor, "N V"], numbers: Float32[Tensor, "N k"]) -> Int[Tensor, "N k"]:
    """Return, for each number, the first index at which the cumulative sum of weights exceeds that share of the total.

    Uniform numbers give k independent draws per row. Rows need not sum to 1. Sums are float64: those of 30,522 terms in
    float32 would lose the tail. First a block is chosen by the sums of all blocks, then one of its weights, so that few
    numbers are float64.
    """
    size = weights.shape[-1]
    # 1) Choose blocks: [N blocks] -> [N k].
    whole = size // BLOCK * BLOCK
    blocks = weights[:, :whole].view(len(weights), whole // BLOCK, BLOCK).sum(-1, dtype=torch.float64)
    rest = weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)
    block, share = _first_above(torch.cat([blocks, rest], dim=-1), numbers.double())
    # 2) Choose one weight of each: [N k BLOCK] -> [N k].
    places = block.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(-1, places.clamp(max=size - 1).flatten(1)).view(places.shape).double()
    place, _ = _first_above(inside.masked_fill(places >= size, 0.0), share.unsqueeze(-1))
    return places.gather(-1, place).squeeze(-1)


def _first_above(
    weights: Float64[Tensor, "*N M"], share: Float64[Tensor, "*N k"]
) -> tuple[Int[Tensor, "*N k"], Float64[Tensor, "*N k"]]:
    """Return the first index whose cumulative weight exceeds `share` of the total, and the share of the index's
    weight at which it does.
    """
    cumulative = weights.cumsum(-1)
    threshold = share * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, threshold, right=True).clamp(max=weights.shape[-1] - 1)
    # An index without weight must not be drawn, not even through the rounding of a parallel sum.
    index = torch.where(weights.gather(-1, index) > 0, index, weights.argmax(-1, keepdim=True))
    weight = weights.gather(-1, index)
    within = (threshold - (cumulative.gather(-1, index) - weight)) / weight
    return index, within.clamp(0.0, 1.0)


def distinct(logits: Float32[Tensor, "N V"], numbers: Float32[Tensor, "N k"]) -> Int[Tensor, "N k"]:
    """Draw k distinct tokens per row, each from the softmax over those that are left, by a uniform number each.

    This is the Plackett-Luce model, and the distribution of Gumbel top-k (Kool et al. 2019), which would take a random
    number for each of the V tokens. A token whose logit is -inf is never drawn; at least k others are needed.
    """
    drawn = []
    for number in torch.split(numbers, 1, dim=-1):
        drawn.append(inverse_cdf(logits.softmax(-1), number))
        logits = logits.scatter(-1, drawn[-1], float("-inf"))
    return torch.cat(drawn, dim=-1)
