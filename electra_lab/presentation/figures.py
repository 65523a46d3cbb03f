"""Figures for a paper: while they are written, each chart of a page is also drawn for a column and a page of print."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from electra_lab.storage.files import disk, new_file
from registry.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")
WIDTH, HEIGHT = 4.4, 3.0  # inches, of a chart on a page: the text is 11 px high on a phone 360 px wide
MOST_HEIGHT = 8.5  # inches, of a figure in print
FONTS = ["STIXGeneral", "DejaVu Sans"]  # fonts that come with matplotlib: Times, and more characters
ELSEWHERE = "'STIXGeneral', 'Times New Roman', 'Liberation Serif', 'DejaVu Sans', serif"  # for viewers of SVG
STYLE_IN_PRINT: dict[str, Any] = {
    "font.family": FONTS,
    "pdf.fonttype": 42,  # TrueType, so that text stays text
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "grid.linewidth": 0.4,
}  # fmt: skip


@dataclass(frozen=True)
class Medium:
    """The place of a chart: its size in inches, the size of its text in points.

    letters  most letters in a line of a variant's label
    lines    most lines of such a label
    """

    name: str
    width: float
    height: float
    font: float
    letters: int
    lines: int


SCREEN = Medium("screen", WIDTH, HEIGHT, 10, 22, 3)
PRINT = (Medium("column", 3.25, 2.3, 8, 24, 2), Medium("page", 6.75, 3.0, 8, 48, 2))
_medium: ContextVar[Medium] = ContextVar("medium", default=SCREEN)


@dataclass
class Figures:
    """The figures that were written to a folder: their captions by the beginning of their names."""

    folder: Path
    captions: dict[str, str] = field(default_factory=dict)


_figures: ContextVar[Figures | None] = ContextVar("figures", default=None)


def medium() -> Medium:
    """Return the medium that is drawn for."""
    return _medium.get()


@contextmanager
def printing(folder: Path) -> Iterator[Figures]:
    """Write each chart that is drawn in the block to a folder. Raises ConfigError, CheckpointError."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--figures {folder}: is not a folder. Name a folder.")
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
    figures = Figures(folder)
    token = _figures.set(figures)
    try:
        yield figures
    finally:
        _figures.reset(token)


def also_printed(draw: Callable[P, T]) -> Callable[P, T]:
    """Let a function that draws a chart draw it for print too, while figures are written."""

    @wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> T:
        for printed in PRINT if _figures.get() and medium() is SCREEN else ():
            token = _medium.set(printed)
            try:
                draw(*arguments, **options)
            finally:
                _medium.reset(token)
        return draw(*arguments, **options)

    return drawn


def size(height: float) -> tuple[float, float]:
    """Return the size in print of a chart with this height on a page."""
    scaled = height * medium().font / SCREEN.font
    return medium().width, medium().height if height == HEIGHT else min(scaled, MOST_HEIGHT)


def in_print(title: str) -> str:
    """Return the title of a vertical axis: a page has it above the chart, a paper in the caption."""
    return "" if medium() is SCREEN else textwrap.fill(title, 30)


class _Wrapper(textwrap.TextWrapper):
    """Breaks labels between the words of a key and before brackets as well, but not within a number."""

    wordsep_re = re.compile(r"(\s+)|(?<=[=,;])|(?=[(\[{])|(?<=[._/])(?=[^\W\d_])")


def wrapped(label: str) -> str:
    """Wrap a label in a few short lines; the tables have the whole label."""
    wrapper = _Wrapper(medium().letters, max_lines=medium().lines, placeholder="...")
    return "\n".join(wrapper.wrap(label[:500]))


def legend(axes: Axes, columns: int) -> None:
    """Explain the lines of a chart above it, so that nothing is hidden; in print below it, in a higher figure."""
    if medium() is SCREEN:
        axes.legend(
            frameon=False, ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0,
            columnspacing=1, handlelength=1.5, handletextpad=0.5,
        )  # fmt: skip
        return
    handles, labels = axes.get_legend_handles_labels()
    labels = [textwrap.shorten(label, 2 * medium().letters, placeholder="...") for label in labels]
    line = 1.3 * medium().font / 72  # inches
    columns = max(1, int(medium().width / (0.5 + 0.35 * line * max(map(len, labels)))))
    figure: Any = axes.figure
    height = medium().height + line * math.ceil(len(labels) / columns)
    figure.set_size_inches(medium().width, min(height, MOST_HEIGHT))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=2.5, columnspacing=1,
        labelspacing=0.3,
    )  # fmt: skip


def write(figure: Figure, name: str, says: str) -> None:
    """Write a figure as SVG with text as text, and as PDF with embedded fonts; the same figure gives the same bytes."""
    figures = _figures.get()
    assert figures
    name = re.sub(r"[^\w.-]", "_", name)
    figures.captions[name] = says
    for format, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
        path = figures.folder / f"{name}-{medium().name}.{format}"
        drawn = io.BytesIO()
        figure.savefig(drawn, format=format, metadata=metadata)
        content = drawn.getvalue()
        if format == "svg":  # the second font is wider than the first one: letters would be clipped
            content = content.replace(repr(FONTS)[1:-1].encode(), ELSEWHERE.encode())
        with disk(path), new_file(path, "wb") as stream:
            stream.write(content)
