"""Time several ways of doing the same thing in one process, in turns, so that a busy machine slows all of them."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Seconds = dict[str, list[float]]


def alternate(
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 1,
    before: Callable[[str], object] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Seconds:
    """Return the seconds of every call but the first `warm_up` rounds; every other round goes backwards.

    before  called with the name before each call, which it may prepare; its time does not count
    clock   time.process_time counts the processor's time, which other programs on the machine hardly change
    """
    seconds: Seconds = {name: [] for name in ways}
    for round in range(-warm_up, rounds):
        for name in list(ways)[:: 1 if round % 2 else -1]:
            before(name)
            began = clock()
            ways[name]()
            if round >= 0:
                seconds[name].append(clock() - began)
    return seconds


def ratios(seconds: Seconds, base: str, name: str) -> list[float]:
    """Return how many times as fast `name` was as `base`, round by round."""
    return [theirs / ours for theirs, ours in zip(seconds[base], seconds[name], strict=True)]


def table(seconds: Seconds, bases: list[str]) -> str:
    """Return medians and, per base, the median ratio with the least and the largest, as a Markdown table."""
    lines = [f"| | median ms | {' | '.join(f'times as fast as {base}' for base in bases)} |"]
    lines.append("|---" * (2 + len(bases)) + "|")
    for name, values in seconds.items():
        cells = []
        for base in bases:
            found = ratios(seconds, base, name)
            cells.append(f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
        lines.append(f"| {name} | {statistics.median(values) * 1e3:,.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(file: Path | None, case: Mapping[str, Any], seconds: Seconds) -> None:
    """Append one case to a file of JSON lines, if there is one."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({**case, "seconds": seconds}) + "\n")
