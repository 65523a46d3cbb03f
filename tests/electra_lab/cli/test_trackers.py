"""Trackers on the command line: mistakes that are refused before a run, and failures that never stop one."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.config.load import load_finetuning
from electra_lab.jobs.finetuning.experiment import identity
from registry import launchers
from tests.electra_lab.jobs.finetuning.small import PLUGIN, pretrained, write_finetuning
from tests.electra_lab.jobs.pretraining.test_track import DIARY, diary, expected, given, tracked
from tests.electra_lab.jobs.pretraining.tiny import lines, lose_checkpoints
from tests.electra_lab.jobs.sweeps.small import InProcess
from tests.helpers import line_of

SHORT = {"train": "{steps: 3, batch_size: 2, precision: fp32, log_every: 1}", "evaluate": "{examples: 0}"}
REFUSED = "refuses this: no such diary\n"
PAPER = "trackers.0: diary needs paper. Install it: pip install paper."
pytestmark = pytest.mark.usefixtures("no_report")


def test_a_missing_library_is_refused_before_a_run_begins_and_is_no_mistake_of_the_file(lab, tmp_path: Path) -> None:
    file = tracked(tmp_path, {"fails": "check"}, **SHORT)
    said = f"{file}:{line_of('trackers', file.read_text())}: {PAPER}"
    assert lab.fails(2, "run", file, "--out", tmp_path / "run") == f"{said}\n"
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "store").exists()
    for command in (("check",), ("run", "--dry-run")):
        code, out, err = lab(*command, file)
        assert (code, bool(out), err) == (0, True, f"note: {said} A run would stop there.\n")
    file = tracked(tmp_path, {"fails": "build"}, **SHORT)
    assert lab.fails(2, "check", file) == said.replace("needs paper. Install it: pip install paper.", REFUSED)


def test_without_its_library_a_run_can_still_be_resumed(lab: Any, tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert lab("run", tracked(tmp_path, {}, **SHORT), "--out", path)[0] == 0
    before = len(given(tmp_path))
    lose_checkpoints(path)
    (tmp_path / "no paper").touch()
    code, _, err = lab("resume", path)
    [note] = [line for line in err.splitlines() if "diary" in line]
    assert (code, note.startswith("note: the tracker diary needs paper. Install it: pip install paper.")) == (0, True)
    assert (len(lines(path)), len(given(tmp_path))) == (5, before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrained(tmp_path_factory.mktemp("pretrained"))


def test_fine_tunings_have_trackers_too(lab: Any, tmp_path: Path, model: Path) -> None:
    """Each seed is a run of the tracker; a missing library is refused before anything is written."""
    own = {"type": "diary", "path": str(tmp_path / "diary")}
    short = {"train": {"epochs": 1, "batch_size": 6, "precision": "fp32", "log_every": 2}, "evaluate": {}}
    plugins, tuned = {"imports": [str(PLUGIN), str(DIARY)], **short}, tmp_path / "tuned"
    file = write_finetuning(tmp_path, model, seeds=[3, 5], trackers=[own], **plugins)
    code, _, err = lab("finetune", file, "--out", tuned)
    assert code == 0, err
    seeds = [tuned / f"seed-{seed}" for seed in (3, 5)]
    begun = [[f"animals-tuned-{seed.name}", "animals", str(seed)] for seed in seeds]
    assert [start[:3] for start in diary(tmp_path, "start")] == begun
    assert given(tmp_path) == [record for seed in seeds for record in expected(seed)]
    file = write_finetuning(tmp_path, model, trackers=[own | {"fails": "check"}], **plugins)
    assert PAPER in lab.fails(2, "finetune", file, "--out", tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    code, _, err = lab("check", file)
    assert (code, f"{PAPER} A run would stop there." in err) == (0, True)
    with_it, without = load_finetuning(file), load_finetuning(file, ["trackers=[]"])
    assert identity(with_it) == identity(without), "the measure `downstream` would be taken again"


def test_fine_tunings_that_are_varied_or_measures_are_refused_beforehand_too(lab, tmp_path: Path, model: Path) -> None:
    base = tracked(tmp_path, **SHORT)
    lacking = {"type": "diary", "path": str(tmp_path / "diary"), "fails": "check"}
    file = write_finetuning(tmp_path, model, trackers=[lacking], imports=[str(PLUGIN), str(DIARY)])
    measure = [{"type": "downstream", "file": file.name, "name": "animals"}]
    tasks = {"base": file.name, "vary": {"one": {"model": str(model)}}, "seeds": [0]}
    variants = {"base": base.name, "vary": {"embedding.dim": [8, 16]}, "seeds": [0], "measure": measure}
    for content in (tasks, variants):
        (tmp_path / "pair.yaml").write_text(yaml.safe_dump({"name": "pair", **content}))
        assert PAPER in lab.fails(2, "ablate", tmp_path / "pair.yaml", "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_the_cells_of_an_ablation_have_those_of_the_base(lab, tmp_path: Path, monkeypatch) -> None:
    """Each cell has a separate run in the group of the ablation; trackers do not change the identity of a cell."""
    monkeypatch.undo()  # a cell is finished when it has its report
    launchers.register("in_process")(InProcess)
    base, file, out = tracked(tmp_path, {}, **SHORT), tmp_path / "pair.yaml", tmp_path / "pair"
    content = {"name": "pair", "base": base.name, "vary": {"embedding.dim": [8, 16]}, "seeds": [0],
               "measure": [{"type": "pretraining"}], "launcher": {"type": "in_process"}}  # fmt: skip
    file.write_text(yaml.safe_dump(content))
    code, _, err = lab("ablate", file, "--out", out)
    assert code == 0, err
    cells = sorted(path.name for path in (out / "cells").iterdir() if path.is_dir())
    starts = sorted(start[:2] for start in diary(tmp_path, "start"))
    assert starts == [[f"pair-{cell}", "pair"] for cell in cells]
    plan = json.loads((out / "plan.json").read_text())
    base.write_text("".join(line for line in base.open() if not line.startswith("trackers:")))
    assert lab("ablate", file, "--out", out)[0] == 0
    assert json.loads((out / "plan.json").read_text())["cells"] == plan["cells"]
    file.write_text(yaml.safe_dump(content | {"vary": {"trackers": [[], []]}}))
    assert "vary: trackers cannot be varied: " in lab.fails(2, "check", file)
