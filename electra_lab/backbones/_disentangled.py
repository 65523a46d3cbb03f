"""Disentangled attention, row by row and block by block, without a gather."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

# Shapes: B rows, H heads (h of them at a time), T positions, E distances, d width of a head.
BLOCK = 128  # positions
CACHED = 1 << 20  # scores that are computed at a time


def disentangled_attention(
    q: Float[Tensor, "B H T d"],
    k: Float[Tensor, "B H T d"],
    v: Float[Tensor, "B H T d"],
    position_keys: Float[Tensor, "H E d"],
    position_queries: Float[Tensor, "H E d"],
    visible: Bool[Tensor, "B 1 #T T"],
    far: int,
    dropout: float,
) -> Float[Tensor, "B H T d"]:
    """Return the values weighted by softmax(q k + q (position key) + (position query) k).

    Both tables have a row for every distance up to `longest(T, far)`, from the most negative on: `position_queries` of
    a query minus a key, `position_keys` of a key minus a query. In the products of a block of queries with all
    distances, the next key is one column to the right and the next query one to the left, so that a view with other
    strides replaces a gather. The same holds for a block of keys.

    The weights are stored for the backward pass and, with dropout, a mask of those that stay.

    far  distance from which on all distances share a row
    """
    hidden = q.new_zeros(visible.shape).masked_fill_(~visible, float("-inf"))
    keep = None
    if dropout:
        keep = torch.empty(*q.shape[:3], k.shape[2], dtype=torch.bool, device=q.device).bernoulli_(1 - dropout)
    inputs = q, k, v, position_keys, position_queries, hidden, keep
    attended: Tensor = _Attention.apply(*inputs, far, dropout)  # type: ignore[no-untyped-call]
    return attended


def can_be_in_blocks(x: Tensor) -> bool:
    """Return True if `disentangled_attention` pays: where gradients are computed, on a CPU, in full precision."""
    narrow = torch.is_autocast_enabled("cpu") or x.dtype not in (torch.float32, torch.float64)
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return x.device.type == "cpu" and torch.is_grad_enabled() and not narrow and not traced


def longest(length: int, far: int) -> int:
    """Return the longest distance in the tables: within a row, and up to a block beyond `far`."""
    return min(length - 1, far + BLOCK - 1)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        position_keys: Tensor,
        position_queries: Tensor,
        hidden: Tensor,
        keep: Bool[Tensor, "B H T T"] | None,
        far: int,
        dropout: float,
    ) -> Float[Tensor, "B H T d"]:
        length, most = q.shape[2], position_keys.shape[1] // 2
        weights, attended = q.new_empty(*q.shape[:3], length), _by_position(q)
        for row, part in _parts(q):
            scores, queries, keys = weights[row, part], q[row, part], k[row, part]  # scores: [h T T]
            # Keys with the positions of queries, a block of keys at a time: column by column of the scores.
            for block, near, distances in _blocks(length, far, most):
                products = torch.bmm(keys[:, block], position_queries[part, distances].transpose(1, 2))
                # [h keys queries] -> [h queries keys]; queries that are far away share a distance.
                scores[:, near, block] = _by_other(products).transpose(1, 2)
                scores[:, : near.start, block] = products[..., :1].transpose(1, 2)
                scores[:, near.stop :, block] = products[..., -1:].transpose(1, 2)
            # Queries with the positions of keys and with the keys, a block of queries at a time; then these rows are
            # complete and become weights.
            for block, near, distances in _blocks(length, far, most):
                products = torch.bmm(queries[:, block], position_keys[part, distances].transpose(1, 2))
                of_block = scores[:, block]
                of_block[..., near] += _by_other(products)
                of_block[..., : near.start] += products[..., :1]
                of_block[..., near.stop :] += products[..., -1:]
                of_block.baddbmm_(queries[:, block], keys.transpose(1, 2))
                of_block += hidden[row] if hidden.shape[2] == 1 else hidden[row][:, block]
                torch.softmax(of_block, -1, out=of_block)
                stay = of_block if keep is None else of_block * keep[row, part, block] / (1 - dropout)
                attended[row, part, block] = torch.bmm(stay, v[row, part])
        ctx.save_for_backward(q, k, v, position_keys, position_queries, weights, keep)
        ctx.far, ctx.dropout = far, dropout
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "B H T d"]) -> tuple[Tensor | None, ...]:
        q, k, v, position_keys, position_queries, weights, keep = ctx.saved_tensors
        length, most = q.shape[2], position_keys.shape[1] // 2
        of_q, of_k, of_v = _by_position(q), _by_position(k), _by_position(v)
        of_position_keys, of_position_queries = torch.zeros_like(position_keys), torch.zeros_like(position_queries)
        for row, part in _parts(q):
            # Through the values, the dropout and the softmax: [h T T].
            weight = weights[row, part]
            stay = weight if keep is None else weight * keep[row, part] / (1 - ctx.dropout)
            of_v[row, part] = torch.bmm(stay.transpose(1, 2), gradient[row, part])
            of_scores = torch.bmm(gradient[row, part], v[row, part].transpose(1, 2))
            if keep is not None:
                of_scores *= keep[row, part]
                of_scores /= 1 - ctx.dropout
            of_scores = torch._softmax_backward_data(of_scores, weight, -1, weight.dtype)
            # Through the product of queries and keys.
            of_q[row, part] = torch.bmm(of_scores, k[row, part])
            of_k[row, part] = torch.bmm(of_scores.transpose(1, 2), q[row, part])
            # Through the products with positions: those of queries with the keys' and, transposed, the other way round.
            sides = (
                (of_scores, q, of_q, position_keys, of_position_keys),
                (of_scores.transpose(1, 2), k, of_k, position_queries, of_position_queries),
            )
            for slopes, x, of_x, table, of_table in sides:
                for block, near, distances in _blocks(length, ctx.far, most):
                    # Distances that are far away share a row of the table, so their gradients add up.
                    of_block = slopes[:, block].contiguous()
                    of_products = x.new_zeros(*of_block.shape[:2], distances.stop - distances.start)
                    _by_other(of_products).copy_(of_block[..., near])
                    if near.start:
                        of_products[..., 0] += of_block[..., : near.start].sum(-1)
                    if near.stop < length:
                        of_products[..., -1] += of_block[..., near.stop :].sum(-1)
                    of_x[row, part, block] += torch.bmm(of_products, table[part, distances])
                    of_table[part, distances] += torch.bmm(of_products.transpose(1, 2), x[row, part, block])
        return of_q, of_k, of_v, of_position_keys, of_position_queries, *[None] * 4


def _by_position(x: Float[Tensor, "B H T d"]) -> Float[Tensor, "B H T d"]:
    """Return room for as many numbers, with those of a position together."""
    return x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)


def _parts(x: Float[Tensor, "B H T d"]) -> Iterator[tuple[int, slice]]:
    """Yield each row with some of its heads, whose scores fit into a processor's cache."""
    rows, heads, length, _ = x.shape
    at_once = max(1, CACHED // length**2)
    for row in range(rows):
        for head in range(0, heads, at_once):
            yield row, slice(head, head + at_once)


def _blocks(length: int, far: int, most: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield blocks of positions, the positions that are nearer than `far` to one of them, and their distances' rows.

    The first row of these is the most negative distance of the others to the block, the last one the most positive;
    the tables begin at -most.
    """
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        first, end = max(start - far, 0), min(stop + far, length)
        yield slice(start, stop), slice(first, end), slice(most + first - stop + 1, most + end - start)


def _by_other(products: Float[Tensor, "H n W"]) -> Float[Tensor, "H n m"]:
    """Return the view whose row i begins n - 1 - i columns later, so that its columns are the m = W - n + 1 others."""
    heads, here, columns = products.shape
    return products.as_strided((heads, here, columns - here + 1), (here * columns, columns - 1, 1), here - 1)
