"""Runs that are measured on one task outside of an ablation: the same numbers as in it, kept by checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.analysis.run_comparison import Subject, subjects
from electra_lab.jobs import measuring
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.ablation_folder import AblationFolder
from registry.errors import CheckpointError, ConfigError

ON = "{type: fixed_corruption, steps: 4}"


def read(out: Path) -> list[Subject]:
    return subjects([out / "cells" / cell.id for cell in AblationFolder(out).plan.cells])


def test_the_numbers_are_those_of_an_ablation_and_are_kept(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the ablation itself, which trained its own references on the same text."""
    cells, folder = read(out), AblationFolder(out)
    found = measuring.measure(cells[1:], ON, "cpu")
    key = next(measure.key for measure in folder.plan.measures if measure.type == "fixed_corruption")
    assert len(cells) == 4
    for cell in cells[1:]:
        assert found.numbers[cell.label] == folder.measured(cell.directory.path.name)[key]
    assert len({numbers["corruption_auc"] for numbers in found.numbers.values()}) == 3

    # Nothing is opened or trained again; a fourth run is measured by what is there.
    opened, reopen = list[Path](), execute.reopen
    monkeypatch.setattr(execute, "reopen", lambda path, device: (opened.append(path), reopen(path, device))[1])
    monkeypatch.setattr(execute, "run", lambda *_, **__: pytest.fail("a reference is trained again"))
    assert measuring.measure(cells[:0:-1], ON, "cpu").numbers == found.numbers
    assert opened == []
    begun = cells[1].began.started
    cells[0] = Subject(cells[0].label, cells[0].directory, cells[0].began.model_copy(update={"started": begun + "1"}),
                       cells[0].records, cells[0].config)  # fmt: skip
    more = measuring.measure(cells, ON, "cpu").numbers
    assert more[cells[0].label] == folder.measured(cells[0].directory.path.name)[key]
    assert opened == [cells[0].directory.path]

    # Numbers of another checkpoint are measured again, and so are damaged ones.
    manifest = cells[1].directory.last_checkpoint() / "MANIFEST.json"
    manifest.write_text(manifest.read_text() + "\n")
    cells[2].directory.write(measuring.KEPT, "[1]")
    assert measuring.measure(cells[1:], ON, "cpu").numbers == found.numbers
    assert opened[1:] == [cells[1].directory.path, cells[2].directory.path]

    # A run that reads the tokenizer of another one, as continued pre-training does, reads the same rows.
    path, tokenizer = cells[2].directory.path, cells[1].directory.path / "tokenizer.json"
    config, provenance = yaml.safe_load((path / "config.yaml").read_text()), path / "provenance.json"
    config["tokenizer"] = {"type": "pretrained", "path": str(tokenizer)}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    provenance.write_text(provenance.read_text().replace(cells[2].began.data.store, "another"))
    paths = [cell.directory.path for cell in cells[1:]]
    assert measuring.measure(subjects(paths), ON, "cpu").numbers == found.numbers
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(ConfigError, match="reads other rows"):
        measuring.measure(subjects(paths), ON, "cpu")


def test_refusals(out: Path) -> None:
    cells = read(out)[:2]
    for wrong in ("nothing", "{type: fixed_corruption, step: 4}", "[1]", "{steps: 4}", "pretraining"):
        with pytest.raises(ConfigError):
            measuring.measure(cells, wrong, "cpu")
    shutil.rmtree(cells[1].directory.last_checkpoint())
    with pytest.raises(CheckpointError, match="electra-lab resume"):
        measuring.measure(cells, ON, "cpu")


def test_other_rows_are_refused(out: Path) -> None:
    cells = read(out)[:2]
    file = cells[1].directory.path / "config.yaml"
    file.write_text(file.read_text().replace("held_out: 0.3", "held_out: 0.4"))
    with pytest.raises(ConfigError, match="data"):
        measuring.measure(subjects([cell.directory.path for cell in cells]), ON, "cpu")
    assert not (cells[0].directory.path / "compared").exists()


def test_a_run_directory_that_cannot_be_written_is_measured_all_the_same(out: Path, monkeypatch: Any) -> None:
    cells, said = read(out)[:2], list[str]()
    (cells[0].directory.path / measuring.KEPT).mkdir()
    monkeypatch.setattr(measuring.Console, "say", lambda self, text: said.append(text))
    measuring.measure(cells, "detection_probe", "cpu")
    assert any(measuring.KEPT in text for text in said)
    assert json.loads((cells[1].directory.path / measuring.KEPT).read_text())
