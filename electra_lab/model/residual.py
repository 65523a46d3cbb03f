"""The end of a residual branch, a linear layer and a sum, with less memory than by torch's operations one by one."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

SPARE = 4096  # numbers; see _gelu


def add_linear(
    residual: Float[Tensor, "*N D"], x: Float[Tensor, "*N F"], linear: nn.Linear, dropout: float, *, gelu: bool = False
) -> Float[Tensor, "*N D"]:
    """Return residual + dropout(linear(x)), or residual + dropout(linear(gelu(x))). The numbers are those of torch.

    The backward pass computes gelu(x) again instead of keeping it beside x: in a feed-forward layer both are four times
    as wide as the states, and among the largest that an encoder keeps. Without dropout, the sum takes the place of the
    product. A compiler decides by itself what to compute again and where to put it.
    """
    if torch.compiler.is_compiling() or type(linear) is not nn.Linear or linear.bias is None:
        return residual + F.dropout(linear(F.gelu(x) if gelu else x), dropout)
    branch = None if dropout else residual
    added: Tensor = _AddLinear.apply(branch, x, linear.weight, linear.bias, gelu)  # type: ignore[no-untyped-call]
    return residual + F.dropout(added, dropout) if dropout else added


class _AddLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        residual: Float[Tensor, "*N D"] | None,
        x: Float[Tensor, "*N F"],
        weight: Float[Tensor, "D F"],
        bias: Float[Tensor, "D"],
        gelu: bool,
    ) -> Float[Tensor, "*N D"]:
        product = F.linear(_gelu(x) if gelu else x, weight, bias)
        ctx.save_for_backward(x, weight)
        ctx.gelu, ctx.kind = gelu, product.dtype  # under autocast, products are narrower than weights and sums
        ctx.kinds = None if residual is None else residual.dtype, bias.dtype
        if residual is None:
            return product
        return product.add_(residual) if residual.dtype == product.dtype else residual + product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Float[Tensor, "*N D"]) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_residual = given.to(ctx.kinds[0]) if ctx.needs_input_grad[0] else None
        rows, wide = given.to(ctx.kind).flatten(0, -2), (_gelu(x) if ctx.gelu else x).to(ctx.kind).flatten(0, -2)
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[2]:
            of_weight = (rows.t() @ wide).to(weight.dtype)
        if ctx.needs_input_grad[3]:
            of_bias = rows.sum(0).to(ctx.kinds[1])
        if ctx.needs_input_grad[1]:
            weight = weight.to(ctx.kind)
            # The gradient of gelu(x) takes its place, and that of x the place of that.
            of_x = (torch.mm(rows, weight, out=wide) if ctx.gelu else rows @ weight).view_as(x).to(x.dtype)
            if ctx.gelu:
                torch.ops.aten.gelu_backward.grad_input(of_x, x, grad_input=of_x)
        return of_residual, of_x, of_weight, of_bias, None


def _gelu(x: Float[Tensor, "*N F"]) -> Float[Tensor, "*N F"]:
    """Return gelu(x) in a block of memory that is a little too large.

    When it is freed, four tensors of a quarter of the width find a place in it. glibc 2.36 asks for more than it needs
    in order to align a block, so that blocks of the very same size would leave the place of one of them unused.
    """
    place = x.new_empty(x.numel() + SPARE)[: x.numel()].view(x.shape)
    activated: Tensor = torch.ops.aten.gelu.out(x, out=place)
    return activated
