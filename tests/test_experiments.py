"""Every experiment that is shipped passes `check`, round-trips, and says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from electra_lab.assemble import check
from electra_lab.config.load import dump, load
from tests.helpers import ROOT

FILES = sorted((ROOT / "experiments").rglob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_shipped_experiment(file: Path, tmp_path: Path) -> None:
    loaded = load(file)
    check(loaded)
    assert loaded.config.name == file.stem
    assert file.read_text(encoding="utf-8").startswith("# ")
    again = tmp_path / "config.yaml"
    again.write_text(dump(loaded.config), encoding="utf-8")
    assert load(again).config == loaded.config
