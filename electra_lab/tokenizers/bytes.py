"""One token for each byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from electra_lab.tokenizers.wordpiece import SPECIAL
from registry import tokenizers

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@tokenizers.register("bytes", trained=False)
def bytes_(documents: Iterable[str], /) -> Tokenizer:
    """One token for each byte of UTF-8 (as in ByT5, Xue et al. 2022): 256 and 5 special tokens; nothing is unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], cache_capacity=0))  # BPE without merges
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer
