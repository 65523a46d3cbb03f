"""The split of a document depends on its key alone."""

from __future__ import annotations

from collections import Counter

import pytest

from electra_lab.data.splits import number_of, split_of
from registry import Document


def test_the_share_is_halved_between_validation_and_test() -> None:
    """Within five standard deviations."""
    found = Counter(split_of(Document(f"text {n}"), 0.2) for n in range(20_000))
    assert 0.0894 < found["validation"] / 20_000 < 0.1106
    assert 0.0894 < found["test"] / 20_000 < 0.1106


def test_a_larger_share_only_adds_to_what_is_held_out() -> None:
    texts = [Document(f"text {n}") for n in range(2000)]
    few, many = ({t.text for t in texts if split_of(t, share) != "train"} for share in (0.1, 0.3))
    assert few < many


def test_documents_of_one_key_stay_together() -> None:
    assert {split_of(Document(f"text {n}", key="module"), 0.5) for n in range(100)} == {
        split_of(Document("module"), 0.5)
    }


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_that_the_corpus_brings_is_used(split: str) -> None:
    assert {split_of(Document(f"text {n}", split=split), 0.5) for n in range(50)} == {split}


def test_the_numbers_never_change() -> None:
    """Otherwise held-out text of earlier runs would be trained on."""
    assert [number_of(key) for key in ("", "json", "torch.nn")] == [
        16476032584258269876,
        140876128840170106,
        4653962739856107080,
    ]
