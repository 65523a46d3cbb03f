"""Gains over baselines: against the pairwise definition, published closed forms, a bootstrap and simulations.

Simulated documents have effects shared by all of their tokens, so that tokens are not independent.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from electra_lab.measures._corruption import auc_by_document
from electra_lab.metrics import Gain, PretrainingMetrics, auc_gain, mean_gain
from registry import Batch, Detection, Losses
from tests.electra_lab.metric_batches import (
    WORDS,
    detected,
    flat,
    maskable,
    measured,
    of_documents,
    predicted,
    surprise,
    text,
)

Array = np.ndarray


def drawn(sizes: Array, seed: int, *, skill: float = 1.0) -> tuple[Array, Array, Array, Array]:
    """Return labels, scores, ranks of a baseline, and documents: both are equally good, but vary per document."""
    numbers = np.random.default_rng(seed)
    documents = np.repeat(np.arange(len(sizes)), sizes)
    replaced = numbers.random(len(documents)) < 0.3
    scores = []
    for _ in range(2):
        effect = skill + numbers.normal(size=len(sizes))[documents]
        scores.append((effect * replaced + numbers.normal(size=len(documents))).round(1))
    return replaced, scores[0], 100 + (10 * scores[1]).round().astype(np.int64), documents


def uneven(number: int, seed: int, middle: float = 30.0) -> Array:
    return np.ceil(np.random.default_rng([seed, 1]).lognormal(math.log(middle), 1.0, number)).astype(np.int64)


def difference(replaced: Array, ours: Array, theirs: Array) -> float:
    return float(roc_auc_score(replaced, ours) - roc_auc_score(replaced, theirs))


def error(gain: Gain, sizes: Array) -> float:
    """Return the standard error of an interval whose effective number of documents is that of `sizes`."""
    effective = sizes.sum() ** 2 / (sizes**2).sum()
    return (gain[2] - gain[1]) / 2 / float(stats.t.ppf(0.975, effective - 1))


# Exactness


def interval(gain: float, left: list[float], sizes: Array) -> object:
    """Return the jackknife's interval from the leave-one-out values; none if the effective number is below 2."""
    effective = (sizes.sum(1) ** 2 / (sizes**2).sum(1)).min()
    if effective < 2:
        return None, None
    spread = math.sqrt((len(left) - 1) / len(left) * ((np.array(left) - gain) ** 2).sum())
    half = stats.t.ppf(0.975, effective - 1) * spread
    return pytest.approx((gain - half, gain + half), abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), number=st.integers(3, 9))
def test_the_auc_is_computed_anew_without_each_document(seed: int, number: int) -> None:
    """Compared with scikit-learn on all other tokens; for documents in any order and with any numbers."""
    replaced, ours, theirs, documents = drawn(uneven(number, seed, 8.0), seed)
    numbers = np.random.default_rng(seed)
    order, names = numbers.permutation(len(documents)), numbers.permutation(100)[:number].astype(np.int32)
    found = auc_gain(replaced[order], ours[order], theirs[order], names[documents][order])
    sizes = np.array([np.bincount(documents[replaced == kind], minlength=number) for kind in (True, False)])
    if not sizes.sum(1).all():
        assert found == (None, None, None, None)
        return
    if roc_auc_score(replaced, theirs) < 0.5:
        theirs = np.zeros_like(theirs)
    gain, left = difference(replaced, ours, theirs), []
    assert (found[0], found[3]) == (pytest.approx(gain, abs=1e-12), number)
    if found[1] is not None:
        others = [documents != document for document in range(number)]
        left = [difference(replaced[kept], ours[kept], theirs[kept]) for kept in others]
    assert found[1:3] == interval(gain, left, sizes)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), number=st.integers(3, 9))
def test_the_mean_is_computed_anew_without_each_document(seed: int, number: int) -> None:
    sizes = uneven(number, seed, 8.0)
    documents = np.repeat(np.arange(number), sizes)
    gains = np.random.default_rng(seed).normal(1.0, 2.0, len(documents))
    order = np.random.default_rng(seed).permutation(len(documents))
    found = mean_gain(7 * documents[order].astype(np.int32), gains[order])
    assert (found[0], found[3]) == (pytest.approx(gains.mean()), number)
    left = [gains[documents != document].mean() for document in range(number)]
    assert found[1:3] == interval(gains.mean(), left, sizes[None])


def components(replaced: Array, ours: Array, theirs: Array) -> tuple[Array, Array]:
    """Return the structural components of the difference by pairs: of each replaced and of each original token."""
    pairs = [np.sign(scores[replaced][:, None] - scores[~replaced]) / 2 for scores in (ours, theirs)]
    return (pairs[0] - pairs[1]).mean(1), (pairs[0] - pairs[1]).mean(0)


def test_with_a_token_per_document_it_is_the_test_of_delong() -> None:
    """DeLong et al. (1988), for two scores on the same independent tokens."""
    sizes = np.ones(500, np.int64)
    replaced, ours, theirs, documents = drawn(sizes, 0)
    of_replaced, of_original = components(replaced, ours, theirs)
    variance = of_replaced.var(ddof=1) / len(of_replaced) + of_original.var(ddof=1) / len(of_original)
    gain = auc_gain(replaced, ours, theirs, documents)
    assert gain[0] == pytest.approx(of_replaced.mean())
    assert error(gain, replaced.astype(float)) == pytest.approx(math.sqrt(variance), rel=0.01)


def test_with_documents_of_one_size_it_is_the_variance_of_obuchowski() -> None:
    """Obuchowski (1997), equations 3 to 6, for the difference of two scores on the same tokens."""
    number = 80
    replaced, ours, theirs, documents = drawn(np.full(number, 20), 1)
    sizes = [np.bincount(documents[kind], minlength=number) for kind in (replaced, ~replaced)]
    assert min(map(min, sizes)) > 0
    found = components(replaced, ours, theirs)
    parts = []
    for size, gains, kind in zip(sizes, found, (replaced, ~replaced), strict=True):
        parts.append((np.bincount(documents[kind], gains, minlength=number) - size * gains.mean()) / size.sum())
    variance = number / (number - 1) * ((parts[0] + parts[1]) ** 2).sum()
    gain = auc_gain(replaced, ours, theirs, documents)
    assert error(gain, sizes[0]) == pytest.approx(math.sqrt(variance), rel=0.03)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 9), st.booleans())
