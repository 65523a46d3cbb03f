"""Held-out evaluation: in eval mode, over the whole split, with masks and draws that depend on the seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from electra_lab.data.rows import Rows
from electra_lab.training.device import Precision, autocast
from electra_lab.training.random import EVALUATION, Streams, seed_global
from registry.contracts import Batch, Detection, Losses, Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Example:
    """A held-out row as the discriminator saw it: token ids, labels and probabilities of "replaced"."""

    originals: list[int]
    inputs: list[int]
    probabilities: list[float]
    maskable: list[bool]


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]
    examples: list[Example]


@torch.no_grad()
def evaluate(
    objective: nn.Module,
    rows: Rows,
    vocabulary: Vocabulary,
    *,
    seed: int,
    batch_size: int,
    precision: Precision,
    examples: int = 0,
) -> Evaluation:
    """Metrics over all maskable positions of `rows`, beside two baselines that know no context.

    generator_loss        cross-entropy at the masked positions, nats
    generator_accuracy    share of the masked tokens that it puts first
    unigram_entropy       the cross-entropy of add-one training frequencies there
    generator_mask_loss, unigram_mask_entropy
                          both losses where the generator saw [MASK]: at the other masked positions it saw a token,
                          mostly the right one, which it can copy without understanding anything; so these two are the
                          fair pair
    discriminator_token_* the same of a network under study that predicts tokens
    discriminator_*       auc; accuracy, precision, recall at probability 0.5
    always_original_*     a detector that answers "original" everywhere (its AUC is 0.5)
    unigram_auc           a detector that scores a token by -log(training frequency)
    """
    was_training = objective.training
    objective.eval()
    device = vocabulary.counts.device
    seed_global(seed, EVALUATION)
    frequencies = (vocabulary.counts + 1).double().masked_fill(vocabulary.is_special, 0)
    surprise = -(frequencies / frequencies.sum()).log()

    # Rows spread over the whole split, not its first ones, which are neighbours.
    wanted = {(2 * i + 1) * len(rows) // (2 * examples) for i in range(examples)}

    sums: dict[str, list[Any]] = {}
    detections: list[tuple[NDArray[Any], ...]] = []
    shown: list[Example] = []
    asked_sums: dict[str, torch.Tensor] = {}
    for batch in rows.in_order(batch_size, device):
        with autocast(device, precision):
            losses: Losses = objective(batch, Streams(seed, EVALUATION, batch.examples))
        for name, term in losses.terms.items():
            sums.setdefault(name, []).append((term.sum.double(), term.count, float(term.weight)))
        for name, asked in losses.predictions.items():
            columns = (
                torch.ones_like(asked.loss),
                asked.loss,
                surprise[batch.tokens.gather(1, asked.positions)],
                asked.correct,
            )
            read = torch.stack(
                [
                    column.double().masked_fill(~chosen, 0).sum()
                    for chosen in (asked.valid, asked.valid & asked.hidden)
                    for column in columns
                ]
            )
            asked_sums[name] = asked_sums[name] + read if name in asked_sums else read
        if (seen := losses.detection) is not None:
            maskable = batch.mask & ~vocabulary.is_special[batch.tokens]
            kept = (seen.replaced, seen.logits.float(), surprise[seen.inputs].float())
            detections.append(tuple(column[maskable].cpu().numpy() for column in kept))
            shown += [_example(batch, seen, maskable, place) for place in _places(batch, wanted)]
    objective.train(was_training)

    metrics: dict[str, float] = {"loss": 0.0}
    for name, parts in sums.items():
        count = sum(int(c) for _, c, _ in parts)
        metrics[f"{name}_loss"] = sum(float(s) for s, _, _ in parts) / max(count, 1)
        metrics["loss"] += parts[0][2] * metrics[f"{name}_loss"]
    for name, read in asked_sums.items():
        metrics |= _prediction_metrics("generator" if name == "generator" else f"{name}_token", read.tolist())
    if detections:
        metrics |= _detection_metrics(*(np.concatenate(column) for column in zip(*detections, strict=True)))
    return Evaluation(metrics, shown)


def _prediction_metrics(name: str, sums: list[float]) -> dict[str, float]:
    """Of sums over the masked positions, then over those where [MASK] was seen: number, nats, unigram nats, correct."""
    metrics: dict[str, float] = {}
    number, nats, unigram, correct, masks, mask_nats, unigram_mask, _ = sums
    if number:
        metrics |= {f"{name}_loss": nats / number, f"{name}_accuracy": correct / number}
        metrics |= {"unigram_entropy": unigram / number}
    if masks:
        metrics |= {f"{name}_mask_loss": mask_nats / masks, "unigram_mask_entropy": unigram_mask / masks}
    return metrics


def _detection_metrics(replaced: NDArray[Any], logits: NDArray[Any], surprise: NDArray[Any]) -> dict[str, float]:
    from sklearn.metrics import roc_auc_score

    said = logits > 0
    hits, both_classes = int((said & replaced).sum()), 0 < replaced.sum() < len(replaced)
    finite = bool(np.isfinite(logits).all())
    return {
        "discriminator_auc": float(roc_auc_score(replaced, logits)) if both_classes and finite else float("nan"),
        "discriminator_accuracy": float((said == replaced).mean()),
        "discriminator_precision": hits / max(int(said.sum()), 1),
        "discriminator_recall": hits / max(int(replaced.sum()), 1),
        "always_original_accuracy": float((~replaced).mean()),
        "always_original_auc": 0.5,
        "unigram_auc": float(roc_auc_score(replaced, surprise)) if both_classes else float("nan"),
        "replaced_share": float(replaced.mean()),
    }


def _places(batch: Batch, wanted: set[int]) -> list[int]:
    """Where the wanted rows of the split stand in this batch."""
    return [place for place, row in enumerate(batch.examples.tolist()) if row in wanted] if wanted else []


def _example(batch: Batch, seen: Detection, maskable: torch.Tensor, place: int) -> Example:
    real = batch.mask[place]
    return Example(
        batch.tokens[place][real].tolist(),
        seen.inputs[place][real].tolist(),
        seen.logits[place][real].float().sigmoid().tolist(),
        maskable[place][real].tolist(),
    )
