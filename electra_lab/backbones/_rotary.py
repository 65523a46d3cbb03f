"""Rotary positions in one pass over memory."""

import torch
from jaxtyping import Complex64, Float
from torch import Tensor


def turned(x: Float[Tensor, "*B T d"], turn: Complex64[Tensor, "*#B T half"]) -> Float[Tensor, "*B T d"]:
    """Turn each pair of neighbouring numbers, as one complex number, by its angle (Su et al. 2021, section 3.4.2).

    In float32 at least. Not for compiled or exported code: compilers do not know complex numbers.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    pairs: Tensor = wide.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    made: Tensor = torch.view_as_real(torch.view_as_complex(pairs) * turn)
    return made.flatten(-2).to(x.dtype)
