"""The notebooks run from top to bottom, on a model of a few steps."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run
from tests.helpers import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the notebooks open: that of `make run` for `make notebooks`, else one of a few steps."""
    if named := os.environ.get("ELECTRA_LAB_MODEL"):
        return Path(named).resolve()
    folder = tmp_path_factory.mktemp("model")
    with for_a_module():
        return run(experiment(folder), folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("ELECTRA_LAB_MODEL", str(model))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(str(output.get("text", "")) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("<span title=" in pages(output) for output in outputs)
    found = re.search(r"AUC (0\.\d{3})\nrecall at 10 % false alarms (0\.\d{3})", shown)
    assert found, shown
    if written := os.environ.get("ELECTRA_LAB_NOTEBOOKS"):  # with its outputs
        nbformat.write(notebook, Path(written) / path.name)
        print(shown)


def pages(output: Any) -> str:
    return str(output.get("data", {}).get("text/html", ""))
