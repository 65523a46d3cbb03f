"""Small tokenizers of every encoder that the lab lists, as transformers saves them, and how the lab reads them.

`python -m tests.electra_lab.tokenizers.families` prints the table of docs/encoders.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from electra_lab.backbones._families import FAMILIES
from electra_lab.data.texts import tokenize
from electra_lab.data.vocabulary import special_ids
from electra_lab.tokenizers.pretrained import read_tokenizer
from registry.errors import DataError

TEXTS = [
    f"The cat number {n} sat on the mat, saw {n + 1} dogs, naïvely; in Köln it's 猫 한국어 RUN <x> ##y."
    for n in range(60)
]
ODD = [
    "The cat sat on a mat.", "  two  spaces ", "naïve 猫 dogs\nand a café", "über Köln, ÜBER KÖLN", "a猫b猫猫",
    "cafe\u0301 CAFE\u0301", "한국어 \u1112\u1161\u11ab", "it's don't ##y <x>", "a\0b\u200bc\td\u00a0e", "x" * 120,
    "\u0130stanbul ẞ ﬁ \uff11\uff12", "\U0001f600 \U0001f469\u200d\U0001f467 ok", "the [E1] old cat[E1]cat", "",
]  # fmt: skip
LISTED = ["bert", "electra", "modernbert", "deberta-v2", *FAMILIES]
BACKEND = "TokenizersBackend"  # the class of those that are read as their tokenizer.json is written


def class_of(family: str) -> str:
    """Return the name of the class that transformers reads a family's tokenizer by."""
    return TOKENIZER_MAPPING_NAMES.get(family) or BACKEND


def trained(name: str) -> Any:
    """Return a tokenizer of a class, with a marker that its owner has added."""
    if name == BACKEND:  # as in ModernBERT
        base = trained("RobertaTokenizer")
        made = transformers.PreTrainedTokenizerFast(tokenizer_object=base.backend_tokenizer, **base.special_tokens_map)
    else:
        made = getattr(transformers, name)().train_new_from_iterator(TEXTS, 400)
    made.add_tokens(["[E1]"], special_tokens=True)
    return made


def save(name: str, family: str, folder: Path) -> None:
    """Write the files of a tokenizer as models of the family have them."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    letters = ["<pad>", "<unk>", "<cls>", "<eos>", "<mask>", *"abcdefghijklmnopqrstuvwxyz"]
    if name in ("EsmTokenizer", "RoFormerTokenizer"):
        (folder / "vocab.txt").write_text("\n".join(letters))
    elif name in ("XLMTokenizer", "FlaubertTokenizer"):
        (folder / "vocab.json").write_text(json.dumps({letter: n for n, letter in enumerate(letters)}))
        (folder / "merges.txt").write_text("a b 1\n")
    else:
        trained(name).save_pretrained(folder)


def differences(folder: Path, texts: Iterable[str] = ODD) -> list[str]:
    """Return the texts and the roles that the lab reads otherwise than transformers. Raises DataError."""
    ours = read_tokenizer(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours.encode_special_tokens = True  # as in a run
    found = [text for text in texts if _read(theirs, text) != tokenize(ours, [text])[0].ids]
    for role, id in special_ids(ours).items():
        named = getattr(theirs, f"{role}_token_id")
        if named is not None and named != id:
            found.append(f"{role}: {id}, not {named}")
    return found


def _read(theirs: Any, text: str) -> list[int]:
    ids: list[int] = theirs(text, add_special_tokens=False)["input_ids"]
    return ids


def families() -> dict[str, list[str]]:
    """Return the families that each class of tokenizers is of."""
    found: dict[str, list[str]] = {}
    for family in dict.fromkeys(LISTED):
        found.setdefault(class_of(family), []).append(family)
    return found


def row(name: str, folder: Path) -> str:
    """Return the row of the table for a class of tokenizers, of which a folder has one."""
    try:
        wrong = differences(folder)
        result = f"equal ids for {len(ODD)} odd sentences" if not wrong else f"differs: {wrong}"
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        if theirs("a")["input_ids"] != [theirs.cls_token_id, *_read(theirs, "a"), theirs.sep_token_id]:
            result += "; for training only, as a text has other special tokens around it"
    except DataError as error:
        result = f"refused: {str(error).split(': ', 1)[1].split('. ')[0]}"
    return f"| {name} | {', '.join(f'`{family}`' for family in families()[name])} | {result} |"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for name, listed in families().items():
        with TemporaryDirectory() as folder:
            save(name, listed[0], Path(folder))
            print(row(name, Path(folder)))
