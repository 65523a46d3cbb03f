"""Sentences about the data of a run."""

from __future__ import annotations

from electra_lab.presentation.text import data_facts
from electra_lab.storage.provenance import Data

DOCUMENTS = {"train": 13010, "validation": 341, "test": 377}
TOKENS = {"train": 1402118, "validation": 42013, "test": 40120}


def test_counts_and_overlap_are_named_by_split() -> None:
    assert dict(data_facts(Data(store="abc", documents=DOCUMENTS, tokens=TOKENS, overlap=0.0126))) == {
        "data": "13,010 documents, 1,402,118 tokens to train; validation 341 and 42,013; test 377 and 40,120",
        "overlap": "1.3% of the 13-token runs of validation and test also occur in training text",
    }


def test_what_is_not_known_is_not_said() -> None:
    """An overlap of nothing is known."""
    assert list(data_facts(Data(store="abc"))) == []
    assert [title for title, _ in data_facts(Data(store="abc", documents=DOCUMENTS, tokens=TOKENS))] == ["data"]
    assert dict(data_facts(Data(store="abc", overlap=0.0)))["overlap"].startswith("0.0% of the 13-token runs")
