"""The known defects of electra-pytorch 0.1.2 and mlm-pytorch 0.1.0, by number: present there, absent here.

Each law is written once. It must fail on theirs, as a control, and hold on ours.
"""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from electra_lab.interop.electra_pytorch import Electra, tie
from electra_lab.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, binomial_p, chi_square_p, count
from tests.electra_lab.interop import networks as net


@net.BOTH_KINDS
@pytest.mark.parametrize("shape", [(1, 126, 1), (1, 60, 67), (68, 60, 0), (102, 26, 0)])
@net.gone("the wrong number is masked")
def test_b1_the_number_of_masked_tokens(package: Any, kind: str, shape: tuple[int, int, int]) -> None:
    trainer, network = net.build(package, kind, replace_prob=1.0)
    trainer(net.row(*shape))
    assert ((network.seen == MASK).sum(1) == count(0.15, shape[1])).all(), "the wrong number is masked"


@net.BOTH_KINDS
@pytest.mark.parametrize("shape", [(0, 1, 127), (0, 0, 128), (122, 6, 0)])
@net.gone("a special token was masked")
def test_b2_special_tokens_where_few_may_be_masked(package: Any, kind: str, shape: tuple[int, int, int]) -> None:
    tokens = net.row(*shape)
    tokens[:, shape[1] + shape[0] :][:, :2] = torch.tensor([CLS, SEP])[: min(2, shape[2])]
    trainer, network = net.build(package, kind, replace_prob=1.0)
    trainer(tokens)
    assert not (network.seen != tokens)[tokens < 5].any(), "a special token was masked"


@net.BOTH_KINDS
@net.gone("not finite")
def test_b3_a_batch_with_nothing_to_learn(package: Any, kind: str) -> None:
    batches: list[tuple[Tensor, dict[str, float]]] = [
        (torch.full((3, 16), PAD), {}),
        (net.text(), {"mask_prob": 0.0}),
        (net.text()[:, :1], {}),
    ]
    for tokens, options in batches:
        trainer, network = net.build(package, kind, **options)
        result = trainer(tokens)
        values = [result] if kind == "MLM" else list(result)
        assert all(value.isfinite().all() for value in values), "not finite"
        net.loss_of(result).backward()
        assert all(p.grad is None or not p.grad.any() for p in network.parameters())


@net.gone("not finite")
def test_b3_where_all_is_masked(package: Any) -> None:
    assert net.build(package, "Electra", mask_prob=1.0)[0](net.row(0, 20, 0)).disc_acc.isfinite(), "not finite"


@net.BOTH_KINDS
@net.gone("a special token was changed")
def test_b4_random_tokens_only_where_masked(package: Any, kind: str) -> None:
    tokens = net.text(rows=32, length=100, padding=20)
    trainer, network = net.build(package, kind, random_token_prob=0.5, num_tokens=net.SIZE)
    trainer(tokens)
    changed = network.seen != tokens
    assert not changed[tokens < 5].any(), "a special token was changed"
    assert (changed.sum(1) <= count(0.15, 78)).all(), "more was changed than is predicted"


@net.BOTH_KINDS
@net.gone("the share of .* is off")
def test_b4_shares_are_those_of_bert(package: Any, kind: str) -> None:
    """replace_prob .9 and random_token_prob .1 give 80% [MASK], 10% random, 10% kept (mlm-pytorch's issue 6)."""
    size, tokens = 1000, torch.randint(5, 1000, (256, 128), generator=torch.Generator().manual_seed(0))
    network, masked = net.Constant(torch.zeros(size)), 256 * count(0.15, 128)
    trainer, _ = net.build(package, kind, network, replace_prob=0.9, random_token_prob=0.1, num_tokens=size)
    if kind == "Electra":
        trainer.discriminator = net.Constant(torch.zeros(1))
    with torch.no_grad():
        trainer(tokens)
    hidden = int((network.seen == MASK).sum())
    changed = int((network.seen != tokens).sum()) - hidden
    assert binomial_p(hidden, masked, 0.8) > SIGNIFICANCE, "the share of [MASK] is off"
    assert binomial_p(changed, masked, 0.1 * (1 - 1 / 996)) > SIGNIFICANCE, "the share of random tokens is off"


