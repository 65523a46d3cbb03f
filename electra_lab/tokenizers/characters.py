"""One token for each character."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from electra_lab.tokenizers._levels import of_list
from electra_lab.tokenizers.wordpiece import SPECIAL, count_characters
from registry import tokenizers
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@tokenizers.register("characters")
def characters(
    documents: Iterable[str],
    /,
    *,
    vocab_size: Annotated[int, Field(ge=6, le=1 << 21)] = 1000,
    alphabet: Annotated[str, Field(min_length=1)] | None = None,
    lowercase: bool = False,
    min_frequency: Annotated[int, Field(ge=1, le=10**9)] = 1,
) -> Tokenizer:
    """One token for each character, white space included; the others are [UNK]. Text is composed (NFC).

    vocab_size     largest number of tokens, including 5 special tokens; the most frequent characters are kept
    alphabet       the characters, such as ACGT; null for those of the training split
    lowercase      lower-case first
    min_frequency  number of occurrences from which a character of the training split is kept
    """
    from tokenizers import decoders, normalizers

    normalizer = normalizers.Sequence([normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])])
    if alphabet is not None:
        letters = [*dict.fromkeys(normalizer.normalize_str(alphabet))]
        if len(letters) > vocab_size - len(SPECIAL):
            raise ValueError(
                f"vocab_size {vocab_size} must be at least {len(letters) + len(SPECIAL)} for the alphabet."
            )
    else:
        counts = count_characters(documents, normalizer)
        letters = [character for character, number in counts.items() if number >= min_frequency]
        if not letters:
            raise DataError(f"no character occurs {min_frequency} times or more. Lower tokenizer.min_frequency.")
        letters.sort(key=lambda character: (-counts[character], character))
    tokenizer = of_list(sorted(letters[: vocab_size - len(SPECIAL)]), r"[\s\S]")
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Fuse()
    return tokenizer
