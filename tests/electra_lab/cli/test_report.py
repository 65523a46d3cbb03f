"""electra-lab report: the page of each folder again, of a run or of an ablation, and nothing else is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.electra_lab.cli.conftest import Lab
from tests.electra_lab.presentation.synthetic import SCALES, leave_out_pictures, write_folder
from tests.pages import Page


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    leave_out_pictures(monkeypatch)
    return write_folder(tmp_path / "small", SCALES, (0, 1), ["generator.scale"])


def test_the_pages_of_both_kinds_are_written_in_the_order_of_the_command(lab: Lab, folder: Path) -> None:
    run = folder / "cells" / "v0-s0"
    other = shutil.copytree(folder / "cells" / "v1-s0", folder.parent / "other")
    pages = [each / "report.html" for each in (run, folder, other)]
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
