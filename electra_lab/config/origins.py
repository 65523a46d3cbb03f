"""The filled-in config with the origin of every value, for people to read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from electra_lab.config.generator import DEFAULT_SCALE
from electra_lab.config.load import Loaded, dump
from electra_lab.config.source import Loc, parse

WIDEST = 48  # longer lines have their comment behind them; others are not pushed out to that


def dump_with_origins(loaded: Loaded) -> str:
    """`dump`, with a comment behind each value: `steps: 3200  # experiments/reformer_small.yaml:16`."""
    text = dump(loaded.config)
    lines = text.split("\n")
    root = parse(text, "", Path())
    starts = [(loc, int(mark.place.removeprefix(":")) - 1) for loc, mark in root.marks() if loc]
    # A text may take several lines; its comment stands at the end of the last. What holds others has none of its own.
    ends = [
        (loc, following - 1)
        for (loc, _), (inner, following) in pairwise([*starts, ((), len(lines) - 1)])
        if inner[: len(loc)] != loc
    ]
    width = max(len(lines[end]) for _, end in ends if len(lines[end]) <= WIDEST)
    for loc, end in ends:
        # A file's name may hold anything, a comment ends with its line.
        origin = "".join(c if c.isprintable() else " " for c in _origin(loaded, loc))
        lines[end] = f"{lines[end]:<{width}}  # {origin}"
    return "\n".join(lines)


def _origin(loaded: Loaded, loc: Loc) -> str:
    if loc in loaded.marks:
        return str(loaded.marks[loc])
    if loc[0] == "generator" and loc[:2] not in loaded.marks:
        return _taken_over(loaded, loc)
    return "default"


def _taken_over(loaded: Loaded, loc: Loc) -> str:
    """The origin of what a generator left out; see scaled_generator."""
    config, marks = loaded.config, loaded.marks
    if loc[1] in ("dim", "heads") and not {("generator", "dim"), ("generator", "heads")} & set(marks):
        scale = marks.get(("generator", "scale"))
        return f"scale, {scale}" if scale else f"default scale {DEFAULT_SCALE}"
    if loc[1] in ("type", "dim", "depth", "heads") or (
        config.generator and config.generator.type == config.discriminator.type
    ):
        return f"as the discriminator, {_origin(loaded, ('discriminator', *loc[1:]))}"
    return "default"
