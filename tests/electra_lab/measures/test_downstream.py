"""A fine-tuning as a measure of an ablation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from electra_lab.analysis.results import cell_result
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.jobs.sweeps.plan import checked, plan_of
from electra_lab.measures.downstream import Downstream
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry import launchers
from registry.errors import ConfigError
from tests.electra_lab.jobs.finetuning.small import write_finetuning, write_lines
from tests.electra_lab.jobs.sweeps.small import InProcess, ablate, write
from tests.electra_lab.measures.readers import run

MEASURE = "measure: [{type: downstream, file: animals.yaml, name: animals}]"


ONE = "{type: downstream, file: animals.yaml, name: a}"


def write_both(folder: Path, measure: str = MEASURE, **sections: object) -> Path:
    """Write an ablation of two cells that is measured by a fine-tuning."""
    file = write(folder, seeds="[0]", steps=2, launcher="{type: in_process}")
    before, _, after = file.read_text().partition("measure:\n")
    file.write_text(before + measure + "\n" + after[after.index("launcher:") :])
    quick = {"epochs": 1, "batch_size": 6, "learning_rate": 3e-3, "precision": "fp32"}
    write_finetuning(folder, folder / "replaced", **{"seeds": [0, 1], "train": quick, **sections})
    return file


@pytest.fixture(autouse=True)
def _in_process() -> None:
    launchers.register("in_process")(type("InProcess", (InProcess,), {"__doc__": "In this process."}))


def test_asks_the_run_for_the_metric_of_its_file() -> None:
    asked = []

    def finetune(file: Path) -> float:
        asked.append(file)
        return 0.25

    measure = Downstream(file=Path("a.yaml"), name="sst2")
    assert measure(run(None, None, finetune=finetune), Path()) == {"sst2": 0.25}
    assert asked == [Path("a.yaml")]
    assert list(measure.metrics) == ["sst2"]


def test_every_cell_is_fine_tuned_from_its_final_weights(tmp_path: Path) -> None:
    quick = {"epochs": 1, "batch_size": 6, "learning_rate": 3e-2, "precision": "fp32"}
    file = write_both(tmp_path, seeds=[0, 1, 2], train=quick)
    folder = AblationFolder(ablate(file, tmp_path / "out"))
    plan = folder.plan
    assert plan.metric == "animals"
    for cell in plan.cells:
        (own,) = (folder.path / "downstream" / cell.id).iterdir()
        found = FinetuningFolder(own).values("validation", "accuracy")
        assert set(found) == {0, 1, 2}
        mean, (_, median, best) = sum(found.values()) / 3, sorted(found.values())
        assert mean not in (median, best, found[0])
        assert cell_result(folder, plan, cell.id).metrics == {"animals": mean}
        began = json.loads((own / "seed-0" / "provenance.json").read_text())
        assert began["init"]["discriminator"]["source"] == str(folder.run(cell.id).path.resolve())


def test_in_bf16_it_is_what_the_command_finds(tmp_path: Path) -> None:
    """The measure is computed within autocast, which must not reach the training inside."""
    train = {"epochs": 3, "batch_size": 6, "learning_rate": 3e-2, "precision": "bf16", "log_every": 1}
    file = write_both(tmp_path, seeds=[0], train=train)
    folder = AblationFolder(ablate(file, tmp_path / "out"))
    first = folder.plan.cells[0].id
    (own,) = (folder.path / "downstream" / first).iterdir()
    alone = finetune(tmp_path / "animals.yaml", [f"model={folder.run(first).path}"], tmp_path / "alone", "cpu")
    losses = [[record.get("loss") for record in FinetuningFolder(path).seed(0).records()] for path in (own, alone)]
    assert losses[0] == losses[1]


def test_nothing_is_done_again_unless_the_file_changes(tmp_path: Path) -> None:
    file = write_both(tmp_path)
    out = ablate(file, tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in out.rglob("seed-*/results.json")}
    ablate(file, out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("seed-*/results.json")} == times
    before = AblationFolder(out).plan.measures[0].key
    text = (tmp_path / "animals.yaml").read_text()
    (tmp_path / "animals.yaml").write_text(text.replace("learning_rate: 0.003", "learning_rate: 0.002"))
    assert plan_of(checked(load_ablation(file))).measures[0].key != before
    (tmp_path / "animals.yaml").write_text(text.replace("model: ", "model: another-"))  # it is replaced by the cell
    assert plan_of(checked(load_ablation(file))).measures[0].key == before
    with (tmp_path / "texts" / "train.txt").open("a") as train:
        train.write("cat\tthe cat sat\n")
    assert plan_of(checked(load_ablation(file))).measures[0].key != before


@pytest.mark.parametrize(
    ("measure", "reason"),
    [
        ("measure: [{type: downstream, file: nowhere.yaml, name: x}]", "nowhere.yaml: cannot be read"),
        ("measure: [{type: downstream, file: tiny.yaml, name: x}]", "is not a fine-tuning"),
        ("measure: [{type: downstream, file: animals.yaml, name: X}]", "measure.0.name: "),
        (f"measure: [{ONE}, {ONE}]", "downstream and downstream both compute a; keep one of them."),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_trained(
    tmp_path: Path, measure: str, reason: str
) -> None:
    file = write_both(tmp_path, measure)
    with pytest.raises(ConfigError) as caught:
        checked(load_ablation(file))
    assert str(caught.value).startswith(f"{file}:8: measure.")
    assert reason in str(caught.value)


def test_examples_that_are_not_here_are_known_before_anything_is_trained(tmp_path: Path) -> None:
    file = write_both(tmp_path)
    for each in (tmp_path / "texts").iterdir():
        each.unlink()
    absent = checked(load_ablation(file)).absent
    assert absent is not None
    assert "has no .txt files" in str(absent)
    write_lines(tmp_path / "texts")
    assert checked(load_ablation(file)).absent is None
