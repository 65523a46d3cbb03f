"""What the pages of the lab share: their style, and charts as SVG text that fits a light and a dark page.

A page is one file that loads nothing: no script, no font, no picture from elsewhere. The same data give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colours of a chart's series, on a light and on a dark page: after Okabe and Ito's palette for colour-blind
# readers, made darker or lighter until each has the contrast of 3 to 1 that WCAG 2.1 (1.4.11) asks of graphics.
LIGHT = ("#0072b2", "#d55e00", "#00805e", "#a63d8f", "#8a6a00", "#6a3d1f", "#5b6270", "#33209c")
DARK = ("#5cb8f0", "#ff8f4f", "#35c79b", "#e596cb", "#f0d442", "#c79a72", "#b4bbc6", "#a99bff")
PAPER = {"light": "#ffffff", "dark": "#15171a"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")  # one more than colours, so that the pairs differ for long
# matplotlib wants colours of its own. These, which nobody uses, become the page's variables, and grey its soft ink.
SERIES = tuple(f"#0102{i:02x}" for i in range(len(LIGHT)))
SOFT = "#010300"


def _palette(colours: tuple[str, ...]) -> str:
    return " ".join(f"--series-{i}: {colour};" for i, colour in enumerate(colours))


STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1c1e21; --soft: #5c6370; --paper: {PAPER["light"]}; --line: #d8dce2;
  --tint: #f4f6f8; --link: #0a58ca; --mark: 217, 80, 13; {_palette(LIGHT)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e8eb; --soft: #9aa2ad; --paper: {PAPER["dark"]}; --line: #343a42;
    --tint: #1d2025; --link: #7db3ff; --mark: 255, 140, 60; {_palette(DARK)} }}
}}
body {{ margin: 0 auto; max-width: 60rem; padding: 1.5rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); overflow-wrap: break-word; }}
h1 {{ font-size: 1.5rem; margin: 0; }}
h2 {{ font-size: 1.15rem; margin: 2rem 0 .5rem; }}
a {{ color: var(--link); }}
.soft {{ color: var(--soft); }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }}
td.number {{ font-variant-numeric: tabular-nums; font-weight: 600; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr)); gap: 1rem; }}
figure {{ margin: 0; }}
figcaption {{ font-weight: 600; }}
svg {{ width: 100%; height: auto; }}
pre {{ overflow-x: auto; padding: 1rem; border: 1px solid var(--line); border-radius: .5rem; font-size: .85rem; }}
"""


def look(index: int) -> dict[str, Any]:
    """Colour and marker of a chart's series. Both differ, as not everybody sees the colours."""
    return {"color": SERIES[index % len(SERIES)], "marker": MARKERS[index % len(MARKERS)]}


def render(package: str, **values: Any) -> str:
    """report.html.j2 of a package; every value is escaped unless the template says otherwise."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = files(package).joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(style=STYLE, **values)


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches to draw on and to hand to `svg`. Text is text: a dollar sign begins no formula."""
    import matplotlib
    from matplotlib.figure import Figure

    with (
        matplotlib.rc_context(
            {"svg.hashsalt": "electra_lab", "svg.fonttype": "none", "font.size": 10, "text.parse_math": False}
        ),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts count, not matplotlib's
        yield Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure, name: str, says: str = "") -> str:
    """The figure as SVG text without a fixed size or date, in the page's own colours.

    name  stands before the figure's ids, which are unique on the page if the names are
    says  what a reader hears who sees no picture; without it the picture is silent, as for a key beside its text
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
    # matplotlib writes text without a fill, which is black; the page may be dark.
    drawn = drawn.replace('<text style="', '<text style="fill: currentColor; ')
    head, rest = drawn.split(">", 1)
    head = re.sub(r' (width|height|xmlns:xlink)="[^"]*"', "", head)
    rest = rest.replace("xlink:href", "href")
    voice = f' role="img" aria-label="{escape(says)}"' if says else ' aria-hidden="true"'
    return f"{head}{voice}>{rest}"
