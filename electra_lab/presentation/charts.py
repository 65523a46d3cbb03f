"""Parts that all pages share: their style, and charts as SVG text that fits a light and a dark page.

A page is one file that loads nothing: no script, no font, no external picture. The same data give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

# The colours of a chart's series, on a light and on a dark page: after Okabe and Ito's palette for colour-blind
# readers, made darker or lighter until each has the contrast of 3 to 1 that WCAG 2.1 (1.4.11) requires of graphics.
LIGHT = ("#0072b2", "#d55e00", "#00805e", "#a63d8f", "#8a6a00", "#6a3d1f", "#5b6270", "#33209c")
DARK = ("#5cb8f0", "#ff8f4f", "#35c79b", "#e596cb", "#f0d442", "#c79a72", "#b4bbc6", "#a99bff")
PAPER = {"light": "#ffffff", "dark": "#15171a"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")  # one more than colours, so that many pairs differ
# matplotlib needs fixed colours. These, which nobody uses, are replaced by the page's variables.
SERIES = tuple(f"#0102{i:02x}" for i in range(len(LIGHT)))
SOFT = "#010300"


def _style() -> str:
    style = files("electra_lab.presentation").joinpath("style.css").read_text(encoding="utf-8")
    for scheme, colours in (("light", LIGHT), ("dark", DARK)):
        series = " ".join(f"--series-{i}: {colour};" for i, colour in enumerate(colours))
        style = style.replace(f"$paper-{scheme}", PAPER[scheme]).replace(f"$series-{scheme}", series)
    return style


STYLE = _style()


def look(index: int) -> dict[str, Any]:
    """Return colour and marker of a chart's series. Both differ, as not everybody sees the colours."""
    return {"color": SERIES[index % len(SERIES)], "marker": MARKERS[index % len(MARKERS)]}


def render(template: str, **values: Any) -> str:
    """Fill a template of this package; every value is escaped unless the template says otherwise."""
    return _template(template).render(style=STYLE, **values)


@cache  # compiling one takes as long as filling it a hundred times, and an ablation writes many pages
def _template(name: str) -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files("electra_lab.presentation").joinpath(name).read_text(encoding="utf-8"))


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Open a figure of so many inches, to draw on and to pass to `svg`. A dollar sign in text is not a formula."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.hashsalt": "electra_lab",
        "svg.fonttype": "none",
        "font.size": 10,
        "text.parse_math": False,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts count, not matplotlib's
        yield Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure, name: str, says: str = "") -> str:
    """Return the figure as SVG text without a fixed size or date, in the page's own colours.

    name  prefix of the figure's ids, which are unique on the page if the names are
    says  the alternative text for screen readers; without it the picture is hidden from them
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>\s*", "", drawn[drawn.index("<svg") :], flags=re.S)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawn))
    drawn = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", drawn)
    drawn = re.sub(r'(href="#|url\(#)([^")]+)', rf"\g<1>{name}-\g<2>", drawn)
    for i, colour in enumerate(SERIES):
        drawn = drawn.replace(colour, f"var(--series-{i})")
    drawn = drawn.replace(SOFT, "var(--soft)").replace("#000000", "currentColor")
    # matplotlib writes text without a fill, which means black; the page may be dark.
    drawn = drawn.replace('<text style="', '<text style="fill: currentColor; ')
    head, rest = drawn.split(">", 1)
    head = re.sub(r' (width|height|xmlns:xlink)="[^"]*"', "", head)
    rest = rest.replace("xlink:href", "href")
    voice = f' role="img" aria-label="{escape(says)}"' if says else ' aria-hidden="true"'
    return f"{head}{voice}>{rest}"
