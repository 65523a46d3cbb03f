"""The facts about a tokenizer that components may use: special tokens, beginnings of words, counts."""

import random
import re
from collections.abc import Callable, Sequence

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from electra_lab.data.vocabulary import make_vocabulary, readable_token, special_ids, stand_in_vocabulary
from registry import Vocabulary, tokenizers
from registry.errors import DataError

CPU = torch.device("cpu")
# Special tokens anywhere, as in foreign tokenizers.
NAMES = ["the", "[SEP]", "##ly", "[PAD]", "[UNK]", ".", "cat", "[MASK]", "[CLS]", "##s", "\u0120dog", "\u2581cow"]


def tokenizer(names: list[str] = NAMES, decoder: object = None) -> Tokenizer:
    made = Tokenizer(models.WordLevel({name: id for id, name in enumerate(names)}, unk_token="[UNK]"))
    if decoder is not None:
        made.decoder = decoder
    return made


def made(known: Tokenizer, train: Sequence[int] = ()) -> Vocabulary:
    counts = torch.bincount(torch.tensor(train, dtype=torch.int64), minlength=known.get_vocab_size())
    return make_vocabulary(known, counts, CPU)


def at(mask: Tensor | None) -> list[int]:
    assert mask is not None
    return mask.nonzero().flatten().tolist()


def test_tokens_of_bytes_are_shown_as_the_letters_of_their_text() -> None:
    """Hangul and Cyrillic; white space keeps its symbol, and bytes of a cut letter stay unchanged."""
    text = "\uc11c\uc6b8\n \u041c\u043e\u0441\u043a\u0432\u0430 caf\u00e9"
    learned = tokenizers.get("bpe").component([text] * 9, vocab_size=300)
    shown = [readable_token(learned, id) for id in learned.encode(text, add_special_tokens=False).ids]
    assert "".join(shown) == "\u0120\uc11c\uc6b8\u010a\u0120\u041c\u043e\u0441\u043a\u0432\u0430\u0120caf\u00e9"
    part = learned.token_to_id("\u00ec")
    assert readable_token(learned, part) == "\u00ec"
    assert readable_token(tokenizer(), NAMES.index("##ly")) == "##ly"


def test_special_tokens_are_found_wherever_they_are() -> None:
    words = made(tokenizer())
    assert (words.pad_id, words.cls_id, words.sep_id, words.mask_id) == (3, 8, 1, 7)
    assert words.special_ids == (1, 3, 7, 8)
    assert at(words.is_special) == [1, 3, 7, 8]
    assert words.ordinary_ids.tolist() == [0, 2, 4, 5, 6, 9, 10, 11]
    assert words.size == len(NAMES)


@pytest.mark.parametrize("missing", [["[MASK]"], ["[CLS]", "[SEP]"], ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]])
def test_a_tokenizer_without_special_tokens_is_refused(missing: list[str]) -> None:
    lacking = tokenizer([name for name in NAMES if name not in missing])
    others = {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}
    said = ", ".join(f"no {name} or {others[name]}" for name in missing)
    for refusing in (special_ids, made):
        with pytest.raises(DataError, match=re.escape(f"has {said}. ")):
            refusing(lacking)


@pytest.mark.parametrize(
    ("decoder", "starts"),
    [
        (None, [0, 2, 4, 5, 6, 9, 10, 11]),  # of a list of words, all
        (decoders.WordPiece(), [0, 4, 5, 6, 10, 11]),
        (decoders.ByteLevel(), [2, 4, 5, 9, 10, 11]),  # with a mark, or neither letter nor digit
        (decoders.Metaspace(), [2, 4, 5, 9, 11]),
    ],
)
def test_beginnings_of_words_by_the_mark_of_each_kind(decoder: object, starts: list[int]) -> None:
    assert at(made(tokenizer(decoder=decoder)).word_start) == starts


