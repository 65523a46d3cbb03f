"""Seeds in two groups."""

import math

import numpy as np
import pytest

from electra_lab.analysis.bimodality import bimodal
from tests.electra_lab.analysis.tiny import seeded, values_of


def test_a_warning_names_the_place_and_the_variants_that_are_torn() -> None:
    torn, low, high = [0.53, 0.54, 0.71, 0.72, 0.70], [0.52, 0.53, 0.54, 0.53, 0.52], [0.7, 0.71, 0.72, 0.7, 0.71]
    apart = {"b": seeded(low), "c": seeded(high)}
    assert bimodal({"a": seeded(torn), **apart}) == (pytest.approx(0.62), ["a"])
    # Variants that are far apart, each with one group of seeds, are what an ablation hopes to find: no warning.
    for values in (apart, {"a": seeded([0.5, 0.5]), "b": {}}, {"a": seeded([0.5] * 9)}):
        assert bimodal(values) is None


@pytest.mark.parametrize(("unit", "shift"), [(1e-200, 0.0), (1e200, 0.0), (1e-9, 1.0), (1e-6, -1e3), (3.0, 7.0)])
def test_two_groups_are_the_same_in_any_unit(unit: float, shift: float) -> None:
    rng = np.random.default_rng(0)
    for torn in (False, True):
        for _ in range(20):
            values = rng.normal(size=(2, 6)) + torn * 9.0 * (np.arange(6) % 2)
            here, there = (bimodal(values_of(numbers)) for numbers in (values, values * unit + shift))
            assert (here is None) == (there is None)
            if here and there:
                assert (there[0] - shift) / unit == pytest.approx(here[0], rel=1e-4)
                assert there[1] == here[1]


@pytest.mark.parametrize(("shape", "step"), [((1, 5), 0.0), ((3, 12), 0.0), ((3, 12), 2.0)])
def test_normal_numbers_are_seldom_taken_for_bimodal(shape: tuple[int, int], step: float) -> None:
    """Not even if variants differ by more and more; pooling the seeds of all variants would warn in 8 of 10 cases."""
    rng, apart = np.random.default_rng(10), step * np.arange(shape[0])[:, None]
    warned = np.mean([bimodal(values_of(rng.normal(size=shape) + apart)) is not None for _ in range(300)])
    assert warned <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 300)


def test_variants_far_apart_do_not_make_two_groups_of_their_rounding() -> None:
    rng, apart = np.random.default_rng(3), np.array([[0.5], [0.9]])
    warned = [bimodal(values_of(apart + 1e-9 * rng.normal(size=(2, 5)))) is not None for _ in range(100)]
    assert sum(warned) <= 4
