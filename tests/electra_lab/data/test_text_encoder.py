"""Texts and words as tokens: the tokens that the model read in pre-training, each at its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from electra_lab.data.encoding import encode
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.data.texts import tokenize
from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.tokenizers.bpe import bpe
from electra_lab.tokenizers.unigram import unigram
from electra_lab.tokenizers.wordpiece import wordpiece

DOCUMENTS = [f"the cat number {n} sat on the mat, and didn't see {n + 1} zebras" for n in range(60)]
TEXTS = ["", "  ", "the cat", "Ärger mit   the dogs\n\n!", "the 🐈 sat", "x" * 300, "cat\ud800sat didn't", " zebras"]
SENTENCES = [["the", "cat", "didn't", "see", "7", "zebras", ",", "quokka"], ["zebras"], ["Quokka", "sat"], []]
MADE = {"wordpiece": (wordpiece, 300), "bpe": (bpe, 400), "unigram": (unigram, 150)}


def make(kind: str) -> Tokenizer:
    function, size = MADE[kind.removesuffix(" without a space at the beginning")]
    tokenizer: Tokenizer = function(DOCUMENTS, vocab_size=size)
    if kind.startswith("bpe without"):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind.startswith("unigram without"):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return tokenizer


KINDS = [*MADE, "bpe without a space at the beginning", "unigram without a space at the beginning"]


@pytest.fixture(scope="module", params=KINDS)
def encoder(request: pytest.FixtureRequest) -> TextEncoder:
    return of(make(request.param))


def of(tokenizer: Tokenizer) -> TextEncoder:
    counts = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.int64)
    return TextEncoder(tokenizer, make_vocabulary(tokenizer, counts, torch.device("cpu")))


def read(encoder: TextEncoder) -> Any:
    """Return the tokenizer in transformers."""
    return PreTrainedTokenizerFast(tokenizer_object=encoder._tokenizer)  # type: ignore[no-untyped-call]


def test_texts_are_read_as_everywhere_else(encoder: TextEncoder) -> None:
    theirs = tokenize(encoder._tokenizer, TEXTS)
    for text, ours, other in zip(TEXTS, encoder.texts(TEXTS), theirs, strict=True):
        assert (ours.ids, ours.offsets) == (other.ids, other.offsets)
        if "\ud800" not in text:
            found = read(encoder)(text, add_special_tokens=False)
            assert ours.ids == found["input_ids"]
            assert ours.words == found.word_ids()


def test_the_tokenizer_never_joins_words(encoder: TextEncoder) -> None:
    text = "the cat didn't see 7 zebras, quokka"
    [found] = encoder.texts([text])
    assert found.words == sorted(found.words)
    assert set(found.words) == set(range(max(found.words) + 1))
    for word in set(found.words):
        spans = [at for at, its in zip(found.offsets, found.words, strict=True) if its == word]
        start, end = spans[0][0], spans[-1][1]
        alone = encoder._tokenizer.encode(text[: max(start, 0)] + text[start:end], add_special_tokens=False).ids
        ids = [id for id, its in zip(found.ids, found.words, strict=True) if its == word]
        assert alone[-len(ids) :] == ids


def test_words_have_the_tokens_that_they_have_in_a_text(encoder: TextEncoder) -> None:
    for words, found in zip(SENTENCES, encoder.words(SENTENCES), strict=True):
        [text] = encoder.texts([" ".join(words)])
        assert found.ids == text.ids
        assert found.words == sorted(found.words)
        assert set(found.words) == set(range(len(words)))


def test_words_as_transformers_reads_them(encoder: TextEncoder) -> None:
    """Where the tokenizer puts a space before the first word, transformers reads pretokenized words in the same way."""
    for words, found in zip(SENTENCES, encoder.words(SENTENCES), strict=True):
        if not words or getattr(encoder._tokenizer.pre_tokenizer, "add_prefix_space", True) is False:
            continue
        if getattr(encoder._tokenizer.pre_tokenizer, "prepend_scheme", "always") == "never":
            continue
        theirs = read(encoder)(words, is_split_into_words=True, add_special_tokens=False)
        assert found.ids == theirs["input_ids"]
        assert found.words == theirs.word_ids()


def test_offsets_are_within_the_word(encoder: TextEncoder) -> None:
    words = ["zebras", "didn't", "  quokka ", "Zebras", "q\ud800u"]
    [found] = encoder.words([words])
    for number, word in enumerate(words):
        spans = [at for at, its in zip(found.offsets, found.words, strict=True) if its == number]
        assert "".join(word[start:end] for start, end in spans) == word.strip()
        assert all(0 <= start <= end <= len(word) for start, end in spans)


def test_a_word_may_have_no_token(encoder: TextEncoder) -> None:
    [found] = encoder.words([["", "the", " ", "", "cat", "\n"]])
    assert set(found.words) == {1, 4}
    [alone] = encoder.words([["the", "cat"]])
    assert [word for word in found.words if word == 4] == [4] * alone.words.count(1)
    assert encoder.words([[], ["", " "]]) == [type(found)([], [], [])] * 2


def test_a_tokenizer_that_adds_special_tokens_does_not_add_them() -> None:
    tokenizer = make("wordpiece")
    plain = of(make("wordpiece"))
    ends = [("[CLS]", plain.vocabulary.cls_id), ("[SEP]", plain.vocabulary.sep_id)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    assert len(tokenizer.encode("the cat").ids) == 4
    assert of(tokenizer).texts(["the cat"]) == plain.texts(["the cat"])
    assert of(tokenizer).words([["the", "cat"]]) == plain.words([["the", "cat"]])


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_special_token_is_text(kind: str) -> None:
    encoder, tokenizer = of(make(kind)), make(kind)
    special = set(encoder.vocabulary.special_ids)
    tokenizer.encode_special_tokens = True  # as a store does
    text = "see[SEP] the [MASK] sat"
    stored, _ = encode(tokenizer, [text], "uint16")
    assert not special & set(stored.tolist())
    [read], [shown] = encoder.texts([text]), tokenize(tokenizer, [text])
    assert read.ids == shown.ids == stored.tolist()
    assert read.offsets == shown.offsets
    covered = [place for start, end in read.offsets for place in range(start, end)]
    letters = [place for place, character in enumerate(text) if not character.isspace()]
    assert [place for place in covered if not text[place].isspace()] == letters
    [tagged] = encoder.words([["the", "[MASK]", "[SEP]see "]])
    assert not special & set(tagged.ids)
    for word, length in enumerate((3, 6, 8)):
        within = [at for at, number in zip(tagged.offsets, tagged.words, strict=True) if number == word]
        assert [place for start, end in within for place in range(start, end)] == list(range(length))
    assert not encoder._tokenizer.encode_special_tokens, "as it was before"
