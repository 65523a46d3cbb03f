"""Tokenizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer


# The special tokens that a tokenizer needs, as BERT, RoBERTa, T5, GPT-2 and similar models call them; the first that it
# has is used. A token for unknown text is optional, as byte-level tokenizers have no unknown text.
SPECIAL_TOKENS = {
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>"),
    "cls": ("[CLS]", "<s>", "<cls>", "<bos>", "<|begin_of_text|>", "<|startoftext|>"),
    "sep": ("[SEP]", "</s>", "<sep>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>", "<mask_1>"),
}
# The files of a folder that are tokenizers; the first that is there is read.
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")
UNKNOWN = ("[UNK]", "<unk>", "<|unk|>")


class TokenizerTrainer(Protocol):
    """Train a tokenizer on documents. It must have the SPECIAL_TOKENS.

    Registered as a function. `@tokenizers.register(name, trained=False)` declares that it ignores the documents. Then
    the lab also calls it without documents: to check its options before a corpus is read, to find the size of the
    vocabulary, and to identify the token store by the content of the tokenizer instead of its options.
    """

    def __call__(self, documents: Iterable[str], /, *args: Any, **options: Any) -> Tokenizer: ...
