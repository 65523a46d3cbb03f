"""tokie instead of the tokenizers library: the same ids, or it is not used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from electra_lab.data import engine
from electra_lab.data.store import open_store
from tests.electra_lab.data.test_build import TEXT
from tests.electra_lab.data.test_store import Documents, recipe, stream


@pytest.fixture
def fast(tmp_path: Path) -> engine.Fast:
    pytest.importorskip("tokie", reason="the extra electra-lab[fast] is not installed")
    file = tmp_path / "tokenizer.json"
    from electra_lab.tokenizers.wordpiece import wordpiece

    wordpiece(TEXT + ["don't stop at caf\u00e9s in \u4eac\u90fd"] * 3, vocab_size=300).save(str(file))
    return engine.Fast(file, engine.load_tokenizer(file))


ODD = [
    "plain",
    "",
    "[MASK] at w1 [SEP]",
    "w1 [mask] w2",
    "caf\u00e9 e\u0301",
    "\u4eac\u90fd \U0001f600",
    "a\x00b",
    "x" * 300,
]


def test_tokie_gives_the_same_tokens(fast: engine.Fast) -> None:
    assert fast.usable
    documents = TEXT + ODD
    assert fast.agrees(TEXT)
    for ours, theirs in zip(
        engine.encode(fast.exact, documents, "uint16"), fast.encode(documents, "uint16"), strict=True
    ):
        assert np.array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    assert fast.agrees(documents)


def test_a_document_with_a_character_that_was_not_compared_is_left_to_the_library(
    fast: engine.Fast, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fast.agrees(TEXT)
    left_to_it: list[str] = []
    real = engine.encode

    def noted(tokenizer: object, documents: Sequence[str], dtype: str) -> engine.Encoded:
        left_to_it.extend(documents)
        return real(fast.exact, documents, dtype)

    monkeypatch.setattr(engine, "encode", noted)
    fast.encode(["w1 w2", "w1 \u06db\u08d1", "w3", "a\tb"], "uint16")
    assert left_to_it == ["w1 \u06db\u08d1", "a\tb"]


def test_a_special_token_that_is_written_would_be_another_token_for_tokie(fast: engine.Fast) -> None:
    """Which is why such documents are left to the tokenizers library."""
    assert fast.agrees(TEXT)
    fast._written = []
    ours, theirs = (f(["w1 [MASK] w2"]) for f in (lambda d: engine.encode(fast.exact, d, "uint16")[0],
                                                  lambda d: fast.encode(d, "uint16")[0]))  # fmt: skip
    assert not np.array_equal(ours, theirs)
    assert not fast.agrees(["w1 [MASK] w2"])


def test_a_shard_on_which_tokie_differs_is_left_to_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokie", reason="the extra electra-lab[fast] is not installed")
    expected = open_store(tmp_path / "a", recipe(Documents(TEXT)), [].append)
    assert {shard.engine for shard in expected.manifest.shards["train"].values()} == {"tokie"}
    real = engine.Fast.encode

    def wrong(self: engine.Fast, documents: Sequence[str], dtype: str) -> engine.Encoded:
        tokens, lengths = real(self, documents, dtype)
        return tokens ^ 1, lengths

    monkeypatch.setattr(engine.Fast, "encode", wrong)
    said: list[str] = []
    store = open_store(tmp_path / "b", recipe(Documents(TEXT)), said.append)
    assert stream(store, "train") == stream(expected, "train")
    assert {shard.engine for shard in store.manifest.shards["train"].values()} == {"tokenizers"}
    assert said[-1] == (
        "note: tokie gave other tokens than the tokenizers library in 3 of 3 shards, which the library has tokenized "
        "instead"
    )


def test_tokie_may_be_turned_off(tmp_path: Path) -> None:
    store = open_store(tmp_path, recipe(Documents(TEXT), engine="tokenizers"), [].append)
    assert [(s.engine, s.fell_back) for s in store.manifest.shards["train"].values()] == [("tokenizers", False)]


def test_without_tokie_the_library_does_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = open_store(tmp_path / "a", recipe(Documents(TEXT)), [].append)
    monkeypatch.setitem(sys.modules, "tokie", None)
    from electra_lab.data.shards import _engine

    _engine.cache_clear()
    said: list[str] = []
    store = open_store(tmp_path / "b", recipe(Documents(TEXT)), said.append)
    assert stream(store, "train") == stream(expected, "train")
    assert {shard.engine for shard in store.manifest.shards["train"].values()} == {"tokenizers"}
    assert not [text for text in said if "tokie" in text]
