"""The split of a document depends only on its key, or on its position."""

from collections import Counter
from contextlib import nullcontext, suppress
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_lab.data.splits import Unsplittable, by_order, number_of, split_of
from registry import Document, Skipped


def test_the_share_is_halved_between_validation_and_test() -> None:
    """Within five standard deviations. A larger share only adds held-out documents."""
    texts = [f"text {n}".encode() for n in range(20_000)]
    found = Counter(split_of(text, 0.2) for text in texts)
    assert 0.0894 < found["validation"] / 20_000 < 0.1106
    assert 0.0894 < found["test"] / 20_000 < 0.1106
    few = {text for text in texts if split_of(text, 0.1) != "train"}
    assert few < {text for text in texts if split_of(text, 0.3) != "train"}


def test_the_numbers_never_change() -> None:
    """Otherwise held-out text of earlier runs would be trained on."""
    known = {b"": 16476032584258269876, b"json": 140876128840170106, b"torch.nn": 4653962739856107080}
    assert {key: number_of(key) for key in known} == known


@given(st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=3, max_size=40), st.floats(0.01, 0.9))
def test_by_order_holds_out_the_last_documents_and_keeps_keys_together(keys: list[str | None], held_out: float) -> None:
    """Consecutive documents of one key stay together; a key on both sides or too few documents are an error."""
    documents = [Document(f"text {n}", key) for n, key in enumerate(keys)]
    half = max(1, round(len(keys) * held_out / 2))
    runs = [key for key, _ in groupby(keys) if key]
    may_refuse, found = len(keys) <= 2 * half or len(runs) > len(set(runs)), None
    with suppress(Unsplittable) if may_refuse else nullcontext():
        found = [document.split for document in by_order(documents, held_out) if isinstance(document, Document)]
    if found is None:
        return
    assert found == sorted(found, key=["train", "validation", "test"].index)
    for key in filter(None, keys):
        assert len({split for split, other in zip(found, keys, strict=True) if other == key}) == 1
    if not any(keys):
        assert Counter(found) == {"train": len(keys) - 2 * half, "validation": half, "test": half}
    # A boundary is later than its nominal position only within documents of one key.
    for boundary, split in ((len(keys) - 2 * half, "train"), (len(keys) - half, "validation")):
        assert split not in found[boundary:] or keys[boundary] == keys[boundary - 1] is not None


def test_by_order_passes_on_what_was_skipped_and_refuses_splits_and_repetitions() -> None:
    skipped = Skipped("file:1", "is bad")
    assert [*by_order(["a", skipped, "b", "c"], 0.5)][1] is skipped
    for document in (Document("a", split="train"), Document("a", again=True)):
        with pytest.raises(Unsplittable, match="by_order") as caught:
            list(by_order(["a", "b", "c", document], 0.5))
        assert caught.value.key == ("data", "split")
