"""REINFORCE against exact enumeration over five tokens, in float64."""

import itertools
from typing import Any

import pytest
import torch
from scipy.stats import entropy
from torch import Tensor
from torch.nn import functional as F

from electra_lab.testing import CLS, MASK, PAD, SEP, UNK
from electra_lab.training.random import Streams
from tests.electra_lab.objectives.tiny import Fixed, Says, berts, gradients, rows, sentences, tables

ACTIONS = [5, 6, 7, 8, 9]
BATCH = rows(CLS, 7, 8, 9)


def adversarial(masking: Any, sampler: Any, **options: Any) -> Any:
    objective = tables("adversarial", masking, sampler, 4, **options).train()
    objective.generator.guesses.data[:, UNK] = -1e3
    objective.baseline.weight.data.normal_(generator=torch.Generator().manual_seed(3))
    return objective


def terms(objective: Any, batch: Any = BATCH, step: int = 0) -> Any:
    return objective(batch, Streams.of(0, step, batch.example_ids)).terms


def policy(objective: Any, position: int) -> Tensor:
    return objective.generator.guesses[position, ACTIONS].softmax(-1)


def rewards(objective: Any, position: int) -> Tensor:
    """The discriminator's loss for each action; the original is labelled original."""
    labels = torch.tensor([float(a != int(BATCH.tokens[0, position])) for a in ACTIONS]).double()
    logits = objective.discriminator.scores[position, ACTIONS].detach()
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def expected_gradient(objective: Any, *positions: int) -> Tensor:
    value = torch.stack([(policy(objective, p) * rewards(objective, p)).sum() for p in positions]).sum()
    return gradients(objective, -value)["generator.guesses"]


@pytest.mark.parametrize("positions", [(1,), (1, 3)])
def test_reinforce_is_the_gradient_of_the_expected_reward(positions: tuple[int, ...]) -> None:
    """Summed over all outcomes, weighted by probability: exact for any baseline."""
    summed = torch.zeros(4, 10, dtype=torch.float64)
    for outcome in itertools.product(ACTIONS, repeat=len(positions)):
        objective = adversarial(Fixed(*positions), Says(*outcome))
        chances = [policy(objective, p)[a - 5].detach() for p, a in zip(positions, outcome, strict=True)]
        slope = gradients(objective, terms(objective)["policy"].sum)["generator.guesses"]
        summed += torch.stack(chances).prod() * slope
    exact = expected_gradient(adversarial(Fixed(*positions), Says(5)), *positions)
    assert exact.abs().max() > 0.01
    torch.testing.assert_close(summed, exact, rtol=1e-9, atol=1e-12)


def test_a_sample_is_not_credited_with_what_it_does_to_other_places() -> None:
    """If detections depend on other samples, the objective still follows the paper's assumption that they do not.

    The gradient is that of each place's expected reward in its own sample, with the others drawn and fixed.
    """
    objective = adversarial(Fixed(1, 2), Says(5))
    objective.discriminator.coupling = 3.0
    summed, own_credit, whole_credit = torch.zeros(4, 10).double(), [], []
    for outcome in itertools.product(ACTIONS, repeat=2):
        objective.sampler = Says(*outcome)
        first, second = (policy(objective, p)[a - 5] for p, a in zip((1, 2), outcome, strict=True))
        summed += (first * second).detach() * gradients(objective, terms(objective)["policy"].sum)["generator.guesses"]
        first, second = (policy(objective, p)[a - 5] for p, a in zip((1, 2), outcome, strict=True))
        inputs = BATCH.tokens.scatter(1, torch.tensor([[1, 2]]), torch.tensor([outcome]))
        logits = objective.discriminator.replaced_logits(F.one_hot(inputs, 10).double()).detach()
        losses = F.binary_cross_entropy_with_logits(logits, (inputs != BATCH.tokens).double(), reduction="none")
        own_credit.append(first * second.detach() * losses[0, 1] + first.detach() * second * losses[0, 2])
        whole_credit.append(first * second * (losses[0, 1] + losses[0, 2]))
    own, whole = (gradients(objective, -torch.stack(c).sum())["generator.guesses"] for c in (own_credit, whole_credit))
    torch.testing.assert_close(summed, own, rtol=1e-9, atol=1e-12)
    assert (own - whole).abs().max() > 0.01


