"""The exported tokenizer: the lab's ids, and special tokens as expected in transformers."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, ElectraTokenizer, ElectraTokenizerFast

from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.export.export import export
from electra_lab.pretrained.writing import electra_options, write_tokenizer
from electra_lab.tokenizers.bpe import bpe
from electra_lab.tokenizers.pretrained import read_tokenizer
from electra_lab.tokenizers.wordpiece import wordpiece
from registry import Vocabulary
from tests.electra_lab.export.exports import finished

DOCUMENTS = [f"The cat number {n} sat on the mat and saw {n + 1} dogs, naïvely." for n in range(40)]
TEXTS = ["The cat sat on a mat.", "  two  spaces ", "naïve 猫 dogs\nand a café", "", "##cat Ġcat ▁cat", "x" * 200]


def unigram() -> Tokenizer:
    """A tokenizer like those of SentencePiece, with other names and ids of its special tokens."""
    words = [(word, -float(i)) for i, word in enumerate(["▁", "▁cat", "▁the", "s", "a", "t", "c", "h", "e"])]
    special = [(name, 0.0) for name in ("[CLS]", "<unk>", "[SEP]", "[PAD]")]
    tokenizer = Tokenizer(models.Unigram([*special, *words, ("[MASK]", 0.0)], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    tokenizer.enable_truncation(5)
    return tokenizer


KINDS: dict[str, Any] = {
    "wordpiece": lambda: wordpiece(DOCUMENTS, vocab_size=200),
    "cased": lambda: wordpiece(DOCUMENTS, vocab_size=200, lowercase=False),
    "bpe": lambda: bpe(DOCUMENTS, vocab_size=400),
    "unigram": unigram,
}


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Vocabulary, Any]:
    """The lab's tokenizer and vocabulary, and the tokenizer that transformers reads."""
    folder = tmp_path_factory.mktemp("tokenizer")
    ours: Tokenizer = KINDS[request.param]()
    vocabulary = make_vocabulary(ours, torch.ones(ours.get_vocab_size(), dtype=torch.int64), torch.device("cpu"))
    write_tokenizer(folder, ours, 40)
    (folder / "config.json").write_text(json.dumps({"model_type": "electra", "vocab_size": vocabulary.size}))
    ours.no_truncation()
    ours.encode_special_tokens = True  # as in a run
    return ours, vocabulary, AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_has_the_ids_of_the_lab(made: Any, text: str) -> None:
    ours, vocabulary, theirs = made
    ids = ours.encode(text, add_special_tokens=False).ids
    assert theirs(text, add_special_tokens=False)["input_ids"] == ids
    assert theirs(text)["input_ids"] == [vocabulary.cls_id, *ids, vocabulary.sep_id]


ACCENTS, KOREAN, JAMO = ["cafe\u0301 CAFE\u0301", "ру\u0301сский ёж"], "한국어", "\u1112\u1161\u11ab \u212b"
NASTY = [*ACCENTS, KOREAN, JAMO, "The CAFÉ", "naïve Zoë", "猫と犬 a猫b", "İstanbul ẞ ﬁ", "हिन्दी", "...!?—“”", "１２"]
NASTY += ["x" * 101, "a\0b\u200bc\x07d\ufffde", "a\tb\nc\u00a0d\u3000e"]
NORMALIZATIONS = list(product((True, False), (None, True, False), (True, False)))
COMPOSED = "other ids for Korean and for accents that are separate characters"


def written(folder: Path, ours: Tokenizer) -> tuple[str | None, list[str]]:
    """Export a tokenizer; returns the sentence of its card, and the texts that ElectraTokenizer reads differently."""
    vocabulary = make_vocabulary(ours, torch.ones(ours.get_vocab_size(), dtype=torch.int64), torch.device("cpu"))
    folder.mkdir()
    write_tokenizer(folder, ours, 512)
    (folder / "config.json").write_text(json.dumps({"model_type": "electra", "vocab_size": vocabulary.size}))
    ids = [ours.encode(text, add_special_tokens=False).ids for text in NASTY]
    expected = [[vocabulary.cls_id, *of_text, vocabulary.sep_id] for of_text in ids]
    assert AutoTokenizer.from_pretrained(folder)(NASTY)["input_ids"] == expected
    theirs = [kind.from_pretrained(folder)(NASTY)["input_ids"] for kind in (ElectraTokenizer, ElectraTokenizerFast)]
    assert theirs[0] == theirs[1]
    pairs = zip(NASTY, expected, theirs[0], strict=True)
    return electra_options(ours)[1], [text for text, mine, expected in pairs if mine != expected]


