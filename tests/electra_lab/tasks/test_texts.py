"""Rows of one text or of two."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import ElectraConfig
from transformers.models.electra.modeling_electra import ElectraClassificationHead

from electra_lab.tasks._texts import FirstState, text_rows
from registry import Batch, TextExample
from tests.electra_lab.tasks.judged import Letters

LETTERS = st.text("abcdefg", max_size=9)


@given(first=LETTERS, second=st.none() | LETTERS, length=st.integers(5, 20))
def test_the_longer_text_loses_one_token_after_the_other_and_of_equal_ones_the_second(
    first: str, second: str | None, length: int
) -> None:
    left, right = first, second or ""
    special = 2 if second is None else 3
    while len(left) + len(right) + special > length:
        left, right = (left[:-1], right) if len(left) > len(right) else (left, right[:-1])
    [[row]] = text_rows([TextExample(first, second, 1.0)], Letters(), length, [1.0])
    ids = [[1, *(ord(letter) - 93 for letter in left), 2]]
    if second is not None:
        ids.append([*(ord(letter) - 93 for letter in right), 2])
    assert row.tokens == [token for part in ids for token in part]
    assert row.segments == [number for number, part in enumerate(ids) for _ in part]
    assert row.keep == ((left, right) != (first, second or ""))
    assert row.labels == {"label": 1.0}


@pytest.mark.parametrize("training", [True, False])
def test_the_dense_head_is_that_of_transformers(training: bool) -> None:
    """With dropout before both of its layers; the plain head has dropout before its only layer."""
    theirs = ElectraClassificationHead(ElectraConfig(hidden_size=8, classifier_dropout=0.4, num_labels=3))
    dense, plain = (FirstState(8, 3, 0.4, layers).train(training) for layers in (("dense", "out"), ("out",)))
    for ours in (dense, plain):
        ours.out.load_state_dict(theirs.out_proj.state_dict())
    dense.dense.load_state_dict(theirs.dense.state_dict())
    states = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(0))
    tokens = torch.zeros(5, 4, dtype=torch.long)
    batch = Batch(tokens, tokens == 0, tokens, tokens[:, 0])
    torch.manual_seed(1)
    expected = theirs.train(training)(states)
    torch.manual_seed(1)
    torch.testing.assert_close(dense(states, batch), expected)
    torch.manual_seed(1)
    expected = theirs.out_proj(torch.nn.functional.dropout(states[:, 0], 0.4, training))
    torch.manual_seed(1)
    torch.testing.assert_close(plain(states, batch), expected)
