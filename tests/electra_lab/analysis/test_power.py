"""The smallest difference that an ablation finds, against the noncentral t distribution and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from electra_lab.analysis.intervals import Layer, difference
from electra_lab.analysis.power import Spread, detectable, smallest, spread


def test_the_spread_by_seeds_is_not_that_by_documents() -> None:
    """More seeds reduce only the former; estimates from 5 seeds predict 20."""
    rng, pooled = np.random.default_rng(15), list[Spread]()
    for _ in range(200):
        numbers = rng.normal(0, 0.01, (5, 1)) + rng.normal(0, 0.05, (1, 10)) + rng.normal(0, 0.03, (5, 10))
        units = {"documents": (dict(enumerate(numbers.tolist())), {seed: [0.0] * 10 for seed in range(5)})}
        known = spread([difference(dict(enumerate(numbers.mean(1))), dict.fromkeys(range(5), 0.0), units)], "")
        pooled.append(known)
    sd, shared = math.sqrt(np.mean([known.sd**2 for known in pooled])), [known.shared["documents"] for known in pooled]
    assert sd == pytest.approx(math.sqrt(0.01**2 + 0.03**2 / 10), rel=0.1)
    assert np.mean([layer.beyond for layer in shared]) == pytest.approx(0.05**2 / 10, rel=0.15)
    assert np.mean([layer.noise for layer in shared]) == pytest.approx(0.03**2 / 10, rel=0.1)
    assert {layer.units for layer in shared} == {10}


@pytest.mark.parametrize(("by_seed", "both"), [(0.01, 0.003), (0.005, 0.02)])
def test_four_of_five_find_it_where_references_differ(by_seed: float, both: float) -> None:
    """Also where most of the variance is that of a seed and a reference together."""
    rng, trials, hits, seeds, apart = np.random.default_rng(16), 200, 0, 5, 0.004
    shared = {"references": Layer(3, (apart**2 + both**2) / 3, both**2 / 3)}
    known = Spread(math.sqrt(by_seed**2 + both**2 / 3), "", shared)
    size, plain = smallest(known, seeds, 2), smallest(Spread(known.sd, ""), seeds, 2)
    assert size > 1.05 * plain
    for _ in range(trials):
        numbers = rng.normal(0, apart, (1, 3)) + rng.normal(0, by_seed, (seeds, 1)) + rng.normal(0, both, (seeds, 3))
        units = {"references": (dict(enumerate((numbers + size).tolist())), {s: [0.0] * 3 for s in range(seeds)})}
        found = difference(dict(enumerate(numbers.mean(1) + size)), dict.fromkeys(range(seeds), 0.0), units)
        hits += found.p is not None and found.p <= 0.04 / 2
    assert abs(hits / trials - 0.8) < 3.5 * math.sqrt(0.8 * 0.2 / trials)


def test_deviations_are_pooled_by_their_degrees_of_freedom() -> None:
    """Two seeds estimate a deviation far worse than twelve do, and one seed cannot."""
    rng = np.random.default_rng(0)
    ours = [rng.normal(0, size, n) for size, n in ((3.0, 2), (1.0, 12), (2.0, 5), (1.0, 1))]
    differences = [difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0)) for values in ours]
    found = spread(differences, "by these cells")
    squares = sum(len(values) * values.var() for values in ours)
    assert found.sd == pytest.approx(math.sqrt(squares / (1 + 11 + 4)))
    assert (found.source, found.shared) == ("by these cells", {})
    assert spread(differences[3:], "") is None


@pytest.mark.parametrize(("seeds", "comparisons"), [(5, 3), (8, 2), (20, 1)])
def test_the_detectable_difference_has_the_power_of_the_noncentral_t(seeds: int, comparisons: int) -> None:
    """At the first level of Holm's procedure for the planned comparisons, which have 4/5 of the 5 %."""
    size = detectable(seeds, comparisons) or 0
    limit = stats.t.isf(0.04 / comparisons / 2, seeds - 1)
    assert stats.nct.sf(limit, seeds - 1, size * math.sqrt(seeds)) == pytest.approx(0.8)
    assert detectable(4, comparisons) is detectable(seeds, 0) is None
