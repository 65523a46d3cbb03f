"""Both halves of an encoder layer: exact softmax attention, and the feed-forward network with its residual.

Which kernel of attention is faster depends on the machine, the type and the length. The ends of the residual branches
take less memory than torch's operations one by one, and have the same numbers. A compiler decides by itself what to
compute again and where to put it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from electra_lab.model.long_rows import (
    Blocks,
    Mask,
    Sequences,
    by_sequence,
    documents_apart,
    drop_in_parts,
    drops_in_parts,
    reads_sequences,
)
from electra_lab.model.network import computed


@dataclass(frozen=True)
class Softcap:
    """Products whose scores s are bounded to c tanh(s / c) before the softmax (Gemma Team 2024)."""

    bound: float


Kernel = Literal["fused", "products"] | Softcap
KERNELS: tuple[Kernel, ...] = ("fused", "products")  # kernels of the same function

Visible = Mask | Blocks | Sequences | None


def visible_in(
    attention_mask: Bool[Tensor, "B T"],
    documents: Int[Tensor, "B T"] | None = None,
    *,
    blocks: bool = True,
    most: int | None = None,
    full: bool = False,
) -> Any:
    """Return the positions that each position sees, for `attend`: the real ones of its row, or of its document.

    A position of padding that would see none sees arbitrary ones, as the softmax of nothing is NaN.

    blocks  True to allow Blocks or Sequences instead of a mask Bool[B 1 #T T], for long rows. Only an eager forward
            pass on a CPU has Blocks: their number depends on the documents
    most    upper bound of documents and pieces of padding in all rows, from `Backbone.most_pieces`: a device with a
            kernel for sequences gets Sequences. No document continues after another one
    full    True if no row has padding: then all positions see one another without documents, which is None
    """
    if full and documents is None:
        return None
    if blocks and (documents is not None or most is not None):
        separated = documents_apart(attention_mask, documents, most)
        if separated is not None:
            return separated
    return _mask(attention_mask, documents)


def as_additive_mask(visible: Visible, x: Float[Tensor, "B T D"]) -> Visible:
    """Return a mask as numbers to add to the scores, once for all layers: torch's kernel would convert it in each.

    Their type is that of the products with `x`. Anything but a mask is returned unchanged.
    """
    if not isinstance(visible, Tensor):
        return visible
    return torch.zeros_like(visible, dtype=computed(x)).masked_fill_(~visible, float("-inf"))


def attend(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S e"],
    visible: Visible,
    dropout: float,
    kernel: Kernel,
) -> Float[Tensor, "B H T e"]:
    """softmax(q k / sqrt(d)) v, with dropout on the weights. Every row of a mask needs a position.

    There are four paths. `visible` and dropout decide about the first two, `kernel` between the last two:

    sequences  torch's varlen_attn, if `reads_sequences`; otherwise they become a mask
    in parts   where long rows drop weights on a CPU (`drops_in_parts`), as torch would keep all of them
    fused      torch's scaled_dot_product_attention
    products   two batched matrix products around a softmax, whose weights are kept for the backward pass

    visible  a mask, a result of `visible_in`, or None if every query sees every key
    """
    if isinstance(visible, Sequences):
        if reads_sequences(query, value, dropout, kernel):
            return by_sequence(query, key, value, visible)
        assert visible.reach is None, "the caller checks that there is a kernel for it"
        visible = _mask(visible.attention_mask, visible.documents)
    if isinstance(visible, Blocks):
        if not torch.compiler.is_compiling():
            return _by_block(query, key, value, visible, dropout, kernel)
        visible = _mask(visible.attention_mask, visible.documents)
    capped = isinstance(kernel, Softcap)
    if dropout and not capped and drops_in_parts(query, key):
        return drop_in_parts(query, key, value, visible, dropout)
    if kernel == "fused":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if isinstance(kernel, Softcap):
        scores = kernel.bound * (scores / kernel.bound).tanh()
    if visible is not None and visible.dtype == torch.bool:
        scores = scores.masked_fill(~visible, float("-inf"))
    elif visible is not None:
        scores = scores + visible
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=wide)
    attended: Tensor = F.dropout(weights, dropout).to(value.dtype) @ value
    return attended


def _by_block(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H T d"],
    value: Float[Tensor, "B H T e"],
    blocks: Blocks,
    dropout: float,
    kernel: Kernel,
) -> Float[Tensor, "B H T e"]:
    batch, heads, length, _ = query.shape
    parts = []
    for x in (query, key, value):  # [B H T d] -> [1 H B*T d] -> of each block [1 H n d]
        row = x.transpose(1, 2).reshape(1, batch * length, heads, -1)
        parts.append(row.transpose(1, 2).split(blocks.sizes, dim=2))  # type: ignore[no-untyped-call]
    outputs = []
    for q, k, v, mask in zip(*parts, blocks.masks, strict=True):
        outputs.append(attend(q, k, v, mask, dropout, kernel).transpose(1, 2))
    return torch.cat(outputs, dim=1).view(batch, length, heads, -1).transpose(1, 2)


def use_kernel(kernel: Kernel, networks: nn.Module) -> bool:
    """Let all attention inside `networks` use a kernel; returns True if any attention has a choice of kernels.

    These are the modules with an attribute `kernel`, which most of them pass to `attend`.
    """
    modules: list[Any] = [module for module in networks.modules() if getattr(module, "kernel", None) in KERNELS]
    for module in modules:
        module.kernel = kernel
    return bool(modules)


def _mask(attention_mask: Bool[Tensor, "B T"], documents: Int[Tensor, "B T"] | None) -> Bool[Tensor, "B 1 _ T"]:
    visible = attention_mask[:, None, :]
    if documents is not None:
        visible = visible & (documents[:, :, None] == documents[:, None, :])
    return (visible | ~visible.any(-1, keepdim=True))[:, None]


SPARE = 4096  # numbers; see _gelu


def add_linear(
    residual: Float[Tensor, "*N D"], x: Float[Tensor, "*N F"], linear: nn.Linear, dropout: float
) -> Float[Tensor, "*N D"]:
    """Return residual + dropout(linear(x)). Without dropout, the sum takes the place of the product."""
    if torch.compiler.is_compiling() or dropout or not _is_plain(nn.Linear, linear):
        return residual + F.dropout(linear(x), dropout)
    added: Tensor = _AddLinear.apply(residual, x, linear.weight, linear.bias)  # type: ignore[no-untyped-call]
    return added


def add_feed_forward(
    x: Float[Tensor, "*N D"], norm: nn.LayerNorm, expand: nn.Linear, contract: nn.Linear, dropout: float, *, pre: bool
) -> Float[Tensor, "*N D"]:
    """Return residual + dropout(contract(gelu(expand(norm(x))))).

    The backward pass computes norm(x) and the result of gelu again instead of storing them. Together with
    x and the input of gelu, which are stored, they would be a third of the memory of a layer.

    pre  True if the residual is x, as in a layer that normalises first; otherwise it is norm(x)
    """
    if torch.compiler.is_compiling() or not (_is_plain(nn.LayerNorm, norm) and _is_plain(nn.Linear, expand, contract)):
        normed = norm(x)
        branch = F.dropout(contract(F.gelu(expand(normed))), dropout)
        return (x if pre else normed) + branch
    parameters = norm.weight, norm.bias, expand.weight, expand.bias, contract.weight, contract.bias
    added = _FeedForward.apply(x, *parameters, norm.eps, pre, bool(dropout))  # type: ignore[no-untyped-call]
    if not dropout:
        total: Tensor = added
        return total
    normed, product = added
    return (x if pre else normed) + F.dropout(product, dropout)


def _is_plain(kind: type[nn.Module], *layers: nn.Module) -> bool:
    """Return True if these behave like torch's class: subclasses and hooks may change or read results."""
    hooks_of_all = _has_any_global_hook()  # type: ignore[no-untyped-call]
    return not hooks_of_all and all(
        type(layer) is kind
        and "forward" not in vars(layer)
        and layer.bias is not None
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and not (layer._backward_hooks or layer._backward_pre_hooks)
        for layer in layers
    )


def read_by(linears: Sequence[nn.Linear], x: Float[Tensor, "*N D"]) -> list[Any]:
    """Return x for a residual, and the results of linear layers that read it, whose narrow copy of it they share.

    Torch's autocast would make and keep a copy for each. Gradients are added in the order in which torch adds them.
    """
    dtype = computed(x)
    if torch.compiler.is_compiling() or dtype == x.dtype:
        return [x, *(linear(x) for linear in linears)]
    x, *copies = _Copies.apply(x, dtype, len(linears))  # type: ignore[no-untyped-call]
    return [x, *(linear(copy) for linear, copy in zip(linears, copies, strict=True))]


class _Copies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "*N D"], dtype: torch.dtype, number: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtype, copy = x.dtype, x.to(dtype)
        return x.view_as(x), *(copy.view_as(copy) for _ in range(number))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total: Tensor | None, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        for gradient in reversed(gradients):
            wide = gradient.to(ctx.dtype)
            total = wide if total is None else total + wide
        return total, None, None


