"""Byte-level BPE: nothing is unknown, nothing is lost, and two processes train the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry import tokenizers
from tests.helpers import python

TEXT = ["the unbelievable transformers are transforming words, aren't they? ΑΒΓ 123"] * 10

SCRIPT = """
import hashlib
from registry import tokenizers
text = [f"word number {n} of the {n * n} words" for n in range(200)]
print(hashlib.sha256(tokenizers.get("bpe").component(text, vocab_size=400).to_str().encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.get("bpe").component(TEXT, vocab_size=330)


def test_special_tokens_come_first_and_the_size_holds(tokenizer) -> None:
    assert [tokenizer.id_to_token(id) for id in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.get_vocab_size() <= 330


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40))
def test_any_text_comes_back(tokenizer, text: str) -> None:
    """In its normal form (NFC), with the space that stands for the beginning of a word."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    normal = tokenizer.normalizer.normalize_str(text)
    assert tokenizer.decode(ids, skip_special_tokens=False).removeprefix(" ") == normal.removeprefix(" ")


def test_lowercase_is_a_choice() -> None:
    for lowercase, piece in ((True, "α"), (False, "Α")):
        made = tokenizers.get("bpe").component(["ΑΒ αβ"] * 9, vocab_size=300, lowercase=lowercase)
        assert made.decode(made.encode("Α").ids).strip() == piece


def test_two_processes_train_the_same(tmp_path: Path) -> None:
    one, two = (python("-c", SCRIPT, cwd=tmp_path).stdout for _ in range(2))
    assert one == two != ""
