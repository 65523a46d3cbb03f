"""`transformer`: each option reaches the part of x-transformers that it names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from x_transformers.x_transformers import Attend, Attention, FeedForward, LayerNorm, RMSNorm

from electra_lab.backbones.transformer import Transformer


def parts(kind: Any, **options: Any) -> list[Any]:
    found = [module for module in Transformer(96, 2, 2, 32, **options).modules() if isinstance(module, kind)]
    assert found, f"x-transformers has no {kind.__name__} here"
    return found


def test_dropout_acts_on_attention_and_within_the_feed_forward() -> None:
    assert [module.p for module in parts(nn.Dropout, dropout=0.3)] == [0.3] * 4
    assert [attend.dropout for attend in parts(Attend, dropout=0.3)] == [0.3] * 2  # what the fused kernel reads
    assert {module.p for module in parts(nn.Dropout)} == {0.1}


@pytest.mark.parametrize("flash", [True, False])
def test_flash_is_a_choice(flash: bool) -> None:
    assert [attend.flash for attend in parts(Attend, flash=flash)] == [flash] * 2


@pytest.mark.parametrize("rmsnorm", [True, False])
def test_rmsnorm_takes_the_place_of_every_layernorm(rmsnorm: bool) -> None:
    assert len(parts(RMSNorm if rmsnorm else LayerNorm, rmsnorm=rmsnorm)) == 5  # two a layer, and one at the end


def test_heads_share_the_width() -> None:
    assert {attention.to_q.out_features for attention in parts(Attention)} == {96}
    assert {attention.heads for attention in parts(Attention)} == {2}


@pytest.mark.parametrize("glu", [True, False])
def test_the_feed_forward_is_as_wide_as_ff_mult_says(glu: bool) -> None:
    assert {part.ff[-1].in_features for part in parts(FeedForward, glu=glu, ff_mult=1.5)} == {144}


def test_rotary_positions_turn_the_whole_head() -> None:
    model = Transformer(96, 1, 2, 32, rotary=True)
    assert model.encoder.rotary_pos_emb.inv_freq.shape == (96 // 2 // 2,)
    assert model.positions == "own"


def test_the_library_is_called_in_eval_without_dropout() -> None:
    model, x = Transformer(96, 1, 2, 32, dropout=0.5), torch.randn(2, 8, 96)
    mask = torch.ones(2, 8, dtype=torch.bool)
    assert not torch.equal(model.train()(x, mask), model(x, mask))
    assert torch.equal(model.eval()(x, mask), model(x, mask))