class _AddLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        residual: Float[Tensor, "*N D"],
        x: Float[Tensor, "*N F"],
        weight: Float[Tensor, "D F"],
        bias: Float[Tensor, " D"],
    ) -> Float[Tensor, "*N D"]:
        ctx.dtype = computed(x)  # under autocast, products are narrower than weights and sums
        ctx.dtypes = residual.dtype, x.dtype, weight.dtype, bias.dtype
        x, weight = x.to(ctx.dtype), weight.to(ctx.dtype)
        ctx.save_for_backward(x, weight)
        product = F.linear(x, weight, bias)
        return product.add_(residual) if residual.dtype == product.dtype else residual + product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "*N D"]) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_residual = gradient.to(ctx.dtypes[0]) if ctx.needs_input_grad[0] else None
        rows = _rows(gradient.to(ctx.dtype))
        grad_x = (rows @ weight).view_as(x).to(ctx.dtypes[1]) if ctx.needs_input_grad[1] else None
        grad_weight, grad_bias = _linear_gradients(rows, x, ctx.dtypes[2:], ctx.needs_input_grad[2:4])
        return grad_residual, grad_x, grad_weight, grad_bias


class _FeedForward(torch.autograd.Function):
    """The sum of the residual and contract(gelu(expand(norm(x)))); if `separate`, norm(x) and the latter."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "*N D"],
        scale: Float[Tensor, " D"],
        shift: Float[Tensor, " D"],
        up: Float[Tensor, "F D"],
        up_bias: Float[Tensor, " F"],
        down: Float[Tensor, "D F"],
        down_bias: Float[Tensor, " D"],
        eps: float,
        pre: bool,
        separate: bool,
    ) -> Float[Tensor, "*N D"] | tuple[Float[Tensor, "*N D"], Float[Tensor, "*N D"]]:
        normed = F.layer_norm(x, x.shape[-1:], scale, shift, eps)
        dtype = computed(x)
        ctx.weight_dtypes = (up.dtype, up_bias.dtype), (down.dtype, down_bias.dtype)
        up, down = up.to(dtype), down.to(dtype)
        hidden = F.linear(normed, up, up_bias)
        product = F.linear(_gelu(hidden), down, down_bias)
        ctx.save_for_backward(x, hidden, scale, shift, up, down)
        ctx.set_materialize_grads(not (separate and pre))  # then norm(x) is not used
        ctx.eps, ctx.pre, ctx.separate = eps, pre, separate
        ctx.dtypes = normed.dtype, product.dtype
        if separate:
            return normed, product
        residual = x if pre else normed
        return product.add_(residual) if residual.dtype == product.dtype else residual + product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, hidden, scale, shift, up, down = ctx.saved_tensors
        grad_normed, grad_output = gradients if ctx.separate else (None if ctx.pre else gradients[0], gradients[0])
        if grad_output is None:
            return (None,) * 10
        normed_dtype, dtype = ctx.dtypes
        needs, size = ctx.needs_input_grad, x.shape[-1:]
        rows, wide = _rows(grad_output.to(dtype)), _rows(_gelu(hidden))
        grad_down, grad_down_bias = _linear_gradients(rows, wide, ctx.weight_dtypes[1], needs[5:7])
        # The gradient of gelu's output overwrites the output, and is overwritten by that of its input.
        grad_hidden = torch.mm(rows, down, out=wide).view_as(hidden)
        torch.ops.aten.gelu_backward.grad_input(grad_hidden, hidden, grad_input=grad_hidden)
        grad_hidden = _rows(grad_hidden)
        # norm(x) again, for the gradients of the layer that reads it and of the norm
        wider = torch.promote_types(scale.dtype, normed_dtype)  # on a CPU, autocast does not cast weights here
        normalised = x.to(normed_dtype), size, scale.to(wider), shift.to(wider)
        normed, mean, deviation = torch.native_layer_norm(*normalised, ctx.eps)
        grad_up, grad_up_bias = _linear_gradients(grad_hidden, normed, ctx.weight_dtypes[0], needs[3:5])
        del normed
        grad_x = grad_scale = grad_shift = None
        if any(needs[:3]):
            through = (grad_hidden @ up).view_as(x).to(normed_dtype)
            grad_normed = through if grad_normed is None else through.add_(grad_normed)
            values, _, weight, bias = normalised
            grad_x, grad_scale, grad_shift = torch.ops.aten.native_layer_norm_backward(
                grad_normed, values, size, mean, deviation, weight, bias, needs[:3]
            )
        if ctx.pre and not ctx.separate and grad_x is not None:
            grad_x = grad_x.add_(grad_output)
        of_norm = (grad_x, x), (grad_scale, scale), (grad_shift, shift)
        cast = [None if gradient is None else gradient.to(tensor.dtype) for gradient, tensor in of_norm]
        return (*cast, grad_up, grad_up_bias, grad_down, grad_down_bias, None, None, None)


def _linear_gradients(
    rows: Float[Tensor, "M D"], x: Float[Tensor, "*N F"], dtypes: tuple[torch.dtype, torch.dtype], needs: Any
) -> tuple[Float[Tensor, "D F"] | None, Float[Tensor, " D"] | None]:
    """Return the gradients of a linear layer's weight and bias, from that of its result and its input.

    dtypes  types of weight and bias
    needs   True for each of the two gradients that is needed
    """
    grad_weight = (rows.t() @ _rows(x.to(rows.dtype))).to(dtypes[0]) if needs[0] else None
    return grad_weight, rows.sum(0).to(dtypes[1]) if needs[1] else None


def _rows(x: Float[Tensor, "*N D"]) -> Float[Tensor, "M D"]:
    return x.reshape(-1, x.shape[-1])


def _gelu(x: Float[Tensor, "*N F"]) -> Float[Tensor, "*N F"]:
    """Return gelu(x), in a block of memory with room for SPARE more numbers.

    Later, four tensors of a quarter of its size fit into the freed block. Without spare room only three would: to align
    a block, glibc 2.36 requests a few bytes more than the tensor needs.
    """
    place = x.new_empty(x.numel() + SPARE)[: x.numel()].view(x.shape)
    activated: Tensor = torch.ops.aten.gelu.out(x, out=place)
    return activated
