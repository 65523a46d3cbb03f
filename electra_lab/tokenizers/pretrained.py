"""A tokenizer that exists already: of a Hugging Face folder, a tokenizer.json or a vocab.txt."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ValidationError

from electra_lab.tokenizers._special import SPECIAL
from electra_lab.tokenizers.wordpiece import bert_wordpiece
from registry import tokenizers
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SETTINGS = "tokenizer_config.json"
SAVE = "Save the tokenizer again, for example by save_pretrained of transformers."


@tokenizers.register("pretrained", trained=False)
def pretrained(documents: Iterable[str], /, *, path: Path) -> Tokenizer:
    """A tokenizer that exists already, such as that of a published model; it is read and not trained.

    path  a folder with tokenizer.json or vocab.txt, or one of these files
    """
    return read_tokenizer(path)


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer at `path`: a folder with tokenizer.json or vocab.txt, or one of these files.

    A tokenizer.json keeps its settings, except that it neither pads nor truncates. A vocab.txt is WordPiece of BERT and
    ELECTRA, with the settings of the tokenizer_config.json beside it. Raises DataError.
    """
    file = path
    if os.path.isdir(path):
        found = [path / name for name in ("tokenizer.json", "vocab.txt") if os.path.exists(path / name)]
        if not found:
            raise DataError(f"{path}: has neither tokenizer.json nor vocab.txt. {SAVE}")
        file = found[0]
    tokenizer = _of_json(file) if file.suffix == ".json" else _of_vocabulary(file)
    unknown = getattr(tokenizer.model, "unk_token", None)
    missing = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
    if unknown and tokenizer.model.token_to_id(unknown) is None:
        missing.append(unknown)
    if missing:
        raise DataError(
            f"{file}: lacks {', '.join(dict.fromkeys(missing))}. The lab needs {', '.join(SPECIAL)}, as "
            "tokenizers of BERT and ELECTRA have them."
        )
    if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
        raise DataError(f"{file}: its ids are not 0 to {tokenizer.get_vocab_size() - 1}, one a token. {SAVE}")
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    tokenizer.add_special_tokens([token for token in SPECIAL if token not in special])
    return tokenizer


def _of_json(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    text = _text(file)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{file}: is not a tokenizer ({error}). {SAVE}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


class _Settings(BaseModel, strict=True):
    """The part of a tokenizer_config.json that a vocab.txt depends on."""

    do_lower_case: bool = True
    strip_accents: bool | None = None  # None means as do_lower_case
    tokenize_chinese_chars: bool = True
    word_tokenizer_type: Literal["basic"] = "basic"  # Japanese models have others, which need their own libraries


def _of_vocabulary(file: Path) -> Tokenizer:
    vocabulary: dict[str, int] = {}
    for id, line in enumerate(_text(file).removesuffix("\n").split("\n")):
        token = line.rstrip() or line  # a token may be a space of some kind, but no token ends with one
        if not token or token in vocabulary:
            reason = f"repeats '{token}' of line {vocabulary[token] + 1}" if token else "is empty"
            cure = "Put a token there that no text has, such as [unused0]: without the line, later ids would change."
            raise DataError(f"{file}:{id + 1}: the line {reason}. {cure}")
        vocabulary[token] = id
    settings, beside = _Settings(), file.with_name(SETTINGS)
    if os.path.exists(beside):
        try:
            settings = _Settings.model_validate_json(_text(beside))
        except ValidationError as error:
            first = error.errors()[0]
            key = "".join(f"{part}: " for part in first["loc"])
            raise DataError(f"{beside}: {key}{first['msg']}. Correct it, or use a tokenizer.json.") from None
    return bert_wordpiece(vocabulary, settings.do_lower_case, settings.strip_accents, settings.tokenize_chinese_chars)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}). Name a file or folder on this machine.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: byte {error.start} is not UTF-8. {SAVE}") from None
