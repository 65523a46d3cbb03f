"""The known defects of electra-pytorch 0.1.2 and mlm-pytorch 0.1.0, by their numbers: there, and gone here.

A law is written once. It must fail on theirs, which is the control, and hold on ours.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reformer_pytorch import ReformerLM
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from electra_lab.interop.electra_pytorch import Electra, tie
from registry.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, binomial_p, chi_square_p, count
from tests.electra_lab.interop.networks import (
    BOTH_KINDS,
    IDS,
    OURS,
    SIZE,
    THEIRS,
    Constant,
    Tiny,
    build,
    loss_of,
    row,
    text,
)


def gone(law: Callable[[Any], None], match: str, failure: type[Exception] = AssertionError) -> None:
    """`law` fails on theirs, in the way that is known of it, and holds on ours."""
    with pytest.raises(failure, match=match):
        law(THEIRS)
    law(OURS)


@BOTH_KINDS
@pytest.mark.parametrize("shape", [(1, 126, 1), (1, 60, 67), (68, 60, 0), (102, 26, 0)])
def test_b1_the_number_of_masked_tokens(kind: str, shape: tuple[int, int, int]) -> None:
    tokens = row(*shape)

    def law(package: Any) -> None:
        trainer, network = build(package, kind, replace_prob=1.0)
        trainer(tokens)
        assert ((network.seen == MASK).sum(1) == count(0.15, shape[1])).all(), "the wrong number is masked"

    gone(law, "the wrong number is masked")


@BOTH_KINDS
@pytest.mark.parametrize("shape", [(0, 1, 127), (0, 0, 128), (122, 6, 0)])
def test_b2_special_tokens_where_few_may_be_masked(kind: str, shape: tuple[int, int, int]) -> None:
    tokens = row(*shape)
    tokens[:, shape[1] + shape[0] :][:, :2] = torch.tensor([CLS, SEP])[: min(2, shape[2])]

    def law(package: Any) -> None:
        trainer, network = build(package, kind, replace_prob=1.0)
        trainer(tokens)
        assert not (network.seen != tokens)[tokens < 5].any(), "a special token was masked"

    gone(law, "a special token was masked")


@BOTH_KINDS
def test_b3_a_batch_with_nothing_to_learn(kind: str) -> None:
    """Finite, with zero gradients: only padding, or nothing masked."""

    def law(package: Any) -> None:
        for tokens, options in ((torch.full((3, 16), PAD), {}), (text(), {"mask_prob": 0.0}), (text()[:, :1], {})):
            trainer, network = build(package, kind, **options)
            result = trainer(tokens)
            values = [result] if kind == "MLM" else list(result)
            assert all(value.isfinite().all() for value in values), "not finite"
            loss_of(result).backward()
            assert all(p.grad is None or not p.grad.any() for p in network.parameters())

    gone(law, "not finite")


def test_b3_where_all_is_masked() -> None:
    def law(package: Any) -> None:
        assert build(package, "Electra", mask_prob=1.0)[0](row(0, 20, 0)).disc_acc.isfinite(), "not finite"

    gone(law, "not finite")


@BOTH_KINDS
def test_b4_random_tokens_only_where_masked(kind: str) -> None:
    tokens = text(rows=32, length=100, padding=20)

    def law(package: Any) -> None:
        trainer, network = build(package, kind, random_token_prob=0.5, num_tokens=SIZE)
        trainer(tokens)
        changed = network.seen != tokens
        assert not changed[tokens < 5].any(), "a special token was changed"
        assert (changed.sum(1) <= count(0.15, 78)).all(), "more was changed than is predicted"

    gone(law, "a special token was changed")


@BOTH_KINDS
def test_b4_shares_are_those_of_bert(kind: str) -> None:
    """replace_prob .9 and random_token_prob .1 give 80% [MASK], 10% random, 10% kept (mlm-pytorch's issue 6)."""
    size, tokens = 1000, torch.randint(5, 1000, (256, 128), generator=torch.Generator().manual_seed(0))
    masked = 256 * count(0.15, 128)

    def law(package: Any) -> None:
        network = Constant(torch.zeros(size))
        trainer, _ = build(package, kind, network, replace_prob=0.9, random_token_prob=0.1, num_tokens=size)
        if kind == "Electra":
            trainer.discriminator = Constant(torch.zeros(1))
        with torch.no_grad():
            trainer(tokens)
        hidden = int((network.seen == MASK).sum())
        changed = int((network.seen != tokens).sum()) - hidden
        assert binomial_p(hidden, masked, 0.8) > SIGNIFICANCE, "the share of [MASK] is off"
        assert binomial_p(changed, masked, 0.1 * (1 - 1 / 996)) > SIGNIFICANCE, "the share of random tokens is off"

    gone(law, "the share of random tokens is off" if kind == "Electra" else "the share of .* is off")


@BOTH_KINDS
def test_b5_mask_is_neither_put_in_at_random_nor_masked(kind: str) -> None:
    tokens = torch.full((8, 40), 6)

    def at_random(package: Any) -> None:
        trainer, network = build(package, kind, replace_prob=0.0, random_token_prob=1.0, num_tokens=7, mask_prob=1.0)
        trainer(tokens)
        assert (network.seen != MASK).all(), "[MASK] was put in"
        # One of the three ordinary tokens, which also are what is there; so replace_prob plays no part.
        changed = int((network.seen != tokens).sum())
        assert binomial_p(changed, tokens.numel(), 2 / 3) > SIGNIFICANCE

    def masked(package: Any) -> None:
        trainer, network = build(package, kind)
        loss_of(trainer(torch.full((8, 40), MASK))).backward()
        assert not network.out.weight.grad.any(), "a [MASK] of the text had to be predicted"

    gone(at_random, r"\[MASK\] was put in")
    gone(masked, "had to be predicted")


def test_b6_special_tokens_are_never_drawn() -> None:
    tokens, likely = row(0, 40, 0), torch.zeros(SIZE)
    likely[[PAD, CLS, SEP, MASK]] = 10.0

    def law(package: Any) -> None:
        trainer, _ = build(package, "Electra", Constant(likely), mask_prob=1.0)
        trainer(tokens)
        assert not torch.isin(trainer.discriminator.seen, torch.tensor([PAD, CLS, SEP, MASK])).any(), "drawn"

    gone(law, "drawn")


@pytest.mark.parametrize("arrives", ["bfloat16", "float16"])
def test_b7_draws_in_half_precision(arrives: str) -> None:
    """Every token alike, as the logits are, at the full vocabulary."""
    size, tokens = 30_522, row(0, 25, 0)
    flat = torch.zeros(size, dtype=getattr(torch, arrives))
    expected = torch.ones(size).double()
    expected[[PAD, CLS, SEP, MASK]] = 0

    def law(package: Any) -> None:
        trainer, _ = build(package, "Electra", Constant(flat), mask_prob=1.0)
        trainer.discriminator = Constant(torch.zeros(1))
        with torch.no_grad():
            drawn = [trainer(tokens) and trainer.discriminator.seen for _ in range(2)]
        counts = torch.bincount(torch.cat(drawn).flatten(), minlength=size).double()
        assert chi_square_p(counts, expected / expected.sum()) > SIGNIFICANCE, "not the softmax"

    gone(law, "not the softmax")


def test_b7_under_autocast_losses_and_draws_are_float32() -> None:
    tokens, drawn = text(), []
    trainer, network = build(OURS, "Electra")
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
    tokens, logits = row(0, 20, 0), torch.linspace(0.1, 1.0, SIZE)

    def law(package: Any) -> None:
        trainer, _ = build(package, "Electra", Constant(logits), temperature=0.0, mask_prob=1.0)
        trainer(tokens)
        assert (trainer.discriminator.seen == logits.argmax()).all(), "not the most likely"

    gone(law, "not the most likely")
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="temperature must be 0 or more"):
            build(OURS, "Electra", temperature=bad)


