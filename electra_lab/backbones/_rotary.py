"""Rotary positions in one pass over memory."""

import torch
from jaxtyping import Float
from torch import Tensor


def turned(
    x: Float[Tensor, "*B T d"], cosine: Float[Tensor, "*#B T half"], sine: Float[Tensor, "*#B T half"]
) -> Float[Tensor, "*B T d"]:
    """Turn each pair of neighbouring numbers by its angle (Su et al. 2021, section 3.4.2), in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    pairs: Tensor = wide.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    if torch.compiler.is_compiling():  # compilers and ONNX have no complex numbers, and fuse the separate operations
        one, two = pairs.unbind(-1)
        made = torch.stack((one * cosine - two * sine, two * cosine + one * sine), dim=-1)
    else:
        made = torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cosine, sine))
    return made.flatten(-2).to(x.dtype)


def halves_turned(
    x: Float[Tensor, "*B T d"], cosine: Float[Tensor, "*#B T half"], sine: Float[Tensor, "*#B T half"]
) -> Float[Tensor, "*B T d"]:
    """Turn the pairs of numbers j and j + d/2 by their angles, in float32 at least, as transformers does."""
    one, two = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return torch.cat((one * cosine - two * sine, two * cosine + one * sine), dim=-1).to(x.dtype)
