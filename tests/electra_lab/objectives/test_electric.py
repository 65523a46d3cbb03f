"""Noise-contrastive estimation by enumeration in float64, and its parts on real networks."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from electra_lab.generators.unigram import Unigram
from electra_lab.objectives import _shared
from electra_lab.testing import CLS, PAD, SEP, vocabulary
from registry import backbones
from tests.electra_lab.objectives import tiny

PLACES = slice(1, 4)  # the three ordinary tokens of a row; one of them is masked, so the odds of noise are 1 to 2
NUMBERS = torch.Generator().manual_seed(5)
TEXT = torch.randn(len(tiny.ORDINARY), generator=NUMBERS, dtype=torch.float64).softmax(-1)  # of each token


def alike(energies: Tensor) -> Any:
    objective = tiny.tables("electric", tiny.Fixed(1), tiny.Says(5), 6).train()
    objective.generator.guesses.data[:] = objective.generator.guesses.data[0]
    objective.discriminator.scores.data[:, tiny.ORDINARY] = energies
    return objective


def noise(objective: Any) -> Tensor:
    return objective.generator.guesses[0, tiny.ORDINARY].softmax(-1).detach()


def expected(objective: Any) -> Any:
    """Return the expected loss and the gradient of each energy, over all texts and draws.

    A text repeats one token three times. Summing over texts, draws and places gives the expectation for masks that are
    equally likely at each place, as all places have equal tables.
    """
    loss, slopes = torch.zeros((), dtype=torch.float64), torch.zeros(tiny.SIZE, dtype=torch.float64)
    for token, of_token in zip(tiny.ORDINARY, TEXT, strict=True):
        batch = tiny.rows(CLS, token, token, token, SEP, PAD)
        for drawn, of_draw in zip(tiny.ORDINARY, noise(objective), strict=True):
            objective.sampler = tiny.Says(drawn)
            term = objective(batch, tiny.streams(batch)).terms["discriminator"]
            assert int(term.count) == 3
            found = tiny.gradients(objective, term.sum)
            assert found.keys() == {"discriminator.scores"}, "no gradient reaches the noise"
            assert not found["discriminator.scores"][[0, 4, 5]].any(), "special tokens and padding have no gradient"
            loss += of_token * of_draw * term.sum.detach()
            slopes += of_token * of_draw * found["discriminator.scores"][PLACES].sum(0)
    return loss, slopes[tiny.ORDINARY]


@pytest.mark.parametrize("exact", [True, False])
def test_loss_and_gradient_are_those_of_the_formula(exact: bool) -> None:
    """P(noise) = s(f + log q + log(1 / 2)); with one masked token and two kept ones, at any energies.

    At the negative log probability of the text, with its constant, the expected gradient is 0.
    """
    energies = -TEXT.log() if exact else torch.randn(len(tiny.ORDINARY), generator=NUMBERS, dtype=torch.float64)
    objective = alike(energies)
    loss, slopes = expected(objective)
    assert (slopes.abs().max() < 1e-12) == exact
    q = noise(objective)
    odds = energies.exp() * q / 2
    chance = odds / (1 + odds)
    torch.testing.assert_close(loss, -(q * chance.log() + 2 * TEXT * (1 - chance).log()).sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(slopes, 2 * TEXT * chance - q * (1 - chance), rtol=1e-9, atol=1e-12)


def test_the_odds_are_those_of_the_row() -> None:
    """The odds of masked to kept tokens among the maskable ones; a row whose tokens are all masked stays finite."""
    for tokens, masked, odds in (((7, 8, 9, 5), (1, 3), 1.0), ((7, 8, 9, 5), (2,), 1 / 3), ((7,), (1,), 1.0)):
        batch = tiny.rows(CLS, *tokens, SEP)
        objective = tiny.tables("electric", tiny.Fixed(*masked), tiny.Says(*[6] * len(masked)), len(tokens) + 2)
        seen = objective(batch, tiny.streams(batch)).detection
        allowed = objective.generator.guesses[:, tiny.ORDINARY].logsumexp(-1)
        for place in range(1, len(tokens) + 1):
            token = int(seen.inputs[0, place])
            q = objective.generator.guesses[place, token] - allowed[place]
            energy = objective.discriminator.scores[place, token]
            torch.testing.assert_close(seen.logits[0, place], energy + q + torch.tensor(odds).double().log())


def test_the_generator_learns_the_text_without_masks_at_every_place() -> None:
    """Cross-entropy over the ordinary tokens at all maskable positions; metrics cover the masked ones."""
    batch = tiny.rows(CLS, 7, 8, 9, SEP, number=2)
    objective = tiny.tables("electric", tiny.Fixed(1, 3, empty=1), tiny.Says(5, 6, 5), 5, generator_weight=0.5)
    losses = objective(batch, tiny.streams(batch))
    assert losses.detection.inputs[0].tolist() == [CLS, 5, 8, 6, SEP], "an empty slot must not change the text"
    term = losses.terms["generator"]
    of_text = objective.generator.guesses[PLACES][:, tiny.ORDINARY].log_softmax(-1)
    energies = -of_text[[0, 1, 2], [tiny.ORDINARY.index(token) for token in (7, 8, 9)]]
    torch.testing.assert_close(term.sum, 2 * energies.sum(), rtol=1e-12, atol=0)
    assert (int(term.count), term.weight, losses.terms["discriminator"].weight) == (6, 0.5, 50.0)
    tiny.assert_close(tiny.gradients(objective, term.sum), tiny.gradients(objective, 2 * energies.sum()))
    asked = losses.predictions["generator"]
    torch.testing.assert_close(asked.loss[:, :2], energies[[0, 2]].expand(2, -1))
    likeliest = objective.generator.guesses[[1, 3]][:, tiny.ORDINARY].argmax(-1)
    assert asked.correct[0, :2].tolist() == [tiny.ORDINARY[i] == t for i, t in zip(likeliest, (7, 9), strict=True)]
    kept = losses.metrics["discriminator_energy"]
    torch.testing.assert_close(kept.sum, 2 * objective.discriminator.scores[2, 8])
    assert int(kept.count) == 2


def test_word_frequencies_are_read_from_a_table() -> None:
    words = vocabulary(tiny.SIZE)
    fixed, batch = Unigram(words), tiny.rows(CLS, 7, 8, 9, SEP)
    found = []
    for generator in (fixed, SimpleNamespace(hidden=fixed.hidden, token_logits=fixed.token_logits)):
        objective = tiny.tables("electric", tiny.Fixed(1, 3), tiny.Says(5, 6), 5)
        del objective.generator
        objective.generator = generator
        found.append(objective(batch, tiny.streams(batch)))
    for term in ("generator", "discriminator"):
        torch.testing.assert_close(found[0].terms[term].sum, found[1].terms[term].sum)
    shares = fixed.token_log_probability(torch.zeros(1, tiny.SIZE, 1), torch.arange(tiny.SIZE)[None]).exp()[0]
    frequencies = (words.counts + 1).masked_fill(words.is_special, 0).float()
    torch.testing.assert_close(shares, frequencies / frequencies.sum())


@pytest.mark.parametrize("training", [True, False])
def test_some_positions_at_a_time_are_all_of_them(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and gradients on two towers equal those of all logits at once, which are never computed together."""
    monkeypatch.setattr(_shared, "AT_ONCE", 6)
    batch, towers = tiny.sentences(2, 12, padding=2), backbones.get("two_towers").component
    objective = (
        tiny.berts("electric", "none", build=lambda *sizes: towers(*sizes, dropout=0.0)).double().train(training)
    )
    shapes: list[int] = []
    head = objective.generator.heads["tokens"]
    handle = head.register_forward_hook(lambda _, __, out: shapes.append(out.shape[1]))
    term = objective(batch, tiny.streams(batch)).terms["generator"]
    found = tiny.gradients(objective, term.sum)
    assert max(shapes) <= 3
    handle.remove()
    logits = tiny.everywhere(objective.generator, batch.tokens, batch)
    allowed = logits.masked_fill(objective.vocabulary.is_special, float("-inf"))
    maskable = objective.maskable(batch)
    plain = F.cross_entropy(allowed[maskable], batch.tokens[maskable], reduction="sum")
    torch.testing.assert_close(term.sum, plain, rtol=1e-12, atol=0)
    tiny.assert_close(found, tiny.gradients(objective, plain))
