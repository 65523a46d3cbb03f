"""The metrics of pre-training: their declarations, the accumulator that objectives share, gains over baselines."""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from registry import Accumulator, Batch, Choice, Detection, Example, Losses, Metric, Objective, Vocabulary
from registry.contracts.training import SHARE

NATS = "nats"
CONFIDENCE = 0.95

Columns = tuple[NDArray[Any], ...]
Gain = tuple[float | None, float | None, float | None, int | None]  # with its interval and the number of documents


def _of_masked_tokens(network: str, title: str, subject: str) -> dict[str, Metric]:
    """Declare the metrics of a masked language model.

    A loss "at [MASK]" leaves out the masked positions at which the network saw a token, mostly the right one, which it
    can copy without having learned anything: these are the fair numbers.
    """
    loss, accuracy = ("generator", "") if network == "generator" else ("", "token accuracy")  # on the terminal
    everywhere = f"loss of {subject} at all masked tokens; where it saw a token, it may copy it"
    return {
        f"{network}_mask_loss": Metric(f"loss of {subject} where it saw [MASK]",
                                       f"{title.removesuffix(' token')} loss at [MASK]", NATS, False,
                                       baselines=("unigram_mask_entropy",), chart=network == "generator",
                                       brief=loss and f"{loss} at [MASK]"),
        f"{network}_loss": Metric(everywhere, f"{title} loss", NATS, False, baselines=("unigram_entropy",), chart=True,
                                  brief=loss),
        f"{network}_accuracy": Metric("share of the masked tokens that it ranks first", f"{title} accuracy",
                                      bounds=SHARE, brief=accuracy),
    }  # fmt: skip


_WORDS = Metric("cross-entropy of add-one training frequencies", "word frequencies alone", NATS, higher_is_better=False)
_Own = partial(Metric, comparable=False)  # of replacements by the run's own generator, which a better one makes harder
PRETRAINING: dict[str, Metric] = {  # in the order in which reports list them: those that compare runs come first
    **_of_masked_tokens("generator", "generator", "the generator"),
    **_of_masked_tokens("discriminator_token", "discriminator token", "a discriminator that predicts tokens"),
    "discriminator_auc": _Own("chance that a replaced token looks more suspicious than an original one",
                              "discriminator AUC", baselines=("always_original_auc", "unigram_auc"), chart=True,
                              bounds=SHARE, brief="own-task AUC"),
    "discriminator_accuracy": _Own("share of the tokens that are classified correctly", "discriminator accuracy",
                                   bounds=SHARE, baselines=("always_original_accuracy",)),
    "discriminator_precision": _Own("share of the tokens called replaced that really are", "precision", bounds=SHARE),
    "discriminator_recall": _Own("share of the replaced tokens that are called so", "recall", bounds=SHARE),
    "replaced_share": _Own("share of the tokens that are replaced", "replaced tokens", bounds=SHARE),
    "discriminator_loss": _Own("loss of the discriminator, per token", "discriminator loss", NATS, False, chart=True,
                               brief="discriminator"),
    "choice_accuracy": _Own("share of the choices in which the right candidate, if there is one, is the most likely",
                            "choice accuracy", baselines=("frequent_candidate_accuracy",), chart=True, bounds=SHARE,
                            brief="choice accuracy"),
    "none_accuracy": _Own("share of the original tokens for which none of the candidates is picked",
                          "accuracy of 'none of them'", bounds=SHARE),
    "choice_loss": _Own("cross-entropy of the choice between candidates", "choice loss", NATS, False, chart=True,
                        brief="choice"),
    "always_original_auc": Metric("suspects all tokens equally", "always 'original'"),
    "always_original_accuracy": Metric(title="always 'original'"),
    "unigram_auc": Metric("suspects a token by -log(training frequency)", "rare-token detector"),
    "frequent_candidate_accuracy": Metric("picks the candidate that is the most frequent in training",
                                          "most frequent candidate"),
    "unigram_entropy": _WORDS,
    "unigram_mask_entropy": _WORDS,
}  # fmt: skip


