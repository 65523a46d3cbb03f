"""Row 18: run directories of earlier releases, which lie in tests/data, and those of releases to come."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT
from tests.scorecard.conftest import Score
from tests.scorecard.lab import Lab
from tests.scorecard.project import Project
from tests.scorecard.rows import FULL

GOLDEN = ROOT / "tests" / "data"


@pytest.mark.scorecard
def test_golden_run_directories(score: Score, lab: Lab, tmp_path: Path) -> None:
    """Each is resumed to its end, reported and exported; or the refusal names the release that wrote it."""
    found = sorted(path.parent for path in GOLDEN.rglob("provenance.json"))
    with score.trial("there are run directories of releases"):
        assert found, f"none in {GOLDEN.relative_to(ROOT)}"
    for golden in score.chosen(found, lambda path: path.name):
        out = tmp_path / "run"
        shutil.copytree(golden, out)
        (store,) = (golden.parent / "store").iterdir()  # of all run directories beside it
        shutil.copytree(store, tmp_path / "store", dirs_exist_ok=True)
        with score.trial(str(golden.relative_to(GOLDEN))):
            for verb in (
                ("resume", out, "--set", f"data.store={tmp_path / 'store'}"),
                ("report", out),
                ("export", out, tmp_path / "exported"),
            ):
                ended = lab(*verb, cwd=tmp_path)
                wrote = json.loads((golden / "provenance.json").read_text()).get("electra_lab", "?")
                assert not ended.traced, ended
                assert ended.code == 0 or (ended.code == 4 and f"electra_lab {wrote}" in ended.last), ended
        shutil.rmtree(out)
        shutil.rmtree(tmp_path / "exported", ignore_errors=True)


def test_formats_of_releases_to_come(score: Score, project: Project) -> None:
    begun = project.stopped(5)
    for number in (999, 0, -1, "2", None, [1]) if FULL else (999,):
        out = project.copy(begun)
        with score.trial(f"provenance.json of format {number!r}"):
            change(out / "provenance.json", format=number, electra_lab="99.0")
            kept = {path: path.read_bytes() for path in out.rglob("[!.]*") if path.is_file()}
            ended = project.resume(out)
            assert ended.code in (2, 4), ended
            assert not ended.traced, ended
            assert number != 999 or ("99.0" in ended.last and "999" in ended.last), f"does not name them: {ended}"
            assert kept == {path: path.read_bytes() for path in kept}, "files have changed"


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
