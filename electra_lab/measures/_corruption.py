"""Corrupted text that does not depend on the model under test: which tokens are replaced, and by what.

All of it is a function of (seed, purpose, example id, position): neither the batch size nor the model changes it.
"""

import hashlib
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from electra_lab.metrics import ranks_of, without_each
from registry import Batch, MetricWithDocuments, Vocabulary, count
from registry.errors import DivergedError


def numbers(batch: Batch, seed: int, purpose: str) -> NDArray[np.float64]:
    """Return Float64[B T] in [0, 1). RandomState's streams are frozen across numpy versions."""
    length = batch.tokens.shape[1]
    rows = [_stream(f"{purpose} {seed} {n}").random_sample(length) for n in batch.example_ids.tolist()]
    return np.stack(rows)


def some(number: int, total: int, seed: int) -> list[int]:
    """Return `number` elements of range(total), drawn without replacement, in ascending order; at most all of them."""
    if number >= total:
        return list(range(total))
    stream, drawn = _stream(f"rows {seed}"), set[int]()
    while len(drawn) < number:  # a permutation of all rows of a large text would not fit into memory
        drawn.add(int(stream.randint(total, dtype=np.int64)))
    return sorted(drawn)


def _stream(key: str) -> np.random.RandomState:
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    return np.random.RandomState(np.frombuffer(digest, np.uint32))


def judged(batch: Batch, vocabulary: Vocabulary) -> Bool[Tensor, "B T"]:
    """Return the tokens that may be replaced: neither padding nor special."""
    return batch.attention_mask & ~vocabulary.is_special[batch.tokens]


def choose(maskable: NDArray[np.bool_], share: float, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return Bool[B T] with count(share, m) of each row's m maskable tokens."""
    ranks = np.where(maskable, numbers, 2.0).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    counts = [count(share, m) for m in maskable.sum(axis=1).tolist()]
    chosen: NDArray[np.bool_] = maskable & (ranks < np.array(counts)[:, None])
    return chosen


def unigram(
    batch: Batch, vocabulary: Vocabulary, chosen: NDArray[np.bool_], numbers: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return Int[B T], the text with draws from the add-one training frequencies at the chosen positions."""
    ordinary = vocabulary.ordinary_ids.cpu().numpy()
    sums = (vocabulary.counts.cpu().numpy()[ordinary].astype(np.int64) + 1).cumsum()
    return filled(batch, chosen, ordinary[np.searchsorted(sums, numbers[chosen] * sums[-1], side="right")])


def draw(logits: Float[Tensor, "N V"], vocabulary: Vocabulary, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return Int[N], one token per row from the softmax over the ordinary tokens, in doubles. Raises DivergedError.

    The sums are numpy's: torch's on CUDA may differ between two calls. In place, as the rows are long.
    """
    sums = logits.float().cpu().numpy().astype(np.float64)
    sums[:, list(vocabulary.special_ids)] = -np.inf
    with np.errstate(invalid="ignore"):
        sums -= sums.max(axis=1, keepdims=True)
    np.exp(sums, out=sums).cumsum(axis=1, out=sums)
    if not np.isfinite(sums[:, -1:]).all():
        raise DivergedError("the reference's logits are not finite, so nothing can be drawn from them.")
    # A number below 1 times the total is below the total; the first sum above it is that of a token with some p.
    rows = zip(sums, numbers * sums[:, -1], strict=True)
    return np.array([np.searchsorted(row, below, side="right") for row, below in rows], dtype=np.int64)


def filled(batch: Batch, chosen: NDArray[np.bool_], tokens: NDArray[Any]) -> NDArray[np.int64]:
    """Return Int[B T], the text with `tokens` at the chosen positions, row by row."""
    text: NDArray[np.int64] = batch.tokens.cpu().numpy().copy()
    text[chosen] = tokens
    return text


def documents_of(batch: Batch) -> Int[Tensor, "B T"]:
    """Return the number of the document that each position is from; rows take their place if batches do not tell."""
    if batch.source_document_ids is None:
        return batch.example_ids.unsqueeze(1).expand_as(batch.tokens)
    return batch.source_document_ids


def auc_with_documents(
    replaced: NDArray[np.bool_], scores: NDArray[Any], documents: NDArray[np.integer]
) -> MetricWithDocuments:
    """Return the AUC of detecting replaced tokens, with the contribution of each document, if there are several."""
    from sklearn.metrics import roc_auc_score

    value = float(roc_auc_score(replaced, scores))
    kinds = [np.unique(documents[kind]) for kind in (replaced, ~replaced)]
    several = min(map(len, kinds)) > 1
    return MetricWithDocuments(value, auc_by_document(replaced, scores, documents).tolist() if several else [])


def rankable(replaced: NDArray[np.bool_], scores: NDArray[Any]) -> bool:
    """Return True if there are both replaced and original tokens, with scores that can be ordered."""
    return bool(0 < replaced.sum() < len(replaced) and np.isfinite(scores).all())


def auc_by_document(
    replaced: NDArray[np.bool_], scores: NDArray[Any], documents: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Return Float64[D], the jackknife's pseudo-values of an AUC: D times it less D - 1 times that without a document.

    Their mean is about the AUC, and their differences are the contributions of documents, in the order of their
    numbers. There have to be two documents or more with tokens of either kind.
    """
    nothing = np.zeros(len(replaced), np.int64)
    gain, left, *_ = without_each(replaced, ranks_of(scores), nothing, documents)
    pseudo: NDArray[np.float64] = len(left) * (gain + 0.5) - (len(left) - 1) * (left + 0.5)
    return pseudo
