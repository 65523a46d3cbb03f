"""The similarity of two texts without training: the cosine of their pooled states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from electra_lab.tasks._classification import REGRESSION, constants, regression
from electra_lab.tasks._judging import Which, candidates, refuse_infinite, states
from electra_lab.tasks._texts import CUT, CUT_METRIC, shown
from registry import Judgement, Network, Pretrained, Results, TextExample, tasks
from registry.errors import ConfigError, DataError


@tasks.register("sentence_similarity", takes=TextExample, trains=False)
@dataclass(kw_only=True)
class SentenceSimilarity(Judgement):
    """How similar two texts are, without training: the cosine of their pooled states, in float32.

    It is compared with the labels of the pairs, such as those of STS-B; the correlations are 0 if all cosines are
    equal. Texts that are longer than the rows of pre-training are truncated; the share of such pairs is reported.

    network  auto is the discriminator if there is one, otherwise the generator
    pooling  mean is over the states of a text's tokens, without special ones; cls is the state of [CLS]
    """

    metrics = {  # noqa: RUF012
        "spearman": REGRESSION["spearman"],
        **REGRESSION,
        CUT: CUT_METRIC[CUT],
    }

    network: Which = "auto"
    pooling: Literal["mean", "cls"] = "mean"

    def __call__(self, examples: Sequence[TextExample], model: Pretrained) -> Results:
        network = self._chosen(model)
        labels = _labels(examples)
        texts = list(chain.from_iterable((example.text, example.pair or "") for example in examples))
        encoded = model.encoder.texts(texts)
        tokens = [text.ids for text in encoded]
        for number, ids in enumerate(tokens):
            if not ids:
                example = examples[number // 2]
                raise DataError(f"{_place(example)}: a text has no tokens, so it has no states. Remove the pair.")
        # Cosines of the pooled states.
        vectors = self._pooled([text.cut(model.length - 2) for text in encoded], network, model)
        cosines = np.array([_cosine(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)])
        refuse_infinite(cosines)
        # Predictions and, with labels, metrics.
        predictions = []
        for example, cosine in zip(examples, cosines, strict=True):
            label = {} if labels is None else {"label": example.label}
            predictions.append({**shown(example), "prediction": float(cosine), **label})
        if labels is None:
            return Results({}, predictions)
        long = np.array([len(ids) + 2 > model.length for ids in tokens]).reshape(-1, 2)  # [pairs 2]
        metrics = {**regression(labels, cosines), **constants(regression(labels, np.ones_like(labels)))}
        return Results({**metrics, CUT: float(long.any(1).mean())}, predictions)

    def _chosen(self, model: Pretrained) -> Network:
        for name in candidates(self.network):
            if name in model.networks:
                return model.networks[name]
        has = " and ".join(model.networks)
        raise ConfigError(f"the model has no {self.network}. Write network: {has}.")

    @torch.no_grad()
    def _pooled(
        self, rows: Sequence[Sequence[int]], network: Network, model: Pretrained
    ) -> Sequence[NDArray[np.float64]]:
        """Return a vector for each row, Float64[D]."""
        vectors: dict[int, NDArray[np.float64]] = {}
        with torch.autocast(model.device.type, enabled=False):
            for numbers, hidden in states(network, model, [len(row) for row in rows], rows.__getitem__):
                for number, row in zip(numbers, hidden.float(), strict=True):
                    pooled = row[0] if self.pooling == "cls" else row[1 : len(rows[number]) + 1].mean(0)
                    vectors[number] = pooled.double().cpu().numpy()
        return [vectors[number] for number in range(len(rows))]


def _labels(examples: Sequence[TextExample]) -> NDArray[np.float64] | None:
    """Return the labels, None if they are unknown. Raises DataError for an example that is not a pair with a number."""
    if not examples:
        raise DataError("there are no pairs to judge.")
    for example in examples:
        if example.pair is None:
            raise DataError(f"{_place(example)}: has one text, but sentence_similarity needs two.")
        if isinstance(example.label, str):
            raise DataError(f"{_place(example)}: the label '{example.label}' is not a number.")
    labels = [example.label for example in examples if isinstance(example.label, int | float)]
    if 0 < len(labels) < len(examples):
        unknown = next(example for example in examples if example.label is None)
        raise DataError(f"{_place(unknown)}: has no label, but others have one. Leave out those without.")
    if not labels:
        return None
    numbers = np.array(labels, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise DataError(f"{_place(examples[int(np.isfinite(numbers).argmin())])}: the label is not a finite number.")
    return numbers


def _place(example: TextExample) -> str:
    return example.place or f"pair {example.id}"


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0
