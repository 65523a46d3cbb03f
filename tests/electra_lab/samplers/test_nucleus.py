"""The border of the nucleus, exactly: given numbers in place of random ones."""

import pytest
import torch

from electra_lab.samplers.nucleus import _nucleus, nucleus
from registry import Random

NUMBERS = (torch.arange(8192) + 0.5) / 8192  # a grid over (0, 1): the share of a token is its number of draws


class Grid(Random):
    """The numbers of the grid in place of random ones."""

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


@pytest.mark.parametrize("seed", range(2))
def test_every_border(seed: int) -> None:
    """Just below and just above each cumulative sum, the nucleus has the tokens that it needs and not one more."""
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
