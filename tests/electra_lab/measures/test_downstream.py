"""A fine-tuning as a measure of an ablation."""

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
from tests.electra_lab.jobs.sweeps.small import InProcess, ablate, worked, write
from tests.electra_lab.measures.readers import run

MEASURE = "measure: [{type: downstream, file: animals.yaml, name: animals}]"
ONE = "{type: downstream, file: animals.yaml, name: a}"


QUICK = {"epochs": 1, "batch_size": 6, "learning_rate": 3e-2, "precision": "fp32"}


def write_both(folder: Path, measure: str = MEASURE, **sections: object) -> Path:
    """Write an ablation of two cells that is measured by a fine-tuning."""
    file = write(folder, seeds="[0]", steps=2, launcher="{type: in_process}")
    before, _, after = file.read_text().partition("measure:\n")
    file.write_text(before + measure + "\n" + after[after.index("launcher:") :])
    write_finetuning(folder, folder / "replaced", **{"seeds": [0, 1, 2], "train": QUICK, **sections})
    return file


@pytest.fixture(autouse=True)
def _in_process() -> None:
    launchers.register("in_process")(type("InProcess", (InProcess,), {"__doc__": "In this process."}))


def test_asks_the_run_for_the_metric_of_its_file() -> None:
    asked: dict[Path, float] = {Path("a.yaml"): 0.25}
    measure = Downstream(file=Path("a.yaml"), name="sst2")
    assert measure(run(None, None, finetune=asked.pop), Path()) == {"sst2": 0.25}
    assert list(measure.metrics) == ["sst2"]


def test_every_cell_is_fine_tuned_once_from_its_final_weights(tmp_path: Path) -> None:
    file = write_both(tmp_path)
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
    times = {path: path.stat().st_mtime_ns for path in folder.path.rglob("seed-*/results.json")}
    ablate(file, folder.path)
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("seed-*/results.json")} == times
    # A cell whose turn comes when the examples have changed could not be compared with the others.
    last, examples = plan.cells[-1].id, tmp_path / "texts" / "validation.txt"
    (folder.path / "cells" / last / "measures.json").unlink()
    text = examples.read_text()
    for change, code in (("\ncat\tthe cat sat\n", 3), ("\n", 0)):
        examples.write_text(text.replace("\n", change, 1))
        assert worked(folder.path, last).code == code
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("seed-*/results.json")} == times


def test_in_bf16_it_is_what_the_command_finds(tmp_path: Path) -> None:
    """Measures run under autocast, which must not affect the training inside."""
    train = {"epochs": 3, "precision": "bf16", "log_every": 1}
    file = write_both(tmp_path, seeds=[0], train=QUICK | train)
    folder = AblationFolder(ablate(file, tmp_path / "out"))
    first = folder.plan.cells[0].id
    (own,) = (folder.path / "downstream" / first).iterdir()
    alone = finetune(tmp_path / "animals.yaml", [f"model={folder.run(first).path}"], tmp_path / "alone", "cpu")
    records, known = (FinetuningFolder(path).seed(0).records() for path in (own, alone))
    assert [record.get("loss") for record in records] == [record.get("loss") for record in known]


def test_what_changes_its_key(tmp_path: Path) -> None:
    """The fine-tuning and its examples change it, but not the model, which is replaced by the cell's."""
    file, finetuning, examples = write_both(tmp_path), tmp_path / "animals.yaml", tmp_path / "texts" / "train.txt"
    changes = {finetuning: (": 0.03", ": 0.02"), examples: ("\n", "\ncat\tthe cat sat\n")}

    def key() -> str:
        return plan_of(checked(load_ablation(file))).measures[0].key

    before = key()
    for changed, (old, new) in changes.items():
        text = changed.read_text()
        changed.write_text(text.replace(old, new, 1))
        assert key() != before
        changed.write_text(text)
    finetuning.write_text(finetuning.read_text().replace("model: ", "model: another-"))
    assert key() == before


REFUSED = [
    (ONE.replace("animals", "nowhere"), "nowhere.yaml: cannot be read"),
    (ONE.replace("animals", "tiny"), "is not a fine-tuning"),
    (ONE.replace("name: a", "name: X"), "name: "),
    (f"{ONE}, {ONE}", "both compute a"),
]


@pytest.mark.parametrize(("measure", "reason"), REFUSED)
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_trained(
    tmp_path: Path, measure: str, reason: str
) -> None:
    file = write_both(tmp_path, f"measure: [{measure}]")
    with pytest.raises(ConfigError, match=rf"^{file}:8: measure\..*{reason}"):
        checked(load_ablation(file))


def test_examples_that_are_not_here_are_known_before_anything_is_trained(tmp_path: Path) -> None:
    file = write_both(tmp_path)
    for text in (tmp_path / "texts").iterdir():
        text.unlink()
    absent = checked(load_ablation(file)).absent
    assert "has no .txt files" in str(absent)
    write_lines(tmp_path / "texts")
    assert checked(load_ablation(file)).absent is None
