"""The number of words that training has read: those of the raw text between white space, as `wc -w` counts them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from electra_lab.data.rows import WINDOW, Rows, Stream
from registry import BatchSizes, Vocabulary

AT_ONCE = 4096  # rows


def words_of_rows(rows: Rows, text: Stream, vocabulary: Vocabulary) -> NDArray[np.float64]:
    """Return the number of words in each row of a packing.

    A word may have several tokens, and a token does not show whether white space came before it. So the words of a
    document are spread evenly over its tokens: exact where a row has whole documents, and over an epoch. Where a
    packing does not number the documents of a row, all rows have the mean.
    """
    packing, number = rows.packing, len(rows.packing)
    if not hasattr(packing, "source_document_ids"):
        return np.full(number, text.words.sum() / number)
    special = vocabulary.is_special.cpu().numpy()
    share = text.words / np.maximum(text.lengths.astype(np.int64) - 1, 1)  # words per token, without [SEP]
    words = np.zeros(number)
    for start in range(0, number, AT_ONCE):
        chosen = np.arange(start, min(start + AT_ONCE, number))
        packed = packing.rows(chosen)  # [rows T]
        documents = np.clip(packing.source_document_ids(chosen), 0, len(share) - 1)
        counted = packed.attention_mask & ~special[packed.tokens]
        words[chosen] = np.where(counted, share[documents], 0.0).sum(axis=1)
    return words


def steps_of_words(
    targets: Sequence[float], words: NDArray[np.float64], rows: Rows, seed: int, size: int | BatchSizes, steps: int
) -> tuple[list[int], float]:
    """Return the first step after which training has read each number of words, and the words that it reads in all.

    words  number of words in each row, from `words_of_rows`
    size   number of rows per step, or of each step

    A number that is never reached has the step after the last one.
    """
    windows = [rows.windows(seed, window, size) for window in range(-(-steps // WINDOW))]
    reached = np.cumsum([words[batch].sum() for batch in chain.from_iterable(windows)][:steps])
    first_steps = np.searchsorted(reached, np.array(targets) - 1e-6) + 1  # sums of shares are not exact
    return first_steps.tolist(), float(reached[-1])