@BOTH_KINDS
def test_b9_evaluation_depends_on_the_text_alone(kind: str) -> None:
    tokens = text()

    def law(package: Any) -> None:
        trainer, _ = build(package, kind)
        trainer.eval()
        losses = [loss_of(trainer(tokens)) for _ in range(2) if torch.manual_seed(0)]
        after = torch.rand(1)
        torch.manual_seed(1)
        assert torch.equal(losses[0], loss_of(trainer(tokens))), "the global generator plays a part"
        torch.manual_seed(0)
        assert torch.equal(torch.rand(1), after), "the global generator was moved"

    gone(law, "the global generator plays a part")


@BOTH_KINDS
def test_b9_training_depends_on_seed_and_step_alone(kind: str) -> None:
    """Every step differs; a state_dict goes on where it was made, whatever the global generator did."""
    tokens, steps = text(), 3

    def run(trainer: nn.Module) -> list[Tensor]:
        torch.rand(1)
        return [loss_of(trainer(tokens)).detach() for _ in range(steps)]

    trainer, _ = build(OURS, kind)
    first = run(trainer)
    assert len({float(loss) for loss in first}) == steps
    fresh, _ = build(OURS, kind)
    fresh.load_state_dict(trainer.state_dict())
    assert torch.equal(torch.stack(run(trainer)), torch.stack(run(fresh)))
    again, _ = build(OURS, kind)
    assert torch.equal(torch.stack(run(again)), torch.stack(first))
    other, _ = build(OURS, kind, seed=1)
    assert not torch.equal(torch.stack(run(other)), torch.stack(first))


