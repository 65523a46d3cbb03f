"""The pages of an ablation, from folders as `ablate` leaves them: finished, half done, failed, damaged."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from electra_lab.ablation.figures import curves
from electra_lab.ablation.report import write_report
from electra_lab.ablation.results import read
from electra_lab.charts import DARK, LIGHT, PAPER
from electra_lab.cli import main
from registry.errors import CheckpointError
from tests.electra_lab.ablation.synthetic import GRID, NAMED, SCALES, STEPS, TOKENS_A_STEP, score, write_folder
from tests.pages import Page

HALF_DONE = {"v1-s2": "failed", "v3-s4": "unfinished", "v2-s0": "missing", "v0-s1": "unmeasured", "v2-s3": "begun",
             "v3-s0": "partial"}  # fmt: skip
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "five seeds": lambda folder: write_folder(folder, SCALES, range(5), ["generator.scale"], state=HALF_DONE),
    "two seeds": lambda folder: write_folder(
        folder, NAMED, (0, 1), without={"mlm": ["reference_auc", "reference_accuracy"]}, budget={"steps": 400},
        flops=[1e12, 1.3e12, 0.9e12, 0.5e12], question="Does <i>x</i> & y > z?"),
    "grid": lambda folder: write_folder(folder, GRID, (0, 1, 2), ["generator.scale", "masking.mask_prob"]),
    "words on a grid": lambda folder: write_folder(
        folder,
        {f"sampler.type={a},tie={b}": {"sampler.type": a, "tie": b} for a in ("gumbel", "argmax") for b in (1, 2)},
        (4, 7), ["sampler.type", "tie"], budget={}),
    "one seed": lambda folder: write_folder(folder, SCALES, (0,), ["generator.scale"], budget={"tokens": 3e8}),
    "rates": lambda folder: write_folder(
        folder, {f"train.learning_rate={r}": {"train.learning_rate": r} for r in (1e-5, 1e-4, 1e-3)}, (0, 1),
        ["train.learning_rate"]),
    "nothing": lambda folder: write_folder(
        folder, SCALES, (0, 1), ["generator.scale"], state={f"v{v}-s{s}": "missing" for v in range(4) for s in (0, 1)}),
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders, each with its report; not to be changed."""
    above = tmp_path_factory.mktemp("ablations")
    folders = {name: make(above / f"a {number}") for number, (name, make) in enumerate(FOLDERS.items())}
    for folder in folders.values():
        assert write_report(folder) == folder / "report.html"
    return folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small one, to be changed."""
    return write_folder(tmp_path / "small", SCALES, (0, 1), ["generator.scale"])


@pytest.fixture(params=FOLDERS)
def each(request: pytest.FixtureRequest, written: dict[str, Path]) -> Path:
    return written[request.param]


def test_the_page_is_one_file_that_loads_nothing(each: Path) -> None:
    page = Page(each / "report.html")
    assert page.tags[:2] == ["html", "head"]
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "i", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg\")", page.source)
    assert "@import" not in page.source
    assert not re.search(r"url\((?!#)", page.source)


def test_links_and_ids_resolve(each: Path) -> None:
    page = Page(each / "report.html")
    ids = Counter(value for name, value in page.attributes if name == "id")
    assert max(ids.values(), default=1) == 1
    used = [v for name, v in page.attributes if name == "href"] + re.findall(r"url\((#[^)]+)\)", page.source)
    for link in used:
        if link.startswith("#"):
            assert link[1:] in ids
        else:
            assert (each / link).is_file(), link
            assert not link.startswith("/")
    reports = sorted(p.relative_to(each).as_posix() for p in each.glob("cells/*/report.html"))
    assert sorted(link for link in used if link.startswith("cells/")) == reports


def test_every_picture_has_a_caption_and_a_voice(each: Path) -> None:
    page = Page(each / "report.html")
    assert page.tags.count("figure") == page.tags.count("figcaption")
    voices = [value for name, value in page.attributes if name == "aria-label"]
    assert page.source.count('role="img"') == page.tags.count("figure")
    assert all(voices)


def test_nothing_reads_like_a_program(each: Path) -> None:
    for text in (Page(each / "report.html").text, (each / "table.md").read_text(), (each / "table.csv").read_text()):
        assert not re.search(r"\b(nan|inf|None|True|False|Undefined)\b", text)


def test_the_same_folder_gives_the_same_bytes_wherever_it_lies(each: Path, tmp_path: Path) -> None:
    names = ("report.html", "table.csv", "table.md")
    before = {name: (each / name).read_bytes() for name in names}
    for name in names:
        assert str(each) not in before[name].decode()
        assert str(each.parent) not in before[name].decode()
    assert not list(each.glob(".*"))
    # Run logs name their own folder; everything that the page says of it is relative.
    moved = Path(shutil.copytree(each, tmp_path / "elsewhere" / "b"))
    for file in moved.glob("failed/*.json"):
        file.write_text(file.read_text().replace(str(each), str(moved)))
    write_report(moved)
    assert {name: (moved / name).read_bytes() for name in names} == before


def test_the_table_of_cells_holds_every_number(written: dict[str, Path]) -> None:
    """Against what the fixture was made of, not against what the code read."""
    folder = written["five seeds"]
    rows = list(csv.DictReader((folder / "table.csv").open(newline="")))
    assert [(r["variant"], r["seed"]) for r in rows] == [(label, str(seed)) for label in SCALES for seed in range(5)]
    states = {"partial": "unmeasured", "begun": "unfinished"}
    for i, row in enumerate(rows):
        variant, seed = divmod(i, 5)
        state = HALF_DONE.get(f"v{variant}-s{seed}", "done")
        assert row["status"] == states.get(state, state)
        assert int(row["steps"]) == STEPS - 40 * variant
        assert float(row["flops"]) == pytest.approx(1e12 * (1 - 0.001 * variant))
        assert int(row["parameters"]) == 3_700_000 + 500_000 * (variant + 1)
        trained = state in ("done", "unmeasured", "partial")
        tokens = (STEPS - 40 * variant) * TOKENS_A_STEP
        assert row["tokens"] == (str(tokens) if trained else "")
        assert (
            (float(row["seconds"]) == pytest.approx(tokens / (9000 - 500 * variant))) if trained else not row["seconds"]
        )
        auc = score(variant, seed)
        measured = state in ("done", "partial")
        expected = {"reference_auc": auc, "reference_accuracy": 0.8 + auc / 10, "held_out_loss": 6 - 3 * auc}
        for name, value in expected.items():
            there = measured and (state == "done" or name != "held_out_loss")
            assert row[name] == (repr(value) if there else ""), name


def markdown(folder: Path) -> dict[str, list[list[str]]]:
    """The tables of table.md by their titles, as cells."""
    parts = (folder / "table.md").read_text(encoding="utf-8").split("## ")[1:]
    found = {title: text.strip().splitlines() for title, text in (part.split("\n", 1) for part in parts)}
    return {
        title: [[c.strip() for c in line.strip("| ").split(" | ")] for line in rows] for title, rows in found.items()
    }


def test_the_tables_of_variants_hold_means_and_paired_differences(written: dict[str, Path]) -> None:
    folder = written["grid"]
    tables = markdown(folder)
    lines, losses = tables["reference_auc, higher is better"], tables["held_out_loss, lower is better"]
    assert len(lines) == len(losses) == 2 + len(GRID)
    assert [line[0] for line in lines[2:]] == list(GRID)
    page = Page(folder / "report.html")
    base = [score(0, seed) for seed in range(3)]
    raw = []
    for i, line in enumerate(lines[2:]):
        values = [score(i, seed) for seed in range(3)]
        interval = stats.t.interval(0.95, 2, sum(values) / 3, stats.sem(values))
        mean = f"{sum(values) / 3:.4f} ± {(interval[1] - interval[0]) / 2:.4f}"
        assert line[1:3] == ["3", mean]
        told = ["baseline"]
        if i:
            oracle = stats.ttest_rel(values, base)
            raw.append(float(oracle.pvalue))
            low, high = oracle.confidence_interval(0.95)
            told = [f"{(sum(values) - sum(base)) / 3:+.4f} [{low:+.4f}, {high:+.4f}]"]
        assert line[3:4] == told
        assert losses[2 + i][2].split(" ± ")[0] == f"{6 - sum(values):.3f}"  # the held-out loss is 6 - 3 times the AUC
        if i:
            assert losses[2 + i][3].split(" [")[0] == f"{sum(base) - sum(values):+.4f}"
        row = next(row for row in page.rows if row[0] == line[0] and mean in row)
        assert row[1:5] == ["3", mean, told[0], line[4]]
        if i:
            assert row[5] in ("better", "worse", "")
    largest = max(range(5), key=raw.__getitem__)
    assert lines[3 + largest][4] == f"{raw[largest]:.2f}"  # Holm leaves the largest as it is
    smallest = min(range(5), key=raw.__getitem__)
    assert lines[3 + smallest][4] == f"{5 * raw[smallest]:.3f}"


def test_the_page_tells_what_became_of_the_cells(written: dict[str, Path]) -> None:
    text = Page(written["five seeds"] / "report.html").text
    assert ("Of 20 cells: 14 done; 2 trained, but not measured in full; 2 begun, but not trained to the end; "
            "1 failed; 1 not begun.") in text  # fmt: skip
    assert ("generator.scale=0.5, seed 2 failed 2 times: cells/v1-s2/metrics.jsonl: step 12: the loss was not finite & "
            "<b>large</b>.") in text  # fmt: skip
    assert "exploratory" in text
    assert "Nothing can be said yet: no cell has a reference_auc." in Page(written["nothing"] / "report.html").text


def test_five_whole_seeds_are_not_exploratory(tmp_path: Path) -> None:
    text = Page(write_report(write_folder(tmp_path / "a", SCALES, range(5), ["generator.scale"]))).text
    assert "exploratory" not in text
    assert "Every variant has 5 seeds or more." in text
    assert "Of the values of generator.scale from 0.25 to 1 the best mean lies at" in text


def test_a_difference_over_fewer_seeds_than_its_row_has_says_over_how_many(tmp_path: Path) -> None:
    missing = {"v0-s5": "failed", "v0-s6": "failed", "v1-s0": "failed", "v1-s1": "failed", "v2-s5": "failed"}
    missing |= {"v2-s6": "failed", "v3-s0": "failed"}
    folder = write_folder(tmp_path / "a", SCALES, range(7), ["generator.scale"], state=missing)
    page = Page(write_report(folder))
    lines = markdown(folder)["reference_auc, higher is better"][2:]
    differences = [line[3] for line in lines]
    assert [line[1] for line in lines] == ["5", "5", "5", "6"]
    assert re.fullmatch(r"[+-][\d.]+ \[[+-][\d.]+, [+-][\d.]+\] over 3 pairs", differences[1])
    assert differences[3].endswith("] over 4 pairs")
    assert "over" not in differences[0] + differences[2]
    for line in lines:
        assert any(row[0] == line[0] and row[3:4] == line[3:4] for row in page.rows)
    assert "exploratory As a variant shares only 3 seeds with the baseline generator.scale=0.25" in page.text
    (folder / "cells" / "v1-s2" / "measures.json").unlink()
    (folder / "cells" / "v1-s3" / "measures.json").unlink()
    write_report(folder)
    assert markdown(folder)["reference_auc, higher is better"][3][3].endswith(" over 1 pair")


def test_a_quantity_that_a_variant_lacks_is_a_dash_and_is_said(written: dict[str, Path]) -> None:
    page = Page(written["two seeds"] / "report.html")
    assert ["mlm", "0", "-", "-", "-", "has none"] in page.rows
    assert "Measured, but without" not in page.text
    assert "No cell has" not in page.text
    assert (
        "No cell has reference_auc, reference_accuracy, held_out_loss." in Page(written["nothing"] / "report.html").text
    )
    rows = markdown(written["two seeds"])["reference_auc, higher is better"]
    assert rows[-1] == ["mlm", "0", "-", "-", "-", "has none"]


def test_a_single_cell_that_lacks_quantities_is_named_once(folder: Path) -> None:
    file = folder / "cells" / "v1-s1" / "measures.json"
    file.write_text(json.dumps({"fixed_corruption": {}, "pretraining": {"held_out_loss": 1.0}}))
    text = Page(write_report(folder)).text
    assert "Measured, but without reference_auc, reference_accuracy: generator.scale=0.5, seed 1." in text


def test_hostile_names_are_text(written: dict[str, Path]) -> None:
    label = list(NAMED)[2]
    page = Page(written["two seeds"] / "report.html")
    assert not {"i", "x"} & set(page.tags)
    assert page.tags.count("b") == sum(1 for _ in re.finditer(r"<li><b>", page.source))
    assert label in page.text
    assert "Does <i>x</i> & y > z?" in page.text
    assert "$x$" in "".join(re.findall(r"<text[^>]*>([^<]*)</text>", page.source))  # no formula of matplotlib's
    assert r"masked \<b\>only\</b\> & $x$ \| \`all\` of the tokens" in (written["two seeds"] / "table.md").read_text()
    rows = csv.DictReader((written["two seeds"] / "table.csv").open(newline=""))
    assert label in {row["variant"] for row in rows}


def test_compute_is_drawn_over_what_differs(written: dict[str, Path], tmp_path: Path) -> None:
    equal, other = (Page(written[name] / "report.html").text for name in ("five seeds", "two seeds"))
    assert "All measured cells spent the same compute, 9.97e+11 to 1.00e+12 FLOPs each" in equal
    assert "reference_auc against parameters, both networks" in equal
    assert "The measured cells spent between 9.00e+11 and 1.30e+12 FLOPs each." in other
    assert "reference_auc against training FLOPs of the cell" in other
    folder = write_folder(tmp_path / "a", SCALES, (0, 1), flops=[1e12] * 4)
    plan = json.loads((folder / "plan.json").read_text())
    for cell in plan["cells"]:
        cell["parameters"] = {"discriminator": 5, "shared": 0, "total": 5}
    (folder / "plan.json").write_text(json.dumps(plan))
    text = Page(write_report(folder)).text
    assert "quality depends on neither here" in text
    assert "against parameters" not in text


def test_axes_show_the_values_that_were_tried(written: dict[str, Path]) -> None:
    def picture(name: str) -> set[str]:
        source = (written[name] / "report.html").read_text()
        found = re.search(r'<svg[^>]*aria-label="reference_auc of each variant.*?</svg>', source, flags=re.S)
        assert found
        return set(re.findall(r"<text[^>]*>([^<]*)</text>", found[0]))

    assert {"0.25", "0.5", "0.75", "1", "generator.scale"} <= (picture("five seeds"))
    assert {"1e-05", "0.0001", "0.001"} <= (picture("rates"))
    assert {"masking.mask_prob = 0.15", "masking.mask_prob = 0.25"} <= (picture("grid"))
    assert {"gumbel", "argmax", "tie = 1", "tie = 2"} <= (picture("words on a grid"))
    assert {"as the paper has it", "adversarial"} <= (picture("two seeds"))


def test_what_a_run_was_counts_and_not_its_plan(folder: Path) -> None:
    """The plan takes the vocabulary to be as large as the file says; the trained tokenizer may have found fewer."""
    file = folder / "cells" / "v1-s0" / "provenance.json"
    real = {"steps": 700, "flops": 3e11, "parameters": {"discriminator": 40, "shared": 0, "total": 50}}
    file.write_text(json.dumps(json.loads(file.read_text()) | real))
    write_report(folder)
    rows = {(r["variant"], r["seed"]): r for r in csv.DictReader((folder / "table.csv").open(newline=""))}
    told = rows["generator.scale=0.5", "0"]
    assert (told["steps"], told["flops"], told["parameters"]) == ("700", "300000000000", "50")
    other = rows["generator.scale=0.5", "1"]
    assert (other["steps"], other["parameters"]) == (str(STEPS - 40), "4700000")
    assert "spent between 3.00e+11 and" in Page(folder / "report.html").text
    (folder / "cells" / "v1-s0" / "measures.json").unlink()
    write_report(folder)
    rows = {(r["variant"], r["seed"]): r for r in csv.DictReader((folder / "table.csv").open(newline=""))}
    assert rows["generator.scale=0.5", "0"]["status"] == "unfinished"  # it has come to the plan's steps, not to its own


def test_numbers_at_the_ends_of_what_there_is_can_be_drawn(tmp_path: Path) -> None:
    changes = {f"x={x}": {"x": x} for x in (1e-300, 1.0, 1e300)}
    assert write_report(write_folder(tmp_path / "wide", changes, (0, 1), ["x"])).is_file()


def test_what_differs_comes_from_what_ran(written: dict[str, Path]) -> None:
    page = Page(written["two seeds"] / "report.html")
    assert ["adversarial", "objective.type", "-", "adversarial"] in page.rows
    assert ["generator", "-", "null"] in page.rows
    assert ["mlm", "generator.type", "reformer", "-"] in page.rows
    assert not [row for row in page.rows if {"seed", "name", "train.steps"} & set(row)]
    # Without a budget the steps are a difference like any other.
    assert [row for row in Page(written["words on a grid"] / "report.html").rows if "train.steps" in row]


def test_curves_are_drawn_over_flops(written: dict[str, Path]) -> None:
    text = Page(written["five seeds"] / "report.html").text
    assert "Discriminator AUC on its own generator (held-out text)" in text
    assert "Generator loss, nats (held-out text)" in text
    assert "Nothing has been logged yet." in Page(written["nothing"] / "report.html").text


def test_a_run_that_was_evaluated_once_shows_its_training_losses(folder: Path) -> None:
    for file in folder.glob("cells/*/metrics.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        last = max(r["step"] for r in records)
        kept = [r for r in records if r["split"] == "train" or r["step"] == last]
        file.write_text("".join(json.dumps(r) + "\n" for r in kept))
    text = Page(write_report(folder)).text
    assert "Generator loss, nats (training text)" in text
    assert "Discriminator AUC on its own generator" not in text  # one point is no curve


def test_the_loss_of_a_network_that_predicts_tokens_is_in_no_picture_of_detection(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "objectives", {"electra": {}, "mlm": {}}, range(2))
    assert "Discriminator loss, nats (held-out text)" in Page(write_report(folder)).text
    before = pictures(folder)
    for file in folder.glob("cells/v1-*/metrics.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(r | {"discriminator_token_loss": 5.0}) + "\n" for r in records))
    after = pictures(folder)
    assert after["Generator loss, nats"] == before["Generator loss, nats"]
    assert after["Discriminator loss, nats"] == before["Discriminator loss, nats"] - 2
    assert after.keys() - before.keys() == {"Token loss of the network under study, nats"}


def pictures(folder: Path) -> dict[str, int]:
    """How many paths each picture of curves has, those of its axes included."""
    found: dict[str, int] = {}
    results = read(folder)
    for picture in curves(results):
        found[picture.caption.split(" (")[0]] = picture.svg.count('<path d="M')
    return found


def test_a_number_of_each_cells_own_task_is_called_higher_or_lower_never_better(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    for measure in plan["measures"]:
        for quantity in measure["quantities"].values():
            quantity["own_task"] = True
    (folder / "plan.json").write_text(json.dumps(plan))
    text = Page(write_report(folder)).text
    table = (folder / "table.md").read_text()
    assert "Each cell is measured on a task of its own here" in text
    assert "of each cell's own task" in text
    assert "is better" not in text.replace("a better network", "")
    assert {row.split("|")[-2].strip() for row in table.splitlines() if row.startswith("| generator")} <= {
        "higher",
        "lower",
        "",
    }


def test_provenance_says_where_cells_differ(folder: Path) -> None:
    assert "All cells that have begun ran on the same." in Page(write_report(folder)).text
    file = folder / "cells" / "v1-s0" / "provenance.json"
    value = json.loads(file.read_text())
    value["environment"]["threads"] = 8
    file.write_text(json.dumps(value))
    text = Page(write_report(folder)).text
    assert "The cells differ in threads:" in text
    assert "1 (7 cells); 8 (1 cell)" in text
    assert "5f2dae8da280" in text


def test_a_reference_run_is_linked_and_its_failure_told(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    plan["measures"][0]["reference"] = "the-reference"
    (folder / "plan.json").write_text(json.dumps(plan))
    assert "For the measures alone: the-reference, which has no page yet." in Page(write_report(folder)).text
    (folder / "failed").mkdir()
    (folder / "failed" / "the-reference.json").write_text('{"error": "out of memory", "attempts": 1}')
    assert "the-reference, the run that a measure refers to, failed: out of memory" in Page(write_report(folder)).text
    (folder / "cells" / "the-reference").mkdir()
    (folder / "cells" / "the-reference" / "report.html").write_text("")
    assert 'href="cells/the-reference/report.html"' in write_report(folder).read_text()


def test_a_failure_that_was_mended_is_none(folder: Path) -> None:
    (folder / "failed").mkdir()
    (folder / "failed" / "v0-s0.json").write_text('{"error": "lost", "attempts": 1}')
    assert read(folder).count("failed") == 0


def test_numbers_that_are_none_do_not_count(folder: Path) -> None:
    file = folder / "cells" / "v0-s0" / "measures.json"
    file.write_text(
        '{"fixed_corruption": {"reference_auc": NaN, "reference_accuracy": null, "more": 1}, "pretraining": {}}'
    )
    cell = read(folder).cells[0]
    assert (cell.status, cell.values) == ("done", {})


Damage = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda plan: plan.pop("variants"), "variants: Field required"),
        (lambda plan: plan.update(baseline="gone"), "gone is none of the variants"),
        (lambda plan: plan.update(leading="gone"), "gone is a quantity of no measure"),
        (lambda plan: plan["cells"][0].update(id="../../x"), "cells.0.id"),
        (lambda plan: plan["cells"][0].update(id=plan["cells"][1]["id"]), "two cell ids are the same"),
        (lambda plan: plan["cells"][0].update(seed="one"), "cells.0.seed"),
        (lambda plan: plan["measures"][1]["quantities"].update(reference_auc={}), "two quantities are the same"),
    ],
)
def test_a_damaged_plan_is_one_sentence(folder: Path, damage: Damage, said: str) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    damage(plan)
    (folder / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(CheckpointError) as error:
        write_report(folder)
    assert str(error.value).startswith(f"{folder / 'plan.json'}: ")
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("plan.json", "{"),
        ("plan.json", "[]"),
        ("cells/v0-s0/measures.json", '{"fixed_corruption": {"reference_auc": "good"}}'),
        ("cells/v0-s0/measures.json", '{"fixed_corruption": 1}'),
        ("cells/v0-s0/measures.json", ""),
        ("cells/v0-s0/config.yaml", "a: [1"),
        ("cells/v0-s0/config.yaml", "text"),
        ("cells/v0-s0/provenance.json", "1"),
        ("cells/v0-s0/metrics.jsonl", "{}\n{}\n"),
        ("failed/v0-s0.json", "{}"),
    ],
)
def test_a_damaged_file_is_named(
    folder: Path, file: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "failed").mkdir()
    (folder / file).write_text(text)
    if file.startswith("failed"):
        (folder / "cells" / "v0-s0" / "measures.json").unlink()
    assert command(monkeypatch, "report", str(folder)) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"{folder / file}:")
    assert len(printed.err.splitlines()) == 1


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["electra-lab", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code


def test_the_command_writes_pages_of_both_kinds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "cells" / "v0-s0"
    assert command(monkeypatch, "report", str(folder), str(run)) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder / "report.html"), str(run / "report.html")]
    assert "What was learned" in (run / "report.html").read_text()


def test_a_folder_of_neither_kind_stops_before_anything_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "report", str(folder), str(tmp_path)) == 2
    assert f"{tmp_path}: is neither an ablation's folder" in capsys.readouterr().err
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(("colours", "paper"), [(LIGHT, PAPER["light"]), (DARK, PAPER["dark"])])
def test_every_colour_stands_out_from_its_paper(colours: tuple[str, ...], paper: str) -> None:
    """WCAG 2.1, 1.4.11: 3 to 1 for graphics."""

    def luminance(colour: str) -> float:
        shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in colours:
        light, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, colour
    assert len(set(colours)) == len(LIGHT)
