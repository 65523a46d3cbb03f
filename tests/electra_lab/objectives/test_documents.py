"""Rows that hold several documents: networks that can separate them are told. Those that cannot: model/test_network."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from electra_lab.testing import BackboneContract
from registry import Batch, backbones, objectives
from tests.electra_lab.objectives.by_document import ByDocument
from tests.electra_lab.objectives.tiny import REQUIRED, berts, sentences, streams


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


def split(rows: int = 4) -> Batch:
    """Two documents in each row, divided at another place in each, and padding."""
    batch = sentences(rows, length=18, padding=3)
    documents = (torch.arange(18) >= 5 + torch.arange(rows).unsqueeze(1)).long()
    return replace(batch, attention_document_ids=documents)


def encoders(objective: nn.Module) -> list[ByDocument]:
    return [module for module in objective.modules() if isinstance(module, ByDocument)]


@pytest.mark.parametrize("name", sorted({*objectives.names()} - {"coco_lm"}))  # which refuses separated documents
def test_both_networks_are_told_the_documents(name: str) -> None:
    """Padded as rows are, by a document of its own; where there are none, none are given."""
    objective, batch = berts(name, build=ByDocument, depth=2, **REQUIRED.get(name, {})).eval(), split()
    objective(batch, streams(batch))
    objective(replace(batch, attention_document_ids=None), streams(batch))
    expected = nn.functional.pad(batch.attention_document_ids, (0, 2), value=-1)
    assert encoders(objective)
    for encoder in encoders(objective):
        passes = len(encoder.given) // 2  # several over a batch, of some objectives
        for told in encoder.given[:passes]:
            assert told is not None
            assert torch.equal(told, expected)
        assert encoder.given[passes:] == [None] * passes