def test_b9_reformers_evaluate_alike() -> None:
    """Their hashing draws from torch's global generator in eval too; it is lent a fresh one, and left as it was."""
    tokens = row(0, 32, 0)

    def law(package: Any) -> None:
        generator, discriminator = pair()
        trainer = package.Electra(generator, discriminator, **MAGIC, **IDS).eval()
        losses = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            after = torch.random.get_rng_state()
            losses.append(trainer(tokens).disc_loss)
        assert losses[0] == losses[1]
        assert losses[0] == losses[2], "the global generator plays a part"
        assert torch.equal(torch.random.get_rng_state(), after), "the global generator was moved"

    gone(law, "the global generator plays a part")


@pytest.mark.parametrize("layer", [-1, 0, "mix"])
def test_b10_arguments_reach_both_networks(layer: str | int) -> None:
    tokens = text()

    def law(package: Any) -> None:
        discriminator = Tiny(8)
        trainer = package.Electra(Tiny(SIZE), discriminator, discr_dim=8, discr_layer=layer, **IDS)
        options = {"mask": tokens != PAD, "segments": torch.zeros_like(tokens)}
        trainer(tokens, **options)
        assert discriminator.options == trainer.generator.options == options

    gone(law, "unexpected keyword argument 'mask'", TypeError)


def reformer(**options: Any) -> ReformerLM:
    sizes = {"num_tokens": SIZE, "emb_dim": 8, "dim": 16, "heads": 2, "dim_head": 8, "depth": 2, "max_seq_len": 32}
    return ReformerLM(**sizes, bucket_size=8, n_hashes=2, ff_chunks=1, **options)


def pair(**options: Any) -> tuple[ReformerLM, ReformerLM]:
    torch.manual_seed(0)
    generator, discriminator = reformer(**options), reformer(**options)
    generator.token_emb, generator.pos_emb = discriminator.token_emb, discriminator.pos_emb
    return generator, discriminator


MAGIC = {"discr_dim": 16, "discr_layer": "reformer"}


