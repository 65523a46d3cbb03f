"""The known defects of electra-pytorch 0.1.2 that concern networks and labels, B10 to B17: there, and gone here."""

from __future__ import annotations

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
from electra_lab.testing import MASK, PAD
from tests.electra_lab.interop import networks as net


@pytest.mark.parametrize("layer", [-1, 0, "mix"])
def test_b10_arguments_reach_both_networks(layer: str | int) -> None:
    tokens = net.text()

    def law(package: Any) -> None:
        discriminator = net.Tiny(8)
        trainer = package.Electra(net.Tiny(net.SIZE), discriminator, discr_dim=8, discr_layer=layer, **net.IDS)
        options = {"mask": tokens != PAD, "segments": torch.zeros_like(tokens)}
        trainer(tokens, **options)
        assert discriminator.options == trainer.generator.options == options

    net.gone(law, "unexpected keyword argument 'mask'", TypeError)


def test_b11_nothing_after_the_layer_is_computed() -> None:
    """The first call finds out that the layer speaks once; from then on the projection to the vocabulary is not run."""
    tokens = net.row(0, 32, 0)

    def law(package: Any) -> None:
        generator, discriminator = net.pair()
        trainer = package.Electra(generator, discriminator, **net.MAGIC, **net.IDS)
        trainer(tokens)
        runs: list[nn.Module] = []
        discriminator.out.register_forward_hook(lambda module, *_: runs.append(module))
        trainer(tokens).loss.backward()
        assert not runs, "the projection was computed"
        assert discriminator.reformer.layers.blocks[0].f.net.fn.toqk.weight.grad.any()

    net.gone(law, "the projection was computed")


def test_b11_the_normalised_states_can_be_named() -> None:
    generator, discriminator = net.pair()
    trainer = Electra(generator, discriminator, discr_dim=16, discr_layer="norm", **net.IDS)
    for _ in range(2):
        trainer(net.row(0, 32, 0)).loss.backward()
    assert discriminator.norm.weight.grad.any()


@pytest.fixture
def _one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
def test_b12_reversible_reformers_train_distributed() -> None:
    """By torch's defaults, with the gradients of one process."""
    tokens = net.row(0, 32, 0)

    def law(package: Any) -> None:
        generator, discriminator = net.pair()
        trainer = package.Electra(generator, discriminator, **net.MAGIC, **net.IDS)
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

    net.gone(law, "finished reduction", RuntimeError)


@pytest.mark.usefixtures("_one_process")
def test_b12_in_a_larger_module_what_follows_the_layer_must_be_frozen() -> None:
    tokens = net.row(0, 32, 0)
    for frozen in (False, True):
        generator, discriminator = net.pair()
        for after in (discriminator.norm, discriminator.out):
            after.requires_grad_(not frozen)
        trainer = Electra(generator, discriminator, **net.MAGIC, **net.IDS)
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

    class Backwards(net.Tiny):
        def forward(self, tokens: Tensor, **options: Any) -> Tensor:
            return self.mix(self.out(self.table(tokens)))

    trainer = Electra(net.Tiny(net.SIZE), Backwards(8), discr_dim=8, discr_layer="mix", **net.IDS)
    with pytest.raises(RuntimeError, match=r"^discr_layer: 'mix' uses a Linear"):
        trainer(net.text())


def test_b13_the_discriminator_stays_as_it_was_given() -> None:
    """No hook on any module, also after a call that failed."""
    tokens = net.row(0, 32, 0)

    def law(package: Any) -> None:
        discriminator = net.reformer()
        keys = list(discriminator.state_dict())
        trainer = package.Electra(net.Tiny(net.SIZE), discriminator, **net.MAGIC, **net.IDS)
        trainer(tokens)
        trainer(tokens)
        with pytest.raises(AssertionError, match="divisible"):  # into buckets
            trainer(tokens[:, :31])
        assert list(discriminator.state_dict()) == keys
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in discriminator.modules()), "a hook is left"
        assert b"interop" not in pickle.dumps(discriminator)

    net.gone(law, "a hook is left")


def test_b14_an_output_layer_follows_the_shared_table() -> None:
    """The recipe's assignment leaves it with the table that went away; `tie` moves every use."""
    tokens = net.row(0, 32, 0)
    generator, discriminator = net.reformer(weight_tie_embedding=True), net.reformer()
    old = generator.token_emb.weight
    generator.token_emb = discriminator.token_emb
    output = generator.out[1]
    assert output.tensor is old, "the control"
    tie(generator, old, discriminator.token_emb.weight)
    assert output.tensor is generator.token_emb.weight is discriminator.token_emb.weight
    assert not any(p is old for p in generator.parameters())
    other = net.reformer(weight_tie_embedding=True)
    tie(other, other.token_emb.weight, discriminator.token_emb.weight)
    assert other.out[1].tensor is other.token_emb.weight is discriminator.token_emb.weight

    trainer = Electra(generator, discriminator, **net.MAGIC, **net.IDS)
    torch.optim.SGD(trainer.parameters(), lr=0.1)  # it would warn of a parameter that is there twice
    trainer(tokens).mlm_loss.backward()
    assert discriminator.token_emb.weight.grad[5:].any(1).all(), "every token's row learns through the output"
    with pytest.raises(ValueError, match="cannot become one of"):
        tie(generator, old, discriminator.out[1].bias)
    with pytest.raises(ValueError, match="no such parameter"):
        tie(net.Tiny(net.SIZE), old, discriminator.token_emb.weight)


def test_b15_accuracy_is_by_label_and_leaves_padding_out() -> None:
    tokens = net.text(rows=16, length=40, padding=20)

    def law(package: Any) -> None:
        trainer, _ = net.build(package, "Electra", mask_prob=0.5)
        results = trainer(tokens)
        labels, said = (t[tokens != PAD].bool() for t in (results.disc_labels, results.disc_predictions))
        assert labels.any()
        expected = ((said == labels)[labels].float().mean() + (said == labels)[~labels].float().mean()) / 2
        torch.testing.assert_close(results.disc_acc, expected)

    net.gone(law, "not close")


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
def test_b17_a_vocabulary_without_padding(kind: str) -> None:
    """Where 0 is a word as any other, it is predicted and judged as any other."""
    tokens = net.row(0, 40, 0)
    tokens[:, ::2] = 0

    def law(package: Any) -> None:
        trainer, network = net.build(package, kind, mask_prob=1.0, replace_prob=1.0, pad_token_id=None)
        net.loss_of(trainer(tokens)).backward()
        assert (network.seen == MASK).all()
        assert network.out.bias.grad.argmin() == 0, "half of the targets are 0"

    net.gone(law, "NoneType", TypeError)


def test_b17_a_mask_says_what_is_real() -> None:
    tokens = net.row(0, 40, 0)
    tokens[:, ::2] = 0
    real = torch.arange(40).expand(8, -1) < 30

    def law(package: Any) -> None:
        trainer, _ = net.build(package, "Electra")
        trainer.discriminator = net.Constant(torch.zeros(1))
        results = trainer(tokens, mask=real)
        results.disc_loss.backward()
        # d loss / d logit = mean of 1/2 - label: the divisor shows how many tokens were counted.
        replaced = (results.disc_labels * real).sum()
        torch.testing.assert_close(trainer.discriminator.logits.grad[0], 0.5 - replaced / real.sum())

    def padding(package: Any) -> None:
        trainer, network = net.build(package, "Electra")
        trainer(tokens, mask=real)
        assert torch.equal(network.seen[~real], tokens[~real]), "padding was masked"

    net.gone(law, "not close")
    net.gone(padding, "padding was masked")
