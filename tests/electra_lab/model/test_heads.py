"""The output heads, by the formulas of google-research/electra; against transformers: test_bert.py."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from electra_lab.model.heads import ReplacedHead, TokenHead


def test_the_token_head_is_dense_gelu_norm_and_a_product_with_the_table() -> None:
    torch.manual_seed(0)
    head, table = TokenHead(8, 16, 30), torch.randn(30, 16)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    hidden = torch.randn(2, 5, 8)
    x = F.gelu(hidden @ head.dense.weight.T + head.dense.bias)
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-12).sqrt()
    expected = (x * head.norm.weight + head.norm.bias) @ table.T + head.bias
    torch.testing.assert_close(head(hidden, table), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(head(hidden[1, 2], table), expected[1, 2], rtol=1e-4, atol=1e-4)


def test_the_token_head_has_no_table_of_its_own() -> None:
    """The one that is passed in counts, so that a shared table stays one parameter."""
    head, table = TokenHead(8, 16, 30), torch.randn(30, 16)
    assert {name: tuple(p.shape) for name, p in head.named_parameters()} == {
        "dense.weight": (16, 8),
        "dense.bias": (16,),
        "norm.weight": (16,),
        "norm.bias": (16,),
        "bias": (30,),
    }
    assert not head.bias.any()
    hidden = torch.randn(2, 5, 8)
    other = table.clone()
    other[7] += 1
    changed = (head(hidden, table) != head(hidden, other)).flatten(0, 1).any(0)
    assert changed.nonzero().tolist() == [[7]]


def test_the_replaced_head_is_dense_gelu_and_one_logit() -> None:
    torch.manual_seed(0)
    head, hidden = ReplacedHead(8), torch.randn(2, 5, 8)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    x = F.gelu(hidden @ head.dense.weight.T + head.dense.bias)
    expected = (x * head.out.weight[0]).sum(-1) + head.out.bias
    assert head(hidden).shape == (2, 5)
    torch.testing.assert_close(head(hidden), expected, rtol=1e-4, atol=1e-4)
