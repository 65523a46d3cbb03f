"""The site builds without network, all of its links resolve, and its pages load nothing from other servers."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

BUILDER = Path(sys.executable).with_name("zensical")
REPOSITORY = "https://github.com/electra-lab/electra-lab/"
PAGES = sorted((ROOT / "docs").rglob("*.md"))

pytestmark = pytest.mark.skipif(not BUILDER.exists(), reason="zensical is not installed (the extra 'site')")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BUILDER, "build", "--strict"], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "site"


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    listed = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M)
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in PAGES)
    assert all((site / page).with_suffix(".html").is_file() for page in listed)


def test_search_finds_words_of_the_pages(site: Path) -> None:
    found = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    assert any(item["location"].startswith("scores.html") and "anomal" in item["text"].lower() for item in found)


def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\s(?:src|srcset)="?(https?:[^"\s>]+)', text)
        loaded += re.findall(
            r'<link[^>]*rel="?(?:stylesheet|preconnect|icon|preload)[^>]*href="?(https?:[^"\s>]+)', text
        )
        assert not loaded, f"{page.name}: {loaded}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_into_the_repository_lead_to_a_file_or_folder(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((\.\./[^)\s#]+)", text):
        assert (page.parent / link).resolve().is_relative_to(ROOT / "docs"), (
            "the site is docs/: write the whole address"
        )
    for kind, link in re.findall(rf"{re.escape(REPOSITORY)}(blob|tree)/main/([^)\s#]+)", text):
        place = ROOT / link
        assert place.is_dir() if kind == "tree" else place.is_file(), link


@pytest.mark.parametrize(("anchor", "broken"), [("there", False), ("nowhere", True)])
def test_a_broken_anchor_is_an_error(tmp_path: Path, anchor: str, broken: bool) -> None:
    """In a site of two pages."""
    (tmp_path / "docs").mkdir()
    for name in ("extra.css", "extra.js"):
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav: [index.md, other.md]\n", encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n## There\n\n[on](other.md)\n", encoding="utf-8")
    (tmp_path / "docs" / "other.md").write_text(f"# Other\n\n[back](index.md#{anchor})\n", encoding="utf-8")
    done = build(tmp_path)
    assert (done.returncode != 0) == broken, done.stdout + done.stderr
    assert ("other.md" in done.stdout + done.stderr) == broken


def test_drawings_are_up_to_date() -> None:
    drawings = runpy.run_path(str(ROOT / "docs" / "pictures.py"))["drawings"]()
    assert len(drawings) == 3
    for name, drawn in drawings.items():
        assert (ROOT / "docs" / "images" / name).read_text(encoding="utf-8") == drawn, f"{name}: run: make docs"


@pytest.mark.parametrize("name", ["generator_curves", "detection_curves"])
def test_curves_are_those_of_their_numbers(name: str) -> None:
    with (ROOT / "docs" / "findings" / "learning_curves.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    drawn = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    ticks = re.findall(r'y="(\d+)" text-anchor="end">([\d.]+)</text>', drawn)
    heights = {float(value): float(y) - 5 for y, value in ticks if float(value) <= 1}
    (low, bottom), (high, top) = min(heights.items()), max(heights.items())
    for experiment in {row["experiment"] for row in rows}:
        points = re.search(rf'<polyline class="{experiment}".* points="(.*)"', drawn)
        assert points
        shown = [low + (bottom - int(y)) / (bottom - top) * (high - low) for y in re.findall(r",(\d+)", points[1])]
        ours = [row for row in rows if row["experiment"] == experiment]
        expected = [float(row["discriminator_auc"]) for row in ours]
        if name == "generator_curves":
            expected = [float(row["unigram_mask_entropy"]) - float(row["generator_mask_loss"]) for row in ours]
        assert shown == pytest.approx(expected, abs=(high - low) / (bottom - top))


def test_the_bars_of_the_family_are_those_of_its_table() -> None:
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    drawn = pictures["drawings"]()["family.svg"]
    page = (ROOT / "docs" / "family.md").read_text(encoding="utf-8")
    table = page[page.index("| | lab |") : page.index("## Notation")]
    costs = re.findall(r"^\| `[^|]+\| ([\d.]+) \|", table, flags=re.M)
    assert re.findall(r">([\d.]+)</text>", drawn) == costs
    assert [round(int(width) / 180, 2) for width in re.findall(r'class="bar".* width="(\d+)"', drawn)] == [
        *map(float, costs)
    ]


def test_performance_opens_with_numbers_of_its_tables() -> None:
    opening, _, rest = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").partition("\n## ")
    ratios = re.findall(r"\d+\.\d+ \([\d.]+ to [\d.]+\)", opening)
    assert len(ratios) >= 7
    assert [ratio for ratio in ratios if ratio not in rest] == []
