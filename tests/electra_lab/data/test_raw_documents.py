"""A corpus on disk, split."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.data import raw_documents
from electra_lab.data.raw_documents import Sample, held_out_texts, read_contents, read_piece, write_documents
from electra_lab.data.splits import HELD_OUT, SPLITS, number_of, split_of
from registry import LONGEST, Document, Skipped


class Given:
    """A corpus of the given documents; `prints` are its successive fingerprints."""

    def __init__(self, documents: Any, prints: str = "aaaa") -> None:
        self.documents, self.prints = documents, iter(prints)

    def __iter__(self) -> Iterator[Any]:
        yield from self.documents

    def fingerprint(self) -> str:
        return next(self.prints)


def written(folder: Path, documents: Any, held_out: float = 0.5) -> raw_documents.Contents:
    folder.mkdir(exist_ok=True)
    return write_documents(Given(documents), "a", held_out, folder, lambda *_: None)


def texts(folder: Path) -> dict[str, list[str]]:
    contents = read_contents(folder)
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        for piece in range(contents.pieces[split]):
            found[split] += read_piece(folder, split, piece)
    return found


ODD = [
    "a\x00b", "line\r\nend", "e\u0301 \u0641\u0642\u0637 \U0001f469\u200d\U0001f4bb", "\u1112\u1161\u11ab", "\ufeffx",
]  # fmt: skip
some = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30), max_size=30)


@settings(max_examples=40, deadline=None)
@given(some)
def test_every_document_comes_back_once_in_order_in_its_split(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    documents = [f"anchor {n}" for n in range(12)] + ODD + documents
    written(folder, documents)
    stripped = [document.strip() for document in documents if document.strip()]
    expected: dict[str, list[str]] = {split: [] for split in SPLITS}
    for text in stripped:
        expected[split_of(text.encode(), 0.5)].append(text)
    assert texts(folder) == expected


def test_pieces_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a limit: a large corpus has few pieces, a small one has small pieces."""
    monkeypatch.setattr(raw_documents, "LEAST", 100)
    monkeypatch.setattr(raw_documents, "MOST", 400)
    held_out = [Document(split, split=split) for split in HELD_OUT]
    contents = written(tmp_path, [*(Document("x" * 50, split="train") for _ in range(800)), *held_out])
    sizes = [sum(map(len, read_piece(tmp_path, "train", n))) for n in range(contents.pieces["train"])]
    assert sizes[0] == 100
    assert sizes == sorted(sizes[:-1]) + sizes[-1:]
    assert max(sizes) == 400
    assert sum(sizes) == contents.characters["train"] == 40_000
    assert contents.documents == {"train": 800, "validation": 1, "test": 1}


def test_documents_of_one_key_stay_together(tmp_path: Path) -> None:
    keys = [f"module {n}" for n in range(12)]
    written(tmp_path, [Document(f"text {n} of {key}", key=key) for key in keys for n in range(10)])
    for split, found in texts(tmp_path).items():
        mine = [key for key in keys if split_of(key.encode(), 0.5) == split]
        assert found == [f"text {n} of {key}" for key in mine for n in range(10)]


def test_long_documents_are_cut_and_half_characters_replaced(tmp_path: Path) -> None:
    """tests/registry/contracts/test_corpus.py tests how they are cut."""
    own = [Document("v", split="validation"), Document("t", split="test")]
    train = ["x" * (2 * LONGEST + 5), "a \ud83d b \ud83d\ude00"]
    written(tmp_path, [*(Document(text, split="train") for text in train), *own])
    *parts, last = texts(tmp_path)["train"]
    assert ([len(part) for part in parts], last) == ([LONGEST, LONGEST, 5], "a \ufffd b \U0001f600")


def test_held_out_text_has_a_limit_that_does_not_depend_on_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents with the smallest hashes stay; those beyond the limit are neither trained on nor evaluated."""
    monkeypatch.setattr(raw_documents, "MOST_HELD_OUT", 300)
    documents, found = [f"document {n}" + "x" * (n % 17) for n in range(200)], []
    for seed in range(4):
        random.Random(seed).shuffle(documents)
        contents = written(tmp_path / str(seed), documents)
        held = {split: texts(tmp_path / str(seed))[split] for split in HELD_OUT}
        found.append({split: sorted(kept) for split, kept in held.items()})
        for split, kept in held.items():
            assert kept == [text for text in documents if text in kept]
            assert 250 < sum(map(len, kept)) <= 300
            own = [text for text in documents if split_of(text.encode(), 0.5) == split]
            assert {*kept} == {*sorted(own, key=lambda text: number_of(text.encode()))[: len(kept)]}
        assert contents.beyond_limit == 200 - sum(contents.documents.values())
        assert contents.documents["train"] == sum(split_of(text.encode(), 0.5) == "train" for text in documents)
    assert all(held == found[0] for held in found)


def test_what_comes_again_is_for_training_alone(tmp_path: Path) -> None:
    once = [f"text {n}" for n in range(40)]
    written(tmp_path, [Document(text, again=again) for again in (False, True, True) for text in once])
    found = texts(tmp_path)
    for split, times in (("train", 3), ("validation", 1), ("test", 1)):
        assert found[split] == [text for text in once if split_of(text.encode(), 0.5) == split] * times


def test_what_was_skipped_is_counted_and_the_first_are_named(tmp_path: Path) -> None:
    skipped = [Skipped(f"a.jsonl:{n}", "is not JSON") for n in range(7)]
    rest = [Skipped("b.txt:3", "byte 7 is not UTF-8", number, "bytes") for number in (1000, 24)]
    contents = written(tmp_path, [*skipped, *rest, *(f"text {n}" for n in range(20))])
    assert contents.skipped == 9
    assert contents.lost == {"records": 7, "bytes": 1024}
    assert contents.examples == [f"a.jsonl:{n}: is not JSON" for n in range(5)]


@pytest.mark.parametrize("characters", [100, 500, 1e9])
def test_a_sample_is_spread_evenly(tmp_path: Path, characters: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_documents, "LEAST", 400)
    contents = written(tmp_path, [f"document number {n:04}" for n in range(200)])
    train = texts(tmp_path)["train"]
    sample = Sample(tmp_path, contents, characters, lambda *_: None)
    assert list(sample) == list(sample)
    places = [train.index(text) for text in sample]
    assert abs(sum(map(len, sample)) - min(characters, contents.characters["train"])) <= 20
    gaps = {b - a for a, b in itertools.pairwise(places)}
    assert max(gaps) - min(gaps) <= 1


def test_a_sample_is_never_empty(tmp_path: Path) -> None:
    contents = written(tmp_path, [f"document number {n:04}" * 200 for n in range(40)])
    assert len(list(Sample(tmp_path, contents, 10, lambda *_: None))) == 1


def test_by_order_the_last_documents_are_held_out(tmp_path: Path) -> None:
    documents = [f"text {n}" for n in range(20)]
    write_documents(Given(documents), "a", 0.2, tmp_path, lambda *_: None, "by_order")
    assert texts(tmp_path) == {"train": documents[:16], "validation": documents[16:18], "test": documents[18:]}
    assert [*held_out_texts(Given(documents), 0.2, "by_order")] == documents[16:]
