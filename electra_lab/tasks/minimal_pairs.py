"""Grammar without training: which of two sentences a model prefers. The protocol is in docs/minimal-pairs.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from electra_lab.tasks._judging import Which, candidates, refuse_infinite
from electra_lab.tasks._rates import mean_of_shares, wilson
from electra_lab.tasks._scores import detection, pseudo_likelihood
from registry import Encoded, Metric, Network, PairExample, Pretrained, Results, Table, tasks
from registry.errors import ConfigError, DataError

DETECTION, MASKED = "detection", "pseudo_likelihood"
HEADS = {DETECTION: "replaced", MASKED: "tokens"}  # that the scores need

Texts = tuple[Encoded, Encoded]  # the good one first
Group = tuple[str, str]  # a field and a paradigm of it


@dataclass(frozen=True)
class Verdict:
    """The scores of a pair, and what it counts: 1, 0, or 0.5 for a tie."""

    good: float
    bad: float
    shorter: float  # what it would count if the sentence with fewer tokens were preferred

    @property
    def counts(self) -> float:
        return _better(self.good, self.bad)

    @property
    def prediction(self) -> str | None:
        return {1.0: "good", 0.0: "bad"}.get(self.counts)


@tasks.register("minimal_pairs", takes=PairExample, trains=False)
@dataclass(kw_only=True)
class MinimalPairs:
    """Which of two sentences a model prefers, the acceptable one or the other: grammar without training.

    A sentence's score is a sum of log-probabilities, in float32. Of a discriminator they are those of "original", of a
    network that predicts tokens those of the tokens, each masked in turn. Equal scores count one half.

    network  auto is the discriminator if it has a head for the score, otherwise the generator
    score    auto is what the network has a head for, detection first unless there is a variant of the other
    tokens   that are summed: all of the sentence, or those from the first word that differs to the last one
    variant  of the pseudo-likelihood: salazar masks one token, within_word also what follows in its word
    longer   what to do with pairs that are longer than the rows of pre-training; none is ever cut
    """

    metrics: ClassVar[Mapping[str, Metric]] = {
        "grammar_accuracy": Metric(
            "share of the minimal pairs whose acceptable sentence is preferred, the mean over the paradigms",
            "grammar accuracy",
            baselines=("grammar_chance", "grammar_shorter_accuracy"),
        ),
        "grammar_pair_accuracy": Metric("the same over all pairs", "grammar accuracy, over pairs"),
        "grammar_chance": Metric("either sentence at random", "chance"),
        "grammar_shorter_accuracy": Metric(
            "grammar accuracy of preferring the sentence with fewer tokens", "the shorter one"
        ),
        "grammar_left_out": Metric(
            "pairs with a sentence that is longer than the rows of pre-training", "pairs left out", "pairs", False
        ),
    }

    network: Which = "auto"
    score: Literal["auto", "detection", "pseudo_likelihood"] = "auto"
    tokens: Literal["all", "differing"] = "all"
    variant: Literal["salazar", "within_word"] = "salazar"
    longer: Literal["refuse", "leave_out"] = "refuse"

    def __post_init__(self) -> None:
        if self.score == DETECTION and self.variant != "salazar":
            raise ConfigError(f"variant: {self.variant} is one of pseudo_likelihood, but score is detection.")

    def __call__(self, examples: Sequence[PairExample], model: Pretrained) -> Results:
        network, score = self._chosen(model)
        texts = model.encoder.texts([text for example in examples for text in (example.good, example.bad)])
        pairs = list(zip(texts[::2], texts[1::2], strict=True))
        fits = self._fitting(examples, pairs, model.length)
        judged = iter(self._judged([pair for pair, fit in zip(pairs, fits, strict=True) if fit], network, score, model))
        verdicts = [next(judged) if fit else None for fit in fits]
        metrics, tables = _summary(examples, verdicts)
        return Results(metrics, [_prediction(*each) for each in zip(examples, verdicts, strict=True)], tables)

    def _chosen(self, model: Pretrained) -> tuple[Network, str]:
        """Return the first network with a head that is asked for, and its score. Raises ConfigError."""
        scores = [self.score] if self.score != "auto" else list(HEADS) if self.variant == "salazar" else [MASKED]
        for name in candidates(self.network):
            for score in scores:
                if HEADS[score] in model.heads.get(name, ()):
                    return model.networks[name], score
        asked = " or ".join(f"'{HEADS[score]}'" for score in scores)
        where = "" if self.network == "auto" else f" in the {self.network}"
        has = ", ".join(f"the {name} has {' and '.join(heads) or 'none'}" for name, heads in model.heads.items())
        cure = "Choose another network, score or model."
        raise ConfigError(f"minimal_pairs needs the head {asked}{where}, but of the model's {has}. {cure}")

    def _fitting(self, examples: Sequence[PairExample], pairs: Sequence[Texts], length: int) -> list[bool]:
        """Return which pairs the model can read. Raises DataError for others, unless they may be left out."""
        if not examples:
            raise DataError("there are no pairs to judge.")
        sizes = [(len(good.ids), len(bad.ids)) for good, bad in pairs]
        places = [example.place or f"pair {example.id}" for example in examples]
        for place, size in zip(places, sizes, strict=True):
            if not min(size):
                raise DataError(f"{place}: a sentence has no tokens, so it has no score. Remove the pair.")
        fits = [max(size) + 2 <= length for size in sizes]
        long = [f"{p}: a sentence has {max(s) + 2} tokens with [CLS] and [SEP]"
                for p, s, fit in zip(places, sizes, fits, strict=True) if not fit]  # fmt: skip
        if long and (self.longer == "refuse" or not any(fits)):
            cure = "Write longer: leave_out" if any(fits) else "Use a model that reads longer rows"
            number = f"{len(long):,} of {len(fits):,} pairs are too long."
            raise DataError(f"{long[0]}, but the model's longest row has {length}. {number} {cure}.")
        return fits

    @torch.no_grad()
    def _judged(self, pairs: Sequence[Texts], network: Network, score: str, model: Pretrained) -> list[Verdict]:
        """Return the verdicts on pairs.

        A sentence that is there twice is read once: of pairs that are the same to the tokenizer both have one score.
        """
        counted = [
            differing(*pair) if self.tokens == "differing" else tuple(range(len(text.ids)) for text in pair)
            for pair in pairs
        ]
        texts: dict[Any, Encoded] = {}
        places: dict[Any, set[int]] = {}
        for pair, those in zip(pairs, counted, strict=True):
            for text, asked in zip(pair, those, strict=True):
                texts[_key(text)] = text
                places.setdefault(_key(text), set()).update(asked)
        with torch.autocast(model.device.type, enabled=False):
            if score == DETECTION:
                logs = detection(network, model, list(texts.values()))
            else:
                rest = self.variant == "within_word"
                logs = pseudo_likelihood(network, model, list(texts.values()), list(places.values()), rest_of_word=rest)
        of_text = dict(zip(texts, logs, strict=True))
        found = []
        for (good, bad), those in zip(pairs, counted, strict=True):
            scores = [
                math.fsum(of_text[_key(text)][asked.start : asked.stop])
                for text, asked in zip((good, bad), those, strict=True)
            ]
            found.append(Verdict(scores[0], scores[1], _better(len(bad.ids), len(good.ids))))
        refuse_infinite(np.array([[each.good, each.bad] for each in found]))
        return found


def differing(one: Encoded, other: Encoded) -> tuple[range, range]:
    """Return the tokens between the words that two sentences begin with alike and those that they end with alike.

    Words are whole: of "cat" and "cats" all tokens differ. Where nothing is left of one sentence, as the other has only
    something more, the word before and the word after are taken in, of both sentences.
    """
    spans = [_words(each) for each in (one, other)]
    words = [
        [text.ids[span.start : span.stop] for span in those] for text, those in zip((one, other), spans, strict=True)
    ]
    shortest = min(map(len, words))
    before = _alike(*words)
    after = min(_alike(words[0][::-1], words[1][::-1]), shortest - before)
    if before + after == shortest:
        before, after = max(before - 1, 0), max(after - 1, 0)
    ours, theirs = (range(those[before].start, those[len(those) - 1 - after].stop) for those in spans)
    return ours, theirs


def _words(text: Encoded) -> list[range]:
    """Return the tokens of each word that has any."""
    begins = [i for i in range(len(text.ids)) if i == 0 or text.words[i] != text.words[i - 1]]
    return [range(*ends) for ends in pairwise([*begins, len(text.ids)])]


def _alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of elements that two sequences begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _key(text: Encoded) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(text.ids), tuple(text.words)


def _better(good: float, bad: float) -> float:
    return 0.5 if good == bad else float(good > bad)


def _prediction(example: PairExample, verdict: Verdict | None) -> dict[str, Any]:
    found: dict[str, Any] = {"id": example.id, "paradigm": example.paradigm}
    found |= {"good": example.good, "bad": example.bad, "prediction": None, "label": "good", "correct": None}
    if verdict is None:
        return found
    correct = {1.0: True, 0.0: False}.get(verdict.counts)
    scores = {"good_score": verdict.good, "bad_score": verdict.bad, "certainty": abs(verdict.good - verdict.bad)}
    return {**found, "prediction": verdict.prediction, "correct": correct, **scores}


def _summary(
    examples: Sequence[PairExample], verdicts: Sequence[Verdict | None]
) -> tuple[dict[str, float], list[Table]]:
    """Return metrics and tables."""
    everywhere: dict[Group, list[Verdict | None]] = {}
    for example, verdict in zip(examples, verdicts, strict=True):
        everywhere.setdefault((example.field, example.paradigm), []).append(verdict)
    judged = {group: [each for each in those if each] for group, those in everywhere.items()}
    shares = {group: _share(those) for group, those in judged.items() if those}
    metrics = {
        "grammar_accuracy": math.fsum(shares.values()) / len(shares),
        "grammar_pair_accuracy": _share([each for those in judged.values() for each in those]),
        "grammar_chance": 0.5,
        "grammar_shorter_accuracy": math.fsum(_shorter(judged[group]) for group in shares) / len(shares),
        "grammar_left_out": float(sum(each is None for each in verdicts)),
    }
    interval = ["accuracy", "95 % from", "to"]
    by_field: list[list[str | int | float]] = []
    for field in [None, *dict.fromkeys(field for field, _ in shares)]:
        groups = [group for group in shares if field in (None, group[0])]
        sizes = [len(judged[group]) for group in groups]
        title = "all" if field is None else field or "-"
        by_field.append([title, len(groups), sum(sizes), *mean_of_shares([shares[group] for group in groups], sizes)])
    by_paradigm = [_row(group, those, everywhere[group]) for group, those in sorted(judged.items())]
    header = ["paradigm", "field", "pairs", *interval, "ties", "the shorter one", "left out"]
    return metrics, [
        Table("Accuracy by field", ["field", "paradigms", "pairs", *interval], by_field),
        Table("Accuracy by paradigm", header, by_paradigm),
    ]


def _row(group: Group, judged: Sequence[Verdict], all_of_them: Sequence[Verdict | None]) -> list[str | int | float]:
    field, paradigm = (name or "-" for name in group)
    left_out = len(all_of_them) - len(judged)
    if not judged:
        return [paradigm, field, 0, "-", "-", "-", 0, "-", left_out]
    share, ties = _share(judged), sum(each.prediction is None for each in judged)
    return [
        paradigm, field, len(judged), share, *wilson(share, len(judged)), ties, _shorter(judged), left_out,
    ]  # fmt: skip


def _share(judged: Sequence[Verdict]) -> float:
    return math.fsum(each.counts for each in judged) / len(judged)


def _shorter(judged: Sequence[Verdict]) -> float:
    return math.fsum(each.shorter for each in judged) / len(judged)
