"""Pages in a browser: nothing overflows the screen. Also keeps screenshots. `make test-report` runs this.

It needs chromium (or CHROMIUM, a path to it), and a folder for the pictures in ELECTRA_LAB_PICTURES.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from electra_lab.analysis.run_comparison import subjects
from electra_lab.presentation import compare_page
from electra_lab.presentation.finetuning_page import write_report as write_finetuning_report
from electra_lab.presentation.run_page import write_report as write_run_report
from electra_lab.presentation.sweep_page import write_report
from electra_lab.storage.finetuning_folder import FinetuningFolder
from electra_lab.storage.run_directory import RunDirectory
from tests.electra_lab.presentation.finetuned import scores, write_finetuned
from tests.electra_lab.presentation.synthetic import GRID, NAMED, SCALES, add_references, write_folder

PICTURES = os.environ.get("ELECTRA_LAB_PICTURES")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
SCREENS = {"phone": (400, 844), "small phone": (360, 640), "tablet": (768, 1024), "desktop": (1280, 900)}
HEIGHT = 9000  # more than any page has
SCHEMES = {"dark": 0, "light": 1}
PAPERS = {"dark": (0x15, 0x17, 0x1A), "light": (0xFF, 0xFF, 0xFF)}

pytestmark = [
    pytest.mark.skipif(not PICTURES, reason="runs by `make test-report`, which sets ELECTRA_LAB_PICTURES"),
    pytest.mark.skipif(not CHROMIUM, reason="there is no chromium"),
]

LONG = {"a name that goes on and on, as names do, until nobody reads it any more": {},
        "generator.scale=0.25,masking.mask_prob=0.15,objective.discriminator_weight=50" * 2: {"sampler.type": "argmax"},
        **NAMED}  # fmt: skip


GAINS = {"discriminator_auc_gain": 0.012, "discriminator_auc_gain_low": 0.004, "discriminator_auc_gain_high": 0.02,
         "discriminator_auc_gain_documents": 12345}  # fmt: skip
TEXT = "[CLS] the old man ##ner of speaking was antidisestablishmentarian ##ism , he said , and sat down [SEP]"


def token(word: str, number: int) -> dict[str, object]:
    replaced = number % 6 == 2
    shown = {"token": word, "original": "woman" if replaced else word, "replaced": replaced}
    return shown | {"probability": (0.9 if replaced else 0.05) + 0.01 * (number % 5) if number != 9 else 1.0}


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
    cell.write_json("examples.json", [[token(word, n) for n, word in enumerate(TEXT.split())]] * 2)
    cell.append(cell.records()[-1] | GAINS)
    add_references(folders["grid"], lambda reference, variant, seed: 0.7 + 0.01 * reference * variant + 0.001 * seed)
    words, odd = TEXT.split()[1:-1], ["B-A-RATHER-LONG-TYPE", "O", "I-X"]
    tags, right = ([odd[(n * by) % 3] for n in range(len(words))] for by in (1, 2))
    tagged = [{"id": "1", "words": words, "prediction": tags, "label": right, "correct": False}]
    splits = {"validation": tagged}
    tuned = write_finetuned(above / "tuned", scores("matthews", 0.5, 0.6, 0.7, 0.65, 0.55), predictions=splits)
    runs = {"run": write_run_report(cell), "tuned": write_finetuning_report(FinetuningFolder(tuned))}
    cells = [folders["scales"] / "cells" / f"v{i}-s0" for i in (0, 1, 3)]
    runs["compared"] = above / "compare.html"
    runs["compared"].write_text(compare_page.page(compare_page.Comparison(subjects(cells))), encoding="utf-8")
    return runs | {name: write_report(folder) for name, folder in folders.items()}


def browse(folder: Path, page: Path, scheme: str, size: tuple[int, int], *options: str) -> str:
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
        "--disable-background-networking", "--proxy-server=127.0.0.1:9", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={size[0]},{size[1]}", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", *options,
        page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


# A frame has exactly the requested width, unlike a window; the page itself contains no script.
FRAME = """<!doctype html><body style="margin: 0"><iframe id="f" src="{name}" style="border: 0; width: {width}px;
height: {height}px"></iframe><pre id="found"></pre><script>
document.getElementById("f").onload = () => {{
  const root = document.getElementById("f").contentDocument.documentElement;
  const box = e => e.getBoundingClientRect();
  const out = [...root.querySelectorAll("body *")].filter(e => !e.closest(".wide, svg, pre") || e.matches(".wide, svg"))
    .filter(e => box(e).right > {width} + 1).map(e => e.tagName + ": " + e.textContent.slice(0, 60));
  const below = [...root.querySelectorAll("body > *, .charts > figure")].filter(e => e.nextElementSibling)
    .filter(e => box(e).bottom > box(e.nextElementSibling).top + 1 && box(e).right > box(e.nextElementSibling).left + 1
      && box(e).left < box(e.nextElementSibling).right - 1).map(e => e.tagName + ": " + e.textContent.slice(0, 60));
  const text = [...root.querySelectorAll("figure svg text")].map(e => box(e).height);
  const tables = [...root.querySelectorAll(".wide")].map(e => ({{cut: e.scrollWidth > e.clientWidth + 1,
    left: box(e).left, right: box(e).right, top: box(e).top, bottom: box(e).bottom}}));
  document.getElementById("found").textContent = JSON.stringify({{wide: root.scrollWidth, high: root.scrollHeight,
    out: out, below: below, tables: tables, text: Math.min(...text)}});
}};
</script></body>"""


def framed(page: Path, width: int, folder: Path) -> Path:
    (folder / "page.html").write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(name="page.html", width=width, height=HEIGHT), encoding="utf-8")
    return folder / "frame.html"


def measured(page: Path, width: int, folder: Path) -> dict[str, Any]:
    """Return the measurements of the script in the frame."""
    options = ("--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom")
    said = browse(folder, framed(page, width, folder), "light", (1400, 900), *options)
    found = re.search(r'<pre id="found">({.*?})</pre>', said)
    assert found, "the frame reported nothing"
    values: dict[str, Any] = json.loads(html.unescape(found[1]))
    return values


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", ["run", "tuned", "scales", "named", "grid", "compared"])
def test_pages_fit_the_screen(pages: dict[str, Path], name: str, screen: str, tmp_path: Path) -> None:
    width = SCREENS[screen][0]
    found = measured(pages[name], width, tmp_path)
    assert found["out"] == []
    assert found["below"] == [], "the content below is covered"
    assert found["wide"] <= width
    assert found["high"] > 500
    assert found["text"] is None or found["text"] >= 9, "text in pictures is too small to read"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["scales", "run"])
def test_a_table_that_is_cut_off_shows_a_shadow_at_its_edge(
    pages: dict[str, Path], name: str, scheme: str, tmp_path: Path
) -> None:
    tables = measured(pages[name], SCREENS["tablet"][0], tmp_path)["tables"]
    assert {table["cut"] for table in tables} == ({True, False} if name == "scales" else {False})
    target = tmp_path / "frame.png"
    options = ("--allow-file-access-from-files", f"--screenshot={target}")
    browse(tmp_path, tmp_path / "frame.html", scheme, (1400, HEIGHT), *options)
    picture = Image.open(target).convert("RGB")
    for table in tables:
        rows = range(int(table["top"]) + 4, int(table["bottom"]) - 4, 3)
        edge = [picture.getpixel((int(table["right"]) - 1, y)) for y in rows]
        shaded = sum(pixel != PAPERS[scheme] for pixel in edge) / len(edge)
        assert (shaded > 0.95) if table["cut"] else (shaded < 0.2), table


@pytest.mark.parametrize("screen", ["phone", "small phone", "desktop"])
@pytest.mark.parametrize("name", ["scales", "named", "grid"])
def test_no_table_of_an_ablation_is_cut_off(pages: dict[str, Path], name: str, screen: str, tmp_path: Path) -> None:
    tables = measured(pages[name], SCREENS[screen][0], tmp_path)["tables"]
    assert len(tables) >= 4
    assert not any(table["cut"] for table in tables)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", ["run", "tuned", "scales", "named", "grid", "compared"])
def test_pages_have_the_paper_of_their_scheme(
    pages: dict[str, Path], name: str, screen: str, scheme: str, tmp_path: Path
) -> None:
    assert PICTURES
    target = Path(PICTURES).resolve() / f"{name}-{screen.replace(' ', '-')}-{scheme}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    width, high = SCREENS[screen][0], 6500 if "phone" in screen else 4600
    browse(tmp_path, pages[name], scheme, (width, high), f"--screenshot={target}")
    assert Image.open(target).convert("RGB").getpixel((0, 0)) == PAPERS[scheme]
