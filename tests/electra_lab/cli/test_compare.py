"""electra-lab list, compare and report: answers, files, exit codes."""

import json
import os
import shutil
from pathlib import Path

import pytest

from electra_lab.presentation import compare_page, listing
from electra_lab.presentation.pages import Chart
from tests.electra_lab.analysis.test_run_comparison import write
from tests.electra_lab.cli.conftest import Lab
from tests.electra_lab.presentation.finetuned import scores, write_finetuned
from tests.electra_lab.presentation.synthetic import SCALES, leave_out_pictures, write_folder
from tests.pages import Page


@pytest.fixture
def runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(compare_page, "_overlay", lambda *_: Chart("", "<svg></svg>"))
    return [path.relative_to(Path.cwd()) for path in write(Path.cwd() / "runs", "one", "other")]


def test_a_listing_is_a_row_per_job(lab: Lab, runs: list[Path]) -> None:
    write_finetuned(Path("runs/tuned"), scores("accuracy", 0.5, 0.75))
    write_folder(Path("runs/sweep"), SCALES, (0, 1), ["generator.scale"])
    code, out, err = lab("list", "--sort", "name")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows[1:]] == ["tuned", "cells/one", "cells/other", "sweep"]
    assert all("finished" in row for row in rows[1:])
    found = json.loads(lab("list", "runs", "--json", "--filter", "run", "--filter", "seed=3")[1])
    assert {Path(job["path"]) for job in found} == {*runs}
    assert {(job["kind"], job["state"], job["done"]) for job in found} == {("run", "finished", n) for n in (360, 400)}
    # Without runs there is no answer.
    code, out, err = lab("list", "--filter", "running")
    assert (code, out, err.count("\n")) == (0, "", 1)
    assert json.loads(lab("list", "--filter", "running", "--json")[1]) == []
    for wrong in (["absent"], ["--sort", "discriminator_auc"], ["--sort", "nothing"]):
        assert wrong[-1].partition("=")[0] in lab.fails(2, "list", *wrong)


def test_seeds_of_a_fine_tuning_are_compared(lab: Lab, tuned: dict[str, Path]) -> None:
    seeds = tuned["labels"] / "seed-4", tuned["labels"] / "seed-7"
    code, out, err = lab("compare", *seeds, "--html", "page.html")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["seeds", "[4]", "[7]"] in rows
    # A fine-tuning may have no test split.
    (shown,) = [row[1:3] for row in rows if row[:1] == ["accuracy"]]
    of_seeds = [json.loads((seed / "results.json").read_text())["splits"]["validation"]["metrics"] for seed in seeds]
    assert [*map(float, shown)] == pytest.approx([metrics["accuracy"] for metrics in of_seeds], abs=1e-4)
    assert all(number in Path("page.html").read_text() for number in shown)


@pytest.mark.parametrize("width", [60, 90, 200])
def test_a_table_fits_the_terminal(lab: Lab, runs: list[Path], width: int) -> None:
    from electra_lab.analysis.catalog import jobs

    (runs[0] / "provenance.json").write_text("{")
    found = list(jobs(Path("runs")))
    lines = listing.table(found, Path("runs"), "newest", width).text(indent="").splitlines()
    assert max(map(len, lines)) <= width
    assert {"path", "state", "result"} <= {*lines[0].split()}
    assert ("written" in lines[0]) == (width > 60)
    assert any("damaged" in line and "provenance.json" in line for line in lines)


def test_a_comparison_is_tables_and_a_page(lab: Lab, runs: list[Path]) -> None:
    for measure in ("", "3", "[fixed_corruption]"):
        assert f"--on{' ' * bool(measure)}{measure}: " in lab.fails(2, "compare", *runs, "--on", measure)
    code, out, err = lab("compare", *runs)
    assert (code, err, os.listdir()) == (0, "", ["runs"]), "a page is written only where --html says"
    assert "generator loss" in out
    Path("link.html").symlink_to("a.html")
    assert lab("compare", *runs, "--html", "link.html") == (0, f"{out}\nlink.html\n", "")
    assert "one" in Page(Path("a.html")).text
    for options, page in ((("--html", "other.html"), "other.html"), ((), None)):
        code, out, _ = lab("compare", *runs, "--json", *options)
        found = json.loads(out)
        assert (code, found["page"]) == (0, page)
        assert [Path(run["path"]) for run in found["runs"]] == runs
    assert Path("other.html").read_text() == Path("a.html").read_text()
    assert sorted(os.listdir()) == ["a.html", "link.html", "other.html", "runs"]


def test_refusals_write_nothing(lab: Lab, runs: list[Path]) -> None:
    tuned = write_finetuned(Path("tuned"), scores("accuracy", 0.5))
    assert "seed-0" in lab.fails(2, "compare", runs[0], tuned)
    for wrong in ([runs[0]], [runs[0], "absent"], [*runs, "--html", "no/page.html"], [*runs, "--html", "."]):
        lab.fails(2, "compare", "--html", "page.html", *wrong)
    (runs[0] / "metrics.jsonl").write_text("{}\n{}\n")
    assert str(runs[0] / "metrics.jsonl") in lab.fails(4, "compare", *runs, "--html", "page.html")
    assert sorted(os.listdir()) == ["runs", "tuned"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    leave_out_pictures(monkeypatch)
    return write_folder(tmp_path / "small", SCALES, (0, 1), ["generator.scale"])


def test_the_pages_of_both_kinds_are_written_in_the_order_of_the_command(lab: Lab, folder: Path) -> None:
    run = folder / "cells" / "v0-s0"
    other = shutil.copytree(folder / "cells" / "v1-s0", folder.parent / "other")
    pages = [path / "report.html" for path in (run, folder, other)]
    assert lab("report", run, folder, other) == (0, "".join(f"{page}\n" for page in pages), "")
    for page, said in zip(pages, ("after step 400", "4 variants, 2 seeds, 8 cells", "after step 360"), strict=True):
        assert said in Page(page).text
    assert (folder / "table.csv").is_file()


@pytest.mark.parametrize("there", [True, False])
def test_open_shows_each_page_in_the_browser(lab: Lab, folder: Path, monkeypatch, there: bool) -> None:
    opened, page = list[str](), folder / "report.html"
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or there)
    code, out, err = lab("report", "--open", folder)
    assert (code, out, err.count("\n")) == (0, f"{page}\n", not there)
    assert opened == [page.resolve().as_uri()]


def test_a_folder_of_neither_kind_stops_before_anything_is_written(lab: Lab, folder: Path, tmp_path: Path) -> None:
    err = lab.fails(2, "report", folder, tmp_path)
    assert err.startswith(f"{tmp_path}: ")
    assert all(file in err for file in ("plan.json", "finetuning.yaml", "config.yaml and provenance.json"))
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("plan.json", "{"), ("plan.json", "[]"), ("plan.json", '{"name": "sizes", "base": "tiny.yaml"}'),
        ("failed/v0-s0.json", "{}"), ("cells/v0-s0/provenance.json", "1"), ("cells/v0-s0/metrics.jsonl", "{}\n{}\n"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_exit_code_4_and_named(lab: Lab, folder: Path, file: str, text: str) -> None:
    (folder / "failed").mkdir()
    (folder / file).write_text(text)
    err = lab.fails(4, "report", folder)
    assert (err.startswith(f"{folder / file}:"), err.count("\n")) == (True, 1)
    assert not (folder / "report.html").exists()
    assert not (folder / "table.md").exists()
