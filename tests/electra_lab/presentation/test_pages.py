"""Parts of all pages: distinguishable colours, charts as SVG text, numbers and facts in words."""

import os
import re
import subprocess
import sys
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from jinja2 import UndefinedError
from matplotlib.figure import Figure

from electra_lab.cli import _texts
from electra_lab.presentation import data_page, pages
from electra_lab.presentation.console import Console
from electra_lab.presentation.pages import DARK, LIGHT, MARKERS, PAPER, SERIES, SOFT, STYLE, drawing, look, render, svg
from electra_lab.presentation.text import data_facts, number, seconds
from electra_lab.storage.provenance import Data
from tests.helpers import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.1."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colours", "paper"), [(LIGHT, PAPER["light"]), (DARK, PAPER["dark"])])
def test_every_colour_stands_out_from_its_paper(colours: tuple[str, ...], paper: str) -> None:
    """WCAG 2.1, 1.4.11: 3 to 1 for graphics."""
    for colour in colours:
        light, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, colour
    assert len(set(colours)) == len(LIGHT) == len(SERIES)


def test_every_variable_has_a_value_in_both_schemes() -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    for scheme, colours, paper in ((light, LIGHT, PAPER["light"]), (dark, DARK, PAPER["dark"])):
        defined = dict(re.findall(r"--([\w-]+): ([^;}]+)", scheme))
        assert [defined[f"series-{i}"] for i in range(len(colours))] == list(colours)
        assert defined["paper"] == paper
        room = files("electra_lab.presentation").iterdir()
        templates = [file.read_text() for file in room if file.name.endswith(".j2")]
        used = set(re.findall(r"var\(--([\w-]+)\)", "".join((STYLE, *templates)))) | {"soft"}
        assert used <= defined.keys()


def test_series_differ_in_colour_or_marker_and_neighbours_in_both() -> None:
    looks = [(look(i)["color"], look(i)["marker"]) for i in range(len(SERIES) * len(MARKERS))]
    assert len(set(looks)) == len(looks)
    for (colour, marker), (next_colour, next_marker) in pairwise(looks):
        assert colour != next_colour
        assert marker != next_marker


def picture(name: str = "one", says: str = "", text: str = "a title") -> str:
    with drawing(3, 2) as figure:
        axes = figure.subplots()
        for i in range(len(SERIES)):
            axes.plot([0, 1], [i, i + 1], **look(i))
        axes.plot([0, 1], [1, 0], color=SOFT)
        axes.set_title(text)
        return svg(figure, name, says)


def test_a_picture_is_drawn_in_the_colours_of_the_page() -> None:
    drawn = picture()
    strokes = set(re.findall(r"stroke: ([^;\"]+)", drawn)) | set(re.findall(r"fill: ([^;\"]+)", drawn))
    assert {f"var(--series-{i})" for i in range(len(SERIES))} | {"var(--soft)", "currentColor"} <= strokes
    assert not re.search(r"#[0-9a-f]{6}\b", drawn)  # a colour of matplotlib's own
    assert all("fill: currentColor" in tag for tag in re.findall(r"<text[^>]*>", drawn))


def test_a_picture_is_one_svg_that_takes_the_width_it_is_given() -> None:
    drawn = picture(says='it\'s <b>"x"</b>')
    root = ElementTree.fromstring(drawn)
    assert root.tag == f"{SVG}svg"
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & root.attrib.keys()
    assert (root.get("role"), root.get("aria-label")) == ("img", 'it\'s <b>"x"</b>')
    silent = ElementTree.fromstring(picture())
    assert (silent.get("role"), silent.get("aria-hidden")) == (None, "true")
    assert not list(root.iter("{*}metadata"))


def test_ids_of_two_pictures_differ_and_each_refers_to_its_own() -> None:
    ids = {name: set(re.findall(r' id="([^"]+)"', picture(name))) for name in ("one", "two")}
    assert ids["one"]
    assert not ids["one"] & ids["two"]
    for name, own in ids.items():
        used = re.findall(r'(?:href="#|url\(#)([^")]+)', picture(name))
        assert used
        assert set(used) == own


def test_a_dollar_sign_is_not_a_formula() -> None:
    texts = [element.text for element in ElementTree.fromstring(picture(text="$x$ & <y> größer")).iter(f"{SVG}text")]
    assert "$x$ & <y> größer" in texts


def test_values_of_a_page_are_escaped_and_none_may_be_missing() -> None:
    histogram = pages.Chart("", "<svg></svg>")
    page = render("data.html.j2", title="<b>&", facts=[], histogram=histogram, packing="", separated=False, rows=[])
    assert "<h1>&lt;b&gt;&amp;</h1>" in page
    assert STYLE in page
    with pytest.raises(UndefinedError):
        render("data.html.j2", title="")


def test_numbers_have_sensible_digits() -> None:
    found = [number(value) for value in (0.71234, 5.12345, 12345.6, 0.0, None, 2.5e-6, -0.00213, 1.5e12, 99.987)]
    assert found == ["0.7123", "5.123", "12,346", "0", "-", "2.5e-06", "-0.0021", "1.5e+12", "99.99"]
    assert (number(0.0042, sign=True), number(-0.5, sign=True)) == ("+0.0042", "-0.5000")


DOCUMENTS = {"train": 13010, "validation": 341, "test": 377}
TOKENS = {"train": 1402118, "validation": 42013, "test": 40120}


def test_the_histogram_of_lengths_has_every_document(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(data_page, "svg", lambda figure, *_: str(figures.append(figure)))
    data_page._histogram(np.array([1, 1, 7, 512]))
    [steps] = figures[0].axes[0].patches
    assert sum(steps.get_data().values) == 4


def test_durations_are_written_in_plain_words() -> None:
    told = [seconds(number) for number in (0.3, 45, 119, 720, 12600, 1e6)]
    assert told == ["< 1 s", "45 s", "2 min", "12 min", "3.5 h", "12 days"]


def test_counts_and_overlap_are_named_by_split() -> None:
    assert dict(data_facts(Data(store="abc", documents=DOCUMENTS, tokens=TOKENS, overlap=0.0126))) == {
        "data": "13,010 documents, 1,402,118 tokens to train; validation 341 and 42,013; test 377 and 40,120",
        "overlap": "1.3% of the 13-token runs of validation and test also occur in training text",
    }
    # Unknown facts are left out.
    assert list(data_facts(Data(store="abc"))) == []
    assert [title for title, _ in data_facts(Data(store="abc", documents=DOCUMENTS, tokens=TOKENS))] == ["data"]
    assert dict(data_facts(Data(store="abc", overlap=0.0)))["overlap"].startswith("0.0% of the 13-token runs")


def test_a_home_that_cannot_be_written_is_not_remarked_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(tmp_path / "file" / "x"))
    code = "from electra_lab.presentation.pages import drawing\nwith drawing(): pass"
    environment = {**os.environ, **nowhere, "PYTHONPATH": str(ROOT)}
    environment.pop("MPLCONFIGDIR", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("plain", [True, False])
def test_without_colours_nothing_is_dimmed(monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    if plain:
        monkeypatch.setenv("NO_COLOR", "1")
    for console in (_texts.colours(), Console()._rich):
        with console.capture() as captured:
            console.print("[dim]faint[/dim] [red]red[/red]")
        assert ("\x1b[" in captured.get()) is not plain
