"""An ablation that is refused for its folder, its command line, its data or its reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.electra_lab.cli.test_ablate_refusals import files, refused, write
from tests.helpers import write_experiment


def test_a_folder_of_something_else_is_left_alone(lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "electra_lab.jobs.sweeps.run.forecast", lambda *_: None
    )  # it takes seconds, and is not asked for
    path = write(tmp_path / "there")
    out = tmp_path / "out"

    def said(*arguments: str) -> str:
        before = files(tmp_path)
        [line] = refused(lab, path, "--out", out, *arguments)
        assert files(tmp_path) == before
        return line

    [line] = refused(lab, path, "--out", "runs")
    assert line.startswith(f"--out runs: is where the token stores lie (data.store: {Path.cwd()}/runs/.store). Choose")
    out.write_text("mine")
    assert said() == f"--out {out}: is not a folder."
    out.unlink()
    out.mkdir()
    (out / "kept.txt").write_text("mine")
    for arguments in ([], ["--dry-run"]):
        assert (
            said(*arguments) == f"--out {out}: is not empty and not the folder of an ablation. Choose another folder."
        )
    old = {"cells": [{"id": "other-s0-0123456789"}]}  # from before plans had a format
    for text, reason in (
        ("[3]", "is damaged: Input should be a valid dictionary"),
        ("{", "cannot be read (Expecting property name"),
        (json.dumps(old), "was written by another version of electra_lab, in format 1"),
    ):
        (out / "plan.json").write_text(text)
        for arguments in ([], ["--dry-run"]):
            code, printed, err = lab("ablate", path, "--out", out, *arguments)
            assert (code, printed) == (4, "")
            assert err.startswith(f"{out}/plan.json: {reason}")
            assert len(err.splitlines()) == 1


def test_a_launcher_that_nobody_knows(lab, tmp_path: Path):
    [line] = refused(lab, write(tmp_path / "there"), "--launcher", "slrum")
    assert line.startswith("--launcher slrum: ")
    assert "Did you mean 'slurm'?" in line


def test_data_that_is_not_here_is_exit_code_3_and_a_mistake_of_the_file_comes_first(lab, tmp_path: Path):
    path = write(tmp_path / "there")
    (path.parent / "corpus.txt").unlink()
    sentence = f"{path.parent}/tiny.yaml:2: corpus: text_files: {path.parent}/corpus.txt: no file matches."
    assert lab("ablate", path) == (3, "", sentence + "\n")
    assert list(Path.cwd().iterdir()) == []
    code, out, err = lab("check", path)
    assert (code, err) == (0, f"note: {sentence} A run would stop there.\n")
    assert out.startswith("size: 2 variants")
    path.write_text(path.read_text() + "budget: {tokens: 1}\n")
    where = "(in the variants generator.scale=0.5; generator.scale=1.0)"
    assert refused(lab, path) == [f"{path}:7: train.tokens: 1 does not pay for one step, which costs 32. {where}"]


def test_a_reference_that_is_one_of_the_cells(lab, tmp_path: Path):
    base = write_experiment(tmp_path / "there", generator="null", sampler="null", objective="{type: mlm}",
                            embedding="{dim: 8, max_length: 16, tie: none}")  # fmt: skip
    text = base.read_text()
    path = write(tmp_path / "there", vary="{a: {}, b: {train.batch_size: 4}}", seeds="[5]",
                 measure="[{type: fixed_corruption, large: 1.0, seed: 5}]")  # fmt: skip
    base.write_text(text)
    [line] = refused(lab, path)
    assert line.startswith(f"{path}:6: measure.0: the reference of fixed_corruption (large) is also a cell")
