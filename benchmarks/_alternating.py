"""Time several ways of doing the same thing, alternating in one process, so that a busy machine slows all of them."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

Seconds = dict[str, list[float]]
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def alternate(
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 1,
    before: Callable[[str], object] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
    calls: int = 1,
) -> Seconds:
    """Return the seconds of every call after `warm_up` rounds; every other round runs the ways in reverse.

    before  called with the name before each way, which it may prepare; its time does not count
    clock   time.process_time counts the processor's time, which other programs on the machine hardly change; `on` is
            for GPUs
    calls   of a way in each round, of which the mean is returned
    """
    seconds: Seconds = {name: [] for name in ways}
    for round in range(-warm_up, rounds):
        for name in list(ways)[:: 1 if round % 2 else -1]:
            before(name)
            began = clock()
            for _ in range(calls):
                ways[name]()
            if round >= 0:
                seconds[name].append((clock() - began) / calls)
    return seconds


def on(device: str, clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """Return a clock that first waits for a GPU to finish."""
    if device == "cpu":
        return clock

    def after_waiting() -> float:
        torch.cuda.synchronize()
        return clock()

    return after_waiting


def device_name(device: str, threads: int) -> str:
    """Return the name of a GPU, or the number of threads of a CPU."""
    return f"{threads} threads" if device == "cpu" else torch.cuda.get_device_name()


def tried(ways: Mapping[str, Callable[[], object]]) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Call each way once; return those that worked, and the errors of the others, by name."""
    working, failed = dict[str, Callable[[], object]](), dict[str, str]()
    for name, way in ways.items():
        try:
            way()
        except Exception as error:  # a missing kernel or too little memory does not stop the others
            failed[name] = reason(error)
        else:
            working[name] = way
    return working, failed


def reason(error: Exception) -> str:
    """Return the first line of an error, as a cell of a table."""
    lines = str(error).strip().splitlines() or [""]
    return f"failed: {type(error).__name__}: {lines[0][:160]}".replace("|", "/")


def ratios(seconds: Seconds, base: str, name: str) -> list[float]:
    """Return how many times as fast `name` was as `base`, round by round."""
    return [theirs / ours for theirs, ours in zip(seconds[base], seconds[name], strict=True)]


def spread(values: list[float], form: str = ",.2f") -> str:
    """Return the median, minimum and maximum as text."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(
    seconds: Seconds,
    bases: list[str],
    more: Mapping[str, Mapping[str, str]] | None = None,
    missing: Mapping[str, str] | None = None,
) -> str:
    """Return medians and, per base, the median ratio, each with minimum and maximum, as a Markdown table.

    more     cells of further columns, by title and name
    missing  what could not be timed, and why
    """
    more = more or {}
    rows = []
    for name, values in seconds.items():
        compared = [spread(ratios(seconds, base, name)) for base in bases]
        times = spread([value * 1e3 for value in values], ",.1f")
        rows.append([name, times, *compared, *(cells.get(name, "") for cells in more.values())])
    rows += [[name, why, *[""] * (len(bases) + len(more))] for name, why in (missing or {}).items()]
    return markdown(["", "median ms", *(f"times as fast as {base}" for base in bases), *more], rows)


def markdown(titles: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [titles, *rows]
    lines.insert(1, ["---"] * len(titles))
    return "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|" for line in lines)


def parser(
    about: str | None, rounds: int, threads: int = 2, clock: str = "wall", devices: bool = False
) -> argparse.ArgumentParser:
    """Return a parser of the options that all comparisons share; with `devices`, also of `--device`."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--threads", type=int, default=threads)
    made.add_argument("--clock", choices=CLOCKS, default=clock)
    if devices:
        made.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    made.add_argument("--out", type=Path, help="folder; results.jsonl and results.md there are continued")
    return made


def write(out: Path | None, title: str, table: str, case: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Print a comparison and, if there is a folder, append it to its JSON lines and its Markdown."""
    print(f"{title}\n\n{table}\n", flush=True)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        about = {"title": title, "machine": platform.processor(), **case}
        with (out / "results.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(about | values) + "\n")
        with (out / "results.md").open("a", encoding="utf-8") as text:
            text.write(f"## {title}\n\n{table}\n\n")
