"""The complete config with the origin of every value."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from electra_lab.config.load import Loaded, dump
from electra_lab.config.sections import DEFAULT_SCALE
from electra_lab.config.source import Loc, parse

WIDEST = 48  # a longer line does not move the comments of the others


def dump_with_origins(loaded: Loaded[Any]) -> str:
    """Return `dump` with a comment after each value: `steps: 3200  # experiments/reformer_small.yaml:16`."""
    text = dump(loaded.config)
    lines = text.split("\n")
    root = parse(text, "", Path())
    starts = [(loc, int(mark.place.removeprefix(":")) - 1) for loc, mark in root.marks() if loc]
    # A text may take several lines; its comment is at the end of the last. Mappings have no comment.
    following = pairwise([*starts, ((), len(lines) - 1)])
    ends = [(loc, line - 1) for (loc, _), (inner, line) in following if inner[: len(loc)] != loc]
    width = max(len(lines[end]) for _, end in ends if len(lines[end]) <= WIDEST)
    for loc, end in ends:
        # A file name may contain anything, a comment ends with its line.
        origin = "".join(c if c.isprintable() else " " for c in _origin(loaded, loc))
        lines[end] = f"{lines[end]:<{width}}  # {origin}"
    return "\n".join(lines)


def _origin(loaded: Loaded[Any], loc: Loc) -> str:
    config, marks = loaded.config, loaded.marks
    if loc in marks:
        return str(marks[loc])
    if loc[0] != "generator" or loc[:2] in marks:
        return "default"
    # Options that the generator takes over; see scaled_generator.
    if loc[1] in ("dim", "heads") and not {("generator", "dim"), ("generator", "heads")} & set(marks):
        scale = marks.get(("generator", "scale"))
        return f"scale, {scale}" if scale else f"default scale {DEFAULT_SCALE}"
    if loc[1] in ("type", "dim", "depth", "heads") or (
        config.generator and config.generator.type == config.discriminator.type
    ):
        return f"as the discriminator, {_origin(loaded, ('discriminator', *loc[1:]))}"
    return "default"
