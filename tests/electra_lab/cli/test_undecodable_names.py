"""Folders whose names are bytes without a meaning as text: JSON, YAML and safetensors cannot name them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.electra_lab.jobs.pretraining.tiny import experiment

NAME = os.fsdecode(b"caf\xe9")
ABLATION = "name: a\nbase: tiny.yaml\nseeds: [0]\nvary: {train.steps: [12, 13]}\nmeasure: [{type: pretraining}]\n"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")


@pytest.mark.parametrize(("verb", "file"), [("run", "tiny.yaml"), ("ablate", "a.yaml")])
def test_a_new_folder_is_refused_before_anything_is_done(lab: Any, tmp_path: Path, verb: str, file: str) -> None:
    experiment(tmp_path).with_name("a.yaml").write_text(ABLATION)
    assert "its name is not UTF-8" in lab.fails(2, verb, tmp_path / file, "--out", NAME)
    assert not Path(NAME).exists()


@pytest.mark.parametrize("words", [("resume",), ("report",), ("detect", "text"), ("export", "exported")])
def test_a_folder_that_was_renamed_is_refused(lab: Any, words: tuple[str, ...]) -> None:
    Path(NAME).mkdir()
    for name in ("config.yaml", "provenance.json"):
        (Path(NAME) / name).write_text("{}")
    assert "its name is not UTF-8." in lab.fails(2, words[0], NAME, *words[1:])


def test_an_experiment_in_such_a_folder_is_refused_at_the_path(lab: Any, tmp_path: Path) -> None:
    shutil.move(experiment(tmp_path / "there").parent, tmp_path / NAME)
    assert "corpus.paths.0: the path" in lab.fails(2, "check", tmp_path / NAME / "tiny.yaml")
