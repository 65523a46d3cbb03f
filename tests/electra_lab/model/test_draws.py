"""Several draws per row: independent ones as single draws, distinct ones against an enumeration of Plackett-Luce."""

from itertools import permutations

import torch

from electra_lab.model.draws import distinct, inverse_cdf
from electra_lab.testing import SIGNIFICANCE, chi_square_p


def test_several_numbers_are_several_calls() -> None:
    """Also across blocks, whose sums are computed first."""
    numbers = torch.Generator().manual_seed(0)
    weights, uniform = torch.rand(5, 700, generator=numbers), torch.rand(5, 40, generator=numbers)
    one_by_one = [inverse_cdf(weights, uniform[:, [column]]) for column in range(40)]
    drawn = inverse_cdf(weights, uniform)
    assert torch.equal(drawn, torch.cat(one_by_one, dim=-1))
    plain = torch.searchsorted(weights.double().cumsum(-1), uniform.double() * weights.double().sum(-1, keepdim=True))
    assert torch.equal(drawn, plain)
    assert drawn.max() > 512


def test_distinct_draws_follow_plackett_luce() -> None:
    """Every order of three of four tokens; the fifth is never drawn."""
    logits = torch.tensor([0.0, 1.0, -float("inf"), -1.0, 0.5])
    numbers = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    drawn = distinct(logits.expand(20_000, -1), numbers)
    weights = logits.double().exp()
    orders, chances = list(permutations((0, 1, 3, 4), 3)), []
    for order in orders:
        chance, left = 1.0, float(weights.sum())
        for token in order:
            chance *= float(weights[token]) / left
            left -= float(weights[token])
        chances.append(chance)
    code = drawn @ torch.tensor([25, 5, 1])
    places = [25 * a + 5 * b + c for a, b, c in orders]
    counts = code.bincount(minlength=125)[places]
    assert counts.sum() == 20_000, "a token was drawn twice, or one that may not be drawn"
    assert chi_square_p(counts, torch.tensor(chances)) > SIGNIFICANCE


def test_distinct_draws_of_a_certain_distribution_are_distinct() -> None:
    logits = torch.tensor([[-float("inf"), 0.0, 1000.0, -1000.0, -2000.0]])
    assert distinct(logits, torch.full((1, 4), 0.3)).tolist() == [[2, 1, 3, 4]]
