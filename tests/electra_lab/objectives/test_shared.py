"""What a sampler is given, the loss of a masked token, and what compiled and narrow numbers change."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from electra_lab.model.softmax import cross_entropy
from electra_lab.objectives._shared import Cloze, Corrupting, draw
from electra_lab.testing import vocabulary
from electra_lab.training.random import Streams
from registry import Batch, Masked, backbones
from tests.electra_lab.objectives.tiny import berts, gradients, sentences, streams, total


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_sampler_is_given_float32_without_autocast_and_gradients(dtype: torch.dtype) -> None:
    words, given = vocabulary(12), []

    def sampler(logits: torch.Tensor, rng: Any) -> torch.Tensor:
        given.append((logits.dtype, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), tuple(logits.shape)))
        assert torch.equal(logits == -math.inf, words.is_special.expand_as(logits))
        return logits.argmax(-1)

    logits = torch.randn(2, 3, 12, dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        drawn = draw(sampler, logits, words, rng=None)
    assert given == [(torch.float32, False, False, (6, 12))]
    assert torch.equal(drawn, logits.float().masked_fill(words.is_special, -math.inf).argmax(-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothing_is_that_of_torch_and_may_be_a_tensor(dtype: torch.dtype, smoothing: float) -> None:
    """With its gradient, over a whole vocabulary, for logits as large as they get."""
    logits = (20 * torch.randn(2, 3, 30_522, generator=torch.Generator().manual_seed(0), dtype=dtype)).requires_grad_()
    originals = torch.randint(30_522, (2, 3), generator=torch.Generator().manual_seed(1))
    expected = F.cross_entropy(
        logits.flatten(0, 1), originals.flatten(), reduction="none", label_smoothing=smoothing
    ).view(2, 3)
    masked = Masked(originals, torch.arange(3).expand(2, 3), torch.ones(2, 3, dtype=torch.bool))
    [slope] = torch.autograd.grad(expected.sum(), logits)
    for given in (smoothing, torch.tensor(smoothing, dtype=torch.float64)):
        guess = Cloze(masked, originals, torch.zeros(2, 3, 1), logits, *cross_entropy(logits, originals))
        found = guess.losses(given)
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), logits)[0], slope, rtol=1e-4, atol=1e-8)


def test_a_sampler_of_the_softmax_gets_it_without_special_tokens_and_the_gradient_with_them() -> None:
    words, seen = vocabulary(12), []

    class Sampler:
        def of_softmax(self, weights: torch.Tensor, rng: Any) -> torch.Tensor:
            seen.append(weights.clone())
            return weights.argmax(-1)

    logits = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tokens = torch.full((2, 5), 7)
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens), torch.arange(2))
    masked = Masked(tokens, torch.arange(3).expand(2, 3), torch.ones(2, 3, dtype=torch.bool))
    originals = torch.tensor([[0, 5, 6], [7, 8, 9]])  # a special token has a loss too
    guess = Cloze(masked, originals, torch.zeros(2, 5, 1), logits, *cross_entropy(logits, originals))
    objective: Any = Corrupting(None, None, None, Sampler(), words)
    inputs = objective.replace(guess, batch, Streams(0, 0, batch.example_ids))
    expected = logits.softmax(-1)
    assert torch.equal(seen[0].view(2, 3, 12), expected.masked_fill(words.is_special, 0.0))
    assert torch.equal(inputs[:, :3], seen[0].argmax(-1).view(2, 3))
    assert torch.equal(guess.probabilities, expected)
    [slope] = torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), originals.flatten(), reduction="sum"), logits)
    guess.losses().sum().backward()
    torch.testing.assert_close(logits.grad, slope)


NAMES = ["electra_correct", "electric", "mc_bert", "teams"]


def made(name: str) -> Any:
    towers = partial(backbones.get("two_towers").component, dropout=0.0) if name == "electric" else None
    return berts(name, depth=2, build=towers, sampler=lambda logits, _: logits.argmax(-1)).train()


@pytest.mark.slow  # amos, in its own file, stays quick, and so does the forward pass in test_schedules.py
@pytest.mark.parametrize("name", NAMES)
def test_compiled_in_one_graph_it_has_the_same_gradients(name: str) -> None:
    objective, text = made(name), sentences()
    expected = gradients(objective, total(objective(text, streams(text))))
    torch._dynamo.reset()
    compiled = torch.compile(objective, backend="aot_eager", fullgraph=True)
    found = gradients(objective, total(compiled(text, streams(text))))
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-6, msg=parameter)


@pytest.mark.parametrize("name", NAMES)
def test_in_bf16_it_is_the_same_within_bounds(name: str) -> None:
    """Losses of the same replacements by 0.5 %: a candidate may be another."""
    objective, text = made(name), sentences()
    whole = objective(text, streams(text))
    with torch.autocast("cpu", torch.bfloat16):
        narrow = objective(text, streams(text))
    for term, exact in whole.terms.items():
        assert narrow.terms[term].sum.dtype == torch.float32
        torch.testing.assert_close(narrow.terms[term].sum, exact.sum, rtol=0.005, atol=0.0)
    assert all(gradient.isfinite().all() for gradient in gradients(objective, total(narrow)).values())
