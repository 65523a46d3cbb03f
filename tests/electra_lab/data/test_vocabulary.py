"""What components may know of a tokenizer: special tokens, beginnings of words, counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from electra_lab.data import vocabulary as module
from electra_lab.data.vocabulary import count_tokens, make_vocabulary, special_ids, stand_in_vocabulary
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
    return make_vocabulary(made, count_tokens(np.array(train, dtype=np.uint16), made.get_vocab_size()), CPU)


def test_special_tokens_are_found_wherever_they_are() -> None:
    """[UNK] is an ordinary token, which can be masked."""
    words = made([0])
    assert (words.pad_id, words.cls_id, words.sep_id, words.mask_id) == (3, 8, 1, 7)
    assert words.special_ids == (1, 3, 7, 8)
    assert words.is_special.nonzero().flatten().tolist() == [1, 3, 7, 8]
    assert words.ordinary_ids.tolist() == [0, 2, 4, 5, 6, 9, 10, 11]
    assert words.size == len(NAMES)


@pytest.mark.parametrize("missing", [["[MASK]"], ["[CLS]", "[SEP]"], ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]])
def test_a_tokenizer_without_special_tokens_is_refused(missing: list[str]) -> None:
    lacking = tokenizer([name for name in NAMES if name not in missing])
    sentence = f"the tokenizer has no {', '.join(sorted(missing))}; the lab needs all of [PAD], [CLS], [SEP], [MASK]."
    with pytest.raises(DataError) as refused:
        special_ids(lacking)
    assert str(refused.value) == sentence
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


@pytest.mark.parametrize("pieces", [1, 2, 3, 100])
def test_counts_are_those_of_the_training_tokens(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tokens are counted at a time."""
    monkeypatch.setattr(module, "COUNTED", pieces)
    words = made([6, 6, 0, 11, 6, 1, 0])
    assert words.counts.tolist() == [2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 1]
    assert words.counts.dtype == torch.int64


def test_counts_of_a_memory_mapped_stream(tmp_path: Path) -> None:
    np.array([5, 5, 70_000], dtype=np.uint32).tofile(tmp_path / "train.bin")
    stream = np.memmap(tmp_path / "train.bin", "uint32", mode="r")
    large = tokenizer([*NAMES, *(f"w{id}" for id in range(len(NAMES), 70_001))])
    counts = count_tokens(stream, large.get_vocab_size())
    assert (counts[5], counts[70_000], counts.sum()) == (2, 1, 3)


def test_a_stand_in_has_shapes_alone() -> None:
    words = stand_in_vocabulary(50)
    assert words.size == 50
    assert {words.pad_id, words.cls_id, words.sep_id, words.mask_id} == set(words.special_ids) == {0, 1, 2, 3}
    assert words.ordinary_ids.tolist() == list(range(4, 50))
    for each in (words.is_special, words.word_start, words.counts):
        assert each.shape == (50,)
    assert not (words.word_start & words.is_special).any()
