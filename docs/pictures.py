"""Write the pictures of README and of the site to docs/images.

python docs/pictures.py                 family.svg, the costs of docs/family.md as bars; generator_curves.svg and
                                        detection_curves.svg, the curves of docs/findings/learning_curves.csv
python docs/pictures.py KIND PAGE       KIND-light.png and KIND-dark.png, the top of a page; KIND is run, ablation,
                                        finetuning, comparison or data, and PAGE a file, or a folder with a report

The pages are pictured by chromium (or CHROMIUM, a path to it).
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
SCHEMES = {"dark": 0, "light": 1}
SIZES = {  # of the top of a page
    "run": (1100, 1500),
    "ablation": (1100, 1280),
    "finetuning": (1100, 1100),
    "comparison": (1100, 1100),
    "data": (1100, 1100),
}
COLOURS = 64  # enough for text and curves, and a quarter of the size

COST = re.compile(r"^\| (`\w+`(?:, [^|]+?)?) \| (\d\.\d\d) \|", re.MULTILINE)
WIDTH, LINE, LEFT, UNIT = 620, 24, 220, 180  # of family.svg, in pixels; UNIT is the cost of a step of electra
STYLE = """
  rect.page { fill: #ffffff } rect.bar { fill: #4051b5 } line { stroke: #00000055 } text { fill: #1f2328 }
  text { font: 14px system-ui, sans-serif }
  @media (prefers-color-scheme: dark) {
    rect.page { fill: #1e1f24 } rect.bar { fill: #8c9eff } line { stroke: #ffffff66 } text { fill: #e6e6e6 }
  }
"""

# The drawings of learning curves: pixels of the picture, and of the field between its axes.
CURVES_WIDTH, CURVES_HEIGHT = 400, 260
FIELD_LEFT, FIELD_RIGHT, FIELD_TOP, FIELD_BOTTOM = 44, 390, 58, 222
MARKS = {
    "transformer_tiny": '<circle class="{style}" cx="{x}" cy="{y}" r="3.5"/>',
    "reformer_small": '<rect class="{style}" x="{left}" y="{top}" width="7" height="7"/>',
}
CURVE_STYLE = """
  rect.page { fill: #ffffff } line { stroke: #00000022 } line.zero { stroke: #000000aa } text { fill: #1f2328 }
  text { font: 14px system-ui, sans-serif } polyline { fill: none; stroke-width: 2 }
  .reformer_small { fill: #4051b5; stroke: #4051b5 } .transformer_tiny { fill: #b54a00; stroke: #b54a00 }
  @media (prefers-color-scheme: dark) {
    rect.page { fill: #1e1f24 } line { stroke: #ffffff26 } line.zero { stroke: #ffffffaa } text { fill: #e6e6e6 }
    .reformer_small { fill: #8c9eff; stroke: #8c9eff } .transformer_tiny { fill: #ffa766; stroke: #ffa766 }
  }
"""
Point = tuple[int, float]


def costs() -> list[tuple[str, float]]:
    """Return the methods of docs/family.md with the cost of their step, relative to that of `electra`."""
    rows = COST.findall((DOCS / "family.md").read_text(encoding="utf-8"))
    return [(name.replace("`", ""), float(cost)) for name, cost in rows]


def bars(rows: list[tuple[str, float]]) -> str:
    """Return an SVG with a bar for each row, and a line at 1."""
    height = LINE * len(rows) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{STYLE}</style>",
        "<title>The cost of a step of each method, relative to a step of electra</title>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
    ]
    for number, (name, cost) in enumerate(rows):
        top, length = 8 + LINE * number, round(cost * UNIT)
        parts += [
            f'<text x="{LEFT - 8}" y="{top + 17}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="bar" x="{LEFT}" y="{top + 4}" width="{length}" height="{LINE - 8}"/>',
            f'<text x="{LEFT + max(length, UNIT) + 6}" y="{top + 17}">{cost:.2f}</text>',
        ]
    parts.append(f'<line x1="{LEFT + UNIT}" y1="6" x2="{LEFT + UNIT}" y2="{height - 6}" stroke-dasharray="3 3"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def learning_curves() -> tuple[dict[str, list[Point]], dict[str, list[Point]]]:
    """Return two kinds of curves by experiment, each a list of steps with numbers.

    The first is the loss of the generator at [MASK], in nats below that of word frequencies; the second the AUC of the
    discriminator. Both are of validation text.
    """
    gains: dict[str, list[Point]] = {}
    areas: dict[str, list[Point]] = {}
    with (DOCS / "findings" / "learning_curves.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            step, name = int(row["step"]), row["experiment"]
            gain = float(row["unigram_mask_entropy"]) - float(row["generator_mask_loss"])
            gains.setdefault(name, []).append((step, gain))
            areas.setdefault(name, []).append((step, float(row["discriminator_auc"])))
    return gains, areas


def curves(title: str, lines: dict[str, list[Point]], ticks: Sequence[float], zero: float) -> str:
    """Return an SVG with a curve for each experiment, a line at `zero`, and numbers at `ticks` of the vertical axis."""
    last = max(step for points in lines.values() for step, _ in points)
    low, high = ticks[0], ticks[-1]

    def across(step: float) -> int:
        return round(FIELD_LEFT + (FIELD_RIGHT - FIELD_LEFT) * step / last)

    def up(value: float) -> int:
        return round(FIELD_BOTTOM - (FIELD_BOTTOM - FIELD_TOP) * (value - low) / (high - low))

    # Frame and title.
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{CURVES_WIDTH}" height="{CURVES_HEIGHT}" '
        f'viewBox="0 0 {CURVES_WIDTH} {CURVES_HEIGHT}" role="img">',
        f"<style>{CURVE_STYLE}</style>",
        f"<title>{title}</title>",
        f'<rect class="page" width="{CURVES_WIDTH}" height="{CURVES_HEIGHT}" rx="6"/>',
        f'<text x="8" y="20">{title}</text>',
    ]
    # Axes.
    for tick in ticks:
        kind = ' class="zero"' if tick == zero else ""
        parts.append(f'<line{kind} x1="{FIELD_LEFT}" y1="{up(tick)}" x2="{FIELD_RIGHT}" y2="{up(tick)}"/>')
        parts.append(f'<text x="{FIELD_LEFT - 6}" y="{up(tick) + 5}" text-anchor="end">{tick:g}</text>')
    for step in (0, last // 2, last):
        anchor = "end" if step == last else "middle"
        parts.append(f'<text x="{across(step)}" y="{FIELD_BOTTOM + 24}" text-anchor="{anchor}">{step:,}</text>')
    parts.append(f'<text x="{across(last / 4)}" y="{FIELD_BOTTOM + 24}" text-anchor="middle">step</text>')
    # Curves, and their names above them.
    for number, (name, points) in enumerate(lines.items()):
        places = [(across(step), up(value)) for step, value in points]
        keyed = (FIELD_LEFT + 8 + 170 * number, 38)
        joined = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline class="{name}" style="fill: none" points="{joined}"/>')
        for x, y in (*places, keyed):
            parts.append(MARKS[name].format(style=name, x=x, y=y, left=x - 3.5, top=y - 3.5))
        parts.append(f'<text x="{keyed[0] + 10}" y="{keyed[1] + 5}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def picture(page: Path, scheme: str, size: tuple[int, int], target: Path) -> None:
    """Write a picture of the top of a page. Raises CalledProcessError, SystemExit without a browser."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("There is no chromium. Install it, or set CHROMIUM to its path.")
    with TemporaryDirectory() as profile:
        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        ]  # fmt: skip
        command = [browser, *options, f"--screenshot={target}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    Image.open(target).convert("RGB").quantize(COLOURS).save(target, optimize=True)


def drawings() -> dict[str, str]:
    """Return the SVG files by name."""
    gains, areas = learning_curves()
    return {
        "family.svg": bars(costs()),
        "generator_curves.svg": curves(
            "generator: nats below word frequencies", gains, (-0.25, 0, 0.25, 0.5, 0.75, 1, 1.25), 0
        ),
        "detection_curves.svg": curves("discriminator: AUC, own task", areas, (0.45, 0.5, 0.55, 0.6, 0.65, 0.7), 0.5),
    }


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    match sys.argv[1:]:
        case []:
            for name, drawing in drawings().items():
                (IMAGES / name).write_text(drawing, encoding="utf-8")
        case [kind, page] if kind in SIZES:
            report = Path(page) / "report.html" if Path(page).is_dir() else Path(page)
            for scheme in SCHEMES:
                picture(report, scheme, SIZES[kind], IMAGES / f"{kind}-{scheme}.png")
        case _:
            raise SystemExit(__doc__)
