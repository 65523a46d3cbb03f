"""The page of an ablation, from folders as `ablate` leaves them: finished, half done, failed, damaged."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_lab.presentation.sweep_page import write_report
from tests.electra_lab.presentation import synthetic
from tests.electra_lab.presentation.synthetic import GRID, NAMED, SCALES, STEPS, TOKENS_A_STEP, score, write_folder
from tests.electra_lab.presentation.test_ablation_tables import change_plan
from tests.pages import Page

HALF_DONE = {"v1-s2": "failed", "v3-s4": "unfinished", "v2-s0": "missing", "v0-s1": "unmeasured", "v2-s3": "begun",
             "v3-s0": "partial"}  # fmt: skip
NOTHING = {f"v{v}-s{s}": "missing" for v in range(4) for s in (0, 1)}
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "five seeds": lambda folder: write_folder(folder, SCALES, range(5), ["generator.scale"], state=HALF_DONE),
    "two seeds": lambda folder: write_folder(
        folder, NAMED, (0, 1), without={"mlm": ["reference_auc", "reference_accuracy"]}, budget={"steps": 400},
        flops=[1e12, 1.3e12, 0.9e12, 0.5e12], question="Does <i>x</i> & y > z?"),
    "references on a grid": lambda folder: synthetic.add_references(
        write_folder(folder, GRID, (0, 1, 2), ["generator.scale", "masking.mask_prob"], state={"v1-s2": "missing"}),
        lambda i, v, seed: score(v * i, seed)),
    "nothing": lambda folder: write_folder(folder, SCALES, (0, 1), ["generator.scale"], state=NOTHING),
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders, each with its report; tests must not change them."""
    above = tmp_path_factory.mktemp("ablations")
    folders = {name: make(above / f"a {number}") for number, (name, make) in enumerate(FOLDERS.items())}
    for folder in folders.values():
        assert write_report(folder) == folder / "report.html"
    return folders


@pytest.fixture(params=FOLDERS)
def shown(request: pytest.FixtureRequest, written: dict[str, Path]) -> Path:
    return written[request.param]


def reread(folder: Path) -> Page:
    return Page(write_report(folder))


def test_the_page_is_one_file_that_loads_nothing_and_can_be_read_by_everybody(shown: Path) -> None:
    page = Page(shown / "report.html")
    assert page.tags[:2] == ["html", "head"]
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "i", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg\")|@import|url\((?!#)", page.source)
    # Links and ids resolve.
    ids = Counter(value for name, value in page.attributes if name == "id")
    assert max(ids.values(), default=1) == 1
    used = [v for name, v in page.attributes if name == "href"] + re.findall(r"url\((#[^)]+)\)", page.source)
    for link in used:
        assert link[1:] in ids if link.startswith("#") else (shown / link).is_file() and link[0] != "/", link
    reports = sorted(p.relative_to(shown).as_posix() for p in shown.glob("cells/*/report.html"))
    assert sorted(link for link in used if link.startswith("cells/")) == reports
    # Pictures have captions and text alternatives; wide tables scroll and can be reached by keyboard.
    assert page.tags.count("figure") == page.tags.count("figcaption") == page.source.count('role="img"')
    assert all(value for name, value in page.attributes if name == "aria-label")
    for figure in page.all("figure"):
        [caption], [picture] = figure.all("figcaption"), figure.all("svg")
        assert (picture["role"], caption.text.startswith(picture["aria-label"])) == ("img", True)
    for table in page.all("table"):
        assert table.above is not None
        assert table.above.attributes.items() >= {"class": "wide", "tabindex": "0", "role": "region"}.items()
    # Nothing reads like program output.
    for text in (page.text, (shown / "table.md").read_text(), (shown / "table.csv").read_text()):
        assert not re.search(r"\b(nan|inf|None|True|False|Undefined)\b", text)


def test_the_same_folder_gives_the_same_bytes_wherever_it_lies(written: dict[str, Path], tmp_path: Path) -> None:
    folder = written["five seeds"]
    before = {name: (folder / name).read_bytes() for name in ("report.html", "table.csv", "table.md")}
    assert not any(str(folder.parent) in content.decode() for content in before.values())
    assert not list(folder.glob(".*"))
    # Run logs name their absolute folder; paths on the page are relative.
    moved = Path(shutil.copytree(folder, tmp_path / "elsewhere" / "b"))
    for file in moved.glob("failed/*.json"):
        file.write_text(file.read_text().replace(str(folder), str(moved)))
    write_report(moved)
    assert {name: (moved / name).read_bytes() for name in before} == before


