"""Pages and their charts. A page is one file that loads nothing, no font and no picture; its charts are SVG text.

The page of a living job reloads itself. Charts fit a light and a dark page, and the same data give the same bytes.
While figures for a paper are written, each chart is also drawn for a column and for a page of print.
"""

from __future__ import annotations

import html
import io
import logging
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from electra_lab.analysis.records import Records, of_split, points
from electra_lab.presentation.figures import (
    HEIGHT,
    SCREEN,
    STYLE_IN_PRINT,
    WIDTH,
    also_printed,
    in_print,
    legend,
    medium,
    size,
    write,
)
from electra_lab.presentation.text import short
from electra_lab.storage.run_directory import UNFINISHED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Points = Sequence[tuple[float, float]]
LEAST_SPAN = 0.02  # of a vertical axis, relative to its values: smaller changes must not look like something

# The colours of a chart's series, on a light and on a dark page: after Okabe and Ito's palette for colour-blind
# readers, made darker or lighter until each has the contrast of 3 to 1 that WCAG 2.1 (1.4.11) requires of graphics.
LIGHT = ("#0072b2", "#d55e00", "#00805e", "#a63d8f", "#8a6a00", "#6a3d1f", "#5b6270", "#33209c")
DARK = ("#5cb8f0", "#ff8f4f", "#35c79b", "#e596cb", "#f0d442", "#c79a72", "#b4bbc6", "#a99bff")
PAPER = {"light": "#ffffff", "dark": "#15171a"}
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # in print, which may lack colours
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")  # one more than colours, so that more pairs differ
# matplotlib needs fixed colours. These, which nobody uses, are replaced by the page's variables.
SERIES = tuple(f"#0102{i:02x}" for i in range(len(LIGHT)))
SOFT = "#010300"


@dataclass(frozen=True)
class Chart:
    """A picture. `caption` is its title, `note` says how to read it."""

    caption: str
    svg: str
    note: str = ""


def look(index: int) -> dict[str, Any]:
    """Return colour and marker of a chart's series. Both differ, as not everybody sees the colours."""
    marker = MARKERS[index % len(MARKERS)]
    if medium() is SCREEN:
        return {"color": SERIES[index % len(SERIES)], "marker": marker}
    return {"color": LIGHT[index % len(LIGHT)], "marker": marker, "linestyle": DASHES[index % len(DASHES)]}


@contextmanager
def drawing(width: float = WIDTH, height: float = HEIGHT) -> Iterator[Figure]:
    """Open a figure of this size in inches, to pass to `svg`. A dollar sign in text is not a formula.

    In print, the medium sets the width and scales the height.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # that it cannot keep its cache concerns nobody
    import matplotlib
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.hashsalt": "electra_lab",
        "svg.fonttype": "none",
        "font.size": medium().font,
        "text.parse_math": False,
    }
    if medium() is not SCREEN:
        settings |= STYLE_IN_PRINT
        width, height = size(height)
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts count, not matplotlib's
        yield Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure, name: str, says: str = "") -> str:
    """Return the figure as SVG text without a fixed size or date, in the page's own colours.

    name  prefix of the figure's ids, which are unique on the page if the names are
    says  alternative text for screen readers; without it the picture is hidden from them
    """
    if medium() is not SCREEN:
        write(figure, name, says)
        return ""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>\s*", "", drawn, flags=re.S)
    # Ids that the picture refers to begin with the name; the others go.
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawn))
    drawn = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", drawn)
    drawn = re.sub(r'(href="#|url\(#)([^")]+)', rf"\g<1>{name}-\g<2>", drawn)
    # The page's colours. matplotlib writes text without a fill, which means black; the page may be dark.
    for i, colour in enumerate(SERIES):
        drawn = drawn.replace(colour, f"var(--series-{i})")
    drawn = drawn.replace(SOFT, "var(--soft)").replace("#000000", "currentColor")
    drawn = drawn.replace('<text style="', '<text style="fill: currentColor; ')
    head, rest = drawn.split(">", 1)
    head = re.sub(r' (width|height|xmlns:xlink)="[^"]*"', "", head)
    rest = rest.replace("xlink:href", "href")
    voice = f' role="img" aria-label="{html.escape(says)}"' if says else ' aria-hidden="true"'
    return f"{head}{voice}>{rest}"


def finish(axes: Axes, xlabel: str, ylabel: str = "", large: bool = False) -> None:
    """Name the axes, and style them as in all charts; `large` numbers on the horizontal axis are shortened."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.grid(alpha=0.25)
    if large:
        axes.xaxis.set_major_formatter(lambda x, _: short(x))
        axes.xaxis.set_minor_formatter(lambda x, _: "")
        if axes.get_xscale() == "linear":
            axes.locator_params(axis="x", nbins=5)


