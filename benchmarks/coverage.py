"""How often the intervals of ablation reports hold, by simulation, and how often a report makes a false claim.

    python benchmarks/coverage.py --trials 1000

In the first two tables, all seeds share 60 documents and three references. For the first one, each trial has new
documents and references, because an interval has to hold for other text and other references, too. It compares four
intervals:

- the reports' own, and Student's t over seeds alone;
- a hierarchical bootstrap, which resamples seeds, documents and references with replacement, 2,000 times (Owen 2007,
  The pigeonhole bootstrap): its percentiles, and its standard error times Student's t of the number of seeds.

A bootstrap should replace the reports' own method if it covers the truth in 93 to 98 % of the trials of every row
with five seeds or more, which are the tested ones. In the second table, four variants differ only in how the
references judge them. In the third, a few documents make most of a
difference: those of each trial are lognormal, centred, with a spread of 0.3; for comparison, normal ones.
"""

import argparse
import math
from itertools import product
from typing import Any

import numpy as np
from scipy.special import stdtrit

from electra_lab.analysis.comparisons import compare
from electra_lab.analysis.intervals import Difference, difference

Array = np.ndarray[Any, np.dtype[np.float64]]
TRUTH = 0.05
DOCUMENTS, REFERENCES, RESAMPLES = 60, 3, 2000


def by(numbers: Array) -> dict[int, Any]:
    """Name the first axis of an array by seed."""
    return dict(enumerate(numbers.tolist()))


def covers(d: Difference, truth: float) -> bool:
    return d.low is not None and d.high is not None and d.low <= truth <= d.high


def resampled(rng: np.random.Generator, units: int) -> Array:
    """Return the weight of each unit in each resample, Float64[RESAMPLES units]."""
    weights: Array = rng.multinomial(units, np.full(units, 1 / units), RESAMPLES) / units
    return weights


def bootstrap(by_document: Array, by_reference: Array, weights: tuple[Array, Array, Array]) -> Array:
    """Return the mean of each resample, Float64[RESAMPLES].

    by_document   Float64[S D], paired differences
    by_reference  Float64[S R], the same differences by reference
    weights       of seeds, documents and references; all seeds share the documents and references
    """
    of_seeds, of_documents, of_references = weights
    means = by_document.mean(1)
    drawn: Array = of_seeds @ means
    drawn += ((of_seeds @ (by_document - means[:, None])) * of_documents).sum(1)
    drawn += ((of_seeds @ (by_reference - means[:, None])) * of_references).sum(1)
    return drawn


def covered(rng: np.random.Generator, seeds: int, documents: float, references: float, trials: int) -> Array:
    """Return the shares of intervals that hold: the reports', Student's t, bootstrap percentiles, bootstrap t."""
    held = np.zeros(4)
    weights = resampled(rng, seeds), resampled(rng, DOCUMENTS), resampled(rng, REFERENCES)
    shape = seeds, DOCUMENTS, REFERENCES
    for _ in range(trials):
        noise = rng.normal(0, 0.02, (seeds, 1, 1)) + rng.normal(0, 0.1, shape)
        by_document = rng.normal(0, documents, (DOCUMENTS, 1)) / math.sqrt(3)
        by_reference = rng.normal(0, references, REFERENCES)
        ours, theirs = TRUTH + by_document + by_reference + noise, rng.normal(0, 0.1, shape)
        layers = {
            "documents": (by(ours.mean(2)), by(theirs.mean(2))),
            "references": (by(ours.mean(1)), by(theirs.mean(1))),
        }
        means = by(ours.mean((1, 2))), by(theirs.mean((1, 2)))
        apart = ours - theirs
        drawn = bootstrap(apart.mean(2), apart.mean(1), weights)
        low, high = np.quantile(drawn, (0.025, 0.975))
        half = float(stdtrit(seeds - 1, 0.975)) * drawn.std()
        held[0] += covers(difference(*means, layers), TRUTH)
        held[1] += covers(difference(*means), TRUTH)
        held[2] += low <= TRUTH <= high
        held[3] += abs(apart.mean() - TRUTH) <= half
    return held / trials


def false_claims(rng: np.random.Generator, seeds: int, references: float, trials: int) -> float:
    """Return the share of reports of four variants in which a planned comparison finds a false difference."""
    wrong = 0
    for _ in range(trials):
        apart = rng.normal(0, references, (4, 1, 1, 3)) * (np.arange(4) > 0)[:, None, None, None]
        parts = apart + rng.normal(0, 0.015, (4, seeds, 1, 1)) + rng.normal(0, 0.03, (4, seeds, 60, 3))
        values = {f"v{i}": by(mean) for i, mean in enumerate(parts.mean((2, 3)))}
        layers = {
            "documents": {f"v{i}": by(mean) for i, mean in enumerate(parts.mean(3))},
            "references": {f"v{i}": by(mean) for i, mean in enumerate(parts.mean(2))},
        }
        found = compare({"auc": values}, "auc", "v0", layers={"auc": layers}).against("auc")
        wrong += any(d.distinguishable for d in found.values())
    return wrong / trials


def covered_documents(rng: np.random.Generator, seeds: int, documents: int, skewed: bool, trials: int) -> float:
    """Return the share of intervals over seeds and documents that hold."""
    held, shape = 0, (seeds, documents)
    for _ in range(trials):
        drawn = rng.lognormal(size=documents) if skewed else rng.normal(size=documents)
        if skewed:
            drawn = (drawn - math.exp(0.5)) / math.sqrt(math.exp(2) - math.exp(1))
        noise = rng.normal(0, 0.02, (seeds, 1)) + rng.normal(0, 0.1, shape)
        ours, theirs = TRUTH + 0.3 * drawn + noise, rng.normal(0, 0.1, shape)
        found = difference(by(ours.mean(1)), by(theirs.mean(1)), {"documents": (by(ours), by(theirs))})
        held += covers(found, TRUTH)
    return held / trials


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trials", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    rng, trials = np.random.default_rng(given.seed), given.trials
    print("seeds  SD of documents  SD of references  reports  seeds alone  bootstrap percentile  bootstrap t")
    for seeds, documents, references in product((2, 3, 5, 8), (0.0, 0.3, 1.0), (0.0, 0.005, 0.02, 0.1)):
        shares = covered(rng, seeds, documents, references, trials)
        ours, alone, percentile, student = (f"{share:.1%}" for share in shares)
        line = f"{seeds:5}  {documents:15}  {references:16}  {ours:>7}  {alone:>11}  {percentile:>20}  {student:>11}"
        print(line, flush=True)
    print("\nseeds  SD of references  reports with a false planned claim (at most 4% of reports)")
    for seeds, references in product((5, 8, 12), (0.0, 0.005, 0.01, 0.02, 0.05)):
        print(f"{seeds:5}  {references:16}  {false_claims(rng, seeds, references, trials):7.1%}", flush=True)
    print("\nseeds  documents  normal  skewed")
    for seeds, documents in product((3, 5, 8), (10, 20, 50, 100, 200, 500)):
        normal, skewed = (covered_documents(rng, seeds, documents, kind, trials) for kind in (False, True))
        print(f"{seeds:5}  {documents:9}  {normal:6.1%}  {skewed:6.1%}", flush=True)


if __name__ == "__main__":
    main()
