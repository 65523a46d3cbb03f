"""Ablations that really run: every cell once, whatever is killed; what fails stops nothing else; the same numbers as by
hand."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.ablation import run as ablation
from electra_lab.ablation.cells import work
from electra_lab.ablation.folder import Folder, make
from electra_lab.ablation.plan import make_plan, write_plan
from electra_lab.ablation.report import write_report
from electra_lab.config.ablation import load_ablation
from electra_lab.runs import execute
from registry import Outcome
from registry.errors import CellsFailed, CheckpointError, ConfigError, DataError
from tests.helpers import ROOT, write_experiment

STEPS = 8
FILE = """\
name: sizes
question: Does it run?
base: tiny.yaml
set: {{checkpoint.every: 2, train.log_every: 2}}
vary: {{generator.scale: [0.5, 1.0]}}
seeds: {seeds}
budget: {{steps: {steps}}}
measure:
  - {{type: fixed_corruption, steps: 4}}
  - {{type: pretraining}}
  - {{type: detection_probe, rows: 8}}
launcher: {{type: local, workers: 2, threads: 1}}
{more}
"""


def write(folder: Path, seeds: str = "[0, 1]", steps: int = STEPS, more: str = "", **sections: str) -> Path:
    write_experiment(folder, **{"data": "{sequence_length: 16, held_out: 0.3, store: store}", **sections})
    file = folder / "sizes.yaml"
    file.write_text(FILE.format(seeds=seeds, steps=steps, more=more), encoding="utf-8")
    return file


def ablate(file: Path, out: Path, **options: Any) -> Path:
    return ablation.ablate(file, [], out, "cpu", options.get("launcher"), options.get("workers"))


def start(file: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "electra_lab", "ablate", str(file), "--out", str(out), "--device", "cpu", *options]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def weights(path: Path, steps: int = STEPS) -> bytes:
    return (path / "checkpoints" / f"step-{steps:08d}" / "state.safetensors").read_bytes()


def lines(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if "second" not in k} for record in records]


def contents(out: Path) -> dict[str, Any]:
    """All of a folder that must be the same however it came about."""
    ids = [each.stem for each in sorted((out / "plan").iterdir())]
    return {
        id: (
            weights(out / "cells" / id, 4 if id.startswith("reference") else STEPS),
            lines(out / "cells" / id),
            Folder(out).measured(id),
        )
        for id in ids
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(file, folder) of an ablation that ran through."""
    folder = tmp_path_factory.mktemp("ablation")
    file = write(folder)
    return file, ablate(file, folder / "out")


def test_every_cell_is_trained_measured_and_reported(done: tuple[Path, Path]) -> None:
    _, out = done
    where = Folder(out)
    plan = where.plan
    assert [(cell["variant"], cell["seed"]) for cell in plan["cells"]] == [
        ("generator.scale=0.5", 0), ("generator.scale=1.0", 0), ("generator.scale=0.5", 1), ("generator.scale=1.0", 1),
    ]  # fmt: skip
    for cell in plan["cells"]:
        assert where.missing(cell["id"], plan) == []
        found = {name.rpartition("-")[0]: values for name, values in where.measured(cell["id"]).items()}
        assert found.keys() == {"fixed_corruption", "pretraining", "detection_probe"}
        assert all(0 <= value <= 1 for value in found["fixed_corruption"].values())
        last = lines(out / "cells" / cell["id"])[-1]
        assert found["pretraining"]["generator_loss"] == last["generator_loss"]
        assert last["step"] == STEPS
    assert where.measured(plan["measures"][0]["reference"]) == {}
    assert "sizes" in (out / "report.html").read_text()
    assert not list((out / "failed").iterdir())


def test_the_numbers_are_those_of_runs_by_hand(done: tuple[Path, Path], tmp_path: Path) -> None:
    """Trained one after the other in this process, then measured: bit for bit."""
    _, out = done
    by_hand = tmp_path / "by_hand"
    make(by_hand)
    shutil.copytree(out / "plan", by_hand / "plan", dirs_exist_ok=True)
    (by_hand / "plan.json").write_text((out / "plan.json").read_text())
    for file in sorted((by_hand / "plan").iterdir()):
        execute.run(file, [], by_hand / "cells" / file.stem, "cpu")
    for file in sorted((by_hand / "plan").iterdir()):
        assert work(str(by_hand), file.stem, device="cpu").status == "done"
    assert contents(by_hand) == contents(out)


