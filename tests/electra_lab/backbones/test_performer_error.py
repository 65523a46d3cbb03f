"""What performer's docstring says of its random features, measured."""

import re

import pytest
import torch
from torch.nn import functional as F

from electra_lab.backbones.performer import Performer, favor_attention, random_features

TEXT = " ".join((Performer.__doc__ or "").split())


def error(deviation: float, features: int, draws: int = 4) -> float:
    """Return the mean distance from softmax attention, relative to the norm of what that returns."""
    found = []
    for seed in range(draws):
        numbers = torch.Generator().manual_seed(seed)
        query, key, value = torch.randn(3, 2, 4, 128, 32, generator=numbers)
        query, key = deviation * query, deviation * key
        exact = F.scaled_dot_product_attention(query, key, value)
        visible = torch.ones(2, 128, dtype=torch.bool)
        estimate = favor_attention(query, key, value, visible, random_features(features, 32, numbers))
        found.append(float((estimate - exact).norm() / exact.norm()))
    return sum(found) / draws


def test_the_errors_are_those_that_the_docstring_states() -> None:
    sentence = TEXT[TEXT.index("Example: a width of 32, 128 positions and ") :]
    numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d.,]*\d|\d", sentence)]
    few, one, two, three, near, nearer, far, _, many, last = numbers[2:12]
    for stated, deviation, features in ((near, one, few), (nearer, two, few), (far, three, few), (last, three, many)):
        assert error(deviation, int(features)) == pytest.approx(stated, rel=0.12)
    assert min(far, last) > 1, "returning nothing has an error of 1"


def test_networks_of_equal_head_width_share_their_features() -> None:
    """In the layers that both have, whatever their own width, after a redraw too; and no two layers do."""
    assert "generator and discriminator share them if their heads are of equal width" in TEXT
    wide, narrow, other = (Performer(*sizes, 64) for sizes in ((128, 3, 4), (64, 2, 2), (64, 2, 1)))
    first = wide.features.clone()
    assert torch.equal(wide.features[:2], narrow.features)
    for each in (wide, narrow, other):
        each.at_step(1, 1000)
    assert torch.equal(wide.features[:2], narrow.features)
    assert not torch.equal(wide.features, first)
    assert not torch.equal(wide.features[0], wide.features[1])
    assert other.features.shape[-1] != narrow.features.shape[-1]
