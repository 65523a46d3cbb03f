"""Texts in windows: every token is judged once, far from the ends of its window, with its position in the text."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from electra_lab.data.texts import Tokenized, batches, tokenize, windows
from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.tokenizers.bpe import bpe
from electra_lab.tokenizers.wordpiece import wordpiece

DOCUMENTS = [f"the cat number {n} sat on the mat, and saw {n + 1} dogs" for n in range(40)]
TEXTS = ["", "  ", "the cat", "Ärger mit   the dogs\n\n!", "the 🐈 sat", "[MASK] sat [PAD]", "x" * 300, "cat\ud800sat"]


@pytest.fixture(scope="module", params=[wordpiece, bpe], ids=["wordpiece", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.param(DOCUMENTS, vocab_size=400)
    return made


@given(st.lists(st.integers(0, 200), min_size=1, max_size=5), st.integers(3, 40))
def test_every_token_is_kept_once_far_from_the_ends_of_its_window(lengths: list[int], length: int) -> None:
    found = windows([Tokenized("", [7] * n, [], []) for n in lengths], length)
    room = length - 2
    margin = room // 4 // 2
    kept = [(window.text, token) for window in found for token in window.keep]
    assert kept == [(text, token) for text, n in enumerate(lengths) for token in range(n)]
    for window in found:
        end = window.first + window.length
        assert 0 < window.length <= room
        assert 0 <= window.first < end <= lengths[window.text]
        assert window.keep.start - window.first >= margin or window.first == 0
        assert end - window.keep.stop >= margin or end == lengths[window.text]


def test_rows_hold_the_tokens_between_their_marks_and_padding_is_not_real(tokenizer: Tokenizer) -> None:
    words = make_vocabulary(tokenizer, torch.zeros(tokenizer.get_vocab_size(), dtype=torch.int64), torch.device("cpu"))
    texts = tokenize(tokenizer, [" ".join(DOCUMENTS[:n]) for n in (1, 3, 2, 0)])
    seen = 0
    for chosen, batch in batches(texts, windows(texts, 24), 4, words, torch.device("cpu")):
        seen += len(chosen)
        assert batch.tokens.shape[1] == max(w.length for w in chosen) + 2
        for row, w in enumerate(chosen):
            ids = texts[w.text].ids[w.first : w.first + w.length]
            real = batch.tokens[row][batch.attention_mask[row]].tolist()
            assert real == [words.cls_id, *ids, words.sep_id]
            assert (batch.tokens[row][~batch.attention_mask[row]] == words.pad_id).all()
            assert batch.tokens[row][w.inside].tolist() == texts[w.text].ids[w.keep.start : w.keep.stop]
    assert seen == len(windows(texts, 24))


def test_offsets_point_at_the_words_themselves(tokenizer: Tokenizer) -> None:
    for text in tokenize(tokenizer, TEXTS):
        assert len(text.ids) == len(text.tokens) == len(text.offsets)
        for start, end in text.offsets:
            assert 0 <= start <= end <= len(text.text)
            piece = text.text[start:end]
            assert piece == piece.strip() or not piece.strip()
    cutting = wordpiece(DOCUMENTS, vocab_size=400)
    cutting.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    for trained, words in ((tokenizer, "the   cat"), (cutting, "the  cat")):  # with spaces on either side
        [cat] = tokenize(trained, [words])
        pieces = [cat.text[start:end] for start, end in cat.offsets]
        assert [piece for piece in pieces if piece.strip()] == ["the", "cat"]


MARKED = [
    "cafe\u0301 x", "m\u0301\u0327a \u0301x", "\u1112\u1161\u11ab\u1100\u116e\u11a8 x", "ന\u0d4d\u200d x", "❤\ufe0f x",
]  # fmt: skip


@pytest.mark.parametrize("words", [marked.split() for marked in MARKED])
def test_offsets_hold_the_marks_that_the_tokenizer_drops(words: list[str], tokenizer: Tokenizer) -> None:
    """Marks belong to the word they are written in; other dropped characters belong to no token."""
    text = tokenize(tokenizer, [" ".join(words)])[0]
    ends = [(start, end) for start, end in text.offsets if start < end]
    borders = {len(words[0]), len(words[0]) + 1}
    assert {ends[0][0], ends[-1][1]} == {0, len(text.text)}
    assert borders <= {place for at in ends for place in at}
    plain = tokenize(tokenizer, ["a\u00ad\u200b b"])[0]
    assert tokenizer.decoder.__class__.__name__ != "WordPiece" or plain.offsets == [(0, 1), (4, 5)]


def test_a_mask_is_a_mask_only_where_it_is_asked_for(tokenizer: Tokenizer) -> None:
    mask = tokenizer.token_to_id("[MASK]")
    for setting in (True, False):
        tokenizer.encode_special_tokens = setting
        for with_masks in (True, False):
            [text] = tokenize(tokenizer, ["the [MASK] sat"], with_masks=with_masks)
            assert (mask in text.ids) == with_masks
            assert tokenizer.encode_special_tokens == setting
    [text] = tokenize(tokenizer, ["the [MASK] sat"], with_masks=True)
    start, end = text.offsets[text.ids.index(mask)]
    assert text.text[start:end] == "[MASK]"


def test_ids_can_be_replaced() -> None:
    text = Tokenized("a b c", [1, 2, 3], ["a", "b", "c"], [(0, 1), (2, 3), (4, 5)])
    assert text.replaced({1: 9}).ids == [1, 9, 3]
    assert text.ids == [1, 2, 3]
