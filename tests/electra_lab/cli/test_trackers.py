"""Trackers on the command line: what is refused before a run, and what never stops one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.config.load import load_finetuning
from electra_lab.jobs.finetuning.experiment import identity
from registry import launchers
from tests.electra_lab.jobs.finetuning.small import PLUGIN, write_finetuning
from tests.electra_lab.jobs.pretraining.test_track import DIARY, diary, expected, given, tracked
from tests.electra_lab.jobs.pretraining.tiny import lines, lose_checkpoints
from tests.electra_lab.jobs.sweeps.small import InProcess

SHORT = {"train": "{steps: 3, batch_size: 2, precision: fp32, log_every: 1}", "evaluate": "{examples: 0}"}
PAPER = "trackers.0: diary needs paper. Install it: pip install paper."
pytestmark = pytest.mark.usefixtures("no_report")


def line_of(file: Path) -> int:
    return next(n for n, line in enumerate(file.read_text().splitlines(), start=1) if line.startswith("trackers:"))


def test_a_missing_library_is_refused_before_a_run_begins(lab: Any, tmp_path: Path) -> None:
    file = tracked(tmp_path, {"fails": "check"}, **SHORT)
    said = f"{file}:{line_of(file)}: {PAPER}\n"
    assert lab("run", file, "--out", tmp_path / "run") == (2, "", said)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("command", [("check",), ("run", "--dry-run")])
def test_a_missing_library_is_no_mistake_of_the_file(lab: Any, tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tracked(tmp_path, {"fails": "check"}, **SHORT)
    code, out, err = lab(command[0], file, *command[1:])
    assert (code, err) == (0, f"note: {file}:{line_of(file)}: {PAPER} A run would stop there.\n")
    assert out


def test_without_its_library_a_run_can_still_be_resumed(lab: Any, tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert lab("run", tracked(tmp_path, {}, **SHORT), "--out", path)[0] == 0
    before = len(given(tmp_path))
    lose_checkpoints(path)
    (tmp_path / "no paper").touch()
    code, _, err = lab("resume", path)
    assert code == 0
    assert [line for line in err.splitlines() if "diary" in line] == [
        "note: the tracker diary needs paper. Install it: pip install paper. The run continues without it; "
        "metrics.jsonl has every record."
    ]
    assert len(lines(path)) == 5
    assert len(given(tmp_path)) == before


def test_a_tracker_may_refuse_its_options(lab: Any, tmp_path: Path) -> None:
    file = tracked(tmp_path, {"fails": "build"}, **SHORT)
    said = f"{file}:{line_of(file)}: trackers.0: diary refuses this: no such diary\n"
    assert lab("check", file) == (2, "", said)


def test_fine_tunings_have_trackers_too(lab: Any, tmp_path: Path) -> None:
    """A run of the tracker for each seed; a missing library is refused before anything is written."""
    own = {"type": "diary", "path": str(tmp_path / "diary")}
    short = {"train": {"epochs": 1, "batch_size": 6, "precision": "fp32", "log_every": 2}, "evaluate": {}}
    plugins = {"imports": [str(PLUGIN), str(DIARY)], **short}
    assert lab("run", tracked(tmp_path, **SHORT), "--out", tmp_path / "model")[0] == 0
    file = write_finetuning(tmp_path, tmp_path / "model", seeds=[3, 5], trackers=[own], **plugins)
    code, _, err = lab("finetune", file, "--out", tmp_path / "tuned")
    assert code == 0, err
    starts = diary(tmp_path, "start")
    assert [start[:3] for start in starts] == [
        [f"animals-tuned-seed-{seed}", "animals", str(tmp_path / "tuned" / f"seed-{seed}")] for seed in (3, 5)
    ]
    assert given(tmp_path) == [each for seed in (3, 5) for each in expected(tmp_path / "tuned" / f"seed-{seed}")]
    file = write_finetuning(tmp_path, tmp_path / "model", trackers=[own | {"fails": "check"}], **plugins)
    code, _, err = lab("finetune", file, "--out", tmp_path / "refused")
    assert (code, PAPER in err) == (2, True)
    assert not (tmp_path / "refused").exists()
    code, _, err = lab("check", file)
    assert (code, f"{PAPER} A run would stop there." in err) == (0, True)
    with_it, without = load_finetuning(file), load_finetuning(file, ["trackers=[]"])
    assert identity(with_it) == identity(without), "the measure `downstream` would be taken again"


def test_fine_tunings_that_are_varied_or_measures_are_refused_beforehand_too(lab: Any, tmp_path: Path) -> None:
    base = tracked(tmp_path, **SHORT)
    assert lab("run", base, "--out", tmp_path / "model")[0] == 0
    lacking = {"type": "diary", "path": str(tmp_path / "diary"), "fails": "check"}
    file = write_finetuning(tmp_path, tmp_path / "model", trackers=[lacking], imports=[str(PLUGIN), str(DIARY)])
    tasks, ablation = tmp_path / "tasks.yaml", tmp_path / "pair.yaml"
    models = {"one": {"model": str(tmp_path / "model")}}
    tasks.write_text(yaml.safe_dump({"name": "two", "base": file.name, "vary": models, "seeds": [0]}))
    measure = [{"type": "downstream", "file": file.name, "name": "animals"}]
    variants = {"base": base.name, "vary": {"embedding.dim": [8, 16]}, "seeds": [0], "measure": measure}
    ablation.write_text(yaml.safe_dump({"name": "pair", **variants}))
    for path in (tasks, ablation):
        code, _, err = lab("ablate", path, "--out", tmp_path / "out")
        assert (code, PAPER in err) == (2, True), err
        assert not (tmp_path / "out").exists()


def test_the_cells_of_an_ablation_have_those_of_the_base(lab, tmp_path: Path, monkeypatch) -> None:
    """Each has a run of its own in the group of the ablation; what tracks a cell does not make it another one."""
    monkeypatch.undo()  # a cell is finished when it has its report
    launchers.register("in_process")(InProcess)
    base = tracked(tmp_path, {}, **SHORT)
    content = {"name": "pair", "base": base.name, "vary": {"embedding.dim": [8, 16]}, "seeds": [0],
               "measure": [{"type": "pretraining"}], "launcher": {"type": "in_process"}}  # fmt: skip
    file = tmp_path / "pair.yaml"
    file.write_text(yaml.safe_dump(content))
    code, _, err = lab("ablate", file, "--out", tmp_path / "pair")
    assert code == 0, err
    cells = sorted(path.name for path in (tmp_path / "pair" / "cells").iterdir() if path.is_dir())
    assert sorted(start[0] for start in diary(tmp_path, "start")) == [f"pair-{cell}" for cell in cells]
    assert {start[1] for start in diary(tmp_path, "start")} == {"pair"}
    plan = json.loads((tmp_path / "pair" / "plan.json").read_text())
    base.write_text("".join(line for line in base.open() if not line.startswith("trackers:")))
    assert lab("ablate", file, "--out", tmp_path / "pair")[0] == 0
    assert json.loads((tmp_path / "pair" / "plan.json").read_text())["cells"] == plan["cells"]
    content["vary"] = {"trackers": [[], []]}
    file.write_text(yaml.safe_dump(content))
    code, _, err = lab("check", file)
    assert (code, "vary: trackers cannot be varied: " in err) == (2, True)
