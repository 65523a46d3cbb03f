"""Held-out metrics against plain computations, and that nothing but seed and weights moves them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score

from electra_lab.training.evaluation import evaluate
from electra_lab.training.random import EVALUATION, Streams
from tests.electra_lab.training.test_step import Experiment, experiment


@pytest.fixture
def made(tmp_path: Path) -> Experiment:
    made = experiment(tmp_path)
    for parameter in made.run.objective.parameters():  # opinions worth measuring
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return made


def metrics(made: Experiment, *, seed: int = 0, batch_size: int = 4) -> dict[str, float]:
    return evaluate(
        made.run.objective, made.held_out, made.vocabulary, seed=seed, batch_size=batch_size, precision="fp32"
    ).metrics


def test_metrics_are_what_they_are_called(made: Experiment) -> None:
    """Recomputed row by row with scikit-learn, over all maskable positions of the whole split."""
    labels, scores, surprise, nats, unigram, correct = [], [], [], [], [], []
    counts = np.bincount(made.store.train, minlength=made.vocabulary.size) + 1
    counts[list(made.vocabulary.special_ids)] = 0  # no detector or generator of words counts separators
    at_mask: list[bool] = []
    objective = made.run.objective.eval()
    for batch in made.held_out.in_order(1, made.device):
        with torch.no_grad():
            losses = objective(batch, Streams(0, EVALUATION, batch.examples))
        asked, seen = losses.predictions["generator"], losses.detection
        tokens = batch.tokens[0].tolist()
        for place, token in enumerate(tokens):
            if batch.mask[0, place] and token not in made.vocabulary.special_ids:
                labels.append(int(seen.inputs[0, place]) != token)
                scores.append(float(seen.logits[0, place]))
                surprise.append(-math.log(counts[int(seen.inputs[0, place])]))
        for slot, place in enumerate(asked.positions[0].tolist()):
            if asked.valid[0, slot]:
                nats.append(float(asked.loss[0, slot]))
                correct.append(bool(asked.correct[0, slot]))
                at_mask.append(bool(asked.hidden[0, slot]))
                unigram.append(-math.log(counts[tokens[place]] / counts.sum()))
    said = [score > 0 for score in scores]
    found = metrics(made)
    expected = {
        "discriminator_auc": roc_auc_score(labels, scores),
        "discriminator_accuracy": accuracy_score(labels, said),
        "discriminator_precision": precision_score(labels, said),
        "discriminator_recall": recall_score(labels, said),
        "always_original_accuracy": 1 - np.mean(labels),
        "unigram_auc": roc_auc_score(labels, surprise),
        "generator_loss": np.mean(nats),
        "generator_accuracy": np.mean(correct),
        "unigram_entropy": np.mean(unigram),
        "generator_mask_loss": np.mean(np.array(nats)[at_mask]),
        "unigram_mask_entropy": np.mean(np.array(unigram)[at_mask]),
        "replaced_share": np.mean(labels),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name
    assert found["loss"] == pytest.approx(found["generator_loss"] + 50 * found["discriminator_loss"])


def test_only_the_seed_moves_them(made: Experiment) -> None:
    once = metrics(made)
    torch.manual_seed(99)
    assert metrics(made) == once
    for batch_size in (1, 3, 100):
        assert metrics(made, batch_size=batch_size) == pytest.approx(once, rel=1e-5)
    assert metrics(made, seed=1) != once


def test_training_mode_is_as_before(made: Experiment) -> None:
    made.run.objective.train()
    metrics(made)
    assert all(module.training for module in made.run.objective.modules())


def test_weights_that_are_not_finite_give_nan_and_no_exception(made: Experiment) -> None:
    made.run.objective.discriminator.replaced_head.out.bias.data.fill_(float("nan"))
    assert math.isnan(metrics(made)["discriminator_auc"])
