"""Detection and correction: METRO's own criterion, COCO-LM's mixture, and what each term may teach."""

from typing import Any

import pytest
import torch
from torch import Tensor

from electra_lab.testing import CLS, PAD, SEP
from tests.electra_lab.objectives.tiny import Fixed, Says, assert_close, gradients, rows, streams, tables, total

# [CLS] 7 8 9 5 6 [SEP] and padding; 7 is drawn again, 9 and 6 change places; a fourth slot is empty.
ORIGINALS, DRAWN, AT = [CLS, 7, 8, 9, 5, 6, SEP, PAD], [CLS, 7, 8, 6, 5, 9, SEP, PAD], [1, 3, 5]


def toy(**options: Any) -> tuple[Any, Any]:
    masking, sampler = Fixed(*AT, empty=1), Says(7, 6, 9, 5)
    return tables("electra_correct", masking, sampler, 8, **options), rows(*ORIGINALS, number=2)


@pytest.mark.parametrize(
    ("correction", "loss", "slopes"),
    [
        ("plain", 52.522526118829724, (-0.15913400026591848, -0.004400874852069907, 6.517515510274645)),
        ("weighted", 51.57672762775912, (-0.15913400026591848, -0.009568387282394265, 6.517515510274645)),
    ],
)
def test_losses_and_gradients_are_those_of_the_official_criterion(
    correction: str, loss: float, slopes: tuple[float, ...]
) -> None:
    """T5MetroCriterion of gonglinyuan/metro_t0 (b6d0867), unmodified, on these tables and draws.

    masked_positions_only: lm, rtd_loss_weight: 50. It detects in float32. Of each gradient, its product with cos(0),
    cos(1), ...
    """
    objective, batch = toy(correction=correction)
    losses = objective.train()(batch, streams(batch))
    assert total(losses).item() == pytest.approx(loss, abs=1e-5)
    found = gradients(objective, total(losses))
    for name, slope in zip(("generator.guesses", "discriminator.guesses", "discriminator.scores"), slopes, strict=True):
        waves = torch.arange(found[name].numel()).double().cos()
        assert float(found[name].flatten() @ waves) == pytest.approx(slope, abs=1e-5), name
    assert {name: int(part.count) for name, part in losses.terms.items()} == {
        "generator": 6, "discriminator": 14, "correction": 6,
    }  # fmt: skip


@pytest.mark.parametrize("correction", ["plain", "weighted", "copy"])
def test_the_correction_is_its_formula_and_teaches_the_token_head_alone(correction: str) -> None:
    """With probabilities written out. The detector is no part of it, not even where its logit is a weight."""
    objective, batch = toy(correction=correction)
    found = objective.train()(batch, streams(batch)).terms["correction"].sum
    # Plainly
    discriminator = objective.discriminator
    softmax = discriminator.guesses[AT].softmax(-1)  # [3 V]
    replaced = discriminator.scores[range(8), DRAWN][AT].sigmoid().detach()
    losses = []
    for q, p, position in zip(softmax, replaced, AT, strict=True):
        original, seen = ORIGINALS[position], DRAWN[position]
        copied = (1 - p) * (original == seen)
        forms = {"plain": q[original], "weighted": q[original] ** p, "copy": copied + p * q[original]}
        losses.append(-forms[correction].log())
    expected = 2 * torch.stack(losses).sum()  # two rows
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    slopes = gradients(objective, found)
    assert_close(slopes, gradients(objective, expected))
    assert slopes.keys() == {"discriminator.guesses"}


def test_extreme_suspicions_are_finite() -> None:
    """A detector that is certain, rightly or wrongly, and a head that is, in any form."""
    for correction in ("plain", "weighted", "copy"):
        for certain in (-1e4, 1e4):
            objective, batch = toy(correction=correction)
            objective.discriminator.scores.data.fill_(certain)
            objective.discriminator.guesses.data[:, 7] = 1e3
            losses = objective.train()(batch, streams(batch))
            assert total(losses).isfinite()
            assert all(slope.isfinite().all() for slope in gradients(objective, total(losses)).values())


def test_the_accuracy_of_corrections_is_split_into_replaced_and_unreplaced() -> None:
    """The head names 7 everywhere but at the last masked position, where it is right; the empty slot counts nowhere."""
    objective, batch = toy()
    objective.discriminator.guesses.data[:, 7] = 9.0
    objective.discriminator.guesses.data[5, ORIGINALS[5]] = 10.0
    found = objective(batch, streams(batch))
    read = {name: (int(part.sum), int(part.count)) for name, part in found.metrics.items()}
    assert read == {"correction_accuracy_replaced": (2, 4), "correction_accuracy_unreplaced": (2, 2)}
    assert read.keys() == objective.metrics.keys()
    asked = found.predictions["discriminator"]
    assert asked.correct[:, :3].tolist() == [[True, False, True]] * 2
    assert not asked.saw_mask.any()


def test_one_pass_of_the_discriminator_serves_both_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = toy()
    seen: list[Tensor] = []
    forward = objective.discriminator.hidden
    monkeypatch.setattr(objective.discriminator, "hidden", lambda *given: seen.append(given[0]) or forward(*given))
    objective.train()(batch, streams(batch))
    assert [tokens.tolist() for tokens in seen] == [[DRAWN] * 2]


def test_weights_multiply_their_terms() -> None:
    plain, batch = toy()
    weighted, _ = toy(generator_weight=2.0, discriminator_weight=3.0, correction_weight=5.0)
    terms, weights = plain(batch, streams(batch)).terms, {"generator": 2.0, "discriminator": 3.0, "correction": 5.0}
    expected = sum(weight * terms[name].sum / terms[name].count for name, weight in weights.items())
    torch.testing.assert_close(total(weighted(batch, streams(batch))), expected)
