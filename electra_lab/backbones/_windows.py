"""Exact attention among neighbours, in time linear in the length."""

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from electra_lab.model.attention import Kernel, attend


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
    batch, heads, length, width = query.shape

    def in_windows(x: Tensor, reach: int) -> Tensor:  # [B H T d] -> [B*W H n d]
        windows = F.pad(x, (0, 0, reach, reach)).unfold(2, window + 2 * reach, window)
        return windows.permute(0, 2, 1, 4, 3).flatten(0, 1)

    seen = F.pad(visible, (window, window)).unfold(1, 3 * window, window).flatten(0, 1)[:, None, None, :]
    seen = seen | ~seen.any(-1, keepdim=True)  # a softmax of nothing is NaN in some kernels
    q, k, v = in_windows(query, 0).to(value.dtype), in_windows(key, window).to(value.dtype), in_windows(value, window)
    attended = attend(q, k, v, seen, dropout, kernel)
    return attended.view(batch, -1, heads, window, width).transpose(1, 2).reshape(batch, heads, length, width)


def check_local_heads(local_heads: int, heads: int) -> None:
    """Raise ValueError unless a head is left that sees the whole row."""
    if local_heads >= heads:
        raise ValueError(
            f"local_heads {local_heads} must be below heads {heads}: one head at least has to see the whole row. "
            "A generator takes local_heads over from the discriminator, unless it sets its own."
        )
