"""Texts and words as tokens: the same tokens as in pre-training, with their positions."""

import itertools
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from electra_lab.data.encoding import encode
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.data.texts import tokenize
from electra_lab.data.vocabulary import for_words, make_vocabulary
from electra_lab.tokenizers.bpe import bpe
from electra_lab.tokenizers.unigram import unigram
from electra_lab.tokenizers.wordpiece import wordpiece
from registry.contracts.tasks import Encoded

DOCUMENTS = [f"the cat number {n} sat on the mat, and didn't see {n + 1} zebras" for n in range(60)]
TEXTS = ["", "  ", "the cat", "Ärger mit   the dogs\n\n!", "the 🐈 sat", "x" * 300, "cat\ud800sat didn't", " zebras"]
SENTENCES = [["the", "cat", "didn't", "see", "7", "zebras", ",", "quokka"], ["zebras"], ["Quokka", "sat"], []]
MADE = {"wordpiece": (wordpiece, 300), "bpe": (bpe, 400), "unigram": (unigram, 150)}


def make(kind: str) -> Tokenizer:
    function, size = MADE[kind.split()[0]]
    tokenizer: Tokenizer = function(DOCUMENTS, vocab_size=size)
    if kind.startswith("bpe without"):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind.startswith("unigram without"):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    if kind == "bpe of split text":  # as Llama 3 and Qwen
        split = pre_tokenizers.Split(Regex(r" ?\p{L}+| ?[^\s\p{L}]+|\s+"), "isolated")
        bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
    if kind.startswith("unigram by"):  # as Llama 2 and, without the first mark, Gemma
        first = [normalizers.Prepend("\u2581")] if kind.endswith("first mark") else []
        tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "\u2581")])
        tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    # It would add special tokens, which are not wanted.
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


KINDS = [*MADE, "bpe without a space at the beginning", "unigram without a space at the beginning",
         "bpe of split text", "unigram by a normalizer", "unigram by a normalizer with a first mark"]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def encoder(request: pytest.FixtureRequest) -> TextEncoder:
    return of(make(request.param))


def of(tokenizer: Tokenizer) -> TextEncoder:
    counts = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.int64)
    return TextEncoder(tokenizer, make_vocabulary(tokenizer, counts, torch.device("cpu")))


def read(encoder: TextEncoder) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=encoder._tokenizer)  # type: ignore[no-untyped-call]


def spans_of(word: int, found: Encoded) -> list[tuple[int, int]]:
    return [at for at, its in zip(found.offsets, found.words, strict=True) if its == word]


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
        spans = spans_of(word, found)
        start, end = spans[0][0], spans[-1][1]
        alone = encoder._tokenizer.encode(text[:start] + text[start:end], add_special_tokens=False).ids
        ids = [id for id, its in zip(found.ids, found.words, strict=True) if its == word]
        assert alone[-len(ids) :] == ids


def test_words_have_the_tokens_that_they_have_in_a_text(encoder: TextEncoder) -> None:
    """After a space, the first word too. A tokenizer for words reads them so in transformers, alone and in a text."""
    written: Any = PreTrainedTokenizerFast(tokenizer_object=for_words(encoder._tokenizer))  # type: ignore[no-untyped-call]
    for words, found in zip(SENTENCES, encoder.words(SENTENCES), strict=True):
        [after] = encoder.texts([" ".join(["the", *words])])
        assert found.ids == after.ids[after.words.count(0) :]
        assert found.words == sorted(found.words)
        assert set(found.words) == set(range(len(words)))
        if words:
            theirs = written(words, is_split_into_words=True, add_special_tokens=False)
            assert (found.ids, found.words) == (theirs["input_ids"], theirs.word_ids())
        assert found.ids == written(" ".join(words), add_special_tokens=False)["input_ids"]


def test_offsets_are_within_the_word(encoder: TextEncoder) -> None:
    words = ["zebras", "didn't", "  quokka ", "Zebras", "q\ud800u"]
    [found] = encoder.words([words])
    for number, word in enumerate(words):
        spans = spans_of(number, found)
        assert "".join(word[start:end] for start, end in spans) == word.strip()
        assert all(0 <= start <= end <= len(word) for start, end in spans)


def test_a_word_may_have_no_token(encoder: TextEncoder) -> None:
    [found], [alone] = encoder.words([["", "the", " ", "", "cat", "\n"]]), encoder.words([["the", "cat"]])
    assert set(found.words) == {1, 4}
    assert found.words.count(4) == alone.words.count(1)
    assert encoder.words([[], ["", " "]]) == [Encoded([], [], [])] * 2


def test_the_name_of_a_special_token_is_text(encoder: TextEncoder) -> None:
    special, stores = set(encoder.vocabulary.special_ids), Tokenizer.from_str(encoder._tokenizer.to_str())
    stores.encode_special_tokens = True
    text = "see[SEP] the [MASK] sat"
    stored, *_ = encode(stores, [text], "uint16")
    assert not special & set(stored.tolist())
    [read], [shown] = encoder.texts([text]), tokenize(stores, [text])
    assert read.ids == shown.ids == stored.tolist()
    assert read.offsets == shown.offsets
    covered = itertools.chain.from_iterable(itertools.starmap(range, read.offsets))
    letters = [place for place, character in enumerate(text) if not character.isspace()]
    assert [place for place in covered if not text[place].isspace()] == letters
    [tagged] = encoder.words([["the", "[MASK]", "[SEP]see "]])
    assert not special & set(tagged.ids)
    for word, length in enumerate((3, 6, 8)):
        within = itertools.chain.from_iterable(itertools.starmap(range, spans_of(word, tagged)))
        assert [*within] == list(range(length))
    assert not encoder._tokenizer.encode_special_tokens, "unchanged"
