"""Grammar without training: which of two sentences a model prefers. The protocol is in docs/minimal-pairs.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress, pairwise, takewhile
from typing import Any, Literal

import numpy as np
import torch

from electra_lab.tasks._judging import Which, candidates, detection, energy, pseudo_likelihood, refuse_infinite
from registry import Encoded, Judgement, Metric, Network, PairExample, Pretrained, Results, Table, tasks
from registry.contracts.training import SHARE
from registry.errors import ConfigError, DataError

DETECTION, ENERGY, MASKED = "detection", "energy", "pseudo_likelihood"
HEADS = {DETECTION: "replaced", ENERGY: "energy", MASKED: "tokens"}  # by score, the head it needs

Texts = tuple[Encoded, Encoded]  # the good one first
Group = tuple[str, str]  # a field and a paradigm of it


@dataclass(frozen=True)
class Verdict:
    """The scores of a pair."""

    good: float
    bad: float
    shorter: float  # the value of `counts` if the sentence with fewer tokens were preferred

    @property
    def counts(self) -> float:
        """1, 0, or 0.5 for a tie."""
        return _better(self.good, self.bad)

    @property
    def prediction(self) -> str | None:
        return {1.0: "good", 0.0: "bad"}.get(self.counts)


@tasks.register("minimal_pairs", takes=PairExample, trains=False)
@dataclass(kw_only=True)
class MinimalPairs(Judgement):
    """Which of two sentences a model prefers, the acceptable one or the other: grammar without training.

    A sentence's score is a sum of log-probabilities, in float32: of "original" for a discriminator, and of the tokens,
    each masked in turn, for a network that predicts tokens, or as `electric` estimates them, all at once. Equal scores
    count one half.

    network  auto is the discriminator if it has a head for the score, otherwise the generator
    score    auto is the first that the network has a head for, the last one if there is a variant of it
    tokens   tokens to sum: all of the sentence, or those from the first word that differs to the last one
    variant  variant of the pseudo-likelihood: salazar masks one token, within_word also those that follow in its word
    longer   treatment of pairs that are longer than the rows of pre-training; none is ever truncated
    """

    metrics = {  # noqa: RUF012
        "grammar_accuracy": Metric(
            "share of the minimal pairs whose acceptable sentence is preferred, the mean over the paradigms",
            "grammar accuracy",
            bounds=SHARE,
            baselines=("grammar_chance", "grammar_shorter_accuracy"),
        ),
        "grammar_pair_accuracy": Metric("the same over all pairs", "grammar accuracy, over pairs", bounds=SHARE),
        "grammar_chance": Metric("either sentence at random", "chance"),
        "grammar_shorter_accuracy": Metric(
            "grammar accuracy of preferring the sentence with fewer tokens", "the shorter one"
        ),
        "grammar_left_out": Metric(
            "pairs with a sentence that is longer than the rows of pre-training", "pairs left out", "pairs", False
        ),
    }

    network: Which = "auto"
    score: Literal["auto", "detection", "energy", "pseudo_likelihood"] = "auto"
    tokens: Literal["all", "differing"] = "all"
    variant: Literal["salazar", "within_word"] = "salazar"
    longer: Literal["refuse", "leave_out"] = "refuse"

    def __post_init__(self) -> None:
        if self.score in (DETECTION, ENERGY) and self.variant != "salazar":
            raise ConfigError(f"variant: {self.variant} needs score: pseudo_likelihood, but score is {self.score}.")

    def __call__(self, examples: Sequence[PairExample], model: Pretrained) -> Results:
        network, score = self._chosen(model)
        texts = model.encoder.texts(list(chain.from_iterable((example.good, example.bad) for example in examples)))
        pairs = list(zip(texts[::2], texts[1::2], strict=True))
        fits = self._fitting(examples, pairs, model.length)
        judged = iter(self._judged(list(compress(pairs, fits)), network, score, model))
        verdicts = [next(judged) if fit else None for fit in fits]
        metrics, tables = _summary(examples, verdicts)
        predictions = list(map(_prediction, examples, verdicts))
        return Results(metrics, predictions, tables)

    def _chosen(self, model: Pretrained) -> tuple[Network, str]:
        """Return the first network that has the head of a score, and this score. Raises ConfigError."""
        scores = list(HEADS) if self.variant == "salazar" else [MASKED]
        if self.score != "auto":
            scores = [self.score]
        for name in candidates(self.network):
            for score in scores:
                if HEADS[score] in model.heads.get(name, ()):
                    return model.networks[name], score
        asked = " or ".join(f"'{HEADS[score]}'" for score in scores)
        network = "" if self.network == "auto" else f" in the {self.network}"
        has = ", ".join(f"the {name} has {' and '.join(heads) or 'none'}" for name, heads in model.heads.items())
        cure = "Choose another network, score or model."
        raise ConfigError(f"minimal_pairs needs the head {asked}{network}, but {has}. {cure}")

    def _fitting(self, examples: Sequence[PairExample], pairs: Sequence[Texts], length: int) -> list[bool]:
        """Return whether the model can read each pair. Raises DataError if not, unless they may be left out."""
        if not examples:
            raise DataError("there are no pairs to judge.")
        sizes = [(len(good.ids), len(bad.ids)) for good, bad in pairs]
        places = [example.place or f"pair {example.id}" for example in examples]
        for place, size in zip(places, sizes, strict=True):
            if not min(size):
                raise DataError(f"{place}: a sentence has no tokens, so it has no score. Remove the pair.")
        fits = [max(size) + 2 <= length for size in sizes]
        if not all(fits) and (self.longer == "refuse" or not any(fits)):
            first = fits.index(False)
            reason = f"a sentence has {max(sizes[first]) + 2} tokens with [CLS] and [SEP]"
            cure = "Write longer: leave_out" if any(fits) else "Use a model that reads longer rows"
            number = f"{fits.count(False):,} of {len(fits):,} pairs are too long."
            raise DataError(f"{places[first]}: {reason}, but the model's longest row has {length}. {number} {cure}.")
        return fits

    @torch.no_grad()
    def _judged(self, pairs: Sequence[Texts], network: Network, score: str, model: Pretrained) -> list[Verdict]:
        """Return the verdicts on pairs.

        A sentence that occurs twice is read once, so that equal sentences have equal scores.
        """
        # The tokens to score, of each pair and of each different sentence.
        ranges = [(range(len(good.ids)), range(len(bad.ids))) for good, bad in pairs]
        if self.tokens == "differing":
            ranges = [differing(*pair) for pair in pairs]
        texts: dict[Any, Encoded] = {}
        places: dict[Any, set[int]] = {}
        for text, asked in zip(chain.from_iterable(pairs), chain.from_iterable(ranges), strict=True):
            texts[_key(text)] = text
            places.setdefault(_key(text), set()).update(asked)
        # Their log-probabilities.
        sentences = list(texts.values())
        with torch.autocast(model.device.type, enabled=False):
            if score == DETECTION:
                logs = detection(network, model, sentences)
            elif score == ENERGY:
                logs = energy(network, model, sentences)
            else:
                rest = self.variant == "within_word"
                logs = pseudo_likelihood(network, model, sentences, list(places.values()), rest_of_word=rest)
        of_text = dict(zip(texts, logs, strict=True))
        # The scores of the sentences are sums.
        verdicts = []
        for (good, bad), (of_good, of_bad) in zip(pairs, ranges, strict=True):
            good_score = math.fsum(of_text[_key(good)][of_good.start : of_good.stop])
            bad_score = math.fsum(of_text[_key(bad)][of_bad.start : of_bad.stop])
            verdicts.append(Verdict(good_score, bad_score, _better(len(bad.ids), len(good.ids))))
        refuse_infinite(np.array([[verdict.good, verdict.bad] for verdict in verdicts]))
        return verdicts


def differing(good: Encoded, bad: Encoded) -> tuple[range, range]:
    """Return the tokens between the words that two sentences share at the beginning and at the end.

    Words are whole: all tokens of "cat" and "cats" differ. If nothing is left of one sentence, because the other one
    only adds words, the word before and the word after are included in both.
    """
    good_words, bad_words = _words(good), _words(bad)  # as ranges of tokens
    of_good = [good.ids[word.start : word.stop] for word in good_words]
    of_bad = [bad.ids[word.start : word.stop] for word in bad_words]
    shortest = min(len(of_good), len(of_bad))
    before = _shared(of_good, of_bad)
    after = min(_shared(of_good[::-1], of_bad[::-1]), shortest - before)
    if before + after == shortest:
        before, after = max(before - 1, 0), max(after - 1, 0)
    return _between(good_words, before, after), _between(bad_words, before, after)


def _between(words: Sequence[range], before: int, after: int) -> range:
    """Return the tokens of all words but some at the beginning and at the end."""
    return range(words[before].start, words[len(words) - 1 - after].stop)


def _words(text: Encoded) -> list[range]:
    """Return the tokens of each word that has any."""
    begins = [i for i in range(len(text.ids)) if i == 0 or text.words[i] != text.words[i - 1]]
    return [range(*ends) for ends in pairwise([*begins, len(text.ids)])]


def _shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the number of equal elements at the beginning of two sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _key(text: Encoded) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(text.ids), tuple(text.words)


def _better(good: float, bad: float) -> float:
    return 0.5 if good == bad else float(good > bad)


def _prediction(example: PairExample, verdict: Verdict | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": example.id, "paradigm": example.paradigm}
    fields |= {"good": example.good, "bad": example.bad, "prediction": None, "label": "good", "correct": None}
    if verdict is None:
        return fields
    correct = {1.0: True, 0.0: False}.get(verdict.counts)
    scores = {"good_score": verdict.good, "bad_score": verdict.bad, "certainty": abs(verdict.good - verdict.bad)}
    return {**fields, "prediction": verdict.prediction, "correct": correct, **scores}


def _summary(
    examples: Sequence[PairExample], verdicts: Sequence[Verdict | None]
) -> tuple[dict[str, float], list[Table]]:
    """Return metrics and tables."""
    # The verdicts by paradigm.
    judged: dict[Group, list[Verdict]] = {}
    left_out: Counter[Group] = Counter()
    for example, verdict in zip(examples, verdicts, strict=True):
        group = (example.field, example.paradigm)
        of_group = judged.setdefault(group, [])
        if verdict is None:
            left_out[group] += 1
        else:
            of_group.append(verdict)
    # The metrics are means over paradigms, or over pairs.
    shares = {group: _share(of_group) for group, of_group in judged.items() if of_group}
    metrics = {
        "grammar_accuracy": math.fsum(shares.values()) / len(shares),
        "grammar_pair_accuracy": _share(list(chain.from_iterable(judged.values()))),
        "grammar_chance": 0.5,
        "grammar_shorter_accuracy": math.fsum(_shorter(judged[group]) for group in shares) / len(shares),
        "grammar_left_out": float(left_out.total()),
    }
    # A table of the fields, and one of their paradigms.
    by_field: list[list[str | int | float]] = []
    for field in [None, *dict.fromkeys(field for field, _ in shares)]:
        groups = [group for group in shares if field in (None, group[0])]
        sizes = [len(judged[group]) for group in groups]
        title = "all" if field is None else field or "-"
        mean = math.fsum(shares[group] for group in groups) / len(groups)
        by_field.append([title, len(groups), sum(sizes), mean])
    by_paradigm = [_row(group, of_group, left_out[group]) for group, of_group in sorted(judged.items())]
    header = ["paradigm", "field", "pairs", "accuracy", "ties", "the shorter one", "left out"]
    return metrics, [
        Table("Accuracy by field", ["field", "paradigms", "pairs", "accuracy"], by_field),
        Table("Accuracy by paradigm", header, by_paradigm),
    ]


def _row(group: Group, judged: Sequence[Verdict], left_out: int) -> list[str | int | float]:
    field, paradigm = (name or "-" for name in group)
    if not judged:
        return [paradigm, field, 0, "-", 0, "-", left_out]
    ties = sum(verdict.prediction is None for verdict in judged)
    return [paradigm, field, len(judged), _share(judged), ties, _shorter(judged), left_out]


def _share(judged: Sequence[Verdict]) -> float:
    return math.fsum(verdict.counts for verdict in judged) / len(judged)


def _shorter(judged: Sequence[Verdict]) -> float:
    return math.fsum(verdict.shorter for verdict in judged) / len(judged)
