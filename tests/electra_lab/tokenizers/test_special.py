"""The special tokens of the tokenizers that the lab trains; those of `pretrained` are in test_pretrained.py."""

from __future__ import annotations

import pytest

from electra_lab.tokenizers._special import SPECIAL
from registry import tokenizers

TEXT = ["the cat sat on the mat and saw the dog"] * 20


@pytest.mark.parametrize("name", [name for name in tokenizers.names() if name != "pretrained"])
def test_they_have_the_first_ids_in_one_order(name: str) -> None:
    """Those of BERT's vocabularies, by name."""
    assert SPECIAL == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained = tokenizers.get(name).component(TEXT, vocab_size=300)
    assert [trained.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3, 4]
    assert [trained.id_to_token(id) for id in range(5)] == SPECIAL
