"""The uniform generator: the unigram one at the power 0."""

from __future__ import annotations

from dataclasses import replace

import torch

from electra_lab.generators.uniform import Uniform
from electra_lab.generators.unigram import Unigram
from electra_lab.testing import vocabulary


def test_all_ordinary_tokens_are_equally_likely() -> None:
    words = replace(vocabulary(20), counts=torch.arange(20) ** 3)
    generator = Uniform(words)
    tokens = torch.full((2, 4), 7)
    states = generator.hidden(tokens, tokens > 0, tokens * 0)
    logits = generator.token_logits(states, torch.tensor([[0, 2], [1, 3]]))
    assert logits.shape == (2, 2, 20)
    probabilities = logits.masked_fill(words.is_special, -torch.inf).softmax(-1)
    torch.testing.assert_close(probabilities, (~words.is_special / 16).expand(2, 2, -1))
    assert torch.equal(generator.scores, Unigram(words, power=0.0).scores)
    assert isinstance(generator, Unigram)
