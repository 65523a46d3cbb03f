"""The exported tokenizer: the lab's ids, and special tokens as users of transformers expect them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.interop.exports.export import export
from electra_lab.interop.exports.tokenizer import write_tokenizer
from electra_lab.tokenizers.bpe import bpe
from electra_lab.tokenizers.wordpiece import wordpiece
from registry import Vocabulary
from tests.electra_lab.interop.exports import finished

DOCUMENTS = [f"The cat number {n} sat on the mat and saw {n + 1} dogs, naïvely." for n in range(40)]
TEXTS = ["The cat sat on a mat.", "  two  spaces ", "naïve 猫 dogs\nand a café", "", "##cat Ġcat ▁cat", "x" * 200]


def unigram() -> Tokenizer:
    """A tokenizer like those of SentencePiece, with other names and other places of its special tokens."""
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
    write_tokenizer(folder, ours, vocabulary, 40)
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


def test_special_tokens_have_their_parts(made: Any) -> None:
    ours, vocabulary, theirs = made
    ids = (theirs.pad_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert ids == (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    assert theirs.unk_token_id == ours.token_to_id("<unk>" if ours.token_to_id("<unk>") else "[UNK]")
    assert len(theirs) == vocabulary.size
    assert theirs.model_max_length == 40


def test_special_tokens_in_a_text_are_special(made: Any) -> None:
    """A mask takes the place of a whole word, with the space before it, as the masked words of pre-training."""
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
    one, two = (ours.encode(text, add_special_tokens=False).ids for text in ("the cat", "cats"))
    given = theirs("the cat", "cats", padding="max_length", max_length=30)
    cls, sep, pad = vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id
    expected = [cls, *one, sep, *two, sep]
    rest = 30 - len(expected)
    assert given["input_ids"] == expected + [pad] * rest
    assert given["token_type_ids"] == [0] * (len(one) + 2) + [1] * (len(two) + 1) + [0] * rest
    assert given["attention_mask"] == [1] * len(expected) + [0] * rest
    long = "cat " * 100
    assert len(theirs(long, truncation=True)["input_ids"]) == 40
    assert len(Tokenizer.from_file(f"{theirs.name_or_path}/tokenizer.json").encode(long).ids) > 100  # not cut by itself


def test_inputs_are_no_longer_than_what_the_backbone_pads_them_to(tmp_path: Path) -> None:
    """Reformer with buckets of 4 pads 49 tokens to 56, for which a table of 50 positions has no rows."""
    reformer = "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, rotary: false}"
    run = finished(tmp_path, discriminator=reformer, embedding="{dim: 8, max_length: 50}")
    export(run, tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out" / "discriminator").model_max_length == 48
