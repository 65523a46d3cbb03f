"""Detection in corruptions of the test text that are the same for all cells."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from safetensors.numpy import load_file, save_file

from electra_lab.measures._corruption import (
    auc_with_documents,
    choose,
    documents_of,
    draw,
    filled,
    judged,
    numbers,
    rankable,
    unigram,
)
from registry import Batch, Metric, MetricWithDocuments, Network, Trained, Vocabulary, measures
from registry.contracts.training import SHARE
from registry.errors import DataError

FILE = "corruption.safetensors"
LOGITS = 1 << 22  # of a reference, drawn from at a time: 50 MB with the sums in doubles
REFERENCES = {"small": "the small generator", "large": "the large generator", "unigram": "word frequencies"}


@measures.register("fixed_corruption")
@dataclass(kw_only=True)
class FixedCorruption:
    """Detection of replaced tokens in fixed corruptions of the test text, made once for all cells.

    A larger generator makes a cell's own task harder, so scores against the own generator compare the generators as
    much as the discriminators. Here all discriminators see the same replacements. But a discriminator is better at
    replacements like those of its own generator. Therefore there are three references, which replace tokens of the same
    text at the same positions: a small and a large generator, trained separately with the objective `mlm` and used in
    no cell, and draws by word frequencies.

    mask_prob   share of the tokens to choose for replacement
    small       the small generator's width and heads, as a share of the base's discriminator, rounded so that the heads
                divide the width. Choose it below the scales of all compared generators
    large       the same for the large generator. Choose it above these scales
    steps       steps of their training; by default those of the base
    seed        seed of their training and of the corruption
    batch_size  rows per batch; affects only speed and memory
    """

    same_rows = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "corruption_auc": Metric(
            "AUC of detecting replacements in the test text, the same for all cells; the mean over three references",
            baselines=("corruption_rarity", "corruption_chance"),
            parts=tuple(f"corruption_auc_{name}" for name in REFERENCES),
            bounds=SHARE,
        ),
        "corruption_rarity": Metric("the same of suspecting rare tokens", "rare-token detector"),
        "corruption_chance": Metric("the same of guessing", "chance"),
        **{f"corruption_auc_{name}": Metric(f"AUC of detecting those by {who}") for name, who in REFERENCES.items()},
        "corruption_average_precision": Metric(
            "area under the precision-recall curve of the same detection; the mean over the references", bounds=SHARE
        ),
    }

    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15
    small: Annotated[float, Field(gt=0, lt=1)] = 0.0625
    large: Annotated[float, Field(ge=1, le=8)] = 1.5
    steps: Annotated[int, Field(gt=0, le=10**9)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 20_201
    batch_size: Annotated[int, Field(gt=0, le=1 << 20)] = 32

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {"small": self._reference(base, self.small), "large": self._reference(base, self.large)}

    def _reference(self, base: Mapping[str, Any], scale: float) -> Mapping[str, Any]:
        sections = {
            "seed": self.seed,
            "discriminator": _scaled(base["discriminator"], scale),
            "embedding": {**base["embedding"], "tie": "none"},
            "generator": None,
            "sampler": None,
            "objective": {"type": "mlm"},
            "schedules": {"learning_rate": base["schedules"]["learning_rate"]},
        }
        if self.steps is not None:
            others = dict.fromkeys(("epochs", "tokens", "flops", "paper_flops"))
            sections["train"] = {**base["train"], **others, "steps": self.steps}
        return sections

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None:
        words, parts = run.vocabulary, defaultdict[str, list[NDArray[Any]]](list)
        for batch in run.test(self.batch_size):
            maskable = judged(batch, words).cpu().numpy()
            chosen = choose(maskable, self.mask_prob, numbers(batch, self.seed, "chosen"))
            parts["tokens"].append(batch.tokens.cpu().numpy())
            parts["maskable"].append(maskable)
            for name, reference in references.items():
                luck = numbers(batch, self.seed, name)
                parts[name].append(filled(batch, chosen, _guesses(reference.model, batch, words, chosen, luck)))
            parts["unigram"].append(unigram(batch, words, chosen, numbers(batch, self.seed, "unigram")))
        whole = {name: np.concatenate(arrays) for name, arrays in parts.items()}
        small = {name: array.astype(np.int32) for name, array in whole.items() if name != "maskable"}
        save_file({**whole, **small}, folder / FILE)

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        from sklearn.metrics import average_precision_score

        if not run.detects:
            return {}
        # The logits of every corruption.
        saved = load_file(folder / FILE)
        scores: dict[str, list[NDArray[Any]]] = {name: [] for name in REFERENCES}
        start, total, documents = 0, len(saved["tokens"]), list[NDArray[Any]]()
        for batch in run.test(self.batch_size):
            rows = slice(start, start + len(batch))
            _refuse_unlike(batch.tokens.cpu().numpy(), saved["tokens"][rows], folder)
            for name, parts in scores.items():
                inputs = torch.from_numpy(saved[name][rows]).to(batch.tokens)
                states = run.model.hidden(inputs, batch.attention_mask, batch.segments, batch.attention_document_ids)
                parts.append(run.model.replaced_logits(states).float().cpu().numpy())
            documents.append(documents_of(batch).cpu().numpy())
            start += len(batch)
        _refuse_unlike(saved["tokens"][start:], saved["tokens"][total:], folder)
        # AUC and average precision by reference, at the tokens that may be replaced.
        text = np.concatenate(documents)[saved["maskable"]]
        auc, rarity, precision = dict[str, MetricWithDocuments](), list[MetricWithDocuments](), list[float]()
        counts = run.vocabulary.counts.cpu().numpy()
        for name, parts in scores.items():
            replaced = (saved[name] != saved["tokens"])[saved["maskable"]]
            logits = np.concatenate(parts)[saved["maskable"]]
            if rankable(replaced, logits):
                auc[f"corruption_auc_{name}"] = auc_with_documents(replaced, logits, text)
                rarity.append(auc_with_documents(replaced, -counts[saved[name][saved["maskable"]]], text))
                precision.append(float(average_precision_score(replaced, logits)))
        if len(auc) < len(REFERENCES):  # a mean over fewer would not compare
            return auc
        mean = _mean([*auc.values()])
        trivial = {
            "corruption_rarity": _mean(rarity),
            "corruption_chance": MetricWithDocuments(0.5, [0.5] * len(mean.documents)),
        }
        return {"corruption_auc": mean, **trivial, "corruption_average_precision": fmean(precision), **auc}


def _mean(auc: Sequence[MetricWithDocuments]) -> MetricWithDocuments:
    by_document = [of_reference.documents for of_reference in auc]
    same = len({len(values) for values in by_document}) == 1  # every reference ranks the same documents
    return MetricWithDocuments(fmean(auc), np.mean(by_document, axis=0).tolist() if same else [])


def _scaled(study: Mapping[str, Any], scale: float) -> Mapping[str, Any]:
    """Scale the width and the heads of a network, and options that count some of the heads; heads divide the width.

    An even head width, which rotary positions need, stays even.
    """
    dim, heads = study["dim"], study["heads"]
    scaled_heads = max(1, round(scale * heads))
    grain = 1 if dim // heads % 2 else 2  # of the head width
    width = max(1, round(scale * dim / scaled_heads / grain)) * grain
    scaled = {**study, "dim": scaled_heads * width, "heads": scaled_heads}
    for key, number in study.items():
        if key.endswith("_heads") and isinstance(number, int):
            scaled[key] = number * scaled_heads // heads
    return scaled


def _guesses(
    network: Network, batch: Batch, words: Vocabulary, chosen: NDArray[np.bool_], luck: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return Int[N], a reference's draws at the chosen positions, row by row, with [MASK] at all of them."""
    device = batch.tokens.device
    shown = torch.where(torch.from_numpy(chosen).to(device), words.mask_id, batch.tokens)
    states = network.hidden(shown, batch.attention_mask, batch.segments, batch.attention_document_ids)
    # A row's chosen positions first, then any others, to get a rectangle.
    positions = (~chosen).argsort(axis=1, kind="stable")[:, : int(chosen.sum(1).max(initial=1))]
    is_chosen, luck = np.take_along_axis(chosen, positions, 1), np.take_along_axis(luck, positions, 1)
    drawn = []
    step = max(1, LOGITS // (positions.shape[1] * words.size))
    for start in range(0, len(batch), step):
        rows = slice(start, start + step)
        logits = network.token_logits(states[rows], torch.from_numpy(positions[rows]).to(device))
        drawn.append(draw(logits.flatten(0, 1), words, luck[rows].flatten())[is_chosen[rows].flatten()])
    return np.concatenate(drawn)


def _refuse_unlike(text: NDArray[Any], saved: NDArray[Any], folder: Path) -> None:
    if not np.array_equal(text, saved):
        raise DataError(f"{folder / FILE}: was made from other text than this run's test text.")