def accumulator_of(objective: Objective, vocabulary: Vocabulary) -> Callable[[Collection[int]], Accumulator]:
    """Return the maker of an objective's accumulator: its own, or PretrainingMetrics with the metrics it declares."""

    def accumulator(show: Collection[int]) -> Accumulator:
        return objective.accumulator(show) or PretrainingMetrics(vocabulary, show, own=objective.metrics)

    return accumulator


class PretrainingMetrics:
    """Metrics of masked language models, choices, and detectors over all maskable positions, and an objective's means.

    Of a detector 13 bytes are kept per position, of a masked language model 12 per [MASK] and of a choice 20, so that
    AUCs and the intervals over documents are exact.

    show  indices of the rows to return as examples
    own   the metrics that the objective declares, whose sums and counts are in `Losses.metrics`
    """

    metrics: Mapping[str, Metric] = PRETRAINING

    def __init__(
        self, vocabulary: Vocabulary, show: Collection[int] = (), *, own: Mapping[str, Metric] = MappingProxyType({})
    ) -> None:
        self.vocabulary, self.show = vocabulary, set(show)
        self.metrics = {**self.metrics, **own}
        self._means: dict[str, torch.Tensor] = {}  # by metric: sum and count
        frequencies = (vocabulary.counts + 1).double().masked_fill(vocabulary.is_special, 0)
        self._surprise = -(frequencies / frequencies.sum()).log()
        self._sums: dict[str, torch.Tensor] = {}
        self._judged: list[Columns] = []  # of each batch: replaced or not, logits, token ids, documents
        self._guessed: dict[str, list[Columns]] = {}  # by network: documents, nats saved where it saw [MASK]
        self._picked: list[Columns] = []  # of each batch: documents, credit of the network, of the most frequent one
        self._none = torch.zeros(2, dtype=torch.float64)  # choices that no candidate is right for: correct ones, all
        self._by_row = False  # batches do not tell the documents, and rows take their place
        self._examples: list[Example] = []

    def update(self, batch: Batch, losses: Losses) -> None:
        documents = batch.source_document_ids
        if documents is None:
            self._by_row, documents = True, batch.example_ids.unsqueeze(1).expand_as(batch.tokens)
        for name, asked in losses.predictions.items():
            unigram = self._surprise[batch.tokens.gather(1, asked.positions)]
            columns = (torch.ones_like(asked.loss), asked.loss, unigram, asked.correct)
            masks = asked.valid & asked.saw_mask
            counted = product((asked.valid, masks), columns)
            sums = [column.double().masked_fill(~where, 0).sum() for where, column in counted]
            self._sums[name] = self._sums.get(name, 0) + torch.stack(sums)
            saved = unigram - asked.loss
            self._guessed.setdefault(name, []).append(_chosen(masks, documents.gather(1, asked.positions).int(), saved))
        for name, term in losses.metrics.items():
            self._means[name] = self._means.get(name, 0) + torch.stack([term.sum.double(), term.count.double()])
        if (seen := losses.detection) is not None:
            maskable = batch.attention_mask & ~self.vocabulary.is_special[batch.tokens]
            found = _chosen(maskable, seen.replaced, seen.logits.float(), seen.inputs.int(), documents.int())
            self._judged.append(found)
            self._examples += self._shown(batch, seen)
        if (choice := losses.choice) is not None:
            self._update_choice(choice, documents.gather(1, choice.positions).int())

    def _update_choice(self, choice: Choice, documents: torch.Tensor) -> None:
        # A candidate may occur twice, and is right wherever it is the right token: [B N k].
        rejects = choice.logits.shape[-1] - choice.candidates.shape[-1]
        place = (choice.answer - rejects).clamp(min=0).unsqueeze(-1)
        right = choice.candidates == choice.candidates.gather(-1, place)
        none = choice.answer < rejects
        # Choices that have a right candidate
        own = _credit(choice.logits[..., rejects:], right)
        frequent = _credit(-self._surprise[choice.candidates], right)
        self._picked.append(_chosen(choice.valid & ~none, documents, own, frequent))
        # Choices that have none
        at_none = choice.valid & none
        correct = (choice.logits.argmax(-1) == 0) & at_none
        self._none += torch.stack([correct.sum(), at_none.sum()]).to(self._none)

    def merge(self, other: Self) -> None:
        for name, sums in other._sums.items():
            self._sums[name] = self._sums.get(name, 0) + sums
            self._guessed[name] = self._guessed.get(name, []) + other._guessed[name]
        for name, mean in other._means.items():
            self._means[name] = self._means.get(name, 0) + mean
        self._judged += other._judged
        self._picked += other._picked
        self._none += other._none
        self._by_row |= other._by_row
        self._examples += other._examples

    def values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, sums in self._sums.items():
            values |= _of_predictions(_prefix(name), sums.tolist())
        if self._judged:
            replaced, logits, tokens, _ = _joined(self._judged)
            values |= _of_detection(replaced, logits, self._rarity[tokens])
        if self._picked:
            _, own, frequent = _joined(self._picked)
            if len(own):
                values |= {"choice_accuracy": float(own.mean()), "frequent_candidate_accuracy": float(frequent.mean())}
        if self._none[1]:
            values["none_accuracy"] = float(self._none[0] / self._none[1])
        for name, mean in self._means.items():
            total, count = mean.tolist()
            if count:
                values[name] = total / count
        return values

    def gains(self) -> dict[str, float]:
        """Return the gain of each network over the better of its baselines, neither of which knows a context.

        {name}_gain is the difference, above zero if the network is better; its 95 % interval is {name}_gain_low to
        {name}_gain_high, over {name}_gain_documents held-out documents or, if batches do not tell these,
        {name}_gain_rows. It is about other text of the same kind, not about another seed.
        """
        found = {f"{_prefix(name)}_mask_loss": mean_gain(*_joined(parts)) for name, parts in self._guessed.items()}
        if self._judged:
            replaced, logits, tokens, documents = _joined(self._judged)
            found["discriminator_auc"] = auc_gain(replaced, logits, self._rarity[tokens], documents)
        if self._picked:
            documents, own, frequent = _joined(self._picked)
            found["choice_accuracy"] = mean_gain(documents, own - frequent)
        gains = dict[str, float]()
        for name, (gain, low, high, number) in found.items():
            values = {"": gain, "_low": low, "_high": high, "_rows" if self._by_row else "_documents": number}
            gains |= {f"{name}_gain{part}": value for part, value in values.items() if value is not None}
        return gains

    def examples(self) -> list[Example]:
        return self._examples

    @property
    def _rarity(self) -> NDArray[np.int64]:
        """The rank of each token's surprise."""
        return ranks_of(self._surprise.cpu().numpy())

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


