"""The laws of backbones bite: each mistake is found by the law that is about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.testing import BackboneContract
from registry.errors import BadResult
from tests.electra_lab.testing.hold import hold


class Mean(nn.Module):
    """A lawful backbone: each token sees itself and the mean of the real tokens of its row."""

    length_multiple, positions = 1, "lab"

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

    def at_step(self, seed: int, step: int) -> None: ...

    def flops(self, length: int) -> int:
        return sum(2 * length * layer.in_features * layer.out_features for layer in self.layers)


def with_mean(name: str, mean: Callable[..., Tensor], **changes: Any) -> type[Mean]:
    """Return the lawful backbone with another mean."""
    return type(name, (Mean,), {"mean": mean, **changes})


def not_a_number(self: Mean, x: Tensor, mask: Tensor) -> Tensor:
    real = mask.unsqueeze(-1)
    return (x.masked_fill(~real, 0).sum(1, keepdim=True) / real.sum(1, keepdim=True)).expand_as(x)


def norm_over_the_batch(self: Mean, x: Tensor, mask: Tensor) -> Tensor:
    real = x[mask]
    return (Mean.mean(self, x, mask) - real.mean(0)) / (real.std(0, correction=0) + 1e-5)


def draw_for_each_batch(self: Mean, x: Tensor, mask: Tensor) -> Tensor:
    """Hash by rotations that are constant, but of the size of the batch, as a seeded draw is."""
    generator = torch.Generator().manual_seed(0)
    rotations = torch.randn(*x.shape[:2], x.shape[-1], generator=generator)[:, 0]
    return Mean.mean(self, x, mask) + rotations.sign().unsqueeze(1)


def bucket_by_length(self: Mean, x: Tensor, mask: Tensor) -> Tensor:
    """Let each token see one half of the padded row."""
    half = torch.arange(x.shape[1]) < -(-x.shape[1] // 2)
    return torch.where(half[:, None], Mean.mean(self, x, mask & half), Mean.mean(self, x, mask & ~half))


READS_PADDING = with_mean("ReadsPadding", lambda self, x, mask: x.mean(1, keepdim=True).expand_as(x))
COUNTS_PADDING = with_mean(
    "CountsPadding", lambda self, x, mask: Mean.mean(self, x, mask) * mask.float().mean(1)[:, None, None]
)
BLIND = with_mean("Blind", lambda self, x, mask: x)
LOOKS_BACK = with_mean("LooksBackOnly", lambda self, x, mask: x.masked_fill(~mask.unsqueeze(-1), 0).cumsum(1))
NOISY = with_mean("Noisy", lambda self, x, mask: nn.functional.dropout(Mean.mean(self, x, mask), 0.1, training=True))
SOCIABLE = with_mean("Sociable", lambda self, x, mask: Mean.mean(self, x, mask).mean(0, keepdim=True).expand_as(x))
BAG = type("Bag", (Mean,), {"positions": "own"})  # and it has none


class Idle(Mean):
    def __init__(self, dim: int, depth: int, heads: int, max_length: int, /) -> None:
        super().__init__(dim, depth, heads, max_length)
        self.unused = nn.Linear(dim, dim)


class Cheap(Mean):
    def flops(self, length: int) -> int:
        return super().flops(length) * 95 // 100


class Shallow(Mean):
    def __init__(self, dim: int, depth: int, heads: int, max_length: int, /) -> None:
        super().__init__(dim, depth - 1, heads, max_length)


class Foreign(Mean):
    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(x, attention_mask)

    def __getattribute__(self, name: str) -> Any:
        return [nn.Linear(2, 2), nn.Linear(2, 2)] if name == "layers" else super().__getattribute__(name)


class Half(Mean):
    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(x, attention_mask).bfloat16()


class Tight(Mean):
    separates_documents = True

    def forward(self, x: Tensor, attention_mask: Tensor, documents: Tensor | None = None) -> Tensor:
        return super().forward(x, attention_mask)


NEIGHBOURS = "a_result_does_not_depend_on_what_else_is_in_the_batch"
MISTAKES = {
    READS_PADDING: ("what_padding_holds_never_matters", "they differ by"),
    COUNTS_PADDING: (NEIGHBOURS, "of the largest state of 3 tokens"),
    BAG: ("positions_matter", "the states of reordered words differ by"),
    BLIND: ("context_matters", "changes the other states by 0 only"),
    LOOKS_BACK: ("context_matters", "another token at 15 changes"),
    Idle: ("every_parameter_learns", "no gradient reaches .*unused"),
    with_mean("NotANumber", not_a_number): ("rows_of_padding_alone_are_harmless", "isfinite"),
    NOISY: ("evaluation_is_a_function_of_its_input", "torch's global generator"),
    SOCIABLE: (NEIGHBOURS, "they differ by"),
    with_mean("NormsOverTheBatch", norm_over_the_batch): (NEIGHBOURS, "of the largest state of 13 tokens"),
    with_mean("DrawsForEachBatch", draw_for_each_batch): (NEIGHBOURS, "of the largest state of 13 tokens"),
    with_mean("BucketsByLength", bucket_by_length): (NEIGHBOURS, "of the largest state of 3 tokens"),
    Cheap: ("flops_formula_agrees_with_torch", "at length 32"),
    Shallow: ("contract", "len"),
    Half: ("contract", "returned the type torch.bfloat16"),
    Tight: ("documents_do_not_see_each_other", "they differ by"),
}


def run(kind: type[nn.Module], law: str) -> None:
    class Suite(BackboneContract):
        name = "mine"

        def component(self) -> Any:
            return kind

    hold(Suite(), law)


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_is_found(kind: type[nn.Module]) -> None:
    law, reason = MISTAKES[kind]
    with pytest.raises((AssertionError, BadResult), match=reason):
        run(kind, law)


@pytest.mark.parametrize("law", sorted({law for law, _ in MISTAKES.values()} - {"documents_do_not_see_each_other"}))
def test_a_lawful_backbone_passes(law: str) -> None:
    run(Mean, law)


def test_layers_must_be_its_own() -> None:
    with pytest.raises(AssertionError, match="layers must be the backbone's own modules"):
        run(Foreign, "contract")


def test_what_a_backbone_does_not_claim_is_skipped() -> None:
    class Counted(Mean):
        flops = property()  # the lab counts

    for kind, law in ((Mean, "documents_do_not_see_each_other"), (Counted, "flops_formula_agrees_with_torch")):
        with pytest.raises(pytest.skip.Exception):
            run(kind, law)
