"""Options that objectives share: disallow_correct, label smoothing, the z-loss; by hand and against torch."""

import pytest
import torch
from torch.nn import functional as F

from electra_lab.objectives._shared import Corrupting, cloze
from electra_lab.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, chi_square_p
from electra_lab.training.step import Learner
from electra_lab.training.step import gradients as step_gradients
from registry import Masked, samplers
from tests.electra_lab.objectives.tiny import (
    ORDINARY,
    REQUIRED,
    SIZE,
    Fixed,
    Says,
    assert_close,
    berts,
    gradients,
    rows,
    sentences,
    streams,
    tables,
)  # fmt: skip

DRAWING = [
    "electra", "electra_correct", "electra_masked_only", "replace_mlm", "all_tokens_mlm", "two_stage",
    "frozen_generator",
]  # fmt: skip


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize("disallow_correct", [True, False])
def test_disallow_correct_takes_the_original_out_of_the_softmax(name: str, disallow_correct: bool) -> None:
    """What the sampler is shown: the softmax over ordinary tokens, without the original and renormalised."""
    sampler, batch = Says(5, 6), rows(CLS, 7, 8, 9, SEP, number=3)
    objective = tables(name, Fixed(1, 3), sampler, 5, disallow_correct=disallow_correct, **REQUIRED.get(name, {}))
    objective(batch, streams(batch))
    for slot, (position, original) in enumerate([(1, 7), (3, 9)]):
        expected = objective.generator.guesses[position].detach().exp()
        expected[[PAD, CLS, SEP, MASK]] = 0
        if disallow_correct:
            expected[original] = 0
        seen = sampler.logits[slot::2].double().softmax(-1)
        torch.testing.assert_close(seen, (expected / expected.sum()).expand(3, -1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("sampler", ["gumbel", "temperature"])
def test_disallow_correct_never_draws_the_original_and_the_others_as_before(sampler: str) -> None:
    batch = rows(CLS, 7, 8, number=4000)
    objective = tables("electra", Fixed(1), samplers.get(sampler).component, 3, disallow_correct=True)
    drawn = objective(batch, streams(batch)).detection.inputs[:, 1].bincount(minlength=SIZE)
    assert drawn[7] == 0
    others = [t for t in ORDINARY if t != 7]
    shares = objective.generator.guesses[1].detach()[others].softmax(-1)
    assert drawn[others].sum() == 4000
    assert chi_square_p(drawn[others], shares) > SIGNIFICANCE


def test_generator_smoothing_is_that_of_torch_and_metrics_know_nothing_of_it() -> None:
    batch = rows(CLS, 7, 8, 9, number=2)
    objective = tables("electra", Fixed(1, 3, empty=1), Says(5, 6, 5), 4, generator_smoothing=0.3)
    losses = objective(batch, streams(batch))
    logits, originals = objective.generator.guesses[[1, 3] * 2], torch.tensor([7, 9] * 2)
    smooth = F.cross_entropy(logits, originals, label_smoothing=0.3, reduction="sum")
    torch.testing.assert_close(losses.terms["generator"].sum, smooth)
    asked = losses.predictions["generator"]
    plain = asked.loss[asked.valid].sum()
    torch.testing.assert_close(plain, F.cross_entropy(logits, originals, reduction="sum"))
    assert not torch.isclose(smooth, plain, rtol=0.02)


def test_discriminator_smoothing_by_hand() -> None:
    """-log sigmoid(2) = 0.126928 and -log sigmoid(-2) = 2.126928; smoothing 0.2 makes the labels 0.9 and 0.1."""
    batch = rows(CLS, 7)
    objective = tables("electra", Fixed(1), Says(5), 2, discriminator_smoothing=0.2)
    objective.discriminator.scores.data.fill_(2.0)
    term = objective(batch, streams(batch)).terms["discriminator"]
    original, replaced = 0.1 * 0.126928 + 0.9 * 2.126928, 0.9 * 0.126928 + 0.1 * 2.126928
    assert float(term.sum.detach()) == pytest.approx(original + replaced, abs=1e-5)
    assert int(term.count) == 2


SMOOTH = {"electra": {"generator_smoothing": 0.2}, "mlm": {"smoothing": 0.2}, "teams": {"depth": 2}}


@pytest.mark.parametrize(
    "name", ["electra", "electra_correct", "mlm", "replace_mlm", "all_tokens_mlm", "two_stage", "mc_bert", "teams"]
)
def test_the_z_loss_is_the_plain_formula_with_its_gradient_in_any_micro_batches(name: str) -> None:
    """Mean of log^2 sum exp(logits) over the masked tokens of the whole batch, which micro-batches hold unevenly."""
    options = {**REQUIRED.get(name, {}), **SMOOTH.get(name, {})}
    off, on = berts(name, **options).double().train(), berts(name, z_loss=0.3, **options).double().train()
    batch = sentences()
    batch.attention_mask[0, 4:] = False  # the first row has fewer masked tokens than the others
    found = []
    for objective, micro in ((off, 6), (on, 6), (on, 4)):
        learner = Learner(objective)
        learner.at_step(0, 0)
        sums, counts, _ = step_gradients(learner, batch, 0, 0, micro, "fp32", None)
        found.append({name: p.grad for name, p in objective.named_parameters() if p.grad is not None})
        objective.zero_grad(set_to_none=True)
    # Plainly
    rng = streams(batch)
    objective = on if name != "mlm" else Corrupting(on.discriminator, None, on.masking, None, on.vocabulary)
    guess = objective.guess(batch, rng)
    logits = {"generator" if name != "mlm" else "discriminator": guess.logits}
    if name in ("electra_correct", "replace_mlm"):
        read = cloze(
            on.discriminator, Masked(on.replace(guess, batch, rng), *list(vars(guess.masked).values())[1:]), batch
        )
        logits["discriminator"] = read.logits
    squares = {network: said.logsumexp(-1)[guess.masked.valid] ** 2 for network, said in logits.items()}
    assert {key for key in sums if key.endswith("_z")} == {f"{network}_z" for network in squares}
    for network, values in squares.items():
        torch.testing.assert_close(sums[f"{network}_z"] / counts[f"{network}_z"], values.mean().detach())
    slopes = gradients(on, 0.3 * sum(values.mean() for values in squares.values()))
    expected = {key: off + slopes.get(key, 0) for key, off in found[0].items()}
    assert_close(found[1], expected)
    assert_close(found[2], expected)
    assert max(float(slope.abs().max()) for slope in slopes.values()) > 1e-3
