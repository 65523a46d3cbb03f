"""Rotary positions in one pass over memory."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def turned(
    x: Float[Tensor, "*B T d"], cosine: Float[Tensor, "*#B T half"], sine: Float[Tensor, "*#B T half"]
) -> Float[Tensor, "*B T d"]:
    """Turn each pair of neighbouring numbers by its angle (Su et al. 2021, section 3.4.2), in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    pairs: Tensor = wide.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    if torch.compiler.is_compiling():  # compilers and ONNX have no complex numbers, and fuse the separate operations
        first, second = pairs.unbind(-1)
        rotated = torch.stack((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    else:
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cosine, sine))
    return rotated.flatten(-2).to(x.dtype)


def halves_turned(
    x: Float[Tensor, "*B T d"], cosine: Float[Tensor, "*#B T half"], sine: Float[Tensor, "*#B T half"]
) -> Float[Tensor, "*B T d"]:
    """Turn the pairs of numbers j and j + d/2 by their angles, in float32 at least, as transformers does."""
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def split_and_turned(
    columns: Float[Tensor, "B T 3 H d"], cosine: Float[Tensor, "T half"], sine: Float[Tensor, "T half"]
) -> tuple[Float[Tensor, "B H T d"], Float[Tensor, "B H T d"], Float[Tensor, "B H T d"]]:
    """Return queries and keys after `halves_turned`, and values, in one copy of the columns."""
    if torch.compiler.is_compiling() or columns.dtype not in (torch.float32, torch.float64):
        q, k, v = columns.permute(2, 0, 3, 1, 4).unbind()
        return halves_turned(q, cosine, sine), halves_turned(k, cosine, sine), v
    q, k, v = _SplitAndTurned.apply(columns, cosine[:, None], sine[:, None])  # type: ignore[no-untyped-call]
    return q, k, v


class _SplitAndTurned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, cosine: Float[Tensor, "T 1 half"], sine: Float[Tensor, "T 1 half"]) -> Any:
        ctx.save_for_backward(cosine, sine)
        out = torch.empty_like(columns)
        _turn(out[:, :, 0], columns[:, :, 0], cosine, sine)
        _turn(out[:, :, 1], columns[:, :, 1], cosine, sine)
        out[:, :, 2] = columns[:, :, 2]
        return out.permute(2, 0, 3, 1, 4).unbind()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Float[Tensor, "B H T d"]) -> tuple[Tensor | None, ...]:
        cosine, sine = ctx.saved_tensors
        q, k, v = (gradient.transpose(1, 2) for gradient in gradients)  # [B T H d] each
        columns = q.new_empty(*q.shape[:2], 3, *q.shape[2:])
        # The other way round.
        _turn(columns[:, :, 0], q, cosine, -sine)
        _turn(columns[:, :, 1], k, cosine, -sine)
        columns[:, :, 2] = v
        return columns, None, None


def _turn(out: Tensor, x: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Write `halves_turned(x, cosine, sine)` to `out`."""
    first, second = x.chunk(2, dim=-1)
    first_out, second_out = out.chunk(2, dim=-1)
    torch.mul(first, cosine, out=first_out).addcmul_(second, sine, value=-1)
    torch.mul(second, cosine, out=second_out).addcmul_(first, sine)
