"""Tokenizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TokenizerTrainer(Protocol):
    """Train a tokenizer on documents. It must have the tokens [PAD], [UNK], [CLS], [SEP] and [MASK].

    Registered as a function. `@tokenizers.register(name, trained=False)` declares that it ignores the documents. Then
    the lab also calls it without any: to refuse wrong options before a corpus is read, to learn the size of the
    vocabulary, and to name the token store by the content of the tokenizer, not by its options.
    """

    def __call__(self, documents: Iterable[str], /, *args: Any, **options: Any) -> Tokenizer: ...
