"""A tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from registry import tokenizers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@tokenizers.register("my_tokenizer")
def my_tokenizer(
    documents: Iterable[str], /, *, vocab_size: Annotated[int, Field(ge=6, le=1_000_000)] = 8192
) -> Tokenizer:
    """Words and punctuation marks; those that are not among the most frequent ones are unknown.

    vocab_size  number of tokens, the five special ones included
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer
