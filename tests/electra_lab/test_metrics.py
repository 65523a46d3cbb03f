"""The metrics of pre-training: against scikit-learn over all positions at once, and by hand."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score
from torch import Tensor

from electra_lab.metrics import PRETRAINING, PretrainingMetrics
from electra_lab.testing import CLS, PAD, SEP, on_each_device, vocabulary
from registry import Batch, Detection, Losses, Prediction
from tests.electra_lab.metric_batches import (
    WORDS,
    chosen,
    detected,
    everything,
    flat,
    maskable,
    measured,
    of_documents,
    predicted,
    rows_of,
    surprise,
    text,
)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.floats(0.1, 0.9), rows=st.integers(4, 30))
def test_detection_is_that_of_scikit_learn(seed: int, share: float, rows: int) -> None:
    """Up to rounding, with many ties."""
    batch = text(rows, seed=seed)
    losses = detected(batch, share=share, seed=seed)
    replaced, logits, unigram = flat(batch, losses)
    values = measured((batch, losses)).values()
    if not 0 < replaced.sum() < len(replaced):
        return
    assert values["discriminator_auc"] == pytest.approx(roc_auc_score(replaced, logits), abs=1e-14)
    assert values["unigram_auc"] == pytest.approx(roc_auc_score(replaced, unigram), abs=1e-14)
    called = logits > 0
    assert values["discriminator_accuracy"] == pytest.approx(accuracy_score(replaced, called), abs=1e-12)
    assert values["discriminator_precision"] == pytest.approx(precision_score(replaced, called, zero_division=0))
    assert values["discriminator_recall"] == pytest.approx(recall_score(replaced, called))
    assert values["always_original_accuracy"] == pytest.approx(1 - replaced.mean(), abs=1e-12)
    assert values["replaced_share"] == pytest.approx(replaced.mean(), abs=1e-12)
    assert values["always_original_auc"] == 0.5


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 12), max_size=4))
def test_any_split_into_batches_or_accumulators_gives_the_same(seed: int, cuts: list[int]) -> None:
    """Sequentially, or in separate accumulators that are merged in any order; areas are equal bit for bit."""
    batch = of_documents(text(12, seed=seed), 5)
    asked = {"generator": predicted(batch, seed=seed), "discriminator": predicted(batch, seed=seed + 1)}
    losses = replace(detected(batch, seed=seed), predictions=asked)
    whole = everything(measured((batch, losses)))
    borders = [0, *sorted(cuts), 12]
    parts = [(batch[a:b], rows_of(losses, slice(a, b))) for a, b in pairwise(borders)]
    merged = PretrainingMetrics(WORDS)
    for part in reversed(parts):
        merged.merge(measured(part))
    for values in (everything(measured(*parts)), everything(merged)):
        assert values == pytest.approx(whole, rel=1e-9, abs=1e-12, nan_ok=True)
        for name in ("discriminator_auc", "unigram_auc", *(name for name in whole if "auc_gain" in name)):
            assert values[name] == whole[name] or math.isnan(whole[name])


def test_merging_leaves_the_other_as_it_was() -> None:
    batch = text(6)
    losses = Losses({}, {"generator": predicted(batch)}, detected(batch).detection)
    first, second = measured((batch, losses)), measured((batch, losses))
    before = everything(second)
    first.merge(second)
    first.merge(second)
    first.update(batch, losses)
    assert everything(second) == before
    assert first.values() == pytest.approx(second.values(), rel=1e-12)


def test_lost_logits_have_no_area_but_leave_the_rest() -> None:
    """A NaN logit counts as a prediction of "original"."""
    batch = text(8)
    losses = detected(batch)
    lost = losses.detection.logits.masked_fill(losses.detection.replaced, math.nan)
    values = measured((batch, replace(losses, detection=replace(losses.detection, logits=lost)))).values()
    replaced, logits, unigram = flat(batch, losses)
    assert math.isnan(values["discriminator_auc"])
    assert values["unigram_auc"] == pytest.approx(roc_auc_score(replaced, unigram), abs=1e-14)
    assert values["discriminator_recall"] == values["discriminator_precision"] == 0
    assert values["discriminator_accuracy"] == pytest.approx(((logits <= 0) & ~replaced).mean())


@pytest.mark.parametrize("replaced", [True, False])
def test_with_one_class_alone_there_is_no_area(replaced: bool) -> None:
    batch = text(4)
    inputs = torch.where(maskable(batch), 5 + (batch.tokens - 4) % 35, batch.tokens) if replaced else batch.tokens
    logits = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(0))
    values = measured((batch, Losses({}, {}, Detection(inputs, inputs != batch.tokens, logits)))).values()
    assert math.isnan(values["discriminator_auc"])
    assert math.isnan(values["unigram_auc"])
    assert values["replaced_share"] == replaced
    called = float((logits[maskable(batch)] > 0).float().mean())
    assert values["discriminator_accuracy"] == pytest.approx(called if replaced else 1 - called)
    assert values["discriminator_recall"] == pytest.approx(called if replaced else 0)
    assert values["discriminator_precision"] == (1 if replaced else 0)


def test_nothing_maskable_gives_no_metric() -> None:
    """Neither alone nor next to rows with maskable tokens."""
    tokens = torch.tensor([[CLS, SEP, PAD]])
    empty = Batch(tokens, tokens != PAD, torch.zeros_like(tokens), torch.arange(1))
    slots = torch.zeros(1, 2, dtype=torch.long)
    never = Prediction(slots, slots > 0, slots > 0, slots.float(), slots > 0)
    nothing = Losses({}, {"generator": never}, Detection(tokens, tokens < 0, torch.ones(1, 3)))
    assert measured().values() == measured((empty, nothing)).values() == {}
    batch = text(6)
    losses = replace(detected(batch), predictions={"generator": predicted(batch)})
    assert measured((batch, losses), (empty, nothing)).values() == measured((batch, losses)).values()


def test_ids_above_two_to_the_sixteenth() -> None:
    """Each id has a distinct count, so that confusing two ids would change the unigram's ranking."""
    size = 70_000
    numbers = torch.Generator().manual_seed(0)
    words = replace(vocabulary(size), counts=torch.randperm(size, generator=numbers))
    batch = text(20, size=size)
    losses = detected(batch, size=size)
    assert (losses.detection.inputs > 1 << 16).sum() > 5
    replaced, logits, unigram = flat(batch, losses, words)
    values = measured((batch, losses), words=words).values()
    assert values["unigram_auc"] == pytest.approx(roc_auc_score(replaced, unigram), abs=1e-14)
    assert values["discriminator_auc"] == pytest.approx(roc_auc_score(replaced, logits), abs=1e-14)


