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


@pytest.mark.parametrize("name", [name for name in tokenizers.names() if name != "pretrained"])
def test_special_tokens_have_the_first_ids(name: str) -> None:
    trained = tokenizers.get(name).component(TEXT, vocab_size=300)
    assert [trained.token_to_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]


def test_special_tokens_come_first_and_the_size_holds(tokenizer) -> None:
    assert [tokenizer.id_to_token(id) for id in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.get_vocab_size() <= 330
    assert tokenizers.get("bpe").component(TEXT, vocab_size=300).get_vocab_size() == 300


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


def test_a_pair_must_be_frequent_enough() -> None:
    once, thrice = (
        tokenizers.get("bpe").component(["rare common common common"], vocab_size=330, min_frequency=n).get_vocab()
        for n in (1, 3)
    )
    assert {"\u0120rare", "\u0120common"} <= once.keys()
    assert "\u0120common" in thrice
    assert "\u0120rare" not in thrice


def test_one_letter_is_one_text_however_it_is_composed(tokenizer) -> None:
    """NFC, and not NFKC, which would lose that a ligature is one."""
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids
    assert tokenizer.encode("\ufb01").ids != tokenizer.encode("fi").ids


def test_a_word_is_the_same_at_the_beginning_of_a_text(tokenizer) -> None:
    one, two = tokenizer.encode("words").ids, tokenizer.encode("words words").ids
    assert two == one + one


def test_two_processes_train_the_same(tmp_path: Path) -> None:
    one, two = (python("-c", SCRIPT, cwd=tmp_path).stdout for _ in range(2))
    assert one == two != ""
