"""Which tokens are real, special or outside the vocabulary, and what a mask says of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from electra_lab.interop import electra_pytorch as interop
from electra_lab.testing import CLS, MASK, PAD, SEP
from tests.electra_lab.interop import networks as net


def test_int32_tokens_and_ids_outside_the_vocabulary() -> None:
    trainer, _ = net.build(net.OURS, "Electra", pad_token_id=-100, mask_ignore_token_ids=[CLS, SEP, 99])
    trainer(net.row(0, 20, 0).int()).loss.backward()


class Spacious(net.Tiny):
    """Takes any id: one row of the table is for all that have no logit."""

    def __init__(self, width: int) -> None:
        super().__init__(width, net.SIZE + 1)

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        states = super().forward(tokens.where((tokens >= 0) & (tokens < net.SIZE), net.SIZE), **options)
        self.seen = tokens
        return states


# Ids for padding, [CLS], [SEP] and [MASK]. The networks have logits for 0 to SIZE - 1.
IDS = [*((pad, CLS, SEP, MASK) for pad in (net.SIZE, -1, -100, 2**40)), (PAD, net.SIZE + 1, -7, MASK)]
IDS += [(PAD, CLS, SEP, MASK), (PAD, CLS, SEP, net.SIZE), (net.SIZE, net.SIZE + 1, net.SIZE + 2, net.SIZE + 3)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("ids", IDS)
@net.BOTH_KINDS
def test_special_tokens_need_no_logit(monkeypatch: Any, kind: str, ids: Any, training: bool) -> None:
    tokens, (pad, cls, sep, mask) = net.text(padding=12), ids
    tokens[:, 4] = MASK
    special = tokens < 5
    for plain, outside in zip((PAD, CLS, SEP, MASK), ids, strict=True):
        tokens[special & (tokens == plain)] = outside
    torch.manual_seed(0)
    networks: list[Any] = [Spacious(net.SIZE).double(), *([Spacious(1).double()] if kind == "Electra" else [])]
    options = {"mask_token_id": mask, "pad_token_id": pad, "mask_ignore_token_ids": [cls, sep]}
    ours = getattr(net.OURS, kind)(*networks, mask_prob=0.6, replace_prob=1.0, **options).train(training)
    theirs = getattr(net.THEIRS, kind)(*networks, **options)
    one = ours(tokens)
    found, shown = net.gradients(networks, net.loss_of(one)), [network.seen for network in networks]
    assert all(torch.equal(seen[special], tokens[special]) for seen in shown)
    assert (shown[0] != tokens).any(1).all(), "something is masked in every row"
    net.give_them_the_choices_of(ours, tokens, monkeypatch)
    two = theirs(tokens)
    torch.testing.assert_close(net.loss_of(one), net.loss_of(two), rtol=1e-9, atol=0)
    net.assert_same_gradients(found, net.gradients(networks, net.loss_of(two)), 1e-9)
    assert all(torch.equal(seen, network.seen) for seen, network in zip(shown, networks, strict=True))
    if kind == "Electra":
        for name in ("gen_acc", "disc_labels", "disc_predictions"):
            assert torch.equal(getattr(one, name), getattr(two, name))


@net.BOTH_KINDS
def test_what_a_mask_calls_padding_may_be_anything(kind: str) -> None:
    """Ids without a logit too, which are not pad_token_id; the networks are shown them, and nothing else changes."""
    plain = net.text(padding=12)
    real, losses = plain != PAD, []
    torch.manual_seed(0)
    networks: list[Any] = [Spacious(net.SIZE), *([Spacious(1)] if kind == "Electra" else [])]
    trainer = getattr(net.OURS, kind)(*networks, mask_prob=0.6, **net.IDS)
    for padding in (PAD, 7, net.SIZE, -1):
        trainer.step = 0
        result = trainer(plain.where(real, padding), mask=real)
        losses.append(net.loss_of(result).detach())
        assert all((network.seen[~real] == padding).all() for network in networks)
        assert kind == "MLM" or not result.disc_labels[~real].any()
    assert len({float(loss) for loss in losses}) == 1


@net.BOTH_KINDS
def test_an_ordinary_token_without_a_logit_is_an_error(kind: str) -> None:
    """As there: a target that the network cannot predict must not become another one."""
    tokens = net.row(0, 20, 0)
    tokens[:, 3] = net.SIZE
    for package in (net.THEIRS, net.OURS):
        with pytest.raises(IndexError, match="out of bounds"):
            net.build(package, kind, Spacious(net.SIZE), mask_prob=1.0)[0](tokens)


def test_a_mask_of_floats_is_not_read_as_padding() -> None:
    """It may be one to add to attention scores, where 0 means real."""
    tokens = net.text()
    assert torch.equal(interop._real(tokens, PAD, {"attention_mask": torch.zeros(tokens.shape)}), tokens != PAD)
    assert torch.equal(interop._real(tokens, PAD, {"mask": torch.ones(20, 20, dtype=torch.bool)}), tokens != PAD)
    both = {"mask": tokens != SEP, "input_mask": (tokens != CLS).long()}
    assert torch.equal(interop._real(tokens, PAD, both), (tokens != SEP) & (tokens != CLS))
