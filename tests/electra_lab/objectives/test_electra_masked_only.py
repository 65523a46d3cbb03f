"""ELECTRA whose discriminator learns from the masked tokens alone, by hand."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from electra_lab.testing import CLS, PAD, SEP
from tests.electra_lab.objectives.tiny import Fixed, Says, gradients, rows, streams, tables


def test_masked_only_is_cross_entropy_over_the_masked_tokens() -> None:
    """Replaced or not, each once; nothing is learned of the other tokens, nor of slots that do not count."""
    batch = rows(CLS, 7, 8, 9, SEP, PAD)
    objective = tables("electra_masked_only", Fixed(1, 3, empty=2), Says(5, 9, 6, 6), 6)
    term = objective(batch, streams(batch)).terms["discriminator"]
    logits = torch.stack([objective.discriminator.scores[1, 5], objective.discriminator.scores[3, 9]])
    expected = F.binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 0.0]).double(), reduction="sum")
    torch.testing.assert_close(term.sum, expected)
    assert int(term.count) == 2 == int(objective.counts(batch, streams(batch))["discriminator"])
    reached = gradients(objective, term.sum)["discriminator.scores"].nonzero().tolist()
    assert reached == [[1, 5], [3, 9]]
