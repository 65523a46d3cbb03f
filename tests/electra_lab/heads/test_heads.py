"""The output heads, by the formulas of google-research/electra; against transformers: test_bert.py."""

from __future__ import annotations

import torch

from electra_lab.heads.tokens import TokenHead
from registry import EmbeddingSizes

SIZES = EmbeddingSizes(vocabulary_size=30, dim=16, max_length=8, dropout=0.0)


def test_the_token_head_has_no_table_of_its_own() -> None:
    """The one that is passed in counts, so that a shared table stays one parameter."""
    head, table = TokenHead(8, SIZES, None), torch.randn(30, 16)
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
