"""Pictures as matplotlib's axes, so that tests read plotted data instead of pixels."""

from html import escape
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from electra_lab.presentation import pages
from electra_lab.presentation import sweep_figures as ablation_figures
from electra_lab.storage.run_directory import RunDirectory
from tests.electra_lab.presentation.axes import Drawn
from tests.electra_lab.presentation.finetuned import leave_out_curve
from tests.electra_lab.presentation.synthetic import SCALES, leave_out_pictures, write_cell, write_folder


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """The axes of each picture drawn during the test, by name. Nothing is rendered, as that is slow."""
    found: Drawn = {}

    def keep(figure: Figure, name: str, says: str = "") -> str:
        [found[name]] = figure.axes
        return f'<svg role="img" aria-label="{escape(says)}"></svg>' if says else '<svg aria-hidden="true"></svg>'

    monkeypatch.setattr(ablation_figures, "svg", keep)
    monkeypatch.setattr(pages, "svg", keep)
    return found


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without pictures, for tests of text and numbers."""
    leave_out_pictures(monkeypatch)


@pytest.fixture
def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_curve(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small ablation that a test may change."""
    return write_folder(tmp_path / "small", SCALES, (0, 1), ["generator.scale"])


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """The directory of a run, written without training."""
    parameters = {"generator": 1_000_000, "discriminator": 4_000_000, "shared": 300_000, "total": 4_700_000}
    write_cell(tmp_path, {"id": "run", "seed": 3, "steps": 400, "flops": 1e12, "parameters": parameters})
    return RunDirectory(tmp_path / "cells" / "run")
