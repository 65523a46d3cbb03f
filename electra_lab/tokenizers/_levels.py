"""Tokenizers whose vocabulary is a list: each piece of a text that a pattern finds is one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from electra_lab.tokenizers.wordpiece import SPECIAL

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def of_list(names: Sequence[str], pattern: str, *, special: Sequence[str] = SPECIAL) -> Tokenizer:
    """Return a tokenizer with the special tokens and, after them, `names`.

    pattern  regular expression (Oniguruma's) of a token; what is between its matches is dropped
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocabulary = {name: number for number, name in enumerate([*special, *names])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    tokenizer.add_special_tokens([*special])
    return tokenizer


def check_pattern(pattern: str) -> str:
    """Return a regular expression that the tokenizers library can read. Raises ValueError."""
    from tokenizers import Regex

    try:
        Regex(pattern)
    except Exception as error:  # the library's own class is Exception
        raise ValueError(f"is not a regular expression: {error}") from None
    return pattern
