"""The metrics of pre-training: their declarations, and the accumulator that objectives share."""

from collections.abc import Collection
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from registry import Batch, Detection, Example, Losses, Metric, Vocabulary

NATS = "nats"


def _of_masked_tokens(network: str, title: str, subject: str) -> dict[str, Metric]:
    """Declare the metrics of a masked language model.

    A loss "at [MASK]" leaves out the masked positions at which the network saw a token, mostly the right one, which it
    can copy without having learned anything: these are the fair numbers.
    """
    loss, accuracy = ("generator", "") if network == "generator" else ("", "token accuracy")  # on the terminal
    at_mask = "the same where it saw [MASK]; at the other masked positions it saw a token that it may copy"
    return {
        f"{network}_loss": Metric(f"loss of {subject}, per masked token", f"{title} loss", NATS, False,
                                  baselines=("unigram_entropy",), chart=True, brief=loss),
        f"{network}_mask_loss": Metric(at_mask, f"{title.removesuffix(' token')} loss at [MASK]", NATS, False,
                                       baselines=("unigram_mask_entropy",), chart=network == "generator"),
        f"{network}_accuracy": Metric("share of the masked tokens that it ranks first", f"{title} accuracy",
                                      brief=accuracy),
    }  # fmt: skip


_WORDS = Metric("cross-entropy of add-one training frequencies", "word frequencies alone", NATS, higher_is_better=False)
PRETRAINING: dict[str, Metric] = {  # in the order in which reports list them
    "discriminator_auc": Metric("chance that a replaced token looks more suspicious than an original one",
                                "discriminator AUC", baselines=("always_original_auc", "unigram_auc"), chart=True,
                                brief="AUC"),
    "discriminator_accuracy": Metric("share of the tokens that are classified correctly", "discriminator accuracy",
                                     baselines=("always_original_accuracy",)),
    "discriminator_precision": Metric("share of the tokens called replaced that really are", "precision"),
    "discriminator_recall": Metric("share of the replaced tokens that are called so", "recall"),
    "replaced_share": Metric("share of the tokens that are replaced", "replaced tokens"),
    "discriminator_loss": Metric("loss of the discriminator, per token", "discriminator loss", NATS, False, chart=True,
                                 brief="discriminator"),
    **_of_masked_tokens("generator", "generator", "the generator"),
    **_of_masked_tokens("discriminator_token", "discriminator token", "a discriminator that predicts tokens"),
    "always_original_auc": Metric(title="always 'original'"),
    "always_original_accuracy": Metric(title="always 'original'"),
    "unigram_auc": Metric("suspects a token by -log(training frequency)", "rare-token detector"),
    "unigram_entropy": _WORDS,
    "unigram_mask_entropy": _WORDS,
}  # fmt: skip


