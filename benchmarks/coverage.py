"""How often the intervals of ablation reports hold, by simulation, and how often a report makes a false claim.

    python benchmarks/coverage.py --trials 1000

All seeds share 60 documents and three references. For the first table, each trial has new documents and references,
because an interval has to hold for other text and other references, too. In the second, four variants differ only in
how the references judge them. In the third, only some of the seeds break out.
"""

import argparse
import math
from itertools import product
from typing import Any

import numpy as np

from electra_lab.analysis.bimodality import two_groups
from electra_lab.analysis.comparisons import claims
from electra_lab.analysis.statistics import Difference, difference

Array = np.ndarray[Any, np.dtype[np.float64]]
TRUTH = 0.05


def by(numbers: Array) -> dict[int, Any]:
    """Name the first axis of an array by seed."""
    return dict(enumerate(numbers.tolist()))


def covers(d: Difference, truth: float) -> bool:
    return d.low is not None and d.high is not None and d.low <= truth <= d.high


def covered(rng: np.random.Generator, seeds: int, documents: float, references: float, trials: int) -> Array:
    """Return the shares of intervals that hold: over all, and over seeds alone."""
    held = np.zeros(2)
    for _ in range(trials):
        noise = rng.normal(0, 0.02, (seeds, 1, 1)) + rng.normal(0, 0.1, (seeds, 60, 3))
        by_document, by_reference = rng.normal(0, documents, (60, 1)) / math.sqrt(3), rng.normal(0, references, 3)
        ours, theirs = TRUTH + by_document + by_reference + noise, rng.normal(0, 0.1, (seeds, 60, 3))
        layers = {
            "documents": (by(ours.mean(2)), by(theirs.mean(2))),
            "references": (by(ours.mean(1)), by(theirs.mean(1))),
        }
        means = by(ours.mean((1, 2))), by(theirs.mean((1, 2)))
        held += [covers(difference(*means, known), TRUTH) for known in (layers, None)]
    return held / trials


def false_claims(rng: np.random.Generator, seeds: int, references: float, trials: int) -> float:
    """Return the share of reports of four variants in which a planned comparison finds what is not there."""
    wrong = 0
    for _ in range(trials):
        apart = rng.normal(0, references, (4, 1, 1, 3)) * (np.arange(4) > 0)[:, None, None, None]
        parts = apart + rng.normal(0, 0.015, (4, seeds, 1, 1)) + rng.normal(0, 0.03, (4, seeds, 60, 3))
        values = {f"v{i}": by(each) for i, each in enumerate(parts.mean((2, 3)))}
        layers = {
            "documents": {f"v{i}": by(each) for i, each in enumerate(parts.mean(3))},
            "references": {f"v{i}": by(each) for i, each in enumerate(parts.mean(2))},
        }
        found = claims({"auc": values}, "auc", "v0", layers={"auc": layers}).against("auc")
        wrong += any(d.distinguishable for d in found.values())
    return wrong / trials


def broken_out(rng: np.random.Generator, rates: tuple[float, ...], gap: float, trials: int) -> tuple[float, float]:
    """Return the shares of five seeds' intervals that hold or are warned of, and of reports with a warning."""
    good = warnings = 0
    for _ in range(trials):
        out = rng.random((len(rates), 5)) < np.array(rates)[:, None]
        values = {f"v{i}": by(each) for i, each in enumerate(rng.normal(size=out.shape) + gap * out)}
        warned = two_groups(values) is not None
        warnings += warned
        for i, rate in enumerate(rates[1:], 1):
            good += warned or covers(difference(values[f"v{i}"], values["v0"]), gap * (rate - rates[0]))
    return good / trials / (len(rates) - 1), warnings / trials


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trials", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    rng, trials = np.random.default_rng(given.seed), given.trials
    print("seeds  SD of documents  SD of references  covered  by seeds alone")
    for seeds, documents, references in product((5, 8), (0.0, 0.3, 1.0), (0.0, 0.005, 0.02, 0.1)):
        held = covered(rng, seeds, documents, references, trials)
        print(f"{seeds:5}  {documents:15}  {references:16}  {held[0]:7.1%}  {held[1]:14.1%}", flush=True)
    print("\nseeds  SD of references  reports with a false planned claim (at most 4% of reports)")
    for seeds, references in product((5, 8, 12), (0.0, 0.005, 0.01, 0.02, 0.05)):
        print(f"{seeds:5}  {references:16}  {false_claims(rng, seeds, references, trials):7.1%}", flush=True)
    print("\nshares that break out       gap in SDs  covered or warned  warned")
    some = ((0.2, 0.5), (0.5, 0.5), (0.2, 0.8), (0.0, 0.5, 1.0), (0.2, 0.5, 0.8, 0.5), (0.1, 0.3, 0.5, 0.7, 0.9))
    for rates, gap in product(some, (4.0, 10.0)):
        good, warned = broken_out(rng, rates, gap, trials)
        print(f"{', '.join(map(str, rates)):26}  {gap:10}  {good:17.1%}  {warned:6.1%}", flush=True)


if __name__ == "__main__":
    main()
