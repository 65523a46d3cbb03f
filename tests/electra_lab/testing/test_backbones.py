"""The laws of backbones find mistakes: each one by the law for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.testing import BackboneContract
from registry import Backbone
from registry.errors import BadResult
from tests.electra_lab.testing.hold import hold


class Mean(Backbone, nn.Module):
    """A lawful backbone: each token sees itself and the mean of the real tokens of its row."""

    def __init__(self, dim: int, depth: int, heads: int, max_length: int, /) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(depth))

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(torch.cat([x, self.mean(x, attention_mask)], -1)))
        return x

    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        real = mask.unsqueeze(-1)
        total = x.masked_fill(~real, 0).sum(1, keepdim=True)
        return (total / real.sum(1, keepdim=True).clamp(min=1)).expand_as(x)

    def flops(self, length: int) -> int:
        return sum(2 * length * layer.in_features * layer.out_features for layer in self.layers)


def not_a_number(self: Mean, x: Tensor, mask: Tensor) -> Tensor:
    real = mask.unsqueeze(-1)
    return (x.masked_fill(~real, 0).sum(1, keepdim=True) / real.sum(1, keepdim=True)).expand_as(x)


def norm_over_the_batch(self: Mean, x: Tensor, mask: Tensor) -> Tensor:
    real = x[mask]
    return (Mean.mean(self, x, mask) - real.mean(0)) / (real.std(0, correction=0) + 1e-5)


def draw_for_each_batch(self: Mean, x: Tensor, mask: Tensor) -> Tensor:
    """Hash by constant rotations of the batch's size, as from a seeded draw."""
    generator = torch.Generator().manual_seed(0)
    rotations = torch.randn(*x.shape[:2], x.shape[-1], generator=generator)[:, 0]
    return Mean.mean(self, x, mask) + rotations.sign().unsqueeze(1)


def bucket_by_length(self: Mean, x: Tensor, mask: Tensor) -> Tensor:
    """Let each token see one half of the padded row."""
    half = torch.arange(x.shape[1]) < -(-x.shape[1] // 2)
    return torch.where(half[:, None], Mean.mean(self, x, mask & half), Mean.mean(self, x, mask & ~half))


class Idle(Mean):
    def __init__(self, dim: int, depth: int, heads: int, max_length: int, /) -> None:
        super().__init__(dim, depth, heads, max_length)
        self.unused = nn.Linear(dim, dim)


class Tight(Mean):
    separates_documents = True

    def forward(self, x: Tensor, attention_mask: Tensor, documents: Tensor | None = None) -> Tensor:
        return super().forward(x, attention_mask)


class Foreign(Mean):
    def __getattribute__(self, name: str) -> Any:
        return [nn.Linear(2, 2), nn.Linear(2, 2)] if name == "layers" else super().__getattribute__(name)


def mean(change: Callable[..., Tensor]) -> type[Mean]:
    """Return the lawful backbone with another mean."""
    return type("Wrong", (Mean,), {"mean": change})


def wrong(**changes: Any) -> type[Mean]:
    return type("Wrong", (Mean,), changes)


NEIGHBOURS, DOCUMENTS = "a_result_does_not_depend_on_what_else_is_in_the_batch", "documents_do_not_see_each_other"
MISTAKES: dict[str, tuple[type[Mean], str, str]] = {
    "reads padding": (mean(lambda self, x, mask: x.mean(1, keepdim=True).expand_as(x)),
                      "what_padding_holds_never_matters", "they differ by"),
    "counts padding": (mean(lambda self, x, mask: Mean.mean(self, x, mask) * mask.float().mean(1)[:, None, None]),
                       NEIGHBOURS, "of the largest state of 3 tokens"),
    "no positions": (wrong(positions="own"), "positions_matter", "the states of reordered words differ by"),
    "blind": (mean(lambda self, x, mask: x), "context_matters", "changes the other states by 0 only"),
    "looks back only": (mean(lambda self, x, mask: x.masked_fill(~mask.unsqueeze(-1), 0).cumsum(1)),
                        "context_matters", "another token at 15 changes"),
    "idle": (Idle, "every_parameter_learns", "no gradient reaches .*unused"),
    "not a number": (mean(not_a_number), "rows_of_padding_alone_are_harmless", "isfinite"),
    "noisy": (mean(lambda self, x, mask: nn.functional.dropout(Mean.mean(self, x, mask), 0.1, training=True)),
              "evaluation_is_a_function_of_its_input", "torch's global generator"),
    "sociable": (mean(lambda self, x, mask: Mean.mean(self, x, mask).mean(0, keepdim=True).expand_as(x)),
                 NEIGHBOURS, "they differ by"),
    "norm over the batch": (mean(norm_over_the_batch), NEIGHBOURS, "of the largest state of 13 tokens"),
    "draw for each batch": (mean(draw_for_each_batch), NEIGHBOURS, "of the largest state of 13 tokens"),
    "bucket by length": (mean(bucket_by_length), NEIGHBOURS, "of the largest state of 3 tokens"),
    "cheap": (wrong(flops=lambda self, length: Mean.flops(self, length) * 95 // 100),
              "flops_formula_agrees_with_torch", "at length 32"),
    "shallow": (wrong(__init__=lambda self, dim, depth, *rest: Mean.__init__(self, dim, depth - 1, *rest)),
                "contract", "len"),
    "half": (wrong(forward=lambda self, x, attention_mask: Mean.forward(self, x, attention_mask).bfloat16()),
             "contract", "returned the type torch.bfloat16"),
    "foreign": (Foreign, "contract", "layers must be the backbone's own modules"),
    "tight": (Tight, DOCUMENTS, "they differ by"),
}  # fmt: skip


def run(kind: type[nn.Module], law: str) -> None:
    hold(type("Suite", (BackboneContract,), {"name": "mine", "component": lambda _: kind})(), law)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    kind, law, reason = MISTAKES[mistake]
    with pytest.raises((AssertionError, BadResult), match=reason):
        run(kind, law)


@pytest.mark.parametrize("law", sorted({law for _, law, _ in MISTAKES.values()} - {DOCUMENTS}))
def test_a_lawful_backbone_passes(law: str) -> None:
    run(Mean, law)


def test_what_a_backbone_does_not_claim_is_skipped() -> None:
    counted = wrong(flops=property())  # the lab counts
    for kind, law in ((Mean, DOCUMENTS), (counted, "flops_formula_agrees_with_torch")):
        with pytest.raises(pytest.skip.Exception):
            run(kind, law)