@net.BOTH_KINDS
@net.gone(r"\[MASK\] was put in")
def test_b5_mask_is_not_put_in_at_random(package: Any, kind: str) -> None:
    tokens = torch.full((8, 40), 6)
    options = {"replace_prob": 0.0, "random_token_prob": 1.0, "num_tokens": 7, "mask_prob": 1.0}
    trainer, network = net.build(package, kind, **options)
    trainer(tokens)
    assert (network.seen != MASK).all(), "[MASK] was put in"
    # Replaced by one of three ordinary tokens, among them the original; so replace_prob has no effect.
    changed = int((network.seen != tokens).sum())
    assert binomial_p(changed, tokens.numel(), 2 / 3) > SIGNIFICANCE


@net.BOTH_KINDS
@net.gone("had to be predicted")
def test_b5_mask_is_not_masked(package: Any, kind: str) -> None:
    trainer, network = net.build(package, kind)
    net.loss_of(trainer(torch.full((8, 40), MASK))).backward()
    assert not network.out.weight.grad.any(), "a [MASK] of the text had to be predicted"


@net.gone("drawn")
def test_b6_special_tokens_are_never_drawn(package: Any) -> None:
    likely = torch.zeros(net.SIZE)
    likely[[PAD, CLS, SEP, MASK]] = 10.0
    trainer, _ = net.build(package, "Electra", net.Constant(likely), mask_prob=1.0)
    trainer(net.row(0, 40, 0))
    assert not torch.isin(trainer.discriminator.seen, torch.tensor([PAD, CLS, SEP, MASK])).any(), "drawn"


@pytest.mark.parametrize("arrives", ["bfloat16", "float16"])
@net.gone("not the softmax")
def test_b7_draws_in_half_precision(package: Any, arrives: str) -> None:
    """With equal logits, all tokens of the full vocabulary are equally likely."""
    size, tokens = 30_522, net.row(0, 25, 0)
    expected = torch.ones(size).double()
    expected[[PAD, CLS, SEP, MASK]] = 0
    flat = torch.zeros(size, dtype=getattr(torch, arrives))
    trainer, _ = net.build(package, "Electra", net.Constant(flat), mask_prob=1.0)
    trainer.discriminator = net.Constant(torch.zeros(1))
    with torch.no_grad():
        drawn = [trainer(tokens) and trainer.discriminator.seen for _ in range(2)]
    counts = torch.bincount(torch.cat(drawn).flatten(), minlength=size).double()
    assert chi_square_p(counts, expected / expected.sum()) > SIGNIFICANCE, "not the softmax"


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
    # Logits are rounded to 8 bits, so a few draws may change, but not many.
    assert (drawn[0] == drawn[1]).float().mean() > 0.98


@net.gone("not the most likely")
def test_b8_temperature_zero_takes_the_most_likely(package: Any) -> None:
    logits = torch.linspace(0.1, 1.0, net.SIZE)
    trainer, _ = net.build(package, "Electra", net.Constant(logits), temperature=0.0, mask_prob=1.0)
    trainer(net.row(0, 20, 0))
    assert (trainer.discriminator.seen == logits.argmax()).all(), "not the most likely"


@net.BOTH_KINDS
@net.gone("the global generator plays a part")
def test_b9_evaluation_depends_on_the_text_alone(package: Any, kind: str) -> None:
    trainer, losses = net.build(package, kind)[0].eval(), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        losses.append(net.loss_of(trainer(net.text())))
        moved = not torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*losses), "the global generator plays a part"
    assert not moved, "the global generator was moved"


@net.BOTH_KINDS
def test_b9_training_depends_on_seed_and_step_alone(kind: str) -> None:
    """Every step differs; a loaded state_dict continues where it was saved, regardless of the global generator."""

    def run(trainer: nn.Module) -> list[Tensor]:
        torch.rand(1)
        return [net.loss_of(trainer(net.text())).detach() for _ in range(3)]

    trainer, fresh, again = (net.build(net.OURS, kind)[0] for _ in range(3))
    other, _ = net.build(net.OURS, kind, seed=1)
    first = run(trainer)
    assert len({float(loss) for loss in first}) == 3
    fresh.load_state_dict(trainer.state_dict())
    assert run(trainer) == run(fresh)
    assert run(again) == first
    assert run(other) != first


