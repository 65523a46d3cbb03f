"""Write the pictures of README and of the site to docs/images.

python docs/pictures.py                 family.svg, the costs of docs/family.md as bars
python docs/pictures.py run RUN_DIR     run-light.png and run-dark.png, the top of the page of a run
python docs/pictures.py ablation DIR    ablation-light.png and ablation-dark.png, the top of the page of an ablation

The pages are pictured by chromium (or CHROMIUM, a path to it).
"""

import os
import re
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
SCHEMES = {"dark": 0, "light": 1}
SIZES = {"run": (1100, 1500), "ablation": (1100, 1280)}  # of the top of a page
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


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    match sys.argv[1:]:
        case []:
            (IMAGES / "family.svg").write_text(bars(costs()), encoding="utf-8")
        case ["run" | "ablation" as kind, folder]:
            for name in SCHEMES:
                picture(Path(folder) / "report.html", name, SIZES[kind], IMAGES / f"{kind}-{name}.png")
        case _:
            raise SystemExit(__doc__)
