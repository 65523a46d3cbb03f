"""The laws of backbones bite: each mistake is found by the law that is about it."""

from __future__ import annotations

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


class ReadsPadding(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.mean(1, keepdim=True).expand_as(x)


class CountsPadding(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().mean(x, mask) * mask.float().mean(1)[:, None, None]


class Bag(Mean):
    positions = "own"  # and it has none


class Blind(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        return x


class LooksBackOnly(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(~mask.unsqueeze(-1), 0).cumsum(1)


class Idle(Mean):
    def __init__(self, dim: int, depth: int, heads: int, max_length: int, /) -> None:
        super().__init__(dim, depth, heads, max_length)
        self.unused = nn.Linear(dim, dim)


class NotANumber(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        real = mask.unsqueeze(-1)
        return (x.masked_fill(~real, 0).sum(1, keepdim=True) / real.sum(1, keepdim=True)).expand_as(x)


class Noisy(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.dropout(super().mean(x, mask), 0.1, training=True)


class Sociable(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().mean(x, mask).mean(0, keepdim=True).expand_as(x)


class NormsOverTheBatch(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        real = x[mask]
        return (super().mean(x, mask) - real.mean(0)) / (real.std(0, correction=0) + 1e-5)


class DrawsForEachBatch(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        """Hash by rotations that are constant, but of the size of the batch, as a seeded draw is."""
        generator = torch.Generator().manual_seed(0)
        rotations = torch.randn(*x.shape[:2], x.shape[-1], generator=generator)[:, 0]
        return super().mean(x, mask) + rotations.sign().unsqueeze(1)


class BucketsByLength(Mean):
    def mean(self, x: Tensor, mask: Tensor) -> Tensor:
        """Each token sees one half of the padded row."""
        half = torch.arange(x.shape[1]) < -(-x.shape[1] // 2)
        return torch.where(half[:, None], super().mean(x, mask & half), super().mean(x, mask & ~half))


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
    ReadsPadding: ("what_padding_holds_never_matters", "they differ by"),
    CountsPadding: (NEIGHBOURS, "of the largest state of 3 tokens"),
    Bag: ("positions_matter", "the states of reordered words differ by"),
    Blind: ("context_matters", "changes the other states by 0 only"),
    LooksBackOnly: ("context_matters", "another token at 15 changes"),
    Idle: ("every_parameter_learns", "no gradient reaches .*unused"),
    NotANumber: ("rows_of_padding_alone_are_harmless", "isfinite"),
    Noisy: ("evaluation_is_a_function_of_its_input", "torch's global generator"),
    Sociable: (NEIGHBOURS, "they differ by"),
    NormsOverTheBatch: (NEIGHBOURS, "of the largest state of 13 tokens"),
    DrawsForEachBatch: (NEIGHBOURS, "of the largest state of 13 tokens"),
    BucketsByLength: (NEIGHBOURS, "of the largest state of 3 tokens"),
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