def test_cells_of_a_seed_read_the_same_rows_with_the_same_masks(done: tuple[Path, Path]) -> None:
    """Paired: the corruption of the held-out text differs only by what the generators drew."""
    _, out = done
    cells = Folder(out).plan["cells"]
    share = [lines(out / "cells" / cell["id"])[-1]["unigram_entropy"] for cell in cells]
    # It depends on which held-out tokens are masked alone: equal for both variants of a seed, not for two seeds.
    assert share[0] == share[1] != share[2] == share[3]


def test_again_does_nothing_again_and_more_seeds_run_alone(done: tuple[Path, Path], tmp_path: Path) -> None:
    file, before = done
    out = tmp_path / "out"
    shutil.copytree(before, out)
    stamps = {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*") if path.is_file()}
    ablate(file, out)
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*") if path.is_file()} == stamps

    more = write(file.parent, seeds="[0, 1, 2]")
    ablate(more, out)
    assert len(Folder(out).plan["cells"]) == 6
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    with pytest.raises(ConfigError, match=r"holds another plan: its cell .* is none of this one"):
        ablate(write(file.parent, steps=STEPS + 1), out)
    write(file.parent)


def test_other_options_of_a_measure_are_measured_anew(done: tuple[Path, Path], tmp_path: Path) -> None:
    """Never are numbers of two corruptions compared; training is not repeated."""
    file, before = done
    out = tmp_path / "out"
    shutil.copytree(before, out)
    id = Folder(out).plan["cells"][0]["id"]
    old, trained = Folder(out).measured(id), weights(out / "cells" / id)
    stamp = (out / "cells" / id / "checkpoints" / "step-00000008" / "state.safetensors").stat().st_mtime_ns
    other = file.parent / "other.yaml"
    other.write_text(
        file.read_text().replace("fixed_corruption, steps: 4", "fixed_corruption, steps: 4, mask_prob: 0.6")
    )
    ablate(other, out)
    new = Folder(out).measured(id)
    (was,), (now,) = (
        [v for k, v in found.items() if k.startswith("fixed") and (k not in old or found is old)]
        for found in (old, new)
    )
    assert was != now
    told = (out / "table.csv").read_text()
    assert str(now["corruption_auc"]) in told
    assert str(was["corruption_auc"]) not in told
    assert (out / "cells" / id / "checkpoints" / "step-00000008" / "state.safetensors").stat().st_mtime_ns == stamp
    assert weights(out / "cells" / id) == trained


def test_what_is_damaged_is_made_anew(done: tuple[Path, Path], tmp_path: Path) -> None:
    """The last checkpoint of a cell that is to be measured, and its measures; not those that nobody needs any more."""
    file, before = done
    out = tmp_path / "out"
    shutil.copytree(before, out)
    one, two, three, _ = (cell["id"] for cell in Folder(out).plan["cells"])
    state = out / "cells" / one / "checkpoints" / "step-00000008" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    (out / "cells" / one / "measures.json").write_text("")
    (out / "cells" / two / "measures.json").write_text("null")
    shutil.rmtree(out / "cells" / three / "checkpoints")  # measured: its checkpoints were removed to have room
    (out / "plan.json").write_text("")
    with pytest.raises(
        CheckpointError, match=r"plan\.json: cannot be read .* Remove it, and the same command makes it"
    ):
        ablate(file, out)
    (out / "plan.json").unlink()
    ablate(file, out)
    assert not (out / "cells" / three / "checkpoints").exists()
    shutil.copytree(before / "cells" / three / "checkpoints", out / "cells" / three / "checkpoints")
    assert contents(out) == contents(before)


def test_what_cannot_be_gone_on_with_is_set_aside_and_made_anew(
    done: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs that were not measured yet, each damaged in another way, and what the measures share."""
    file, before = done
    out = tmp_path / "out"
    shutil.copytree(before, out)
    cells = [out / "cells" / cell["id"] for cell in Folder(out).plan["cells"]]
    for cell in cells:
        (cell / "measures.json").unlink()
    for state in cells[0].glob("checkpoints/*/state.safetensors"):
        state.write_bytes(b"damaged")
    (cells[1] / "provenance.json").write_text("[]")
    (cells[2] / "config.yaml").unlink()
    records = (cells[3] / "metrics.jsonl").read_text().splitlines()
    (cells[3] / "metrics.jsonl").write_text("\n".join(["no record", *records[1:]]))
    (shared,) = (each for each in (out / "shared").iterdir() if each.name.startswith("fixed_corruption"))
    (largest,) = shared.glob("*.safetensors")
    largest.write_bytes(largest.read_bytes()[:-1])
    ablate(file, out)
    assert contents(out) == contents(before)
    said = " ".join(capfd.readouterr().err.split())
    for path in (*cells, shared):
        assert path.name in said
    assert {each.name for each in (out / "damaged").iterdir()} == {f"{each.name}-0" for each in (*cells, shared)}


def test_a_reference_that_is_needed_again_and_a_cell_that_was_removed_are_trained_anew(
    done: tuple[Path, Path], tmp_path: Path
) -> None:
    """To remove it is the cure that the report tells where a cell that is done is damaged."""
    file, before = done
    out = tmp_path / "out"
    shutil.copytree(before, out)
    plan = Folder(out).plan
    shutil.rmtree(out / "shared")
    state = out / "cells" / plan["measures"][0]["reference"] / "checkpoints" / "step-00000004" / "state.safetensors"
    state.write_bytes(b"damaged")
    cell = out / "cells" / plan["cells"][0]["id"]
    (cell / "provenance.json").write_text('{"git": 3}')
    with pytest.raises(
        CheckpointError, match=r"provenance\.json: is damaged: git .* Remove .*, and `electra-lab ablate`"
    ):
        write_report(out)
    shutil.rmtree(cell)
    ablate(file, out)
    assert contents(out) == contents(before)


def test_what_the_launcher_misses_is_said_before_anything_is_written(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace("threads: 1}", "threads: 1, gpus: 64}"))
    with pytest.raises(ConfigError, match="gpus is 64, but this machine shows"):
        ablate(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_done_needs_no_launcher(done: tuple[Path, Path], tmp_path: Path) -> None:
    """An ablation of a cluster is reported anew on any machine."""
    file, out = done
    other = file.parent / "elsewhere.yaml"
    other.write_text(file.read_text().replace("threads: 1}", "threads: 1, gpus: 64}"))
    assert ablate(other, out) == out


def test_a_launcher_that_must_be_told_something_is_no_bug(tmp_path: Path) -> None:
    plugin = "\n".join([
        "from registry import launchers", "@launchers.register('mine')",
        "def mine(work, folder, ids, /, *, workers: int = 1, threads: int = 1, queue: str):",
        "    'Runs nothing.'", "    yield from ()",
    ])  # fmt: skip
    (tmp_path / "mine.py").write_text(plugin)
    file = write(tmp_path, more="imports: [mine.py]")
    with pytest.raises(ConfigError, match="--launcher mine: queue must be set"):
        ablate(file, tmp_path / "out", launcher="mine")


def test_a_start_that_was_cut_off_is_no_other_ablation(done: tuple[Path, Path], tmp_path: Path) -> None:
    file, before = done
    out = tmp_path / "out"
    make(out)
    shutil.copy(before / "ablation.yaml", out)
    (out / ".plan.json.0123abcd.part").touch()  # killed while it was written
    Folder(out).refuse_other({"a"})
    (out / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty and holds no ablation"):
        ablate(file, out)


def test_another_text_is_noticed_though_nothing_is_trained(done: tuple[Path, Path], tmp_path: Path) -> None:
    _, before = done
    file, out = write(tmp_path), tmp_path / "out"
    shutil.copytree(before, out)
    for each in (out / "plan").iterdir():  # as if it had been made here
        each.write_text(each.read_text().replace(str(before.parent), str(tmp_path)))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(corpus.read_text() + "\n\none document more\n")
    cells = list(load_ablation(file).cells)
    plan = json.loads((out / "plan.json").read_text())
    for cell, was in zip(cells, plan["cells"], strict=True):
        (out / "cells" / was["id"]).rename(out / "cells" / cell.id)
        was["id"] = cell.id
    (out / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(DataError, match=r"was trained on other text \(token store "):
        ablate(file, out)


MEASURES = """
from registry import Quantity, measures


class Broken:
    same_rows, quantities = False, {"broken": Quantity("nothing")}

    def __init__(self, /, *, say: str = "none") -> None:
        self.say = say

    def reference(self, base): return None

    def prepare(self, run, reference, folder): ...

    def __call__(self, run, folder):
        if self.say == "raise":
            raise RuntimeError("as it was told")
        return {"none": None, "text": {"broken": "much"}, "other": {"unknown": 1.0}}[self.say]


@measures.register("broken")
class Registered(Broken):
    \"\"\"A measure that does everything wrong.\"\"\"
"""


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        ("none", "measure 'broken' returned None, must be numbers by their names."),
        ("text", "measure 'broken' returned {'broken': 'much'}, must be numbers by their names."),
        ("other", "measure 'broken' gave unknown, which its quantities do not have."),
        ("raise", "measure 'broken' failed: RuntimeError: as it was told"),
    ],
)
def test_a_measure_that_fails_is_named_and_keeps_no_other_from_being_taken(
    done: tuple[Path, Path], tmp_path: Path, say: str, reason: str
) -> None:
    """In this process: as a worker would."""
    _, before = done
    out = tmp_path / "out"
    make(out)
    shutil.copytree(before / "plan", out / "plan", dirs_exist_ok=True)
    plan = json.loads((before / "plan.json").read_text())
    id = plan["cells"][0]["id"]
    shutil.copytree(before / "cells" / id, out / "cells" / id)
    plugin = tmp_path / f"broken_{say}.py"
    plugin.write_text(MEASURES.replace('register("broken")', f'register("broken_{say}")'))
    plan["imports"] = [str(plugin)]
    pretraining = next(each for each in plan["measures"] if each["type"] == "pretraining")
    plan["measures"] = [
        {"type": f"broken_{say}", "options": {"say": say}, "folder": "broken-1", "reference": None, "quantities": {}},
        {**pretraining, "folder": "pretraining-2"},
    ]
    (out / "plan.json").write_text(json.dumps(plan))
    outcome = work(str(out), id, device="cpu")
    assert outcome.status == "failed"
    assert reason.replace("'broken'", f"'broken_{say}'", 1) in outcome.error
    assert plugin.name in outcome.error
    assert "pretraining-2" in Folder(out).measured(id)


def test_a_plug_in_that_changes_on_the_way_trains_nothing(tmp_path: Path) -> None:
    """In this process the plug-in is loaded already, so the plan is made to be of another one."""
    file = write(tmp_path, seeds="[0]")
    out = tmp_path / "out"
    where = make(out)
    write_plan(make_plan(load_ablation(file), torch.device("cpu")), where.write)
    id = where.plan["cells"][0]["id"]
    where.experiment(id).rename(where.experiment("other-s0-0123456789"))
    outcome = work(str(out), "other-s0-0123456789", device="cpu")
    assert (outcome.status, outcome.error.split(": ", 1)[1]) == (
        "failed", "a plug-in was changed since the plan was made. Start the ablation anew."
    )  # fmt: skip


def test_a_cell_that_is_resumed_by_hand_is_left_alone(done: tuple[Path, Path], tmp_path: Path) -> None:
    _, before = done
    out = tmp_path / "out"
    shutil.copytree(before, out)
    id = Folder(out).plan["cells"][0]["id"]
    shutil.rmtree(out / "cells" / id / "checkpoints")
    (out / "cells" / id / "measures.json").unlink()
    with (out / "cells" / id / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert work(str(out), id, device="cpu") == Outcome("elsewhere")


def test_a_cell_that_fails_stops_no_other_and_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Diverges at the first steps; the others are trained and measured, the exit code is 7."""
    file = write(tmp_path, seeds="[0]", more="retries: 1")
    text = file.read_text().replace(
        "vary: {generator.scale: [0.5, 1.0]}", "vary: {train.learning_rate: [1.0e-3, 1.0e+30]}"
    )
    file.write_text(text)
    with pytest.raises(CellsFailed, match=r"1 of 3 runs failed") as failed:
        ablate(file, tmp_path / "out")
    assert failed.value.exit_code == 7
    where = Folder(tmp_path / "out")
    good, bad = (cell["id"] for cell in where.plan["cells"])
    assert where.missing(good, where.plan) == []
    assert where.missing(bad, where.plan) == ["training"]
    noted = json.loads((where.path / "failed" / f"{bad}.json").read_text())
    assert noted["attempts"] == 2
    assert "was not finite" in noted["error"]
    assert capfd.readouterr().err.count("was not finite") == 2
    assert "was not finite" in (where.path / "report.html").read_text()