def kept(found: object) -> int:
    """Return the bytes of all arrays and tensors in an object."""
    if isinstance(found, dict):
        return sum(map(kept, found.values()))
    return sum(map(kept, found)) if isinstance(found, list | tuple) else int(getattr(found, "nbytes", 0))


def test_thirteen_bytes_are_kept_for_each_position_and_twelve_for_each_mask() -> None:
    """Nothing else grows with the text."""
    batch = text(50)
    losses = replace(detected(batch), predictions={"generator": predicted(batch)})
    found, asked = measured((batch, losses)), losses.predictions["generator"]
    once, positions, masks = kept(vars(found)), int(maskable(batch).sum()), int((asked.valid & asked.saw_mask).sum())
    for _ in range(9):
        found.update(batch, losses)
    assert kept(vars(found)) - once == 9 * (13 * positions + 12 * masks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_logits_of_any_precision(dtype: torch.dtype) -> None:
    batch = text(10)
    losses = detected(batch)
    other = replace(losses, detection=replace(losses.detection, logits=losses.detection.logits.to(dtype)))
    found, expected = measured((batch, losses)), measured((batch, other))
    assert (found.values(), kept(vars(found))) == (expected.values(), kept(vars(expected)))


# Predictions


@pytest.mark.parametrize(("network", "prefix"), [("generator", "generator"), ("discriminator", "discriminator_token")])
def test_losses_and_accuracies_are_means_over_the_slots_that_count(network: str, prefix: str) -> None:
    """And for [MASK] over the slots where the network read it; word frequencies are those of the originals."""
    batch = text(20)
    asked = predicted(batch)
    spoiled = replace(asked, loss=asked.loss.masked_fill(~asked.valid, math.nan))
    values = measured((batch, Losses({}, {network: spoiled}))).values()
    scores = surprise()[batch.tokens.gather(1, asked.positions)]
    masks = asked.valid & asked.saw_mask
    assert 0 < masks.sum() < asked.valid.sum() < asked.valid.numel()
    expected = {
        f"{prefix}_loss": float(asked.loss[asked.valid].double().mean()),
        f"{prefix}_mask_loss": float(asked.loss[masks].double().mean()),
        f"{prefix}_accuracy": float(asked.correct[asked.valid].double().mean()),
        "unigram_entropy": float(scores[asked.valid].mean()),
        "unigram_mask_entropy": float(scores[masks].mean()),
    }
    assert values == pytest.approx(expected, rel=1e-12)


def test_without_a_mask_token_there_is_no_loss_at_mask() -> None:
    batch = text(5)
    asked = predicted(batch)
    never = replace(asked, saw_mask=torch.zeros_like(asked.saw_mask))
    values = measured((batch, Losses({}, {"discriminator": never}))).values()
    assert set(values) == {"discriminator_token_loss", "discriminator_token_accuracy", "unigram_entropy"}


# Examples


def test_examples_are_the_rows_that_were_asked_for() -> None:
    """In order, without padding: the text, the discriminator's input, and its probability of "replaced"."""
    batch = text(9)
    losses = detected(batch)
    seen = losses.detection
    found = PretrainingMetrics(WORDS, {7, 2, 40})
    for rows in (slice(0, 4), slice(4, 9)):
        found.update(batch[rows], rows_of(losses, rows))
    examples = found.examples()
    assert len(examples) == 2
    for row, example in zip((2, 7), examples, strict=True):
        real = batch.attention_mask[row]
        assert example.originals == batch.tokens[row][real].tolist()
        assert example.inputs == seen.inputs[row][real].tolist()
        assert example.probabilities == pytest.approx([1 / (1 + math.exp(-x)) for x in seen.logits[row][real].tolist()])
        assert len(example.originals) == int(real.sum())
    assert any(example.originals != example.inputs for example in examples)
    other = PretrainingMetrics(WORDS, {0})
    other.update(batch[:4], rows_of(losses, slice(0, 4)))
    found.merge(other)
    assert len(found.examples()) == 3
    assert measured((batch, losses)).examples() == []


# Choices


@pytest.mark.parametrize("rejects", [0, 1])
def test_a_choice_is_credited_as_if_ties_were_broken_at_random(rejects: int) -> None:
    """Compared slot by slot; batches merge; the gain is over the most frequent candidate at the same slots."""
    batch = of_documents(text(20), 9)
    choice = chosen(batch, rejects=rejects)
    own, frequent, none = [], [], []
    for row, slot in choice.valid.nonzero().tolist():
        tokens = [0] * rejects + choice.candidates[row, slot].tolist()  # 0 stands for "none of them"
        logits, answer = choice.logits[row, slot].tolist(), tokens[int(choice.answer[row, slot])]
        if not answer:
            none.append(logits[0] == max(logits))
            continue
        scored = list(zip(tokens, logits, strict=True))[rejects:]
        best = [token for token, logit in scored if logit == max(logits[rejects:])]
        most = max(int(WORDS.counts[token]) for token in tokens[rejects:])
        common = [token for token in tokens[rejects:] if int(WORDS.counts[token]) == most]
        own.append(best.count(answer) / len(best))
        frequent.append(common.count(answer) / len(common))
    losses = Losses({}, choice=choice)
    found = measured((batch, losses))
    values = found.values()
    assert values["choice_accuracy"] == pytest.approx(np.mean(own), abs=1e-12)
    assert values["frequent_candidate_accuracy"] == pytest.approx(np.mean(frequent), abs=1e-12)
    assert found.gains()["choice_accuracy_gain"] == pytest.approx(np.mean(own) - np.mean(frequent), abs=1e-12)
    assert values.get("none_accuracy") == (pytest.approx(np.mean(none)) if rejects else None)
    first, second = (measured((batch[part], rows_of(losses, part))) for part in (slice(0, 7), slice(7, None)))
    first.merge(second)
    assert everything(first) == pytest.approx(everything(found))


# Declarations


def test_every_value_is_declared() -> None:
    batch = text(8)
    asked = {"generator": predicted(batch), "discriminator": predicted(batch)}
    found = measured((batch, replace(detected(batch), predictions=asked, choice=chosen(batch, rejects=1))))
    undeclared = {"discriminator_loss", "choice_loss"}  # the evaluation computes them, from the terms
    assert found.values().keys() == found.metrics.keys() - undeclared
    assert not any("_gain" in name for name in found.metrics), "gains are not lines of a report"
    assert found.metrics == PRETRAINING


def test_declarations_are_complete() -> None:
    assert all(metric.title for metric in PRETRAINING.values())
    baselines = {name for metric in PRETRAINING.values() for name in metric.baselines}
    assert baselines == {
        "always_original_auc", "always_original_accuracy", "unigram_auc", "unigram_entropy", "unigram_mask_entropy",
        "frequent_candidate_accuracy",
    }  # fmt: skip
    lower = {name for name, metric in PRETRAINING.items() if not metric.higher_is_better}
    assert lower == {name for name in PRETRAINING if name.endswith(("_loss", "_entropy"))}
    assert lower == {name for name, metric in PRETRAINING.items() if metric.unit == "nats"}


@on_each_device
def test_batches_on_any_device(device: str) -> None:
    batch = of_documents(text(10), 9)
    losses = replace(detected(batch), predictions={"generator": predicted(batch)})

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device)
        tensors = {name: tensor for name, tensor in vars(value).items() if isinstance(tensor, Tensor)}
        return replace(value, **{name: tensor.to(device) for name, tensor in tensors.items()})

    there = PretrainingMetrics(moved(WORDS))
    predictions = {name: moved(prediction) for name, prediction in losses.predictions.items()}
    there.update(moved(batch), Losses({}, predictions, moved(losses.detection)))
    assert everything(there) == pytest.approx(everything(measured((batch, losses))), rel=1e-12)