def test_hostile_names_are_text(written: dict[str, Path]) -> None:
    page = Page(written["two seeds"] / "report.html")
    assert not {"i", "x"} & set(page.tags)
    assert page.tags.count("b") == page.source.count("<li><b>")
    assert list(NAMED)[2] in page.text
    assert "Does <i>x</i> & y > z?" in page.text
    assert "$x$" in "".join(re.findall(r"<text[^>]*>([^<]*)</text>", page.source))  # not parsed as a formula


def test_the_page_says_how_many_cells_are_in_which_state(written: dict[str, Path]) -> None:
    text = Page(written["five seeds"] / "report.html").text
    states = "14 done; 2 trained, but not fully measured; 2 begun, but not fully trained; 1 failed; 1 not begun."
    assert f"Of 20 cells: {states}" in text
    where = "generator.scale=0.5, seed 2 failed 2 times: cells/v1-s2/metrics.jsonl: step 12"
    assert f"{where}: the loss was not finite & <b>large</b>." in text
    assert "exploratory" in text
    assert "electra_lab ablation: 4 variants, 5 seeds, 20 cells" in text
    nothing = Page(written["nothing"] / "report.html").text
    assert "Nothing can be said yet: reference_auc is missing in every cell." in nothing
    assert "No cell has a reference_auc yet." in nothing
    assert "No cell has begun." in nothing


@pytest.mark.usefixtures("plain")
def test_the_table_of_cells_has_each_value_at_its_seed_with_its_state(tmp_path: Path) -> None:
    state = {"v0-s1": "missing", "v1-s0": "unfinished", "v1-s1": "partial"}
    folder = write_folder(tmp_path, dict(list(SCALES.items())[:3]), (0, 1), state=state, scores=lambda v, s: v + s / 10)
    change_plan(folder, cells=json.loads((folder / "plan.json").read_text())["cells"][:-1])
    page = reread(folder)
    assert page.table("The cells") == [
        ["variant", "seed\N{NO-BREAK SPACE}0", "seed\N{NO-BREAK SPACE}1"],
        ["generator.scale=0.25", "0", "missing"],
        ["generator.scale=0.5", "unfinished", "1.100 unmeasured"],
        ["generator.scale=0.75", "2.000", "- not planned"],
    ]
    links = {link.text: link["href"] for link in page.all("a")}
    assert links["1.100"] == "cells/v1-s1/report.html"
    assert links["2.000"] == "cells/v2-s0/report.html"
    assert "missing" not in links


@pytest.mark.usefixtures("plain")
def test_what_a_cell_costs_is_the_mean_of_its_variant(tmp_path: Path) -> None:
    state = {"v1-s1": "unfinished", "v3-s0": "missing", "v3-s1": "missing"}
    folder = write_folder(tmp_path, SCALES, (0, 1), state=state)
    file = folder / "cells" / "v0-s0" / "provenance.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"flops": int(3e12)}))
    titles, *rows = reread(folder).table("Cost of a cell")
    assert titles == ["variant", "generator", "discriminator", "shared", "total", "steps", "tokens", "FLOPs",
                      "paper's FLOPs", "seconds", "tokens/s"]  # fmt: skip
    tokens, fewer = STEPS * TOKENS_A_STEP, 360 * TOKENS_A_STEP
    assert rows[0] == ["generator.scale=0.25", "500,000", "4,000,000", "300,000", "4,200,000", "400", f"{tokens:,}",
                       "2.00e+12", "2.00e+12", f"{tokens / 9000:,.0f}", "9,000"]  # fmt: skip
    assert rows[1][5:] == ["360", f"{fewer:,}", "9.99e+11", "2.00e+12", f"{fewer / 8500:,.0f}", "8,500"]
    assert rows[3][1:] == ["2,000,000", "4,000,000", "300,000", "5,700,000", "280", "-", "9.97e+11", "1.99e+12", "-",
                           "-"]  # fmt: skip


@pytest.mark.usefixtures("plain")
def test_what_differs_from_the_baseline_is_listed_with_both_values(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"base": {}, "words": {"masking.type": "whole_word"}, "same": {}}, (0, 1))
    variants = json.loads((folder / "plan.json").read_text())["variants"]
    variants[1]["differs"] = {
        "masking.type": ["replace_prob", "whole_word"], "masking.mask_prob": [0.2, 0.15],
        "generator": [None, {"x": True}], "corpus.paths": [[f"{folder}/a.txt"], []],
    }  # fmt: skip
    change_plan(folder, variants=variants)
    page = reread(folder)
    assert page.table("What differs from the baseline") == [
        ["variant", "key", "baseline", "differs"],
        ["words", "masking.type", "replace_prob", "whole_word"],
        ["words", "masking.mask_prob", "0.2", "0.15"],
        ["words", "generator", "null", '{"x": true}'],
        ["words", "corpus.paths", '["a.txt"]', "[]"],
        ["same", "nothing differs", "", ""],
    ]
    assert "that differ from those of base, except name, seed and what the budget sets." in page.text
    change_plan(folder, budget=None)
    assert "that differ from those of base, except name, seed." in reread(folder).text


