"""Tokens that are numbers already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from electra_lab.tokenizers._levels import of_list
from electra_lab.tokenizers.wordpiece import SPECIAL
from registry import tokenizers
from registry.signature import Strict

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Number = Annotated[int, Field(ge=0, le=1 << 24)]


class Special(Strict):
    """The ids of the special tokens."""

    pad: Number
    unk: Number
    cls: Number
    sep: Number
    mask: Number


@tokenizers.register("ids", trained=False)
def ids(
    documents: Iterable[str], /, *, vocab_size: Annotated[int, Field(ge=5, le=1 << 24)], special: Special
) -> Tokenizer:
    """Sequences of ids of another vocabulary, as the corpus `ids` reads them: items of a shop, codes, tokens.

    The id of a token is its number. As a text, a sequence is its numbers with spaces between them.

    vocab_size  number of ids, special ones included; ids are below it
    special     the ids of the special tokens by their roles: pad, unk, cls, sep and mask. They do not occur in
                sequences; if the vocabulary has none, use five more ids than the sequences do
    """
    numbers = [special.pad, special.unk, special.cls, special.sep, special.mask]
    if len({*numbers}) < len(numbers) or max(numbers) >= vocab_size:
        raise ValueError(f"special must have five different ids below vocab_size {vocab_size}.")
    names = dict(zip(numbers, SPECIAL, strict=True))
    tokenizer = of_list([names.get(id, str(id)) for id in range(vocab_size)], r"\S+", special=())
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer
