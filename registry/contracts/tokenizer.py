"""Tokenizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TokenizerTrainer(Protocol):
    """Train a tokenizer on documents. It must have the tokens [PAD], [UNK], [CLS], [SEP] and [MASK]."""

    def __call__(self, documents: Iterable[str], /, *args: Any, **options: Any) -> Tokenizer: ...
