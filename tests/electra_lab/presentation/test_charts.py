"""Parts of all pages: colours that can be told apart, and charts as SVG text."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from jinja2 import UndefinedError

from electra_lab.presentation import charts
from electra_lab.presentation.charts import DARK, LIGHT, MARKERS, PAPER, SERIES, SOFT, drawing, look, svg
from electra_lab.presentation.pages import STYLE, render

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
        templates = [
            each.read_text() for each in files("electra_lab.presentation").iterdir() if each.name.endswith(".j2")
        ]
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
    texts = [each.text for each in ElementTree.fromstring(picture(text="$x$ & <y> größer")).iter(f"{SVG}text")]
    assert "$x$ & <y> größer" in texts


def test_values_of_a_page_are_escaped_and_none_may_be_missing() -> None:
    histogram = charts.Chart("", "<svg></svg>")
    page = render("data.html.j2", title="<b>&", facts=[], histogram=histogram, packing="", separated=False, rows=[])
    assert "<h1>&lt;b&gt;&amp;</h1>" in page
    assert STYLE in page
    with pytest.raises(UndefinedError):
        render("data.html.j2", title="")