def test_one_sample_by_hand() -> None:
    """(reward - value) (softmax - one-hot), where the value is -log sigmoid(w h), and h the state at [MASK]."""
    objective = adversarial(Fixed(1), Says(6), generator_weight=3.0)
    objective.baseline.weight.data[0, MASK] = 0.7  # -log sigmoid(0.7) = 0.403186
    objective.discriminator.scores.data[1, 6] = -0.5  # replaced, and not detected: log(1 + e^0.5) = 0.974077
    term = terms(objective)["policy"]
    chances = policy(objective, 1).detach()
    assert float(term.sum.detach()) == pytest.approx((0.974077 - 0.403186) * -float(chances[1].log()), abs=1e-5)
    assert (term.weight, int(term.count)) == (3.0, 1)
    found = gradients(objective, term.sum)
    assert found.keys() == {"generator.guesses"}, "the policy's loss trains only the generator"
    one_hot = F.one_hot(torch.tensor(1), 5).double()
    torch.testing.assert_close(
        found["generator.guesses"][1, ACTIONS], 0.570891 * (chances - one_hot), rtol=0, atol=1e-5
    )  # fmt: skip


def test_the_baseline_is_fitted_to_the_chance_of_being_right() -> None:
    """exp(-reward) is the discriminator's probability of the truth; the gradient is (sigmoid(w h) - exp(-reward)) h."""
    objective = adversarial(Fixed(1, 3), Says(6, 9), baseline_weight=2.0)
    term = terms(objective)["baseline"]
    found = gradients(objective, term.sum)
    right = torch.stack(
        [objective.discriminator.scores[1, 6].sigmoid(), (-objective.discriminator.scores[3, 9]).sigmoid()]
    )
    said = objective.baseline.weight[0, MASK].sigmoid().detach()
    expected = torch.zeros(1, 10, dtype=torch.float64)
    expected[0, MASK] = (said - right.detach()).sum()
    torch.testing.assert_close(found["baseline.weight"], expected)
    assert found.keys() == {"baseline.weight"}, "the baseline's loss trains neither network"
    assert (term.weight, int(term.count)) == (2.0, 2)


def test_the_baseline_takes_the_reward_off_and_masked_language_modelling_trains_nothing() -> None:
    """If reward and value are both log 2, the generator gets no gradient, even if its predictions are bad."""
    objective = adversarial(Fixed(1, 3), Says(6, 9))
    objective.discriminator.scores.data.zero_()
    objective.baseline.weight.data.zero_()
    made = terms(objective)
    loss = torch.stack([t.weight * t.sum for t in made.values()]).sum()
    assert gradients(objective, loss)["generator.guesses"].abs().max() < 1e-12
    measured = objective.eval()(BATCH, Streams.of(0, 0, BATCH.example_ids)).predictions["generator"]
    assert measured.loss.min() > 0.1


def test_the_entropy_is_that_of_scipy_and_its_gradient_finite() -> None:
    """Over the ordinary tokens; special tokens are at minus infinity. The bonus increases the entropy."""
    objective = adversarial(Fixed(1, 3, empty=1), Says(6, 9, 5), entropy_weight=0.5)
    objective.generator.guesses.data[:, UNK] = 0.3
    term = terms(objective)["entropy"]
    ordinary = objective.generator.guesses.detach()[[1, 3]][:, [UNK, *ACTIONS]].softmax(-1)
    assert float(term.sum.detach()) == pytest.approx(-float(entropy(ordinary.numpy(), axis=1).sum()), rel=1e-9)
    assert (term.weight, int(term.count)) == (0.5, 2)
    found = gradients(objective, term.sum)["generator.guesses"]
    assert found.isfinite().all()
    assert not found[:, [PAD, CLS, SEP, MASK]].any()
    assert not found[[0, 2]].any()
    objective.generator.guesses.data -= 0.1 * found
    assert terms(objective)["entropy"].sum < term.sum


def test_detection_is_that_of_electra() -> None:
    given = sentences()
    ours, theirs = (berts(name, "tokens").eval() for name in ("adversarial", "electra"))
    theirs.load_state_dict({k: v for k, v in ours.state_dict().items() if not k.startswith("baseline")})
    mine, expected = (o(given, Streams.of(0, 0, given.example_ids)) for o in (ours, theirs))
    assert torch.equal(mine.terms["discriminator"].sum, expected.terms["discriminator"].sum)
    assert mine.terms["discriminator"].weight == expected.terms["discriminator"].weight == 50.0
    assert torch.equal(mine.detection.inputs, expected.detection.inputs)