@pytest.mark.usefixtures("drawn")
def test_the_plan_is_described(folder: Path) -> None:
    change_plan(folder, baseline="generator.scale=0.5", question="Why?", budget={"flops": 1.25e12}, seeds=[0, 1, 5])
    for file in folder.glob("cells/*/metrics.jsonl"):
        file.unlink()
    page = reread(folder)
    assert page.facts().items() >= {
        "base": "../reformer_small.yaml", "each cell trains for": "1.25e+12 FLOPs", "seeds": "0, 1, 5",
        "baseline": "generator.scale=0.5", "varied": "generator.scale",
    }.items()  # fmt: skip
    assert "Measure fixed_corruption share 0.15" in page.text
    assert "reference_auc, leading: AUC on one fixed corruption" in page.text
    assert "own_loss: the objective's own loss" in page.text
    assert "Nothing has been logged yet." in page.text
    marked = {item.text.strip() for item in page.all("li") if "(baseline)" in item.text}
    assert marked == {"generator.scale=0.5 (baseline)"}
    for budget, fact in (({"steps": 1000.0}, "1,000 steps"), (None, "as long as the base")):
        change_plan(folder, budget=budget)
        assert reread(folder).facts()["each cell trains for"] == fact


@pytest.mark.usefixtures("plain")
def test_provenance_says_where_cells_differ(folder: Path) -> None:
    page = reread(folder)
    assert "All cells that have begun ran under the same conditions." in page.text
    assert page.facts().items() >= {
        "threads": "1", "device": "cpu", "torch": "2.13.0+cpu", "commit": "5f2dae8da280",
        "plug-in mine.py": "abababababab", "token store": "1147959d66f455b1",
        "data": "14,678 documents, 2,070,185 tokens to train; validation 11 and 837; test 1,012 and 90,210",
        "overlap": "1.3% of the 13-token runs of validation and test also occur in training text",
    }.items()  # fmt: skip
    assert "absent" not in page.facts()
    file = folder / "cells" / "v1-s0" / "provenance.json"
    value = json.loads(file.read_text())
    value["environment"]["threads"] = 8
    value["git"]["changed"] = True
    file.write_text(json.dumps(value | {"plugins": []}))
    page = reread(folder)
    assert "The cells differ in commit, threads, plug-in mine.py:" in page.text
    assert page.facts()["threads"] == "1 (7 cells); 8 (1 cell)"
    changed = "5f2dae8da280, with changes that are not committed (1 cell)"
    assert page.facts()["commit"] == f"5f2dae8da280 (7 cells); {changed}"


@pytest.mark.usefixtures("plain")
def test_references_are_linked_and_their_failures_shown(folder: Path) -> None:
    measures = json.loads((folder / "plan.json").read_text())["measures"]
    measures[0]["references"] = {"one": "the-reference", "two": "another"}
    change_plan(folder, measures=measures)
    text = reread(folder).text
    assert all(f"Only for the measures: {id}, which has no page yet." in text for id in ("the-reference", "another"))
    synthetic.fail(folder, "v0-s0", "an earlier attempt")
    assert "failed" not in reread(folder).text
    synthetic.fail(folder, "another", "out of memory")
    assert "another, the run that a measure refers to, failed: out of memory" in reread(folder).text
    for id in ("the-reference", "another"):
        (folder / "cells" / id).mkdir()
        (folder / "cells" / id / "report.html").write_text("")
        assert f'href="cells/{id}/report.html"' in write_report(folder).read_text()


@pytest.mark.usefixtures("plain")
def test_a_damaged_file_of_measures_is_shown_and_does_not_stop_the_report(folder: Path) -> None:
    bad = synthetic.measured("v0-s0", {synthetic.CORRUPTION: {"reference_auc": "good"}})
    for i, text in enumerate((bad, synthetic.measured("v0-s0", {}), "", "[]")):
        (folder / "cells" / f"v{i}-s0" / "measures.json").write_text(text)
    page = reread(folder)
    for i in range(4):
        assert any(item.text.startswith(f"cells/v{i}-s0/measures.json: ") for item in page.all("li"))
    assert "Of 8 cells: 4 done; 4 trained, but not fully measured." in page.text