def test_pseudo_values_are_those_of_leaving_a_document_out(seed: int, documents: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    held = rng.choice(1000, documents, replace=False)
    document = np.concatenate([np.repeat(held, 2), rng.choice(held, 40)])
    replaced = np.concatenate([np.tile([True, False], documents), rng.random(40) < 0.3])
    scores = rng.normal(size=len(document)) + replaced
    scores = scores.round(0 if ties else 8)
    found = auc_by_document(replaced, scores, document)
    whole = roc_auc_score(replaced, scores)
    expected = []
    for number in sorted(held):
        rest = document != number
        expected.append(documents * whole - (documents - 1) * roc_auc_score(replaced[rest], scores[rest]))
    assert found == pytest.approx(expected, abs=1e-12)


# Without an estimate


def test_a_single_document_has_a_gain_and_no_interval() -> None:
    replaced, ours, theirs, documents = drawn(np.array([50]), 3, skill=2.0)
    gain, low, high, number = auc_gain(replaced, ours, theirs, documents)
    assert gain == pytest.approx(difference(replaced, ours, theirs))
    assert (low, high, number) == (None, None, 1)
    assert mean_gain(documents, ours) == (pytest.approx(ours.mean()), None, None, 1)


@pytest.mark.parametrize("kind", [True, False])
def test_a_class_in_one_document_alone_has_no_interval(kind: bool) -> None:
    """Without that document there would be no AUC."""
    replaced, ours, theirs, documents = drawn(np.full(6, 20), 4)
    replaced = np.where(documents == 2, replaced, not kind)
    gain, low, high, number = auc_gain(replaced, ours, np.zeros_like(theirs), documents)
    assert gain == pytest.approx(roc_auc_score(replaced, ours) - 0.5)
    assert (low, high, number) == (None, None, 6)


def test_one_document_that_outweighs_the_others_gives_no_interval() -> None:
    documents = np.repeat(np.arange(4), [1000, 5, 5, 5])
    assert mean_gain(documents, np.arange(1015.0))[1:] == (None, None, 4)


@pytest.mark.parametrize("replaced", [np.zeros(5, np.bool_), np.ones(5, np.bool_), np.zeros(0, np.bool_)])
def test_with_one_class_alone_there_is_no_gain(replaced: Array) -> None:
    ranks = np.arange(len(replaced))
    assert auc_gain(replaced, ranks.astype(np.float32), ranks, ranks) == (None, None, None, None)


def test_a_baseline_below_chance_is_replaced_by_chance() -> None:
    replaced, ours, theirs, documents = drawn(np.full(9, 20), 5)
    worse = theirs.max() - theirs
    assert roc_auc_score(replaced, worse) < 0.5
    assert auc_gain(replaced, ours, worse, documents)[0] == pytest.approx(roc_auc_score(replaced, ours) - 0.5)


# Gains of a run


def test_gains_of_a_text() -> None:
    """The discriminator against ranking by word frequency, each masked language model against word frequencies."""
    batch = of_documents(text(40), 24)
    asked = {"generator": predicted(batch), "discriminator": predicted(batch, seed=1)}
    losses, of = replace(detected(batch), predictions=asked), batch.source_document_ids
    found = measured((batch, losses))
    gains, ends = found.gains(), ("", "_low", "_high", "_documents")
    names = ("generator_mask_loss", "discriminator_token_mask_loss", "discriminator_auc")
    assert list(gains) == [f"{name}_gain{end}" for name in names for end in ends]
    assert found.values().keys().isdisjoint(gains)

    def gain(name: str) -> tuple[float, ...]:
        return tuple(gains[f"{name}_gain{end}"] for end in ends)

    replaced, logits, unigram = flat(batch, losses)
    baseline = np.unique(unigram, return_inverse=True)[1]
    assert gain("discriminator_auc") == auc_gain(replaced, logits, baseline, of[maskable(batch)].numpy())
    for name, prediction in zip(names, asked.values(), strict=False):
        masks = prediction.valid & prediction.saw_mask
        saved = surprise()[batch.tokens.gather(1, prediction.positions)] - prediction.loss
        expected = mean_gain(of.gather(1, prediction.positions)[masks].numpy(), saved[masks].numpy())
        assert gain(name) == pytest.approx(expected)


def test_without_documents_gains_are_over_rows() -> None:
    batch = text(20)
    losses = replace(detected(batch), predictions={"generator": predicted(batch)})
    gains = measured((batch, losses)).gains()
    rows = replace(batch, source_document_ids=batch.example_ids.unsqueeze(1).expand_as(batch.tokens))
    expected = measured((rows, losses)).gains()
    assert gains == {name.replace("documents", "rows"): number for name, number in expected.items()}
    assert gains["discriminator_auc_gain_rows"] == 20
    merged = PretrainingMetrics(WORDS)
    merged.merge(measured((batch, losses)))
    merged.merge(PretrainingMetrics(WORDS))
    assert merged.gains() == gains


def test_nothing_judged_has_no_gains() -> None:
    assert PretrainingMetrics(WORDS).gains() == {}
    batch = text(5)
    asked = predicted(batch)
    never = Losses({}, {"discriminator": replace(asked, saw_mask=torch.zeros_like(asked.saw_mask))})
    assert measured((batch, never)).gains() == {}
    for replaced, logit in ((batch.tokens < 0, 0.0), (batch.tokens % 2 == 0, math.nan)):  # one class alone; lost logits
        seen = Detection(batch.tokens, replaced, torch.full(batch.tokens.shape, logit))
        assert measured((batch, Losses({}, {}, seen))).gains() == {}


def test_equally_frequent_tokens_are_ties() -> None:
    """Although their ids differ, the baseline cannot distinguish them, so its AUC is 0.5."""
    words = replace(WORDS, counts=torch.full_like(WORDS.counts, 7))
    tokens = torch.arange(5, 25).view(4, 5)
    inputs = torch.where(tokens % 3 == 0, tokens + 10, tokens)
    batch = Batch(tokens, tokens > 0, tokens * 0, torch.arange(4))
    found = measured((batch, Losses({}, {}, Detection(inputs, inputs != tokens, tokens.float()))), words=words)
    values = found.values()
    assert values["unigram_auc"] == 0.5
    assert found.gains()["discriminator_auc_gain"] == pytest.approx(values["discriminator_auc"] - 0.5)
