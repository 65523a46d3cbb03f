"""Exact attention among neighbours, in time linear in the length."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from electra_lab.model.layers import Kernel, attend


def local_attention(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H T d"],
    value: Float[Tensor, "B H T d"],
    visible: Bool[Tensor, "B T"],
    window: int,
    dropout: float,
    kernel: Kernel = "fused",
) -> Float[Tensor, "B H T d"]:
    """Exact softmax attention of each window of positions over itself and its two neighbours; `window` divides T.

    A query for which none of these is visible has an arbitrary finite result.
    """
    seen = F.pad(visible, (window, window)).unfold(1, 3 * window, window)[:, :, None, None, :]  # [B W 1 1 3n]
    seen = seen | ~seen.any(-1, keepdim=True)  # a softmax of nothing is NaN in some kernels
    return _in_windows(query, key, value, seen, window, dropout, kernel)


def sliding_mask(
    attention_mask: Bool[Tensor, "B T"], reach: int, documents: Int[Tensor, "B T"] | None = None
) -> Bool[Tensor, "B W 1 reach keys"]:
    """Return for each query of each block of `reach` positions which keys of three blocks `sliding_attention` reads."""
    extra = -attention_mask.shape[1] % reach  # up to whole blocks

    def keys(x: Tensor, fill: int) -> Tensor:  # [B T] -> [B W 1 3n]: the blocks before, at and after each block
        return F.pad(x, (reach, reach + extra), value=fill).unfold(1, 3 * reach, reach).unsqueeze(2)

    places = torch.arange(3 * reach, device=attention_mask.device)
    seen = keys(attention_mask, False) & ((places - places[reach : 2 * reach, None]).abs() <= reach)  # [B W n 3n]
    if documents is not None:
        number = keys(documents, -1)
        seen = seen & (number == number[..., reach : 2 * reach].transpose(2, 3))
    return (seen | ~seen.any(-1, keepdim=True)).unsqueeze(2)  # a softmax of nothing is NaN in some kernels


def sliding_attention(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H T d"],
    value: Float[Tensor, "B H T d"],
    seen: Bool[Tensor, "B W 1 reach keys"],
    reach: int,
    dropout: float,
    kernel: Kernel = "fused",
) -> Float[Tensor, "B H T d"]:
    """Exact softmax attention of each position over those at most `reach` away. `seen` is `sliding_mask(...)`."""
    length = query.shape[2]
    if extra := -length % reach:
        query, key, value = (F.pad(x, (0, 0, 0, extra)) for x in (query, key, value))
    return _in_windows(query, key, value, seen, reach, dropout, kernel)[:, :, :length]


def _in_windows(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H T d"],
    value: Float[Tensor, "B H T d"],
    seen: Bool[Tensor, "B W 1 #n m"],
    window: int,
    dropout: float,
    kernel: Kernel,
) -> Float[Tensor, "B H T d"]:
    """Softmax attention of each window of n positions over itself and its two neighbours, m = 3n keys."""
    batch, heads, length, width = query.shape

    def in_windows(x: Tensor, reach: int) -> Tensor:  # [B H T d] -> [B*W H n d]
        wider = F.pad(x, (0, 0, reach, reach)) if reach else x  # padding by nothing would copy
        windows = wider.unfold(2, window + 2 * reach, window)
        return windows.permute(0, 2, 1, 4, 3).flatten(0, 1)

    q, k, v = in_windows(query, 0).to(value.dtype), in_windows(key, window).to(value.dtype), in_windows(value, window)
    attended = attend(q, k, v, seen.flatten(0, 1), dropout, kernel)
    return (
        attended.view(batch, length // window, heads, window, width)
        .transpose(1, 2)
        .reshape(batch, heads, length, width)
    )


def check_local_heads(local_heads: int, heads: int) -> None:
    """Raise ValueError unless a head is left that sees the whole row."""
    if local_heads >= heads:
        raise ValueError(
            f"local_heads {local_heads} must be below heads {heads}: one head at least has to see the whole row. "
            "A generator takes local_heads over from the discriminator, unless it sets its own."
        )
