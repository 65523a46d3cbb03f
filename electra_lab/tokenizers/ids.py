"""Tokens that are numbers already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from electra_lab.tokenizers._levels import of_list
from electra_lab.tokenizers.wordpiece import SPECIAL
from registry import tokenizers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Role = Literal["pad", "unk", "cls", "sep", "mask"]
Number = Annotated[int, Field(ge=0, le=1 << 24)]
NAMES: Mapping[Role, str] = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))


@tokenizers.register("ids", trained=False)
def ids(
    documents: Iterable[str], /, *, vocab_size: Annotated[int, Field(ge=5, le=1 << 24)], special: dict[Role, Number]
) -> Tokenizer:
    """Sequences of ids of another vocabulary, as the corpus `ids` reads them: items of a shop, codes, tokens.

    The id of a token is its number. As a text, a sequence is its numbers with spaces between them.

    vocab_size  number of ids, special ones included; ids are below it
    special     the ids of the special tokens by their roles: pad, unk, cls, sep and mask. They do not occur in
                sequences; if the vocabulary has none, use five more ids than the sequences do
    """
    numbers = [special.get(role, -1) for role in NAMES]
    if -1 in numbers or len({*numbers}) < len(numbers) or max(numbers) >= vocab_size:
        raise ValueError(f"special must give {', '.join(NAMES)} five different ids below vocab_size {vocab_size}.")
    names = {id: NAMES[role] for role, id in special.items()}
    tokenizer = of_list([names.get(id, str(id)) for id in range(vocab_size)], r"\S+", special=())
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer
