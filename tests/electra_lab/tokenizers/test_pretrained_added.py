"""Tokens that were added to a vocab.txt, in files of their own, are read as transformers reads them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from electra_lab.tokenizers.pretrained import read_tokenizer
from registry.errors import DataError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "ent", "[", "]"]
SIZE = len(WORDS)
OPTIONS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
TEXTS = ["the [ENT1] cats", "[ent1]the[ENT2] cat", "[ENT1][ENT2]", "the [ENT 1]", "  [ENT2]  cat", "cat"]


def folder(path: Path, added: dict[str, int] | None = None, **settings: Any) -> Path:
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (path / "config.json").write_text('{"model_type": "electra"}')
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ElectraTokenizer"} | settings))
    if added is not None:
        (path / "added_tokens.json").write_text(json.dumps(added))
    return path


def decoder(**options: Any) -> dict[str, Any]:
    names = {0: "[PAD]", SIZE: "[ENT1]", SIZE + 1: "[ENT2]"}
    return {str(id): {"content": name, **OPTIONS, **(options if id >= SIZE else {})} for id, name in names.items()}


@pytest.mark.parametrize(
    ("added", "settings"),
    [
        ({"[ENT2]": SIZE + 1, "[ENT1]": SIZE}, {}),
        (None, {"added_tokens_decoder": decoder()}),
        (None, {"added_tokens_decoder": decoder(special=False, normalized=True)}),
        (None, {"added_tokens_decoder": decoder(lstrip=True, rstrip=True)}),
        ({"[ENT1]": SIZE, "[ENT2]": SIZE + 1}, {"added_tokens_decoder": decoder(single_word=True)}),
        ({}, {}),
    ],
)
def test_added_tokens_are_those_of_transformers(
    tmp_path: Path, added: dict[str, int] | None, settings: dict[str, Any]
) -> None:
    path = folder(tmp_path, added, **settings)
    ours, theirs = read_tokenizer(path), AutoTokenizer.from_pretrained(path)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_vocab_size() == SIZE + (2 if added or settings else 0)
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("added_tokens.json", {"[ENT1]": SIZE + 4}, f"id {SIZE + 4} of the added token '[ENT1]' is not the next one."),
        ("added_tokens.json", {"the": SIZE}, f"the id {SIZE} of the added token 'the' is not the next one."),
        ("added_tokens.json", {"[ENT1]": 4}, "id 4 is that of '[MASK]', not of the added token '[ENT1]'."),
        ("added_tokens.json", {"[ENT1]": "x"}, "added_tokens.json: [ENT1]: Input should be a valid integer"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder: x: "),
    ],
)
def test_added_tokens_that_cannot_be_are_a_sentence(tmp_path: Path, file: str, content: object, said: str) -> None:
    folder(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(DataError, match=re.escape(said)):
        read_tokenizer(tmp_path)
