"""What generator and discriminator share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.backbones.bert import Bert
from electra_lab.backbones.transformer import Transformer
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_pair

SIZES = EmbeddingSizes(vocabulary_size=30, dim=16, max_length=32, dropout=0.0)


def bert(dim: int) -> nn.Module:
    return Bert(dim, 1, 2, 32, dropout=0.0)


def pair(tie: Any, generator_dim: int = 8, discriminator_dim: int = 16) -> tuple[Network, Network]:
    torch.manual_seed(0)
    return make_pair(
        bert(generator_dim), generator_dim, bert(discriminator_dim), discriminator_dim, SIZES, tie, pad_id=0
    )


@pytest.mark.parametrize(
    ("tie", "tables", "others"), [("none", False, False), ("tokens", True, False), ("embeddings", True, True)]
)
def test_what_is_one_object(tie: str, tables: bool, others: bool) -> None:
    generator, discriminator = pair(tie)
    one, two = generator.embeddings, discriminator.embeddings
    assert (one.tokens is two.tokens) == tables
    for part in ("positions", "segments", "norm"):
        assert (getattr(one, part) is getattr(two, part)) == others
    assert (one is two) == others
    assert generator.backbone is not discriminator.backbone


@pytest.mark.parametrize(
    ("tie", "shared"), [("none", 0), ("tokens", 30 * 16), ("embeddings", 30 * 16 + 32 * 16 + 2 * 16 + 2 * 16)]
)
def test_a_shared_parameter_is_counted_once(tie: str, shared: int) -> None:
    generator, discriminator = pair(tie)
    both = nn.ModuleList([generator, discriminator])
    each = sum(p.numel() for network in (generator, discriminator) for p in network.parameters())
    assert each - sum(p.numel() for _, p in both.named_parameters()) == shared


@pytest.mark.parametrize("tie", ["tokens", "embeddings"])
def test_both_networks_teach_the_shared_table(tie: str) -> None:
    """The sum of what each alone would teach it; without tying the other's table learns nothing."""
    tokens, mask = torch.randint(5, 30, (2, 9)), torch.ones(2, 9, dtype=torch.bool)
    zeros, positions = torch.zeros_like(tokens), torch.tensor([[1, 4], [0, 2]])

    def teach(networks: tuple[Network, Network], use: tuple[bool, bool]) -> torch.Tensor:
        generator, discriminator = networks
        if use[0]:
            states = generator.hidden(tokens, mask, zeros)
            generator.token_logits(states, positions).square().sum().backward()
        if use[1]:
            discriminator.replaced_logits(discriminator.hidden(tokens, mask, zeros)).square().sum().backward()
        gradient = discriminator.embeddings.tokens.weight.grad
        return torch.zeros(30, 16) if gradient is None else gradient

    first, second, both = (teach(pair(tie), use) for use in ((True, False), (False, True), (True, True)))
    assert first.any()
    assert second.any()
    torch.testing.assert_close(both, first + second)
    assert not teach(pair("none"), (True, False)).any()


@pytest.mark.parametrize("generator_dim", [8, 16])
@pytest.mark.parametrize("discriminator_dim", [16, 32])
@pytest.mark.parametrize("tie", ["none", "tokens", "embeddings"])
def test_a_projection_exactly_where_widths_differ(tie: str, generator_dim: int, discriminator_dim: int) -> None:
    for network, dim in zip(
        pair(tie, generator_dim, discriminator_dim), (generator_dim, discriminator_dim), strict=True
    ):
        assert network.embeddings.dim == 16
        if dim == 16:
            assert network.project is None
        else:
            assert network.project is not None
            assert network.project.weight.shape == (dim, 16)
    generator, discriminator = pair(tie, 8, 8)
    assert generator.project is not discriminator.project


def test_each_network_has_the_head_that_it_uses() -> None:
    generator, discriminator = pair("embeddings")
    assert generator.replaced_head is None
    assert discriminator.token_head is None
    assert generator.token_head is not None
    assert discriminator.replaced_head is not None


def test_the_token_head_has_no_table_of_its_own() -> None:
    generator, _ = pair("none")
    assert generator.token_head is not None
    shapes = {name: tuple(p.shape) for name, p in generator.token_head.named_parameters()}
    assert shapes == {
        "dense.weight": (16, 8),
        "dense.bias": (16,),
        "norm.weight": (16,),
        "norm.bias": (16,),
        "bias": (30,),
    }
    hidden, positions = torch.randn(2, 5, 8), torch.tensor([[0, 3], [1, 2]])
    before = generator.token_logits(hidden, positions)
    with torch.no_grad():
        generator.embeddings.tokens.weight[7] += 1
    after = generator.token_logits(hidden, positions)
    changed = (before != after).any(0).any(0)
    assert changed.nonzero().tolist() == [[7]]


@pytest.mark.parametrize("generator_knows", [True, False])
def test_positions_cannot_be_shared_by_one(generator_knows: bool) -> None:
    backbones = [Transformer(64, 1, 2, 32, rotary=rotary) for rotary in (generator_knows, not generator_knows)]
    with pytest.raises(ValueError, match="Use tie: tokens, or backbones of one kind"):
        make_pair(backbones[0], 64, backbones[1], 64, SIZES, "embeddings", pad_id=0)
    networks = make_pair(backbones[0], 64, backbones[1], 64, SIZES, "tokens", pad_id=0)
    assert [network.embeddings.positions is None for network in networks] == [generator_knows, not generator_knows]