@also_printed
def curves(name: str, title: str, lines: Mapping[str, Points], baselines: Mapping[str, Points]) -> Chart:
    """Draw lines over the steps of a training, by their labels; baselines are dashed."""
    with drawing() as figure:
        axes = figure.subplots()
        styles = [look(i) for i in range(len(lines))]
        styles += [{"color": SOFT, "marker": "o", "linestyle": ("--", ":", "-.")[i % 3]} for i in range(len(baselines))]
        drawn = [*lines.items(), *baselines.items()]
        for (label, line), style in zip(drawn, styles, strict=True):
            every = max(1, len(line) // 6) if in_print(title) else None  # colour alone must not identify a line
            if len(line) >= 20 and every is None:
                style["marker"] = None
            if line:
                axes.plot(*zip(*line, strict=True), markersize=4, label=label, markevery=every, **style)
        # Changes that mean nothing look like nothing.
        _, low, _, high = axes.dataLim.extents
        least = LEAST_SPAN * max(abs(low), abs(high))
        if high - low < least:
            axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)
        finish(axes, "step", in_print(title))
        legend(axes, 2 if baselines else 4)
        return Chart(title, svg(figure, name, title))


@also_printed
def overlay(
    name: str,
    caption: str,
    says: str,
    lines: Iterable[tuple[Sequence[float], Sequence[float], int]],
    xlabel: str,
    labels: Sequence[str],
) -> Chart:
    """Draw lines on one axis, each in the look of a number.

    labels  label of each number; a page has a key for all of its charts, a figure in print has a legend
    """
    with drawing() as figure:
        axes, explained = figure.subplots(), set[int]()
        for xs, ys, number in lines:
            every = max(1, len(xs) // 5)  # a few markers, as colour alone must not identify a line
            label = labels[number] if len(xs) and number not in explained else None
            axes.plot(xs, ys, linewidth=1, markersize=3.5, alpha=0.85, markevery=every, label=label, **look(number))
            explained |= {number} if len(xs) else set()
        finish(axes, xlabel, in_print(says), large=True)
        if in_print(says):
            legend(axes, 1)
        return Chart(caption, svg(figure, name, says))


Lines = dict[str, Points]
COURSE = {  # by the key of the records
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm before and after clipping",
    "tokens_per_second": "Tokens a second",
    "peak_memory_bytes": "Peak memory, GB",
    "batch_size": "Rows of a step",  # recorded if they change
    "generator_z_loss": "z-loss of the generator: mean squared log-normalizer",
    "discriminator_z_loss": "z-loss of the discriminator: mean squared log-normalizer",
}
NORMS = {  # are drawn with the norm of all parameters
    "clipped_gradient_norm": "clipped", "generator_gradient_norm": "generator",
    "discriminator_gradient_norm": "discriminator",
}  # fmt: skip
SCALE = {"peak_memory_bytes": 1e-9}


def training_charts(runs: Mapping[str, Records], first: Mapping[str, str] = {}) -> list[Chart]:
    """Draw the numbers of COURSE, and every scheduled one, that were recorded more than once.

    runs   the records of each run that is drawn, by its label
    first  further numbers of training with their titles
    """
    scheduled = dict[str, str]()
    for records in runs.values():
        for record in of_split(records, "train"):
            scheduled |= {key: key for key in record if "." in key}  # the place of a number in the config
    charts = []
    for key, title in {**first, **COURSE, **scheduled}.items():
        norms = NORMS if key == "gradient_norm" and len(runs) == 1 else {}  # otherwise there are too many lines
        lines = Lines()
        for label, records in runs.items():
            line = points(records, "train", key)
            lines[label] = [(step, value * SCALE.get(key, 1)) for step, value in line]
            for norm, words in norms.items():
                if line := points(records, "train", norm):
                    lines[f"{label}, {words}"] = line
        if any(len(line) > 1 for line in lines.values()):
            title = title.replace(" and after", "") if len(runs) > 1 else title
            charts.append(curves(f"training-{key}", title, lines, {}))
    return charts


@dataclass(frozen=True)
class Unfinished:
    """The state of a job whose page is not the last one.

    how    `running`, or how it ended too early
    pause  seconds between its last two pages, and about until the next one
    """

    how: str
    pause: float = 0.0
    clock: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))

    @property
    def lives(self) -> bool:
        return self.how == "running"

    @property
    def reload(self) -> int:
        """The seconds after which the page loads itself again."""
        return int(min(max(self.pause, 5), 60))


def render(template: str, **values: Any) -> str:
    """Fill a template of this package; every value is escaped unless the template says otherwise."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("electra_lab", "presentation")
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, undefined=StrictUndefined, **options)
    environment.globals |= {"style": Markup(STYLE), "unfinished": None, "mark": Markup(UNFINISHED)}
    environment.filters["breakable"] = breakable
    return environment


def breakable(text: str) -> str:
    """Allow line breaks in labels of variants, between their changes."""
    return text if isinstance(text, Markup) else Markup(re.sub(r"([,=])(?=\S)", r"\1<wbr>", str(escape(text))))


def _style() -> str:
    style = files("electra_lab.presentation").joinpath("style.css").read_text(encoding="utf-8")
    for scheme, colours in (("light", LIGHT), ("dark", DARK)):
        series = " ".join(f"--series-{i}: {colour};" for i, colour in enumerate(colours))
        style = style.replace(f"$paper-{scheme}", PAPER[scheme]).replace(f"$series-{scheme}", series)
    return style


STYLE = _style()
