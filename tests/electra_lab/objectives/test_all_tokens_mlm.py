"""The copy gate: by hand, as a distribution, at its limits, and inside the objective."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.objectives import _shared
from electra_lab.objectives._shared import copy_losses
from electra_lab.testing import CLS, PAD, SEP
from electra_lab.training.random import Streams
from tests.electra_lab.objectives.tiny import SIZE, Fixed, Says, berts, gradients, rows, sentences, tables


def losses(logits: torch.Tensor, copy: torch.Tensor, seen: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    said = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    return copy_losses(said, copy, seen == tokens)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), gate=st.floats(-40, 40), seen=st.integers(0, SIZE - 1), scale=st.floats(0, 20))
def test_the_probabilities_of_all_tokens_sum_to_one(seed: int, gate: float, seen: int, scale: float) -> None:
    numbers = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(1, 1, SIZE, generator=numbers, dtype=torch.float64)).expand(SIZE, 1, -1)
    copy = torch.full((SIZE, 1), gate, dtype=torch.float64)
    every = torch.arange(SIZE).unsqueeze(1)
    probabilities = (-losses(logits, copy, torch.full_like(every, seen), every)).exp()
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("gate", [1e4, -1e4, 88.0, -88.0, 0.0])
@pytest.mark.parametrize("target", [1e4, -1e4, 0.0])
@pytest.mark.parametrize("seen", [5, 6])
def test_extremes_are_finite_in_float32(gate: float, target: float, seen: int) -> None:
    """Gates that are shut or open, a target that is certain or out of the question, and the gradients of all that."""
    logits, copy = torch.zeros(1, 1, SIZE), torch.full((1, 1), gate, requires_grad=True)
    logits[..., 5] = target
    logits.requires_grad_()
    loss = losses(logits, copy, torch.tensor([[seen]]), torch.tensor([[5]]))
    loss.sum().backward()
    exact = _exact(target, gate, seen == 5)
    assert loss.item() == pytest.approx(exact, rel=1e-5, abs=1e-5)
    for each in (logits, copy):
        assert each.grad is not None
        assert each.grad.isfinite().all()
    if loss.item() > 1:
        assert logits.grad.any() or copy.grad.any(), "a wrong prediction teaches nothing"


def _exact(target: float, gate: float, copied: bool) -> float:
    log_d, log_not = (-max(-g, 0) - math.log1p(math.exp(-abs(g))) for g in (gate, -gate))
    largest = max(target, 0.0)
    log_p = target - largest - math.log(math.exp(target - largest) + (SIZE - 1) * math.exp(-largest))
    one, other = sorted([log_not + log_p, log_d if copied else -math.inf])
    return -(other + math.log1p(math.exp(one - other)))


def test_the_loss_is_the_mean_over_all_tokens_of_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real network in float64, by the formula of the paper, padding left out; in metrics at the masked ones.

    The logits of three positions of each row exist at a time.
    """
    monkeypatch.setattr(_shared, "AT_ONCE", 18)
    batch = sentences()
    objective = berts("all_tokens_mlm", "tokens", sampler=lambda logits, _: logits.argmin(-1)).double().eval()
    seen: list[torch.Tensor] = []
    objective.discriminator.backbone.register_forward_hook(lambda *call: seen.append(call[2]))
    embedded: list[torch.Tensor] = []
    objective.discriminator.embeddings.register_forward_hook(lambda _, given, __: embedded.append(given[0]))
    losses = objective(batch, Streams(0, 0, batch.example_ids))
    inputs, hidden = embedded[-1], seen[-1]  # tied by the token table alone, so these are the discriminator's
    gate = torch.sigmoid(hidden @ objective.copy.weight[0] + objective.copy.bias)
    every = torch.arange(20).expand(6, -1)
    softmax = objective.discriminator.token_logits(hidden, every).softmax(-1)
    mixture = (1 - gate).unsqueeze(-1) * softmax
    mixture += gate.unsqueeze(-1) * torch.nn.functional.one_hot(inputs, 30)
    expected = -mixture.gather(-1, batch.tokens.unsqueeze(-1)).squeeze(-1).log()
    term, asked = losses.terms["discriminator"], losses.predictions["discriminator"]
    torch.testing.assert_close(term.sum, expected[batch.attention_mask].sum())
    assert int(term.count) == 6 * 15
    assert (inputs != batch.tokens).any()
    torch.testing.assert_close(asked.loss, expected.gather(1, asked.positions))
    likeliest = mixture.argmax(-1) == batch.tokens
    assert torch.equal(asked.correct, likeliest.gather(1, asked.positions))
    assert not asked.saw_mask.any()


def test_every_token_teaches_and_padding_does_not() -> None:
    batch = rows(CLS, 7, 8, SEP, PAD)
    objective = tables("all_tokens_mlm", Fixed(1), Says(5), 5).train()
    found = gradients(objective, objective(batch, Streams(0, 0, batch.example_ids)).terms["discriminator"].sum)
    assert found["discriminator.guesses"].any(-1).tolist() == [True, True, True, True, False]
    # The sampled token at its place, the tokens that were seen at the others: the gate reads the states of what it saw.
    assert found["copy.weight"][0].nonzero().flatten().tolist() == [CLS, SEP, 5, 8]
    assert "generator.guesses" not in found
