"""Two causal encoders, compared with torch's own layers."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from electra_lab.backbones.bert import BertLayer
from electra_lab.backbones.two_towers import TwoTowers
from electra_lab.testing import BackboneContract
from registry import backbones


def theirs(layer: BertLayer, dim: int, heads: int) -> nn.TransformerEncoderLayer:
    made = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, "gelu", 1e-12, batch_first=True).double()
    parts = [layer.query, layer.key, layer.value]
    attention = made.self_attn
    attention.in_proj_weight.data = torch.cat([part.weight for part in parts]).data
    attention.in_proj_bias.data = torch.cat([part.bias for part in parts]).data
    attention.out_proj, made.norm1, made.norm2 = layer.attended, layer.attention_norm, layer.output_norm
    made.linear1, made.linear2 = layer.expand, layer.contract
    return made


def through(layers: list[BertLayer], x: Tensor) -> Tensor:
    blocked = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    for layer in layers:
        x = theirs(layer, x.shape[2], 2)(x, src_mask=blocked)
    return x[:, -1]


def test_states_are_those_of_torch_over_the_tokens_before_and_after() -> None:
    """Each half sees only the tokens before, or only those after; a half without any is zero. Padding is not read."""
    torch.manual_seed(0)
    towers = TwoTowers(16, 2, 2, 8, dropout=0.0).double()
    x, real = torch.randn(2, 6, 16, dtype=torch.float64), torch.ones(2, 6, dtype=torch.bool)
    real[:, 5] = False
    states = towers(x, real)
    forwards, backwards = zip(*((layer.forwards, layer.backwards) for layer in towers.layers), strict=True)
    nothing = torch.zeros(2, 8, dtype=torch.float64)
    for place in range(5):
        past = through(forwards, x[:, :place, :8]) if place else nothing
        future = through(backwards, x[:, place + 1 : 5, 8:].flip(1)) if place < 4 else nothing
        torch.testing.assert_close(states[:, place], torch.cat([past, future], -1), rtol=1e-9, atol=1e-12)


def test_the_law_of_clozes_finds_an_encoder_that_sees_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    bert = backbones.get("bert")
    monkeypatch.setitem(backbones._entries, "bert", replace(bert, declared={**bert.declared, "cloze": True}))
    suite = type("Suite", (BackboneContract,), {"name": "bert"})()
    with pytest.raises(AssertionError, match="at 0"):
        suite.test_a_cloze_does_not_see_the_token("cpu")
