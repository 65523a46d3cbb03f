"""Batches and losses survive the transfer to another process unchanged."""

from dataclasses import fields, is_dataclass
from typing import Any

import torch

from electra_lab.parallel.group import pack, unpack
from registry import Batch, Choice, Detection, Losses, Prediction, Term

CPU = torch.device("cpu")
TOKENS = torch.arange(12).view(3, 4)
BATCH = Batch(TOKENS, TOKENS > 2, TOKENS * 0, torch.tensor([4, 2, 9]))


def assert_equal(found: Any, expected: Any) -> None:
    if is_dataclass(found):
        assert type(found) is type(expected)
        for field in fields(found):
            assert_equal(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(found, dict):
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert_equal(value, expected[key])
    elif found is None:
        assert expected is None
    else:
        found = found if isinstance(found, torch.Tensor) else torch.tensor(found, dtype=torch.float64)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_everything_that_there_may_be() -> None:
    batch = Batch(
        TOKENS, TOKENS > 2, TOKENS * 0, torch.tensor([4, 2, 9]), attention_document_ids=TOKENS[:, :1].expand(3, 4),
        labels={"a/b.c": torch.randn(3)}, source_document_ids=TOKENS.T.contiguous().T,
    )  # fmt: skip
    whole = torch.randn(3, 4)
    asked = Prediction(TOKENS[:, ::2], TOKENS[:, ::2] > 1, TOKENS[:, ::2] > 5, whole[:, :2], whole[:, 2:] > 0)
    terms = {
        "ünusual name": Term(whole.sum(), torch.tensor(7), 0.1),
        "x": Term(whole[0, 0], torch.tensor(0), whole[1, 1]),
    }
    detection = Detection(TOKENS, TOKENS > 3, whole.bfloat16())
    losses = Losses(terms, {"generator": asked, "discriminator": asked}, detection, {"logits": whole.half()},
                    {"share": Term(whole.sum(), torch.tensor(3))},
                    Choice(TOKENS, TOKENS > 1, TOKENS.unsqueeze(-1), whole.unsqueeze(-1), TOKENS % 1))  # fmt: skip
    for sent, received in zip((batch, losses), unpack(pack(batch, losses), CPU), strict=True):
        assert_equal(sent, received)


def test_as_little_as_there_may_be() -> None:
    for sent, received in zip((BATCH, Losses({})), unpack(pack(BATCH, Losses({})), CPU), strict=True):
        assert_equal(sent, received)
