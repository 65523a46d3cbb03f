"""WordPiece, as BERT and ELECTRA use it."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from registry import tokenizers

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # ids 0 to 4 in all tokenizers that are trained here
MAX_ALPHABET = 1000


@tokenizers.register("wordpiece")
def wordpiece(
    documents: Iterable[str],
    /,
    *,
    vocab_size: Annotated[int, Field(ge=100, le=1 << 24)] = 30_522,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    chinese_characters: bool = True,
    min_frequency: Annotated[int, Field(ge=1, le=10**9)] = 2,
) -> Tokenizer:
    """WordPiece with BERT's normalizer and word splitting, trained on the training split.

    vocab_size          largest number of tokens; a small corpus gives fewer
    lowercase           lower-case, as `uncased` models do
    strip_accents       remove accents; null means the same as `lowercase`
    chinese_characters  make each Chinese character a word
    min_frequency       number of occurrences from which a pair of pieces is merged
    """
    from tokenizers import normalizers, trainers

    def untrained(vocabulary: dict[str, int] | None = None) -> Tokenizer:
        tokenizer = bert_wordpiece(vocabulary, lowercase, strip_accents, chinese_characters)
        # To find accents BERT's normalizer decomposes all text, including Korean syllables, and leaves it decomposed.
        tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, normalizers.NFC()])
        return tokenizer

    # The library numbers the continuing characters (`##a`) in the order of a hash map, which differs between processes,
    # and breaks ties between merges by those numbers. Declaring them in a fixed order makes training reproducible. Each
    # takes two places in the vocabulary: at the beginning of a word and within it.
    size = min(MAX_ALPHABET, (vocab_size - len(SPECIAL)) // 2)
    alphabet = _alphabet(documents, untrained().normalizer, size)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=SPECIAL + [f"##{character}" for character in alphabet],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
        show_progress=False,
    )
    trained = untrained()
    trained.train_from_iterator(documents, trainer)
    # Built again from the vocabulary alone: the continuing characters are not special tokens.
    tokenizer = untrained(trained.get_vocab())
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def bert_wordpiece(
    vocabulary: dict[str, int] | None,
    lowercase: bool,
    strip_accents: bool | None,
    chinese_characters: bool,
    unknown: str = "[UNK]",
) -> Tokenizer:
    """Return BERT's WordPiece, without special tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese_characters
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _alphabet(documents: Iterable[str], normalizer: Normalizer, size: int) -> list[str]:
    """Return the most frequent characters, at most `size`; the others become [UNK]."""
    counts = count_characters(documents, normalizer)
    characters = [character for character in counts if not character.isspace()]
    characters.sort(key=lambda character: (-counts[character], character))
    return sorted(characters[:size])


def count_characters(documents: Iterable[str], normalizer: Normalizer) -> Counter[str]:
    """Count the characters of normalized text. Marks that can be composed with the letter before do not count."""
    composed: Counter[str] = Counter()
    for text in documents:
        composed.update(unicodedata.normalize("NFC", text))
    counts: Counter[str] = Counter()
    for written, count in composed.items():
        for character in normalizer.normalize_str(written):
            counts[character] += count
    return counts