def _of_detection(replaced: NDArray[np.bool_], logits: NDArray[Any], rarity: NDArray[Any]) -> dict[str, float]:
    if not len(replaced):
        return {}
    called = logits > 0
    hits = int((called & replaced).sum())
    return {
        "discriminator_auc": _auc(replaced, ranks_of(logits)) if np.isfinite(logits).all() else math.nan,
        "discriminator_accuracy": float((called == replaced).mean()),
        "discriminator_precision": hits / max(int(called.sum()), 1),
        "discriminator_recall": hits / max(int(replaced.sum()), 1),
        "always_original_accuracy": float((~replaced).mean()),
        "always_original_auc": 0.5,
        "unigram_auc": _auc(replaced, rarity),
        "replaced_share": float(replaced.mean()),
    }


def _credit(scores: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return Float64[B N], the chance that one of the candidates with the best score, taken at random, is right."""
    best = scores == scores.amax(-1, keepdim=True)
    return (best & right).sum(-1).double() / best.sum(-1)


def _prefix(network: str) -> str:
    return network if network == "generator" else f"{network}_token"


def _chosen(chosen: torch.Tensor, *columns: torch.Tensor) -> Columns:
    places = chosen.flatten().nonzero().squeeze(1)
    return tuple(column.flatten()[places].cpu().numpy() for column in columns)


def _joined(parts: list[Columns]) -> list[NDArray[Any]]:
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def ranks_of(scores: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each score, from 0; equal ones share it."""
    return np.unique(scores, return_inverse=True)[1]


def _placements(replaced: NDArray[np.bool_], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return twice the number of tokens of the other class that each one is on the right side of; a tie counts one.

    A replaced token should have the higher rank.
    """
    originals, others = (np.bincount(ranks[replaced == kind], minlength=ranks.max() + 1) for kind in (False, True))
    below = 2 * originals.cumsum() - originals
    above = 2 * (others.sum() - others.cumsum()) + others
    return np.where(replaced, below[ranks], above[ranks])


def _auc(replaced: NDArray[np.bool_], ranks: NDArray[np.int64]) -> float:
    """Return the exact AUC; NaN if one class is missing."""
    number = int(replaced.sum())
    if not 0 < number < len(replaced):
        return math.nan
    return int(_placements(replaced, ranks)[replaced].sum()) / (2 * number * (len(replaced) - number))


def auc_gain(
    replaced: NDArray[np.bool_], scores: NDArray[Any], baseline: NDArray[np.int64], documents: NDArray[np.integer]
) -> Gain:
    """Return the AUC of `scores` less that of the ranks `baseline`, or less 0.5 where that is higher. O(n log n)."""
    number, rest = int(replaced.sum()), int((~replaced).sum())
    if not (number and rest and np.isfinite(scores).all()):
        return None, None, None, None
    if _auc(replaced, baseline) < 0.5:
        baseline = np.zeros(len(replaced), np.int64)
    return _jackknife(*without_each(replaced, ranks_of(scores), baseline, documents))


def without_each(
    replaced: NDArray[np.bool_], ranks: NDArray[np.int64], baseline: NDArray[np.int64], documents: NDArray[np.integer]
) -> tuple[Any, ...]:
    """Return the difference of two AUCs, its values without each document, and the documents' tokens of both kinds."""
    number, rest = int(replaced.sum()), int((~replaced).sum())
    held, document = np.unique(documents, return_inverse=True)

    def ahead(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> NDArray[np.int64]:
        return _placements(replaced, ours) - _placements(replaced, theirs)

    def by_document(kind: NDArray[np.bool_], values: NDArray[np.int64] | None = None) -> NDArray[Any]:
        return np.bincount(document[kind], None if values is None else values[kind], minlength=len(held))

    sizes, won = (by_document(replaced), by_document(~replaced)), ahead(ranks, baseline)
    # Ranked by document first, all tokens of earlier documents are below, by either: the rest is won within.
    within = ahead(*(ranks_of(document * (rank.max() + 1) + rank) for rank in (ranks, baseline)))
    pairs = by_document(replaced, won) + by_document(~replaced, won) - by_document(replaced, within)
    total = int(won[replaced].sum())
    left = (total - pairs) / np.maximum(2 * (number - sizes[0]) * (rest - sizes[1]), 1)
    return total / (2 * number * rest), left, *sizes


def mean_gain(documents: NDArray[np.integer], gains: NDArray[np.floating]) -> Gain:
    """Return the mean gain of a token."""
    if not len(gains):
        return None, None, None, None
    document = np.unique(documents, return_inverse=True)[1]
    sizes, sums = np.bincount(document), np.bincount(document, gains)
    left = (sums.sum() - sums) / np.maximum(len(gains) - sizes, 1)
    return _jackknife(float(sums.sum() / len(gains)), left, sizes)


def _jackknife(gain: float, left: NDArray[np.floating], *sizes: NDArray[np.integer]) -> Gain:
    """Return a gain with its 95 % interval, from `left`, its values without each document; `sizes` are in tokens.

    Documents are independent; the tokens of one may depend on each other in any way. For an AUC this is the jackknife
    of Arvesen (1969), which agrees with the closed form of Obuchowski (1997) where documents are of one size. Degrees
    of freedom are the effective number of documents (Carter et al. 2017), (sum of sizes)^2 / sum of squares, less one:
    a few documents may be much larger than the others. With an effective number below 2 there is no interval.
    """
    from scipy.special import stdtrit

    number = len(left)
    effective = min(float(of_kind.sum()) ** 2 / float(of_kind @ of_kind) for of_kind in sizes)
    if effective < 2:
        return gain, None, None, number
    error = math.sqrt((number - 1) / number * float(((left - gain) ** 2).sum()))
    half = float(stdtrit(effective - 1, (1 + CONFIDENCE) / 2)) * error
    return gain, gain - half, gain + half, number