class PretrainingMetrics:
    """Metrics of masked language models and detectors over all maskable positions, from `predictions` and `detection`.

    Only scores are kept of a detector, 4 bytes per position, so that its AUC is exact.

    show  indices of the rows to return as examples
    """

    metrics = PRETRAINING

    def __init__(self, vocabulary: Vocabulary, show: Collection[int] = ()) -> None:
        self.vocabulary, self.show = vocabulary, set(show)
        frequencies = (vocabulary.counts + 1).double().masked_fill(vocabulary.is_special, 0)
        self._surprise = -(frequencies / frequencies.sum()).log()
        self._sums: dict[str, torch.Tensor] = {}
        self._scores: dict[bool, list[NDArray[Any]]] = {True: [], False: []}  # by replaced or not
        self._tokens = torch.zeros(2, vocabulary.size, dtype=torch.int64)  # how often each was original, and replaced
        self._examples: list[Example] = []

    def update(self, batch: Batch, losses: Losses) -> None:
        for name, asked in losses.predictions.items():
            unigram = self._surprise[batch.tokens.gather(1, asked.positions)]
            columns = (torch.ones_like(asked.loss), asked.loss, unigram, asked.correct)
            chosen = (asked.valid, asked.valid & asked.hidden)
            sums = torch.stack([column.double().masked_fill(~c, 0).sum() for c in chosen for column in columns])
            self._sums[name] = self._sums[name] + sums if name in self._sums else sums
        if (seen := losses.detection) is not None:
            maskable = batch.attention_mask & ~self.vocabulary.is_special[batch.tokens]
            replaced, logits = seen.replaced[maskable], seen.logits[maskable].float()
            for kind, scores in self._scores.items():
                scores.append(logits[replaced == kind].cpu().numpy())
            codes = replaced.long() * self.vocabulary.size + seen.inputs[maskable]
            self._tokens += torch.bincount(codes, minlength=self._tokens.numel()).view_as(self._tokens).cpu()
            self._examples += self._shown(batch, seen)

    def merge(self, other: Self) -> None:
        for name, sums in other._sums.items():
            self._sums[name] = self._sums[name] + sums if name in self._sums else sums
        for kind, scores in other._scores.items():
            self._scores[kind] += scores
        self._tokens += other._tokens
        self._examples += other._examples

    def values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, sums in self._sums.items():
            values |= _of_predictions("generator" if name == "generator" else f"{name}_token", sums.tolist())
        if int(self._tokens.sum()):
            values |= self._of_detection()
        return values

    def examples(self) -> list[Example]:
        return self._examples

    def _of_detection(self) -> dict[str, float]:
        replaced, original = (np.concatenate(self._scores[kind]) for kind in (True, False))
        hits, alarms, number = int((replaced > 0).sum()), int((original > 0).sum()), len(replaced) + len(original)
        scores = np.concatenate([replaced, original])
        # A token's surprise depends on its id alone, so the ids with their counts stand for all positions.
        surprise = self._surprise.float().cpu().numpy()
        weights = self._tokens.flatten().numpy()
        return {
            "discriminator_auc": _auc(np.arange(number) < len(replaced), scores),
            "discriminator_accuracy": (hits + len(original) - alarms) / number,
            "discriminator_precision": hits / max(hits + alarms, 1),
            "discriminator_recall": hits / max(len(replaced), 1),
            "always_original_accuracy": len(original) / number,
            "always_original_auc": 0.5,
            "unigram_auc": _auc(np.arange(2 * len(surprise)) >= len(surprise), np.tile(surprise, 2), weights),
            "replaced_share": len(replaced) / number,
        }

    def _shown(self, batch: Batch, seen: Detection) -> list[Example]:
        rows = batch.example_ids.tolist() if self.show else []
        found = []
        for place in (place for place, row in enumerate(rows) if row in self.show):
            real = batch.attention_mask[place]
            probabilities = seen.logits[place][real].float().sigmoid().tolist()
            found.append(Example(batch.tokens[place][real].tolist(), seen.inputs[place][real].tolist(), probabilities))
        return found


def _of_predictions(name: str, sums: list[float]) -> dict[str, float]:
    """Turn sums into means: number, nats, unigram nats, correct; over all masked positions, then those with [MASK]."""
    number, nats, unigram, correct, masks, mask_nats, unigram_mask, _ = sums
    values: dict[str, float] = {}
    if number:
        values |= {f"{name}_loss": nats / number, f"{name}_accuracy": correct / number}
        values |= {"unigram_entropy": unigram / number}
    if masks:
        values |= {f"{name}_mask_loss": mask_nats / masks, "unigram_mask_entropy": unigram_mask / masks}
    return values


def _auc(replaced: NDArray[Any], scores: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """Return the exact AUC; NaN if one class is missing or a score is not finite."""
    from sklearn.metrics import roc_auc_score

    counted = np.ones(len(scores)) if weights is None else weights
    replaced, scores, counted = (each[counted > 0] for each in (replaced, scores, counted))
    if not (0 < replaced.sum() < len(replaced) and np.isfinite(scores).all()):
        return float("nan")
    return float(roc_auc_score(replaced, scores, sample_weight=counted))
