"""Samplers by hand, with given numbers in place of random ones, and at the limits of their options."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from electra_lab.model.draws import inverse_cdf
from electra_lab.samplers.nucleus import _nucleus, nucleus
from electra_lab.training.random import Streams
from registry import Random, samplers

INF = float("inf")


class Given(Random):
    def __init__(self, *numbers: float) -> None:
        self.numbers = torch.tensor(numbers)
        self.asked: list[tuple[int, ...]] = []

    def uniform(self, rows: int, *shape: int) -> torch.Tensor:
        self.asked.append((rows, *shape))
        return self.numbers.view(rows, *shape).clone()


def drawn(name: str, logits: torch.Tensor, random: Any = None, **options: float) -> list[int]:
    random = random or Streams.of(0, 0, torch.arange(len(logits)))("sampling")
    return samplers.get(name).component(logits, random, **options).tolist()


# Shares of 0.5, 0.3 and 0.2. Probabilities to the power of 1 / temperature: 0.25 of 0.25 + 0.09 + 0.04 at a half.
OF_ALL = torch.tensor([0.5, 0.3, 0.2]).log()
HALF, TWICE = 0.25 / 0.38, 0.5**0.5 / (0.5**0.5 + 0.3**0.5 + 0.2**0.5)
# Of the k best of 0.4, 0.3, 0.2 and 0.1: 0.4 of 0.7, 0.7 of 0.9, and of squares 0.16 of 0.25.
OF_BEST = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()


@pytest.mark.parametrize("shift", [0.0, -1e4])
@pytest.mark.parametrize(
    ("name", "logits", "options", "tokens"),
    [
        ("temperature", OF_ALL, {}, {0.001: 0, 0.499: 0, 0.501: 1, 0.799: 1, 0.801: 2, 0.9999: 2}),
        ("temperature", OF_ALL, {"temperature": 0.5}, {HALF - 1e-3: 0, HALF + 1e-3: 1}),
        ("temperature", OF_ALL, {"temperature": 2.0}, {TWICE - 1e-3: 0, TWICE + 1e-3: 1}),
        ("top_k", OF_BEST, {"k": 1}, {0.999: 1}),
        ("top_k", OF_BEST, {"k": 2}, {0.57: 1, 0.58: 3, 0.999: 3}),
        ("top_k", OF_BEST, {"k": 3}, {0.777: 3, 0.779: 2}),
        ("top_k", OF_BEST, {"k": 4}, {0.901: 0}),
        ("top_k", OF_BEST, {"k": 99}, {0.901: 0}),
        ("top_k", OF_BEST, {"k": 2, "temperature": 0.5}, {0.639: 1, 0.641: 3}),
    ],
)
def test_one_number_picks_a_token(name: str, logits: torch.Tensor, options, tokens, shift: float) -> None:
    given = logits.expand(len(tokens), -1) + shift
    assert drawn(name, given, Given(*tokens), **options) == [*tokens.values()]


@pytest.mark.parametrize("shift", [0.0, 1e4])
@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 1), (0.25, 0), (4.0, 2)])
def test_gumbel_takes_the_largest_sum_of_logit_and_noise(temperature: float, expected: int, shift: float) -> None:
    """Noise of 0, 1.5 and 2 on logits of 2, 1 and 0: 2, 2.5 and 2; divided by 1/4, 8 5.5 2; by 4, 0.5 1.75 2."""
    numbers = [math.exp(-math.exp(-noise)) for noise in (0.0, 1.5, 2.0)]
    logits = torch.tensor([[2.0, 1.0, 0.0]]) + shift
    assert drawn("gumbel", logits, Given(*numbers), temperature=temperature) == [expected]


def test_gumbel_has_a_number_for_each_token_and_extreme_ones_give_finite_noise() -> None:
    given = Given(0.1, 0.9, 0.2, 0.3, 0.2, 0.8)
    assert drawn("gumbel", torch.zeros(2, 3), given) == [1, 2]
    assert given.asked == [(2, 3)]
    least, most = 2.0**-24, 1 - 2.0**-24
    assert drawn("gumbel", torch.tensor([[-INF, 0.0, -INF]]), Given(most, least, most)) == [1]
    assert drawn("gumbel", torch.zeros(1, 3), Given(least, least, most)) == [2]


def test_argmax_takes_the_largest_logit_and_draws_no_number() -> None:
    logits = torch.tensor([[1.0, 1.001, 0.0], [1.001, 1.0, -5.0], [-3.0, -2.0, -1.0], [-INF, -INF, -9.0]])
    assert samplers.get("argmax").component(logits, None).tolist() == [1, 0, 2, 2]


LOGITS = torch.randn(400, 60, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("temperature", {"temperature": 1e-6}), ("gumbel", {"temperature": 1e-6}), ("top_k", {"k": 1}),
        ("top_k", {"k": 7, "temperature": 1e-6}), ("nucleus", {"p": 1e-6}), ("nucleus", {"p": 1, "temperature": 1e-6}),
    ],
)  # fmt: skip
def test_argmax_is_the_limit(name: str, options: dict[str, float]) -> None:
    assert drawn(name, LOGITS, **options) == LOGITS.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("name", "options"), [("temperature", {}), ("gumbel", {}), ("top_k", {"k": 7}), ("nucleus", {"p": 0.8})]
)
def test_a_temperature_divides_the_logits(name: str, options: dict[str, float]) -> None:
    """Before anything else: a nucleus, too, is chosen by the tempered probabilities."""
    assert drawn(name, LOGITS, temperature=2.0, **options) == drawn(name, LOGITS / 2, **options)


def test_a_k_above_what_is_allowed_takes_all_of_it() -> None:
    """The whole vocabulary; forbidden tokens among the k are never drawn."""
    logits = torch.zeros(3000, 10)
    assert set(drawn("top_k", logits, k=99)) == set(range(10))
    logits[:, [0, 1, 2, 5, 6, 7, 8, 9]] = -INF
    assert set(drawn("top_k", logits, k=8)) == {3, 4}


@pytest.mark.parametrize(("name", "options"), [("temperature", {}), ("top_k", {"k": 30_000}), ("nucleus", {"p": 1.0})])
def test_the_tail_is_told_apart(name: str, options: dict[str, Any]) -> None:
    """Tokens of 1e-8 to 3e-8 at cumulative sums near 1, where float32 has steps of 6e-8 and would lose most of them."""
    numbers = [1 - share * 2.0**-24 for share in range(1, 9_001, 300)]
    logits = torch.linspace(-17.2, -18.2, 30_000)
    logits[0] = 0
    sums = np.cumsum(logits.softmax(-1).double().numpy())
    expected = np.searchsorted(sums, np.array(numbers) * sums[-1], side="right")
    assert drawn(name, logits.expand(len(numbers), -1), Given(*numbers), **options) == expected.tolist()


def test_a_token_without_probability_is_never_drawn() -> None:
    """Not even by a number that rounding or a parallel sum makes as large as the total; rows need not sum to 1."""
    weights = torch.tensor([[0.0, 3.0, 0.0, 1.0, 0.0]], dtype=torch.float64).expand(4, -1)
    assert inverse_cdf(weights, torch.tensor([[2.0**-24], [0.7], [0.8], [1.0]])).tolist() == [[1], [1], [3], [1]]


NUMBERS = (torch.arange(8192) + 0.5) / 8192  # a grid over (0, 1): the share of a token is its number of draws


class Grid(Random):
    """Returns the numbers of the grid in place of random ones."""

    def uniform(self, rows: int, *shape: int) -> torch.Tensor:
        return NUMBERS.view(rows, *shape)


def shares(logits: torch.Tensor, p: float) -> torch.Tensor:
    drawn = nucleus(logits.expand(len(NUMBERS), -1), Grid(), p=p)
    return torch.bincount(drawn, minlength=len(logits)) / len(NUMBERS)


def expected(logits: torch.Tensor, p: float) -> torch.Tensor:
    probabilities = logits.softmax(-1).double()
    kept, total = torch.zeros_like(probabilities), 0.0
    for token in probabilities.argsort(descending=True, stable=True).tolist():
        if total >= p:
            break
        kept[token] = probabilities[token]
        total += float(probabilities[token])
    return kept / kept.sum()


@pytest.mark.parametrize("seed", range(6))
def test_every_border(seed: int) -> None:
    """Just below and above each cumulative sum, the nucleus has exactly the necessary tokens."""
    logits = torch.randn(9, generator=torch.Generator().manual_seed(seed))
    sums = logits.softmax(-1).double().sort(descending=True).values.cumsum(-1)[:-1].tolist()
    sizes = []
    for border in sums:
        for p in (border - 1e-6, border + 1e-6):
            found, wanted = shares(logits, p), expected(logits, p)
            assert torch.equal(found > 0, wanted > 0), (p, found, wanted)
            assert torch.allclose(found.double(), wanted, atol=1.5 / len(NUMBERS)), (p, found, wanted)
            sizes.append(int((found > 0).sum()))
    assert sizes == sorted([*range(1, 9), *range(2, 10)])


def test_a_sum_that_is_p_exactly_is_enough() -> None:
    """Four tokens of a quarter each, which floats hold exactly; equal ones are taken in the order of their ids."""
    logits = torch.zeros(4)
    for number, p in enumerate((0.25, 0.5, 0.75, 1.0), start=1):
        found = shares(logits, p)
        assert (found > 0).tolist() == [True] * number + [False] * (4 - number)
        assert torch.allclose(found[:number], torch.full((number,), 1 / number), atol=1.5 / len(NUMBERS))
    assert (shares(logits, 0.2500001) > 0).sum() == 2


def test_the_whole_vocabulary_at_one() -> None:
    """Also where float32 probabilities do not sum to 1."""
    logits = torch.randn(500, generator=torch.Generator().manual_seed(3)) * 0.1
    assert logits.softmax(-1).double().sum() != 1
    assert (shares(logits, 1.0) > 0).all()
    assert torch.allclose(shares(logits, 1.0).double(), logits.double().softmax(-1), atol=1.5 / len(NUMBERS))


def test_p_is_a_share_of_the_sum() -> None:
    """A softmax in float32 does not add up to 1 exactly."""
    weights = torch.tensor([[0.1, 0.2, 0.06, 0.04]])
    assert torch.equal(_nucleus(weights, 0.6), torch.tensor([[0.1, 0.2, 0.0, 0.0]]))
