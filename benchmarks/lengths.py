"""Measure the time and memory of a step with each backbone, at 512 to 16,384 positions, and how fast they grow.

    python benchmarks/lengths.py --threads 1 --clock processor

A batch is one row, trained on by small pairs of the same sizes: width 128, two layers, four heads; `performer` and
`reformer` are those of experiments/*_long.yaml. An exponent of 1 means that twice the positions take twice the time.
Two are given, round by round: of a line through all lengths on logarithmic axes, and from 1,024 to 8,192 positions.
Memory is measured first, as in memory.py, in a process for each length; a length that would take half of the memory
that is free, if memory grew with the square of the length, is left out. A length that fails is a cell with its error.
With --out, a plot is written to lengths.svg.
"""

import math
import statistics
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import torch
from _alternating import CLOCKS, Seconds, alternate, device_name, markdown, on, parser, reason, spread, tried, write
from _steps import LAB, Case, Step, make, settings_of
from memory import growth

from electra_lab.presentation.pages import LIGHT, MARKERS, drawing

DENSE = "dim: 128, depth: 2, heads: 4"
BACKBONES: dict[str, tuple[str, tuple[str, ...]]] = {  # the experiment and its changes
    "bert": ("reformer_small", (f"discriminator={{type: bert, {DENSE}}}", "generator={type: bert, scale: 0.5}")),
    "transformer": ("transformer_small", ()),
    "performer": ("performer_long", ()),
    "reformer": ("reformer_long", ()),
}
LENGTHS = [512, 1024, 2048, 4096, 8192, 16_384]
BETWEEN = (1024, 8192)
WAY = f"{LAB} fp32"
ByLength = dict[int, list[float]]  # of each round


def case_of(backbone: str, length: int, device: str = "cpu") -> Case:
    experiment, changes = BACKBONES[backbone]
    return Case(experiment, length, 1, changes, device)


def grown(backbone: str, lengths: list[int], threads: int) -> dict[int, float]:
    """Return the MB of each length, up to the first one that might not fit."""
    import psutil

    found = dict[int, float]()
    for length in lengths:
        if found:
            before = max(found)
            if found[before] * (length / before) ** 2 > psutil.virtual_memory().available / 1e6 / 2:
                break
        found[length] = growth(case_of(backbone, length), WAY, threads, [1])[1]
    return found


def timed(
    lengths: Mapping[str, Collection[int]], rounds: int, clock: str, device: str
) -> tuple[dict[str, ByLength], dict[str, dict[int, str]]]:
    """Return the seconds of each round, and the errors; the backbones take turns at each length."""
    found: dict[str, ByLength] = {backbone: {} for backbone in lengths}
    failed: dict[str, dict[int, str]] = {backbone: {} for backbone in lengths}
    for length in sorted(set().union(*lengths.values())):
        ways = dict[str, Step]()
        settings_of(WAY)
        for backbone in (backbone for backbone, of_it in lengths.items() if length in of_it):
            try:
                ways[backbone] = make(case_of(backbone, length, device), WAY)
            except Exception as error:
                failed[backbone][length] = reason(error)
        ways, errors = tried(ways)
        for backbone, why in errors.items():
            failed[backbone][length] = why
        seconds: Seconds = alternate(ways, rounds, before=lambda _: settings_of(WAY), clock=on(device, CLOCKS[clock]))
        for backbone, values in seconds.items():
            found[backbone][length] = values
    return found, failed


def fitted(values: Mapping[int, float]) -> float:
    """Return the slope of the least-squares line through the points on logarithmic axes."""
    return float(np.polyfit(np.log(list(values)), np.log(list(values.values())), 1)[0])


def between(values: Mapping[int, float]) -> float | None:
    """Return the slope from 1,024 to 8,192 positions, None if one of them was not measured."""
    first, last = BETWEEN
    if first not in values or last not in values:
        return None
    return math.log(values[last] / values[first]) / math.log(last / first)


def exponents(values: ByLength) -> tuple[list[float], list[float]]:
    """Return both exponents of each round."""
    rounds = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    through_all = [fitted(known) for known in rounds if len(known) > 1]
    return through_all, [slope for known in rounds if (slope := between(known)) is not None]


def plot(file: Path, seconds: Mapping[str, ByLength], megabytes: Mapping[str, Mapping[int, float]]) -> None:
    """Write lines of time and memory over the length, on logarithmic axes."""
    times = {name: {n: statistics.median(v) for n, v in values.items()} for name, values in seconds.items()}
    with drawing(9, 4) as figure:
        panels = [(title, lines) for title, lines in (("seconds a step", times), ("MB", megabytes)) if lines]
        for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for index, (name, values) in enumerate(lines.items()):
                axes.loglog(list(values), list(values.values()), color=LIGHT[index], marker=MARKERS[index], label=name)
            axes.set(xlabel="positions", ylabel=title, xticks=list(values), xticklabels=[f"{n:,}" for n in values])
            axes.minorticks_off()
            axes.legend()
        figure.savefig(file, format="svg", metadata={"Date": None})


def main() -> None:
    options = parser(__doc__, rounds=3, devices=True)
    options.add_argument("--backbones", nargs="+", choices=BACKBONES, default=list(BACKBONES))
    options.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    options.add_argument("--no-memory", action="store_true", help="measure time alone, of all lengths, as on a GPU")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    wanted = sorted(given.lengths)
    megabytes = (
        {}
        if given.no_memory or given.device != "cpu"
        else {name: grown(name, wanted, given.threads) for name in given.backbones}
    )
    seconds, failed = timed(
        {name: megabytes.get(name, wanted) for name in given.backbones}, given.rounds, given.clock, given.device
    )
    if not any(seconds.values()):
        sys.exit(f"no length could be timed: {failed}")
    rows = []
    for name, values in seconds.items():
        through_all, inside = exponents(values)
        known = {n: f"{statistics.median(times) * 1e3:,.0f} ms" for n, times in values.items()} | failed[name]
        slopes = [spread(found) if found else "" for found in (through_all, inside)]
        rows.append([f"{name}, time", *(known.get(n, "left out") for n in wanted), *slopes])
    for name, sizes in megabytes.items():
        slope = between(sizes)
        cells = [f"{sizes[n]:,.0f} MB" if n in sizes else "left out" for n in wanted]
        rows.append([f"{name}, memory", *cells, f"{fitted(sizes):.2f}", "" if slope is None else f"{slope:.2f}"])
    titles = ["", *(f"{n:,}" for n in wanted), "exponent", f"from {BETWEEN[0]:,} to {BETWEEN[1]:,}"]
    title = f"Lengths: {device_name(given.device, given.threads)}, {given.clock} time, torch {torch.__version__}"
    about = {
        "case": "lengths",
        "threads": given.threads,
        "device": given.device,
        "clock": given.clock,
        "torch": torch.__version__,
    }
    write(
        given.out, title, markdown(titles, rows), about, {"seconds": seconds, "megabytes": megabytes, "failed": failed}
    )
    if given.out is not None:
        plot(given.out / "lengths.svg", seconds, megabytes)


if __name__ == "__main__":
    main()