def test_b11_nothing_after_the_layer_is_computed() -> None:
    """The first call finds out that the layer speaks once; from then on the projection to the vocabulary is not run."""
    tokens = row(0, 32, 0)

    def law(package: Any) -> None:
        generator, discriminator = pair()
        trainer = package.Electra(generator, discriminator, **MAGIC, **IDS)
        trainer(tokens)
        runs: list[nn.Module] = []
        discriminator.out.register_forward_hook(lambda module, *_: runs.append(module))
        trainer(tokens).loss.backward()
        assert not runs, "the projection was computed"
        assert discriminator.reformer.layers.blocks[0].f.net.fn.toqk.weight.grad.any()

    gone(law, "the projection was computed")


def test_b11_the_normalised_states_can_be_named() -> None:
    generator, discriminator = pair()
    trainer = Electra(generator, discriminator, discr_dim=16, discr_layer="norm", **IDS)
    for _ in range(2):
        trainer(row(0, 32, 0)).loss.backward()
    assert discriminator.norm.weight.grad.any()


@pytest.fixture
def _one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
def test_b12_reversible_reformers_train_distributed() -> None:
    """By torch's defaults, with the gradients of one process."""
    tokens = row(0, 32, 0)

    def law(package: Any) -> None:
        generator, discriminator = pair()
        trainer = package.Electra(generator, discriminator, **MAGIC, **IDS)
        alone = copy.deepcopy(trainer)
        distributed = DistributedDataParallel(trainer)
        for _ in range(2):
            for model in (alone, distributed):
                model.zero_grad()
                torch.manual_seed(5)
                model(tokens).loss.backward()
        for (name, one), two in zip(alone.named_parameters(), trainer.parameters(), strict=True):
            assert (one.grad is None) == (two.grad is None), name
            assert one.grad is None or torch.allclose(one.grad, two.grad, rtol=1e-4, atol=1e-6), name

    gone(law, "finished reduction", RuntimeError)


@pytest.mark.usefixtures("_one_process")
def test_b12_in_a_larger_module_what_follows_the_layer_must_be_frozen() -> None:
    """As docs/interop.md says: DDP asks only the module that it wraps what to leave out."""
    tokens = row(0, 32, 0)
    for frozen in (False, True):
        generator, discriminator = pair()
        for after in (discriminator.norm, discriminator.out):
            after.requires_grad_(not frozen)
        trainer = Electra(generator, discriminator, **MAGIC, **IDS)
        distributed = DistributedDataParallel(nn.ModuleDict({"inside": trainer}))
        distributed.module.forward = lambda tokens, trainer=trainer: trainer(tokens).loss
        distributed(tokens).backward()
        if frozen:
            distributed(tokens).backward()
        else:
            with pytest.raises(RuntimeError, match="finished reduction"):
                distributed(tokens)


@pytest.mark.usefixtures("_one_process")
def test_b12_a_layer_that_needs_later_ones_is_refused() -> None:
    """What is defined after the layer is not averaged over processes, so it must not take part."""

    class Backwards(Tiny):
        def forward(self, tokens: Tensor, **options: Any) -> Tensor:
            return self.mix(self.out(self.table(tokens)))

    trainer = Electra(Tiny(SIZE), Backwards(8), discr_dim=8, discr_layer="mix", **IDS)
    with pytest.raises(RuntimeError, match="'mix' needs a Linear that the discriminator defines after it"):
        trainer(text())


def test_b13_the_discriminator_stays_as_it_was_given(tmp_path: Path) -> None:
    """No hook on any module, also after a call that failed; saved and loaded it is an ordinary network."""
    tokens = row(0, 32, 0)

    def law(package: Any) -> None:
        discriminator = reformer()
        keys = list(discriminator.state_dict())
        trainer = package.Electra(Tiny(SIZE), discriminator, **MAGIC, **IDS)
        trainer(tokens)
        trainer(tokens)
        with pytest.raises(AssertionError, match="divisible"):  # into buckets
            trainer(tokens[:, :31])
        assert list(discriminator.state_dict()) == keys
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in discriminator.modules()), "a hook is left"
        assert b"interop" not in pickle.dumps(discriminator)

    gone(law, "a hook is left")
    discriminator = reformer()
    trainer = Electra(Tiny(SIZE), discriminator, **MAGIC, **IDS)
    trainer(tokens)
    torch.save(discriminator.state_dict(), tmp_path / "discriminator.pt")
    loaded = reformer()
    loaded.load_state_dict(torch.load(tmp_path / "discriminator.pt", weights_only=True))
    assert {key.split(".")[1] for key in trainer.state_dict() if key.startswith("discriminator.")} == {"net", "head"}