@net.gone("the global generator plays a part")
def test_b9_reformers_evaluate_alike(package: Any) -> None:
    """Their hashing draws from torch's global generator in eval mode too; ours seeds it meanwhile and restores it."""
    trainer, losses = package.Electra(*net.pair(), **net.MAGIC, **net.IDS).eval(), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        after = torch.random.get_rng_state()
        losses.append(trainer(net.row(0, 32, 0)).disc_loss)
    assert losses[0] == losses[1]
    assert losses[0] == losses[2], "the global generator plays a part"
    assert torch.equal(torch.random.get_rng_state(), after), "the global generator was moved"


@pytest.mark.parametrize("layer", [-1, 0, "mix"])
@net.gone("unexpected keyword argument 'mask'", TypeError)
def test_b10_arguments_reach_both_networks(package: Any, layer: str | int) -> None:
    tokens, discriminator = net.text(), net.Tiny(8)
    trainer = package.Electra(net.Tiny(net.SIZE), discriminator, discr_dim=8, discr_layer=layer, **net.IDS)
    options = {"mask": tokens != PAD, "segments": torch.zeros_like(tokens)}
    trainer(tokens, **options)
    assert discriminator.options == trainer.generator.options == options


@net.gone("the projection was computed")
def test_b11_nothing_after_the_layer_is_computed(package: Any) -> None:
    """The first call finds that the layer runs once; from then on the projection to the vocabulary is skipped."""
    tokens, (generator, discriminator) = net.row(0, 32, 0), net.pair()
    trainer = package.Electra(generator, discriminator, **net.MAGIC, **net.IDS)
    trainer(tokens)
    runs: list[nn.Module] = []
    discriminator.out.register_forward_hook(lambda module, *_: runs.append(module))
    trainer(tokens).loss.backward()
    assert not runs, "the projection was computed"
    assert discriminator.reformer.layers.blocks[0].f.net.fn.toqk.weight.grad.any()


@pytest.fixture
def _one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
@net.gone("finished reduction", RuntimeError)
def test_b12_reversible_reformers_train_distributed(package: Any) -> None:
    """With torch's defaults, and the same gradients as one process."""
    trainer = package.Electra(*net.pair(), **net.MAGIC, **net.IDS)
    alone, distributed = copy.deepcopy(trainer), DistributedDataParallel(trainer)
    for _ in range(2):
        for model in (alone, distributed):
            model.zero_grad()
            torch.manual_seed(5)
            model(net.row(0, 32, 0)).loss.backward()
    for (name, parameter), trained in zip(alone.named_parameters(), trainer.parameters(), strict=True):
        assert (parameter.grad is None) == (trained.grad is None), name
        assert parameter.grad is None or torch.allclose(parameter.grad, trained.grad, rtol=1e-4, atol=1e-6), name


@pytest.mark.usefixtures("_one_process")
def test_b12_a_layer_that_needs_later_ones_is_refused() -> None:
    """Gradients of modules after the layer are not averaged over processes, so the layer must not depend on them."""

    class Backwards(net.Tiny):
        def forward(self, tokens: Tensor, **options: Any) -> Tensor:
            return self.mix(self.out(self.table(tokens)))

    trainer = Electra(net.Tiny(net.SIZE), Backwards(8), discr_dim=8, discr_layer="mix", **net.IDS)
    with pytest.raises(RuntimeError, match=r"^discr_layer: 'mix' uses a Linear"):
        trainer(net.text())


@net.gone("a hook is left")
def test_b13_the_discriminator_stays_as_it_was_given(package: Any) -> None:
    """No hook on any module, also after a call that failed."""
    tokens, discriminator = net.row(0, 32, 0), net.reformer()
    keys = list(discriminator.state_dict())
    trainer = package.Electra(net.Tiny(net.SIZE), discriminator, **net.MAGIC, **net.IDS)
    trainer(tokens)
    trainer(tokens)
    with pytest.raises(AssertionError, match="divisible"):  # into buckets
        trainer(tokens[:, :31])
    assert list(discriminator.state_dict()) == keys
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in discriminator.modules()), "a hook is left"
    assert b"interop" not in pickle.dumps(discriminator)


