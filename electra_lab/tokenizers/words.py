"""One token for each word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from electra_lab.tokenizers._levels import check_pattern, of_list
from electra_lab.tokenizers.wordpiece import SPECIAL
from registry import tokenizers
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Class = Literal["addresses", "hex", "numbers"]
# In this order, as an address has numbers in it; none begins or ends within a word.
CLASSES: dict[Class, tuple[str, str]] = {
    "addresses": (
        "<address>",
        r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?|[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}"
        # IPv6: eight groups, or fewer with `::` and a digit, so neither 12:34:56 nor a lone `::`.
        r"|[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){7}"
        r"|(?=[0-9A-Fa-f:]*::)(?=:*[0-9A-Fa-f])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w:])",
    ),
    "hex": ("<hex>", r"(?<!\w)(?:0[xX][0-9A-Fa-f]+|(?=[0-9A-Fa-f]*\d)(?=\d*[A-Fa-f])[0-9A-Fa-f]{6,})(?!\w)"),
    "numbers": ("<number>", r"(?<!\w)\d+(?:[.,]\d+)*(?!\w)"),
}


@tokenizers.register("words")
def words(
    documents: Iterable[str],
    /,
    *,
    vocab_size: Annotated[int, Field(ge=6, le=1 << 24)] = 30_000,
    pattern: Annotated[str, Field(min_length=1), AfterValidator(check_pattern)] = r"\w+|[^\w\s]",
    classes: list[Class] = [],  # noqa: B006  # read only
    lowercase: bool = False,
    min_frequency: Annotated[int, Field(ge=1, le=10**9)] = 2,
) -> Tokenizer:
    r"""One token for each word of a pattern, such as a field of a log; rare words are [UNK].

    vocab_size     largest number of tokens, including 5 special tokens; the most frequent words are kept
    pattern        regular expression of a word; what is between its matches, by default white space, is dropped
    classes        replace values that differ in every line by one token, as log parsers do: `addresses` (IP, with a
                   port, and MAC) by <address>, `hex` (0x1f, or six digits and more with letters) by <hex>, `numbers` by
                   <number>
    lowercase      lower-case first
    min_frequency  number of occurrences from which a word is kept
    """
    from tokenizers import Regex, normalizers, trainers

    reduced = [CLASSES[name] for name in CLASSES if name in classes]
    whole = "|".join([*(name for name, _ in reduced), pattern])
    steps: list[Any] = [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Replace(Regex(of_class), name) for name, of_class in reduced]
    tokenizer = of_list([], whole)
    tokenizer.normalizer = normalizers.Sequence(steps)
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() == len(SPECIAL):
        reason = f"tokenizer.pattern {pattern!r} finds no word {min_frequency} times or more in the text"
        raise DataError(f"{reason}. Correct it, or lower tokenizer.min_frequency.")
    return tokenizer
