"""The output heads, by the formulas of google-research/electra; against transformers: test_bert.py."""

import torch

from electra_lab.heads.tokens import TokenHead
from registry import EmbeddingSizes


def test_the_token_head_has_no_table_of_its_own() -> None:
    """The one that is passed in counts, so that a shared table stays one parameter."""
    head, table = TokenHead(8, EmbeddingSizes(30, 16, 8, 0.0), None), torch.randn(30, 16)
    assert [name for name, _ in head.named_parameters() if name.endswith("weight")] == ["dense.weight", "norm.weight"]
    assert not head.bias.any()
    hidden, other = torch.randn(2, 5, 8), table.clone()
    other[7] += 1
    changed = (head(hidden, table) != head(hidden, other)).flatten(0, 1).any(0)
    assert changed.nonzero().tolist() == [[7]]
