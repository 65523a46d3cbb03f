"""Byte-level BPE: nothing is unknown or lost. test_wordpiece checks that it is the same in every process."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry import tokenizers

TEXT = ["the unbelievable transformers are transforming words, aren't they? ΑΒΓ 123"] * 10


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.get("bpe").component(TEXT, vocab_size=330)


@pytest.mark.parametrize("name", ["bpe", "characters", "unigram", "wordpiece", "words"])
def test_special_tokens_have_the_first_ids(name: str) -> None:
    trained = tokenizers.get(name).component(TEXT, vocab_size=300)
    assert trained.get_vocab_size() <= 300
    assert name != "bpe" or trained.get_vocab_size() == 300
    assert [trained.token_to_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40))
def test_any_text_comes_back(tokenizer, text: str) -> None:
    """In its normal form (NFC), with the space that marks the beginning of a word."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    normal = tokenizer.normalizer.normalize_str(text)
    assert tokenizer.decode(ids, skip_special_tokens=False).removeprefix(" ") == normal.removeprefix(" ")


@pytest.mark.parametrize("name", ["bpe", "characters", "unigram", "words"])
def test_lowercase_is_a_choice(name: str) -> None:
    for lowercase, piece in ((True, "α"), (False, "Α")):
        made = tokenizers.get(name).component(["ΑΒ αβ Α α"] * 9, vocab_size=300, lowercase=lowercase)
        assert made.decode(made.encode("Α").ids).strip() == piece


@pytest.mark.parametrize(("name", "mark"), [("bpe", "\u0120"), ("wordpiece", "")])
def test_a_pair_must_be_frequent_enough(name: str, mark: str) -> None:
    train = partial(tokenizers.get(name).component, ["rare common common common"], vocab_size=330)
    once, thrice = (train(min_frequency=number).get_vocab() for number in (1, 3))
    assert {f"{mark}rare", f"{mark}common"} <= once.keys()
    assert f"{mark}common" in thrice
    assert f"{mark}rare" not in thrice


def test_one_text_has_one_form(tokenizer) -> None:
    """NFC, not NFKC, which would split ligatures; a word has the same form at the beginning of a text."""
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids
    assert tokenizer.encode("\ufb01").ids != tokenizer.encode("fi").ids
    once, twice = tokenizer.encode("words").ids, tokenizer.encode("words words").ids
    assert twice == once + once
