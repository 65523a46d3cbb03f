"""Batches and losses with known metrics, for the tests of metrics."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from electra_lab.metrics import PretrainingMetrics
from electra_lab.testing import CLS, SEP, vocabulary
from registry import Batch, Choice, Detection, Losses, Prediction, Vocabulary

SIZE = 40
WORDS = replace(vocabulary(SIZE), counts=torch.arange(SIZE) ** 2 % 7)  # several tokens have the same count


def text(rows: int, length: int = 12, size: int = SIZE, seed: int = 0) -> Batch:
    """[CLS], ordinary tokens, [SEP], and padding on the right, or on the left of every third row.

    Padding holds ordinary tokens, which must not count.
    """
    numbers = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, size, (rows, length), generator=numbers)
    real = torch.randint(3, length + 1, (rows, 1), generator=numbers)
    places = torch.arange(length)
    tokens[:, 0] = CLS
    tokens, mask = tokens.masked_fill(places == real - 1, SEP), places < real
    tokens = tokens.masked_fill(~mask, 7)
    left = torch.arange(rows).unsqueeze(1) % 3 == 2
    return Batch(
        torch.where(left, tokens.flip(1), tokens),
        torch.where(left, mask.flip(1), mask),
        torch.zeros_like(tokens),
        torch.arange(rows),
    )


def detected(batch: Batch, *, share: float = 0.3, size: int = SIZE, seed: int = 0) -> Losses:
    """Some replaced tokens, and weakly informative logits with many ties and zeros."""
    numbers = torch.Generator().manual_seed(seed)
    chosen = maskable(batch) & (torch.rand(batch.tokens.shape, generator=numbers) < share)
    inputs = torch.where(chosen, torch.randint(5, size, batch.tokens.shape, generator=numbers), batch.tokens)
    replaced = inputs != batch.tokens
    logits = (replaced + 2 * torch.randn(batch.tokens.shape, generator=numbers)).round()
    return Losses({}, {}, Detection(inputs, replaced, logits))


def maskable(batch: Batch) -> Tensor:
    return batch.attention_mask & ~torch.isin(batch.tokens, torch.tensor(WORDS.special_ids))


def predicted(batch: Batch, *, slots: int = 3, seed: int = 0) -> Prediction:
    numbers = torch.Generator().manual_seed(seed)
    rows = len(batch)
    order = torch.rand(batch.tokens.shape, generator=numbers).masked_fill(~maskable(batch), -1).argsort(descending=True)
    positions = order[:, :slots]
    valid = maskable(batch).gather(1, positions)
    hidden, correct = (torch.rand(rows, slots, generator=numbers) < share for share in (0.8, 0.4))
    return Prediction(positions, valid, hidden, 5 * torch.rand(rows, slots, generator=numbers), correct)


def chosen(batch: Batch, *, rejects: int, k: int = 4, seed: int = 0) -> Choice:
    """Choices with many ties, and with candidates that occur twice."""
    numbers = torch.Generator().manual_seed(seed)
    asked, rows = predicted(batch, seed=seed), len(batch)
    candidates = torch.randint(5, 10, (rows, 3, k), generator=numbers)
    logits = torch.randint(0, 3, (rows, 3, k + rejects), generator=numbers).float()
    answer = torch.randint(0, k + rejects, (rows, 3), generator=numbers)
    return Choice(asked.positions, asked.valid, candidates, logits, answer)


def rows_of(losses: Losses, rows: slice) -> Losses:
    """The losses of some rows of a batch."""

    def cut(value: Any) -> Any:
        return type(value)(**{name: tensor[rows] for name, tensor in vars(value).items()})

    predictions = {name: cut(prediction) for name, prediction in losses.predictions.items()}
    return Losses(
        {}, predictions, losses.detection and cut(losses.detection), choice=losses.choice and cut(losses.choice)
    )


def measured(*parts: tuple[Batch, Losses], words: Vocabulary = WORDS) -> PretrainingMetrics:
    found = PretrainingMetrics(words)
    for batch, losses in parts:
        found.update(batch, losses)
    return found


def everything(found: PretrainingMetrics) -> dict[str, float]:
    return found.values() | found.gains()


def of_documents(batch: Batch, tokens: int) -> Batch:
    """The text of a batch as consecutive documents of `tokens` positions, which continue across rows."""
    return replace(batch, source_document_ids=torch.arange(batch.tokens.numel()).view_as(batch.tokens) // tokens)


def surprise(words: Vocabulary = WORDS) -> Tensor:
    """-log of add-one frequencies among the ordinary tokens."""
    ordinary = (words.counts + 1).double().masked_fill(words.is_special, 0)
    return -(ordinary / ordinary.sum()).log()


def flat(batch: Batch, losses: Losses, words: Vocabulary = WORDS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, logits and unigram scores of all maskable positions, in reading order."""
    seen = losses.detection
    counted = maskable(batch)
    scores = surprise(words)[seen.inputs].float()
    return tuple(tensor[counted].numpy() for tensor in (seen.replaced, seen.logits.float(), scores))