def test_b14_an_output_layer_follows_the_shared_table() -> None:
    """The recipe's assignment leaves it with the table that went away; `tie` moves every use."""
    tokens = row(0, 32, 0)
    generator, discriminator = reformer(weight_tie_embedding=True), reformer()
    old = generator.token_emb.weight
    generator.token_emb = discriminator.token_emb
    output = generator.out[1]
    assert output.tensor is old, "the control"
    tie(generator, old, discriminator.token_emb.weight)
    assert output.tensor is generator.token_emb.weight is discriminator.token_emb.weight
    assert not any(p is old for p in generator.parameters())
    other = reformer(weight_tie_embedding=True)
    tie(other, other.token_emb.weight, discriminator.token_emb.weight)
    assert other.out[1].tensor is other.token_emb.weight is discriminator.token_emb.weight

    trainer = Electra(generator, discriminator, **MAGIC, **IDS)
    torch.optim.SGD(trainer.parameters(), lr=0.1)  # it would warn of a parameter that is there twice
    trainer(tokens).mlm_loss.backward()
    assert discriminator.token_emb.weight.grad[5:].any(1).all(), "every token's row learns through the output"
    with pytest.raises(ValueError, match="cannot become one of"):
        tie(generator, old, discriminator.out[1].bias)
    with pytest.raises(ValueError, match="no such parameter"):
        tie(Tiny(SIZE), old, discriminator.token_emb.weight)


def test_b15_accuracy_is_by_label_and_leaves_padding_out() -> None:
    tokens = text(rows=16, length=40, padding=20)

    def law(package: Any) -> None:
        trainer, _ = build(package, "Electra", mask_prob=0.5)
        results = trainer(tokens)
        labels, said = (t[tokens != PAD].bool() for t in (results.disc_labels, results.disc_predictions))
        assert labels.any()
        expected = ((said == labels)[labels].float().mean() + (said == labels)[~labels].float().mean()) / 2
        torch.testing.assert_close(results.disc_acc, expected)

    gone(law, "not close")


@BOTH_KINDS
def test_b17_a_vocabulary_without_padding(kind: str) -> None:
    """Where 0 is a word as any other, it is predicted and judged as any other."""
    tokens = row(0, 40, 0)
    tokens[:, ::2] = 0

    def law(package: Any) -> None:
        trainer, network = build(package, kind, mask_prob=1.0, replace_prob=1.0, pad_token_id=None)
        loss_of(trainer(tokens)).backward()
        assert (network.seen == MASK).all()
        assert network.out.bias.grad.argmin() == 0, "half of the targets are 0"

    gone(law, "NoneType", TypeError)


def test_b17_a_mask_says_what_is_real() -> None:
    """Tokens with the padding's id count where the mask says that they are text, and only there."""
    tokens = row(0, 40, 0)
    tokens[:, ::2] = 0
    real = torch.arange(40).expand(8, -1) < 30

    def law(package: Any) -> None:
        trainer, _ = build(package, "Electra")
        trainer.discriminator = Constant(torch.zeros(1))
        results = trainer(tokens, mask=real)
        results.disc_loss.backward()
        # d loss / d logit = mean of 1/2 - label: the divisor shows how many tokens were counted.
        replaced = (results.disc_labels * real).sum()
        torch.testing.assert_close(trainer.discriminator.logits.grad[0], 0.5 - replaced / real.sum())

    def padding(package: Any) -> None:
        trainer, network = build(package, "Electra")
        trainer(tokens, mask=real)
        assert torch.equal(network.seen[~real], tokens[~real]), "padding was masked"

    gone(law, "not close")
    gone(padding, "padding was masked")