WORDS = {
    "hindi": "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e \u0938\u0940\u0916\u0928\u093e",
    "tamil": "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0bae\u0bca\u0bb4\u0bbf \u0b95\u0bb2\u0bcd\u0bb5\u0bbf",
    "thai": "\u0e20\u0e32\u0e29\u0e32 \u0e17\u0e35\u0e48\u0e19\u0e35\u0e48 \u0e01\u0e33\u0e25\u0e31\u0e07",
    "arabic": "\u0643\u064e\u062a\u064e\u0628\u064e \u0645\u064f\u062f\u064e\u0631\u0651\u0650\u0633",
    "hebrew": "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05b9\u05dc\u05b8\u05dd",
    "persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u06a9\u062a\u0627\u0628\u200c\u0647\u0627",
    "russian": "\u0437\u0430\u0301\u043c\u043e\u043a \u043c\u043e\u0301\u0441\u0442",
    "korean": "\ud55c\uad6d\uc5b4 \ubc30\uc6b0\uae30 \uc2dc\uc791",
    "german": "Stra\u00dfe \u00fcber 25stel",
}


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("script", WORDS)
def test_words_are_never_split(kind: str, script: str) -> None:
    """Not even where they fall into bytes, or into letters and their combining marks."""
    words = WORDS[script].split()
    # Trained on letters in any order, with few merges.
    shuffle = random.Random(0)
    letters = []
    for _ in range(200):
        letters.append(" ".join("".join(shuffle.sample(word, len(word))) for word in words))
    few = {"unigram": {"vocab_size": 100}, "bpe": {"vocab_size": 300, "min_frequency": 10**6}}
    options = few.get(kind, {"vocab_size": 100, "min_frequency": 10**6})
    trained = tokenizers.get(kind).component(letters, **options)
    starts = made(trained).word_start
    for sentence in (words, words[1:] + words[:1]):
        encoding = trained.encode(" ".join(sentence), add_special_tokens=False)
        assert len(encoding.ids) > len(words)  # words of several tokens
        assert int(starts[encoding.ids].sum()) == len(words), encoding.tokens


def sentencepiece_of_llama() -> Tokenizer:
    """A BPE model with bytes for unknown characters, which marks words by replacing spaces."""
    names = ["<unk>", "\u2581ca", "f", "<0xC3>", "<0xA9>", "<0x2D>", "-", "\u0301", "\u2581", *SPECIAL_NAMES]
    made = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    return made


def metaspace_of_another_mark() -> Tokenizer:
    made = tokenizer(["_a", "b", "\u2581c", *SPECIAL_NAMES])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.Metaspace("_")])
    return made


def wordpiece_of_another_prefix() -> Tokenizer:
    names = ["a", "@@b", "##c", *SPECIAL_NAMES]
    vocabulary = {name: id for id, name in enumerate(names)}
    return Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix="@@"))


SPECIAL_NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize(
    ("make", "starts"),
    [
        (sentencepiece_of_llama, ["\u2581ca", "<0x2D>", "-", "\u2581", "<unk>"]),
        (metaspace_of_another_mark, ["_a", "\u2581c"]),
        (wordpiece_of_another_prefix, ["a", "##c"]),
    ],
)
def test_beginnings_of_words_of_published_tokenizers(make: Callable[[], Tokenizer], starts: list[str]) -> None:
    known = make()
    assert {known.id_to_token(id) for id in at(made(known).word_start)} - {"[UNK]"} == {*starts}


def test_counts_are_those_of_the_training_tokens() -> None:
    words = made(tokenizer(), [6, 6, 0, 11, 6, 1, 0])
    assert words.counts.tolist() == [2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("names", "special"),
    [
        (["<pad>", "<s>", "</s>", "<unk>", "<mask>"], (0, 1, 2, 4)),
        (["<cls>", "a", "<eos>", "<pad>", "<mask>"], (0, 2, 3, 4)),
        (["<s>", "[CLS]", "</s>", "[SEP]", "<pad>", "[PAD]", "<mask>", "[MASK]"], (1, 3, 5, 7)),
    ],
)
def test_special_tokens_are_found_whatever_they_are_called(names: list[str], special: tuple[int, ...]) -> None:
    """BERT's names take precedence."""
    assert made(tokenizer(names)).special_ids == special


def test_a_stand_in_has_shapes_alone() -> None:
    words = stand_in_vocabulary(50)
    assert words.size == 50
    assert {words.pad_id, words.cls_id, words.sep_id, words.mask_id} == set(words.special_ids) == {0, 1, 2, 3}
    assert words.ordinary_ids.tolist() == list(range(4, 50))
    for flags in (words.is_special, words.word_start, words.counts):
        assert flags.shape == (50,)
    assert not (words.word_start & words.is_special).any()


@pytest.mark.parametrize(
    ("decoder", "names", "ends"),
    [
        (decoders.WordPiece(), "the . ##. ? !! \u3002 \u0964 , .5 [SEP]", [1, 2, 3, 4, 5, 6]),
        (decoders.ByteLevel(), "the \u0120. \u00e3\u0122\u0124 \u010a .\u0120 \u0120 ;", [1, 2, 3, 4]),
        (decoders.Metaspace(), "\u2581the \u2581. \u2026 \u2581 .\u2581a", [1, 2]),
    ],
)
def test_ends_of_sentences_by_the_text_of_a_token(decoder: object, names: str, ends: list[int]) -> None:
    """For any script and kind of tokenizer; special tokens do not end sentences."""
    rest = [name for name in SPECIAL_NAMES if name not in names]
    assert at(made(tokenizer([*names.split(), *rest], decoder)).sentence_end) == ends
