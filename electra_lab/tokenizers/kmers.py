"""One token for each k letters of a sequence, such as DNA."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from electra_lab.tokenizers._levels import of_list
from registry import tokenizers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST = 1 << 20  # tokens


@tokenizers.register("kmers", trained=False)
def kmers(
    documents: Iterable[str],
    /,
    *,
    k: Annotated[int, Field(ge=1, le=16)] = 6,
    alphabet: Annotated[str, Field(min_length=1, pattern=r"^\w+$")] = "ACGT",
    other: Annotated[str, Field(pattern=r"^\w*$")] = "N",
) -> Tokenizer:
    """One token for each k letters of an alphabet, side by side, and for each letter that is left over.

    White space ends a token, and a word of k letters is one token, [UNK] if some of them are not of the alphabet. So
    overlapping k-mers (DNABERT, Ji et al. 2021) are read from text in which they are separated: the corpus `fasta`
    writes it, and the lab does so with sequences in use. A masked k-mer is revealed by its neighbours; mask spans of at
    least 2k - 1 tokens: `masking: {type: span}`.

    k         number of letters
    alphabet  the letters; lower-case ones are read as upper-case, or the other way round
    other     further letters, which are tokens alone and in no k-mer. Everything else is [UNK]
    """
    from tokenizers import decoders, normalizers

    letters = [*dict.fromkeys(alphabet)]
    if len(letters) ** k > MOST:
        raise ValueError(
            f"{len(letters)} letters have {len(letters) ** k:,} {k}-mers, above {MOST:,}. Choose a smaller k."
        )
    single = [*dict.fromkeys([*letters, *other])]
    whole = ["".join(group) for group in product(letters, repeat=k)] if k > 1 else []
    word = rf"(?<!\S)[\w*-]{{{k}}}(?!\S)"
    tokenizer = of_list([*single, *whole], rf"{word}|[{''.join(letters)}]{{{k}}}|\S")
    pairs = [(letter.swapcase(), letter) for letter in single if letter.swapcase() not in single]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(written, letter) for written, letter in pairs if len(written) == 1]
    )
    tokenizer.decoder = decoders.Fuse()
    return tokenizer
