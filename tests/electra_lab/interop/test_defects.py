"""The known defects of electra-pytorch 0.1.2 and mlm-pytorch 0.1.0, by their numbers: there, and gone here.

A law is written once. It must fail on theirs, which is the control, and hold on ours.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, binomial_p, chi_square_p, count
from tests.electra_lab.interop import networks as net


@net.BOTH_KINDS
@pytest.mark.parametrize("shape", [(1, 126, 1), (1, 60, 67), (68, 60, 0), (102, 26, 0)])
def test_b1_the_number_of_masked_tokens(kind: str, shape: tuple[int, int, int]) -> None:
    tokens = net.row(*shape)

    def law(package: Any) -> None:
        trainer, network = net.build(package, kind, replace_prob=1.0)
        trainer(tokens)
        assert ((network.seen == MASK).sum(1) == count(0.15, shape[1])).all(), "the wrong number is masked"

    net.gone(law, "the wrong number is masked")


@net.BOTH_KINDS
@pytest.mark.parametrize("shape", [(0, 1, 127), (0, 0, 128), (122, 6, 0)])
def test_b2_special_tokens_where_few_may_be_masked(kind: str, shape: tuple[int, int, int]) -> None:
    tokens = net.row(*shape)
    tokens[:, shape[1] + shape[0] :][:, :2] = torch.tensor([CLS, SEP])[: min(2, shape[2])]

    def law(package: Any) -> None:
        trainer, network = net.build(package, kind, replace_prob=1.0)
        trainer(tokens)
        assert not (network.seen != tokens)[tokens < 5].any(), "a special token was masked"

    net.gone(law, "a special token was masked")


@net.BOTH_KINDS
def test_b3_a_batch_with_nothing_to_learn(kind: str) -> None:
    batches: list[tuple[Tensor, dict[str, float]]] = [
        (torch.full((3, 16), PAD), {}),
        (net.text(), {"mask_prob": 0.0}),
        (net.text()[:, :1], {}),
    ]

    def law(package: Any) -> None:
        for tokens, options in batches:
            trainer, network = net.build(package, kind, **options)
            result = trainer(tokens)
            values = [result] if kind == "MLM" else list(result)
            assert all(value.isfinite().all() for value in values), "not finite"
            net.loss_of(result).backward()
            assert all(p.grad is None or not p.grad.any() for p in network.parameters())

    def all_masked(package: Any) -> None:
        result = net.build(package, kind, mask_prob=1.0)[0](net.row(0, 20, 0))
        assert result.disc_acc.isfinite(), "not finite"

    net.gone(law, "not finite")
    if kind == "Electra":
        net.gone(all_masked, "not finite")


@net.BOTH_KINDS
def test_b4_random_tokens_only_where_masked(kind: str) -> None:
    tokens = net.text(rows=32, length=100, padding=20)

    def law(package: Any) -> None:
        trainer, network = net.build(package, kind, random_token_prob=0.5, num_tokens=net.SIZE)
        trainer(tokens)
        changed = network.seen != tokens
        assert not changed[tokens < 5].any(), "a special token was changed"
        assert (changed.sum(1) <= count(0.15, 78)).all(), "more was changed than is predicted"

    net.gone(law, "a special token was changed")


@net.BOTH_KINDS
def test_b4_shares_are_those_of_bert(kind: str) -> None:
    """replace_prob .9 and random_token_prob .1 give 80% [MASK], 10% random, 10% kept (mlm-pytorch's issue 6)."""
    size, tokens = 1000, torch.randint(5, 1000, (256, 128), generator=torch.Generator().manual_seed(0))
    masked = 256 * count(0.15, 128)

    def law(package: Any) -> None:
        network = net.Constant(torch.zeros(size))
        trainer, _ = net.build(package, kind, network, replace_prob=0.9, random_token_prob=0.1, num_tokens=size)
        if kind == "Electra":
            trainer.discriminator = net.Constant(torch.zeros(1))
        with torch.no_grad():
            trainer(tokens)
        hidden = int((network.seen == MASK).sum())
        changed = int((network.seen != tokens).sum()) - hidden
        assert binomial_p(hidden, masked, 0.8) > SIGNIFICANCE, "the share of [MASK] is off"
        assert binomial_p(changed, masked, 0.1 * (1 - 1 / 996)) > SIGNIFICANCE, "the share of random tokens is off"

    net.gone(law, "the share of random tokens is off" if kind == "Electra" else "the share of .* is off")


@net.BOTH_KINDS
def test_b5_mask_is_neither_put_in_at_random_nor_masked(kind: str) -> None:
    tokens = torch.full((8, 40), 6)

    def at_random(package: Any) -> None:
        options = {"replace_prob": 0.0, "random_token_prob": 1.0, "num_tokens": 7, "mask_prob": 1.0}
        trainer, network = net.build(package, kind, **options)
        trainer(tokens)
        assert (network.seen != MASK).all(), "[MASK] was put in"
        # One of the three ordinary tokens, which also are what is there; so replace_prob plays no part.
        changed = int((network.seen != tokens).sum())
        assert binomial_p(changed, tokens.numel(), 2 / 3) > SIGNIFICANCE

    def masked(package: Any) -> None:
        trainer, network = net.build(package, kind)
        net.loss_of(trainer(torch.full((8, 40), MASK))).backward()
        assert not network.out.weight.grad.any(), "a [MASK] of the text had to be predicted"

    net.gone(at_random, r"\[MASK\] was put in")
    net.gone(masked, "had to be predicted")


def test_b6_special_tokens_are_never_drawn() -> None:
    tokens, likely = net.row(0, 40, 0), torch.zeros(net.SIZE)
    likely[[PAD, CLS, SEP, MASK]] = 10.0

    def law(package: Any) -> None:
        trainer, _ = net.build(package, "Electra", net.Constant(likely), mask_prob=1.0)
        trainer(tokens)
        assert not torch.isin(trainer.discriminator.seen, torch.tensor([PAD, CLS, SEP, MASK])).any(), "drawn"

    net.gone(law, "drawn")


@pytest.mark.parametrize("arrives", ["bfloat16", "float16"])
def test_b7_draws_in_half_precision(arrives: str) -> None:
    """Every token alike, as the logits are, at the full vocabulary."""
    size, tokens = 30_522, net.row(0, 25, 0)
    flat = torch.zeros(size, dtype=getattr(torch, arrives))
    expected = torch.ones(size).double()
    expected[[PAD, CLS, SEP, MASK]] = 0

    def law(package: Any) -> None:
        trainer, _ = net.build(package, "Electra", net.Constant(flat), mask_prob=1.0)
        trainer.discriminator = net.Constant(torch.zeros(1))
        with torch.no_grad():
            drawn = [trainer(tokens) and trainer.discriminator.seen for _ in range(2)]
        counts = torch.bincount(torch.cat(drawn).flatten(), minlength=size).double()
        assert chi_square_p(counts, expected / expected.sum()) > SIGNIFICANCE, "not the softmax"

    net.gone(law, "not the softmax")


def test_b7_under_autocast_losses_and_draws_are_float32() -> None:
    tokens, drawn = net.text(), []
    trainer, network = net.build(net.OURS, "Electra")
    for enabled in (False, True):
        trainer.step = 0
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            results = trainer(tokens)
            assert (network(tokens).dtype == torch.bfloat16) == enabled
        assert {value.dtype for value in results} == {torch.float32}
        drawn.append(trainer.discriminator.seen)
    # Logits are rounded to 8 bits, so a draw here and there may change, but not the draws as a whole.
    assert (drawn[0] == drawn[1]).float().mean() > 0.98


def test_b8_temperature_zero_takes_the_most_likely() -> None:
    tokens, logits = net.row(0, 20, 0), torch.linspace(0.1, 1.0, net.SIZE)

    def law(package: Any) -> None:
        trainer, _ = net.build(package, "Electra", net.Constant(logits), temperature=0.0, mask_prob=1.0)
        trainer(tokens)
        assert (trainer.discriminator.seen == logits.argmax()).all(), "not the most likely"

    net.gone(law, "not the most likely")


@net.BOTH_KINDS
def test_b9_evaluation_depends_on_the_text_alone(kind: str) -> None:
    tokens = net.text()

    def law(package: Any) -> None:
        trainer, _ = net.build(package, kind)
        trainer.eval()
        losses = [net.loss_of(trainer(tokens)) for _ in range(2) if torch.manual_seed(0)]
        after = torch.rand(1)
        torch.manual_seed(1)
        assert torch.equal(losses[0], net.loss_of(trainer(tokens))), "the global generator plays a part"
        torch.manual_seed(0)
        assert torch.equal(torch.rand(1), after), "the global generator was moved"

    net.gone(law, "the global generator plays a part")


@net.BOTH_KINDS
def test_b9_training_depends_on_seed_and_step_alone(kind: str) -> None:
    """Every step differs; a state_dict goes on where it was made, whatever the global generator did."""
    tokens, steps = net.text(), 3

    def run(trainer: nn.Module) -> list[Tensor]:
        torch.rand(1)
        return [net.loss_of(trainer(tokens)).detach() for _ in range(steps)]

    trainer, fresh, again = (net.build(net.OURS, kind)[0] for _ in range(3))
    other, _ = net.build(net.OURS, kind, seed=1)
    first = run(trainer)
    assert len({float(loss) for loss in first}) == steps
    fresh.load_state_dict(trainer.state_dict())
    assert run(trainer) == run(fresh)
    assert run(again) == first
    assert run(other) != first


def test_b9_reformers_evaluate_alike() -> None:
    """Their hashing draws from torch's global generator in eval too; it is lent a fresh one, and left as it was."""
    tokens = net.row(0, 32, 0)

    def law(package: Any) -> None:
        generator, discriminator = net.pair()
        trainer = package.Electra(generator, discriminator, **net.MAGIC, **net.IDS).eval()
        losses = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            after = torch.random.get_rng_state()
            losses.append(trainer(tokens).disc_loss)
        assert losses[0] == losses[1]
        assert losses[0] == losses[2], "the global generator plays a part"
        assert torch.equal(torch.random.get_rng_state(), after), "the global generator was moved"

    net.gone(law, "the global generator plays a part")