@pytest.mark.parametrize(("lowercase", "strip_accents", "chinese"), NORMALIZATIONS)
def test_the_class_of_electra_normalizes_as_the_lab(
    tmp_path: Path, lowercase: bool, strip_accents: bool | None, chinese: bool
) -> None:
    """Exactly for a vocab.txt of BERT; for the lab's own, except the composition of characters, as its card says."""
    options = {"lowercase": lowercase, "strip_accents": strip_accents, "chinese_characters": chinese}
    trained = wordpiece([*DOCUMENTS, *NASTY] * 2, vocab_size=300, **options)
    said, others = written(tmp_path / "trained", trained)
    assert COMPOSED in said
    strips = lowercase if strip_accents is None else strip_accents
    assert set(others) <= {JAMO, *([KOREAN] if strips else ACCENTS)}
    assert (KOREAN in others) == strips

    vocabulary, plain = trained.get_vocab(), tmp_path / "plain"
    plain.mkdir()
    (plain / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    settings = {"do_lower_case": lowercase, "strip_accents": strip_accents, "tokenize_chinese_chars": chinese}
    (plain / "tokenizer_config.json").write_text(json.dumps(settings))
    assert written(tmp_path / "written", read_tokenizer(plain)) == (None, [])


def with_normalizer(normalizer: Any, splitter: Any) -> Tokenizer:
    made = wordpiece(DOCUMENTS, vocab_size=200)
    made.normalizer, made.pre_tokenizer = normalizer, splitter
    return made


BERT, WORDS = normalizers.BertNormalizer, pre_tokenizers.BertPreTokenizer
OTHERS: dict[str, Callable[[], Tokenizer]] = {
    "bpe": lambda: bpe(DOCUMENTS, vocab_size=400),
    "unigram": unigram,
    "of Hugging Face": lambda: with_normalizer(normalizers.Lowercase(), WORDS()),
    "without normalization": lambda: with_normalizer(None, WORDS()),
    "NFKC first": lambda: with_normalizer(normalizers.Sequence([normalizers.NFKC(), BERT()]), WORDS()),
    "control characters": lambda: with_normalizer(BERT(clean_text=False), WORDS()),
    "other words": lambda: with_normalizer(BERT(), pre_tokenizers.WhitespaceSplit()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_tokenizer_that_the_class_of_electra_cannot_represent_is_said_to_be_one(tmp_path: Path, name: str) -> None:
    made = OTHERS[name]()
    made.no_truncation()
    said, others = written(tmp_path / "tokenizer", made)
    assert others
    assert said == "`ElectraTokenizer` cannot represent this tokenizer and gives other ids. Use `AutoTokenizer`."


def test_special_tokens_have_their_parts(made: Any) -> None:
    ours, vocabulary, theirs = made
    ids = (theirs.pad_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert ids == (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    assert theirs.unk_token_id == ours.token_to_id("<unk>" if ours.token_to_id("<unk>") else "[UNK]")
    assert len(theirs) == vocabulary.size
    assert theirs.model_max_length == 40


def test_special_tokens_in_a_text_are_special(made: Any) -> None:
    """A mask replaces a whole word with the space before it, like the masked words of pre-training."""
    ours, vocabulary, theirs = made
    word = theirs("the cat sat", add_special_tokens=False)["input_ids"]
    masked = theirs("the [MASK] sat", add_special_tokens=False)["input_ids"]
    assert masked.count(vocabulary.mask_id) == 1
    at = masked.index(vocabulary.mask_id)
    assert masked[:at] == ours.encode("the", add_special_tokens=False).ids == word[:at]
    assert masked[at + 1 :] == ours.encode("sat", add_special_tokens=False).ids
    assert theirs("[SEP]", add_special_tokens=False)["input_ids"] == [vocabulary.sep_id]
    assert theirs.decode(theirs("cat")["input_ids"], skip_special_tokens=True).strip() == "cat"


def test_pairs_padding_and_length(made: Any) -> None:
    ours, vocabulary, theirs = made
    first, second = (ours.encode(text, add_special_tokens=False).ids for text in ("the cat", "cats"))
    given = theirs("the cat", "cats", padding="max_length", max_length=30)
    cls, sep, pad = vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id
    expected = [cls, *first, sep, *second, sep]
    rest = 30 - len(expected)
    assert given["input_ids"] == expected + [pad] * rest
    assert given["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1) + [0] * rest
    assert given["attention_mask"] == [1] * len(expected) + [0] * rest
    long = "cat " * 100
    assert len(theirs(long, truncation=True)["input_ids"]) == 40
    assert len(Tokenizer.from_file(f"{theirs.name_or_path}/tokenizer.json").encode(long).ids) > 100  # not truncated


def test_inputs_are_no_longer_than_what_the_backbone_pads_them_to(tmp_path: Path) -> None:
    """Reformer with buckets of 4 pads 49 tokens to 56, for which a table of 50 positions has no rows."""
    reformer = "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, rotary: false}"
    run = finished(tmp_path, discriminator=reformer, embedding="{dim: 8, max_length: 50}")
    export(run, tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out" / "discriminator").model_max_length == 48
