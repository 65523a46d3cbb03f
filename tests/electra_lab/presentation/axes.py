"""The content of matplotlib's axes, as numbers."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.markers import MarkerStyle

from electra_lab.presentation.pages import MARKERS, look

Point = tuple[float, float]
Drawn = dict[str, Axes]


@dataclass(frozen=True)
class Mark:
    """A mean with its interval and its single values. `look` has colour and marker."""

    look: dict[str, Any]
    mean: Point
    bar: tuple[Point, Point] | None
    seeds: list[Point]


def marks(axes: Axes) -> list[Mark]:
    """Return the means of a chart in the order in which they were drawn."""
    scattered = [collection for collection in axes.collections if isinstance(collection, PathCollection)]
    bars = {}
    for container in axes.containers:
        assert isinstance(container, ErrorbarContainer)
        [segment] = container.lines[2][0].get_segments()
        low, high = (tuple(map(float, end)) for end in segment)
        bars[((low[0] + high[0]) / 2, (low[1] + high[1]) / 2)] = (low, high), container.lines[0].get_color()
    found = []
    for hollow, filled in zip(scattered[::2], scattered[1::2], strict=True):
        assert not len(hollow.get_facecolor())
        colour = to_hex(filled.get_facecolor()[0])
        assert to_hex(hollow.get_edgecolor()[0]) == colour
        assert marker(hollow) == marker(filled)
        [mean] = offsets(filled)
        bar = next((bar for middle, bar in bars.items() if np.allclose(middle, mean, rtol=1e-9)), None)
        assert bar is None or bar[1] == colour
        found.append(Mark({"color": colour, "marker": marker(filled)}, mean, bar and bar[0], offsets(hollow)))
    assert sum(mark.bar is not None for mark in found) == len(bars)
    return found


def offsets(points: PathCollection) -> list[Point]:
    return [(float(x), float(y)) for x, y in points.get_offsets()]


def marker(points: PathCollection) -> str:
    """Return the name of the marker that was drawn."""
    [path] = points.get_paths()
    for name in MARKERS:
        style = MarkerStyle(name)
        vertices = style.get_path().transformed(style.get_transform()).vertices
        if vertices.shape == path.vertices.shape and np.allclose(vertices, path.vertices):
            return name
    raise AssertionError("an unknown marker")


def lines(axes: Axes) -> list[tuple[dict[str, Any], list[Point]]]:
    """Return (look, points) of each line."""
    found = []
    for line in axes.lines:
        look = {"color": line.get_color(), "marker": line.get_marker()}
        found.append((look, [(float(x), float(y)) for x, y in line.get_xydata()]))
    return found


def ticks(axes: Axes, along: str) -> dict[float, str]:
    """Return the labels of an axis by position."""
    axis = axes.xaxis if along == "x" else axes.yaxis
    shown = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return {float(tick): label.get_text() for tick, label in shown}


def number_of(shown: dict[str, Any]) -> int:
    """Return the number of the series with this look."""
    return next(i for i in range(72) if look(i) == shown)


def overlaps(axes: Axes) -> list[str]:
    """Return overlaps: texts that cover each other or leave the picture, and a legend on the curves."""
    figure = axes.figure
    figure.draw_without_rendering()
    texts = [axes.xaxis.label, axes.yaxis.label]
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        shown = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        texts += [label for tick, label in shown if low <= tick <= high]
    legend = axes.get_legend()
    texts += legend.get_texts() if legend else []
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.5)) for text in texts if text.get_text()]
    found = [f"{a!r} and {b!r}" for (a, box), (b, second) in combinations(boxes, 2) if box.overlaps(second)]
    width, height = figure.bbox.width, figure.bbox.height
    found += [text for text, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height]
    if legend and legend.get_window_extent().padded(-0.5).overlaps(axes.get_window_extent()):
        found.append("the legend")
    return found
