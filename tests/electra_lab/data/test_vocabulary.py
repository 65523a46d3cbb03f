"""What components may know of a tokenizer: special tokens, beginnings of words, counts."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from electra_lab.data.vocabulary import make_vocabulary, special_ids, stand_in_vocabulary
from registry import Vocabulary
from registry.errors import DataError

CPU = torch.device("cpu")
# The special tokens anywhere, as in tokenizers from elsewhere.
NAMES = ["the", "[SEP]", "##ly", "[PAD]", "[UNK]", ".", "cat", "[MASK]", "[CLS]", "##s", "\u0120dog", "\u2581cow"]


def tokenizer(names: list[str] = NAMES, decoder: object = None) -> Tokenizer:
    made = Tokenizer(models.WordLevel({name: id for id, name in enumerate(names)}, unk_token="[UNK]"))
    if decoder is not None:
        made.decoder = decoder
    return made


def made(train: list[int], **options: object) -> Vocabulary:
    made = tokenizer(**options)
    return make_vocabulary(made, torch.bincount(torch.tensor(train), minlength=made.get_vocab_size()), CPU)


def test_special_tokens_are_found_wherever_they_are() -> None:
    """[UNK] is an ordinary token, which can be masked."""
    words = made([0])
    assert (words.pad_id, words.cls_id, words.sep_id, words.mask_id) == (3, 8, 1, 7)
    assert words.special_ids == (1, 3, 7, 8)
    assert words.is_special.nonzero().flatten().tolist() == [1, 3, 7, 8]
    assert words.ordinary_ids.tolist() == [0, 2, 4, 5, 6, 9, 10, 11]
    assert words.size == len(NAMES)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["[MASK]"], "no [MASK] or <mask>"),
        (["[CLS]", "[SEP]"], "no [CLS] or <s>, no [SEP] or </s>"),
        (
            ["[PAD]", "[CLS]", "[SEP]", "[MASK]"],
            "no [PAD] or <pad>, no [CLS] or <s>, no [SEP] or </s>, no [MASK] or <mask>",
        ),
    ],
)
def test_a_tokenizer_without_special_tokens_is_refused(missing: list[str], said: str) -> None:
    lacking = tokenizer([name for name in NAMES if name not in missing])
    with pytest.raises(DataError) as refused:
        special_ids(lacking)
    assert str(refused.value) == (
        f"the tokenizer has {said}. The lab needs a token for padding, one for the beginning and one for the end of a "
        "text, and one for the mask."
    )
    with pytest.raises(DataError):
        make_vocabulary(lacking, torch.zeros(lacking.get_vocab_size(), dtype=torch.int64), CPU)


@pytest.mark.parametrize(
    ("decoder", "starts"),
    [
        (None, [0, 4, 5, 6, 10, 11]),  # all but those with ##
        (decoders.WordPiece(), [0, 4, 5, 6, 10, 11]),
        (decoders.ByteLevel(), [2, 4, 5, 9, 10, 11]),  # those with a mark, and what is neither letter nor digit
        (decoders.Metaspace(), [2, 4, 5, 9, 11]),
    ],
)
def test_beginnings_of_words_by_the_mark_of_each_kind(decoder: object, starts: list[int]) -> None:
    """Special tokens begin none."""
    assert made([0], decoder=decoder).word_start.nonzero().flatten().tolist() == starts


def test_counts_are_those_of_the_training_tokens() -> None:
    words = made([6, 6, 0, 11, 6, 1, 0])
    assert words.counts.tolist() == [2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 1]
    assert words.counts.dtype == torch.int64


@pytest.mark.parametrize(
    ("names", "special"),
    [
        (["<pad>", "<s>", "</s>", "<unk>", "<mask>"], (0, 1, 2, 4)),
        (["<cls>", "a", "<eos>", "<pad>", "<mask>"], (0, 2, 3, 4)),
        (["<s>", "[CLS]", "</s>", "[SEP]", "<pad>", "[PAD]", "<mask>", "[MASK]"], (1, 3, 5, 7)),
    ],
)
def test_special_tokens_are_found_whatever_they_are_called(names: list[str], special: tuple[int, ...]) -> None:
    """BERT's names win where there are several."""
    assert made([0], names=names).special_ids == special


def test_a_stand_in_has_shapes_alone() -> None:
    words = stand_in_vocabulary(50)
    assert words.size == 50
    assert {words.pad_id, words.cls_id, words.sep_id, words.mask_id} == set(words.special_ids) == {0, 1, 2, 3}
    assert words.ordinary_ids.tolist() == list(range(4, 50))
    for each in (words.is_special, words.word_start, words.counts):
        assert each.shape == (50,)
    assert not (words.word_start & words.is_special).any()


@pytest.mark.parametrize(
    ("decoder", "names", "ends"),
    [
        (
            decoders.WordPiece(),
            ["the", ".", "##.", "?", "!!", "\u3002", "\u0964", ",", ".5", "[SEP]"],
            [1, 2, 3, 4, 5, 6],
        ),
        (
            decoders.ByteLevel(),
            ["the", "\u0120.", "\u00e3\u0122\u0124", "\u010a", ".\u0120", "\u0120", ";"],
            [1, 2, 3, 4],
        ),
        (decoders.Metaspace(), ["\u2581the", "\u2581.", "\u2026", "\u2581", ".\u2581a"], [1, 2]),
    ],
)
def test_ends_of_sentences_by_the_text_of_a_token(decoder: object, names: list[str], ends: list[int]) -> None:
    """Of any script and kind of tokenizer; special tokens end none."""
    known = tokenizer([*names, *(name for name in NAMES if name.startswith("[") and name not in names)], decoder)
    words = make_vocabulary(known, torch.zeros(known.get_vocab_size(), dtype=torch.int64), CPU)
    assert words.sentence_end is not None
    assert words.sentence_end.nonzero().flatten().tolist() == ends
