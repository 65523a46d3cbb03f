"""Rows that hold several documents: networks that can separate them are told, others are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.testing import CLS, PAD, SEP, BackboneContract
from electra_lab.training.random import Streams
from registry import Batch, backbones, objectives
from registry.errors import BadResult
from tests.electra_lab.objectives.by_document import ByDocument
from tests.electra_lab.objectives.tiny import berts, sentences

OPTIONS: dict[str, dict[str, Any]] = {"two_stage": {"generator_steps": 1}, "frozen_generator": {"run": Path("runs/a")}}


class TestByDocument(BackboneContract):
    """All laws of backbones, the one about documents among them."""

    name = "by_document"

    @pytest.fixture(autouse=True)
    def _registered(self) -> Iterator[None]:
        with backbones.isolated():
            component = type("Registered", (ByDocument,), {"__doc__": ByDocument.__doc__})
            backbones.register("by_document")(component)
            yield


class Blind(ByDocument):
    """Claims to separate documents, and does not."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, documents: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, mask)


def test_the_law_of_documents_is_not_empty() -> None:
    """A backbone that ignores them breaks it."""
    with backbones.isolated():
        backbones.register("by_document")(Blind)
        suite = TestByDocument()
        with pytest.raises(AssertionError):
            suite.test_documents_do_not_see_each_other("cpu")


class Whole(ByDocument):
    """Does not claim it."""

    separates_documents = False


def split(rows: int = 4) -> Batch:
    """Two documents in each row, divided at another place in each, and padding."""
    batch = sentences(rows, length=18, padding=3)
    documents = (torch.arange(18) >= 5 + torch.arange(rows).unsqueeze(1)).long()
    return replace(batch, attention_document_ids=documents)


def around(name: str, backbone: Any = ByDocument, **options: Any) -> Any:
    """An objective around two networks with that backbone, seeded, in eval mode."""
    return berts(name, build=backbone, **options).eval()


def encoders(objective: nn.Module) -> list[ByDocument]:
    return [module for module in objective.modules() if isinstance(module, ByDocument)]


@pytest.mark.parametrize("name", objectives.names())
def test_both_networks_are_told_the_documents(name: str) -> None:
    """Padded as rows are, by a document of its own."""
    objective, batch = around(name, **OPTIONS.get(name, {})), split()
    objective(batch, Streams(0, 0, batch.example_ids))
    expected = nn.functional.pad(batch.attention_document_ids, (0, 2), value=-1)
    assert encoders(objective)
    for encoder in encoders(objective):
        assert len(encoder.given) == 1
        assert encoder.given[0] is not None
        assert torch.equal(encoder.given[0], expected)


@pytest.mark.parametrize("name", objectives.names())
def test_without_documents_none_are_given(name: str) -> None:
    objective, batch = around(name, **OPTIONS.get(name, {})), split()
    objective(replace(batch, attention_document_ids=None), Streams(0, 0, batch.example_ids))
    assert [encoder.given for encoder in encoders(objective)] == [[None]] * len(encoders(objective))


@pytest.mark.parametrize("name", objectives.names())
def test_a_network_that_cannot_separate_documents_refuses_them(name: str) -> None:
    objective, batch = around(name, Whole, **OPTIONS.get(name, {})), split()
    objective(replace(batch, attention_document_ids=None), Streams(0, 0, batch.example_ids))
    with pytest.raises(BadResult, match=r"test_documents\.py:\d+: Whole cannot separate documents\."):
        objective(batch, Streams(0, 0, batch.example_ids))


def test_a_detection_does_not_depend_on_the_other_document() -> None:
    """Through the whole objective: other tokens there, the same masks, and the logits of the first document stay."""
    batch = split()
    first = batch.attention_document_ids == 0
    other = torch.where(first | torch.isin(batch.tokens, torch.tensor([PAD, CLS, SEP])), batch.tokens, 29)
    objective = around("electra")
    objective.sampler = lambda logits, rng: logits.argmax(-1)
    found = [
        objective(
            replace(batch, tokens=tokens, attention_document_ids=documents), Streams(0, 0, batch.example_ids)
        ).detection.logits
        for documents in (batch.attention_document_ids, None)
        for tokens in (batch.tokens, other)
    ]
    assert torch.equal(found[0][first], found[1][first])
    assert not torch.allclose(found[2][first], found[3][first], atol=1e-3), "without documents they see each other"