def test_b14_an_output_layer_follows_the_shared_table() -> None:
    """The recipe's assignment leaves it with the replaced table; `tie` updates every use."""
    generator, discriminator = net.reformer(weight_tie_embedding=True), net.reformer()
    old, new = generator.token_emb.weight, discriminator.token_emb.weight
    generator.token_emb = discriminator.token_emb
    output = generator.out[1]
    assert output.tensor is old, "the control"
    tie(generator, old, new)
    assert output.tensor is generator.token_emb.weight is new
    assert not any(p is old for p in generator.parameters())
    other = net.reformer(weight_tie_embedding=True)
    tie(other, other.token_emb.weight, new)
    assert other.out[1].tensor is other.token_emb.weight is new

    trainer = Electra(generator, discriminator, **net.MAGIC, **net.IDS)
    torch.optim.SGD(trainer.parameters(), lr=0.1)  # it would warn of a duplicate parameter
    trainer(net.row(0, 32, 0)).mlm_loss.backward()
    assert new.grad[5:].any(1).all(), "every token's row learns through the output"
    with pytest.raises(ValueError, match="cannot become one of"):
        tie(generator, old, discriminator.out[1].bias)
    with pytest.raises(ValueError, match="no such parameter"):
        tie(net.Tiny(net.SIZE), old, new)


@net.gone("not close")
def test_b15_accuracy_is_by_label_and_leaves_padding_out(package: Any) -> None:
    tokens = net.text(rows=16, length=40, padding=20)
    trainer, _ = net.build(package, "Electra", mask_prob=0.5)
    results = trainer(tokens)
    labels, said = (t[tokens != PAD].bool() for t in (results.disc_labels, results.disc_predictions))
    assert labels.any()
    expected = ((said == labels)[labels].float().mean() + (said == labels)[~labels].float().mean()) / 2
    torch.testing.assert_close(results.disc_acc, expected)


def test_without_replacements_accuracy_is_that_of_the_originals() -> None:
    tokens = net.text(rows=16, length=40, padding=20)
    for options in ({"mask_prob": 0.0}, {"mask_prob": 1.0, "mask_ignore_token_ids": range(net.SIZE)}):
        trainer, _ = net.build(net.OURS, "Electra", **options)
        results = trainer(tokens)
        assert not results.disc_labels.any()
        kept = ~results.disc_predictions[tokens != PAD].bool()
        assert 0.1 < kept.float().mean() < 0.9
        torch.testing.assert_close(results.disc_acc, kept.float().mean())


@net.BOTH_KINDS
@net.gone("NoneType", TypeError)
def test_b17_a_vocabulary_without_padding(package: Any, kind: str) -> None:
    """Where 0 is an ordinary word, it is predicted and judged like any other."""
    tokens = net.row(0, 40, 0)
    tokens[:, ::2] = 0
    trainer, network = net.build(package, kind, mask_prob=1.0, replace_prob=1.0, pad_token_id=None)
    net.loss_of(trainer(tokens)).backward()
    assert (network.seen == MASK).all()
    assert network.out.bias.grad.argmin() == 0, "half of the targets are 0"


REAL = torch.arange(40).expand(8, -1) < 30


@net.gone("not close")
def test_b17_a_mask_says_what_is_judged(package: Any) -> None:
    tokens = net.row(0, 40, 0)
    tokens[:, ::2] = 0
    trainer, _ = net.build(package, "Electra")
    trainer.discriminator = net.Constant(torch.zeros(1))
    results = trainer(tokens, mask=REAL)
    results.disc_loss.backward()
    # d loss / d logit = mean of 1/2 - label: the divisor shows how many tokens were counted.
    replaced = (results.disc_labels * REAL).sum()
    torch.testing.assert_close(trainer.discriminator.logits.grad[0], 0.5 - replaced / REAL.sum())


@net.gone("padding was masked")
def test_b17_a_mask_says_what_may_be_masked(package: Any) -> None:
    tokens = net.row(0, 40, 0)
    trainer, network = net.build(package, "Electra")
    trainer(tokens, mask=REAL)
    assert torch.equal(network.seen[~REAL], tokens[~REAL]), "padding was masked"
