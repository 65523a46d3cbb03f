"""Byte-level BPE, as GPT-2 and RoBERTa use it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from electra_lab.tokenizers.wordpiece import SPECIAL
from registry import tokenizers

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@tokenizers.register("bpe")
def bpe(
    documents: Iterable[str],
    /,
    *,
    vocab_size: Annotated[int, Field(ge=300, le=1 << 24)] = 50_265,
    lowercase: bool = False,
    min_frequency: Annotated[int, Field(ge=1, le=10**9)] = 2,
) -> Tokenizer:
    """Byte-level BPE, trained on the training split; it has no unknown text.

    vocab_size     largest number of tokens, including 256 bytes and 5 special tokens
    lowercase      lower-case first
    min_frequency  number of occurrences from which a pair of pieces is merged
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer
