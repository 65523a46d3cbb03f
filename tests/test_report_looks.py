"""Pages in a browser: nothing runs out of the screen, and screenshots to look at. `make test-report` runs this.

It needs chromium (or CHROMIUM, a path to it), and a folder for the pictures in ELECTRA_LAB_PICTURES.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from electra_lab.ablation.report import write_report
from electra_lab.runs import report as run
from electra_lab.runs.directory import RunDirectory
from tests.electra_lab.ablation.synthetic import GRID, NAMED, SCALES, write_folder

PICTURES = os.environ.get("ELECTRA_LAB_PICTURES")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
SCREENS = {"phone": (390, 844), "small phone": (360, 640), "desktop": (1280, 900)}
SCHEMES = {"dark": 0, "light": 1}
PAPERS = {"dark": (0x15, 0x17, 0x1A), "light": (0xFF, 0xFF, 0xFF)}

pytestmark = [
    pytest.mark.skipif(not PICTURES, reason="runs by `make test-report`, which sets ELECTRA_LAB_PICTURES"),
    pytest.mark.skipif(not CHROMIUM, reason="there is no chromium"),
]

LONG = {"a name that goes on and on, as names do, until nobody reads it any more": {},
        "generator.scale=0.25,masking.mask_prob=0.15,objective.discriminator_weight=50" * 2: {"sampler.type": "argmax"},
        **NAMED}  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    above = tmp_path_factory.mktemp("pages")
    half = {"v1-s2": "failed", "v3-s4": "unfinished", "v2-s0": "missing"}
    folders = {
        "scales": write_folder(above / "scales", SCALES, range(5), ["generator.scale"], state=half),
        "named": write_folder(above / "named", LONG, (0, 1), budget={"steps": 400}, flops=[1e12, 2e12] * 3),
        "grid": write_folder(above / "grid", GRID, (0, 1, 2), ["generator.scale", "masking.mask_prob"]),
    }
    cell = RunDirectory(folders["scales"] / "cells" / "v0-s0")
    return {"run": run.write_report(cell)} | {name: write_report(folder) for name, folder in folders.items()}


def browse(folder: Path, page: Path, scheme: str, size: tuple[int, int], *options: str) -> str:
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
        "--disable-background-networking", "--proxy-server=127.0.0.1:9", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={size[0]},{size[1]}", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", *options,
        page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


# A frame has exactly the width that it is given, which a window may not; the page itself holds no script.
FRAME = """<!doctype html><iframe id="f" src="{name}" style="border: 0; width: {width}px; height: 800px"></iframe>
<pre id="told"></pre><script>
document.getElementById("f").onload = () => {{
  const root = document.getElementById("f").contentDocument.documentElement;
  const out = [...root.querySelectorAll("body *")].filter(e => !e.closest(".wide, svg, pre") || e.matches(".wide, svg"))
    .filter(e => e.getBoundingClientRect().right > {width} + 1).map(e => e.tagName + ": " + e.textContent.slice(0, 60));
  const text = [...root.querySelectorAll("figure svg text")].map(e => e.getBoundingClientRect().height);
  document.getElementById("told").textContent =
    JSON.stringify({{wide: root.scrollWidth, high: root.scrollHeight, out: out, text: Math.min(...text)}});
}};
</script>"""


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", ["run", "scales", "named", "grid"])
def test_pages_fit_the_screen(pages: dict[str, Path], name: str, screen: str, tmp_path: Path) -> None:
    width = SCREENS[screen][0]
    (tmp_path / "page.html").write_text(pages[name].read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME.format(name="page.html", width=width), encoding="utf-8")
    options = ("--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom")
    told = re.search(
        r'<pre id="told">({.*?})</pre>', browse(tmp_path, tmp_path / "frame.html", "light", (1400, 900), *options)
    )
    assert told, "the frame said nothing"
    found = json.loads(html.unescape(told[1]))
    assert found["out"] == []
    assert found["wide"] <= width
    assert found["high"] > 1000
    assert found["text"] >= 9, "text in pictures is too small to read"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", ["run", "scales", "named", "grid"])
def test_pages_have_the_paper_of_their_scheme(
    pages: dict[str, Path], name: str, screen: str, scheme: str, tmp_path: Path
) -> None:
    """And their pictures lie in ELECTRA_LAB_PICTURES, to be looked at."""
    assert PICTURES
    target = Path(PICTURES).resolve() / f"{name}-{screen.replace(' ', '-')}-{scheme}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    width, high = SCREENS[screen][0], 6500 if "phone" in screen else 4600
    browse(tmp_path, pages[name], scheme, (width, high), f"--screenshot={target}")
    assert first_pixel(target) == PAPERS[scheme]


def first_pixel(file: Path) -> tuple[int, ...]:
    """Of a PNG: its first row is filtered by nothing or by what lies left of it, so the first pixel is bare."""
    content = file.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, data = 8, b""
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        if content[at + 4 : at + 8] == b"IDAT":
            data += content[at + 8 : at + 8 + size]
        at += size + 12
    return tuple(zlib.decompress(data)[1:4])
