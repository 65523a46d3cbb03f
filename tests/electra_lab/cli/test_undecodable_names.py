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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")


@pytest.mark.parametrize("verb", ["run", "ablate"])
def test_a_new_folder_is_refused_before_anything_is_done(lab: Any, tmp_path: Path, verb: str) -> None:
    file = experiment(tmp_path / "there")
    if verb == "ablate":
        text = "name: a\nbase: tiny.yaml\nseeds: [0]\nvary: {train.steps: [12, 13]}\nmeasure: [{type: pretraining}]\n"
        file.with_name("a.yaml").write_text(text)
        file = file.with_name("a.yaml")
    err = lab.fails(2, verb, file, "--out", NAME)
    assert "its name is not UTF-8" in err
    assert not Path(NAME).exists()


@pytest.mark.parametrize("verb", ["resume", "report", "detect", "export"])
def test_a_folder_that_was_renamed_is_refused(lab: Any, verb: str) -> None:
    folder = Path(NAME)
    folder.mkdir()
    for name in ("config.yaml", "provenance.json"):
        (folder / name).write_text("{}")
    err = lab.fails(2, verb, folder, *{"detect": ["text"], "export": ["exported"]}.get(verb, []))
    assert "its name is not UTF-8. Choose another one, or rename it.\n" in err


def test_an_experiment_in_such_a_folder_is_refused_at_the_path(lab: Any, tmp_path: Path) -> None:
    shutil.move(experiment(tmp_path / "there").parent, tmp_path / NAME)
    err = lab.fails(2, "check", tmp_path / NAME / "tiny.yaml")
    assert "corpus.paths.0: the path" in err
    assert "is not UTF-8. Rename it." in err
