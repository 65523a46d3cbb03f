"""A project, or its folder of runs alone, that is moved: its jobs are resumed, extended and run again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from electra_lab.analysis.run_comparison import subjects
from electra_lab.jobs.bundling import bundle, unpack
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.jobs.finetuning.run import report as report_finetuning
from electra_lab.jobs.finetuning.run import resume as resume_finetuning
from electra_lab.jobs.measuring import measure
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.sweeps.run import ablate, check, dry_run
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.checkpoint import steps
from electra_lab.storage.run_directory import RunDirectory
from registry import load_plugin
from registry.errors import CellsFailed, DataError
from tests.electra_lab.jobs.finetuning.small import PLUGIN, write_finetuning
from tests.electra_lab.jobs.sweeps.small import HERE, write
from tests.helpers import write_experiment

MEASURED = "  - {type: downstream, file: animals.yaml, name: animals}\n"
QUICK = {"train": {"epochs": 1, "batch_size": 12, "precision": "fp32"}, "evaluate": None}
Moved = tuple[Path, Path, Path]  # the project, the folder of its jobs, the place where both were


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a run, one that starts from it, a fine-tuning, and an ablation of either kind."""
    project = tmp_path_factory.mktemp("original") / "project"
    with pytest.MonkeyPatch.context() as patch:
        project.mkdir()
        patch.chdir(project)
        defaults = {"data": "{sequence_length: 16, held_out: 0.3}"}
        file = write(project, seeds="[0]", launcher=HERE, more="retries: 0", **defaults)
        file.write_text(file.read_text().replace("  - {type: detection_probe, rows: 8}\n", MEASURED))
        execute.run(project / "tiny.yaml", [], Path("runs/tiny/one"), "cpu")
        tuned = write_finetuning(project, Path("runs/tiny/one"), **QUICK)
        copy = f"{load_plugin(PLUGIN).sha256[:8]}-lines.py"  # a name that may be loaded besides the original
        shutil.copy(PLUGIN, project / copy)
        tuned.write_text(tuned.read_text().replace(str(PLUGIN), copy))
        child = write_experiment(project, "child.yaml", init="{discriminator: runs/tiny/one}", **defaults)
        execute.run(child, [], Path("runs/child"), "cpu")
        finetune(project / "animals.yaml", [], Path("runs/animals"), "cpu")
        (project / "inits.yaml").write_text(
            "name: inits\nbase: animals.yaml\nvary: {init: [pretrained]}\nseeds: [0]\nlauncher: {type: in_process}\n"
        )
        for name in ("sizes", "inits"):
            ablate(Path(f"{name}.yaml"), [], Path("runs", name), "cpu", None, None)
    return project


@pytest.fixture(params=["the project", "its runs"])
def moved(original: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch) -> Iterator[Moved]:
    """Nothing that was moved is left where it was; files that another test needs come back."""
    everything = request.param == "the project"
    copy = shutil.copytree(original, tmp_path / "other" / "place" if everything else tmp_path / "project")
    hidden = original if everything else original / "runs"
    project, runs = (copy, copy / "runs") if everything else (original, copy / "runs")
    aside = hidden.rename(hidden.with_name("aside"))
    monkeypatch.chdir(tmp_path)
    yield project, runs, hidden
    if hidden.is_symlink():
        hidden.unlink()
    shutil.rmtree(hidden, ignore_errors=True)
    aside.rename(hidden)


def test_a_run_is_resumed_without_tokenizing_again(moved: Moved) -> None:
    _, runs, before = moved
    for name in ("tiny/one", "child"):
        execute.resume(runs / name, "cpu", ["train.steps=2"])
        assert steps(runs / name / "checkpoints")[-1] == 2
        changes = RunDirectory(runs / name).provenance().changes
        assert [list(change.values) for change in changes] == [["train.steps"]], "nothing else has changed"
    assert not before.exists()


def test_runs_are_measured_on_one_task(moved: Moved) -> None:
    _, runs, before = moved
    found = subjects([runs / "tiny" / "one", runs / "child"])
    measured = measure(found, "{type: fixed_corruption, steps: 2}", "cpu")
    assert all(measured.numbers[subject.label] for subject in found)
    assert not before.exists()


def test_an_ablation_is_extended_by_a_seed(moved: Moved) -> None:
    project, runs, before = moved
    if not (project / "runs").exists():  # the fine-tunings that are varied name a run there
        (project / "runs").symlink_to(runs)
    for name in ("sizes", "inits"):
        folder = AblationFolder(runs / name)
        done = {cell.id for cell in folder.plan.cells}
        made = {path: path.stat().st_mtime_ns for path in folder.path.glob("**/checkpoints/*/state.safetensors")}
        ablate(project / f"{name}.yaml", ["seeds=[0, 1]"], runs / name, "cpu", None, None)
        assert len(folder.plan.cells) == 2 * len(done)
        assert done <= {cell.id for cell in folder.plan.cells}
        assert {path: path.stat().st_mtime_ns for path in made} == made, "a cell was trained again"
    assert not before.exists() or before.is_symlink()


def test_what_is_missing_is_measured(moved: Moved) -> None:
    project, runs, before = moved
    folder = AblationFolder(runs / "sizes")
    for cell in folder.plan.cells:
        (folder.path / "cells" / cell.id / "measures.json").unlink()
        for results in folder.path.glob("downstream/*/*/seed-0/results.json"):
            results.unlink()
    ablate(project / "sizes.yaml", [], folder.path, "cpu", None, None)
    assert all(folder.measures(cell.id).numbers for cell in folder.plan.cells)
    assert not before.exists()


def test_an_ablation_continues_from_its_records_without_checkpoints(
    original: Path, tmp_path: Path, monkeypatch
) -> None:
    """As on another machine, to which no checkpoint was copied."""
    project = Path(shutil.copytree(original, tmp_path / "project"))
    monkeypatch.chdir(project)
    folder = AblationFolder(project / "runs" / "sizes")
    first, second = (cell.id for cell in folder.plan.cells)
    expected = {id: folder.measures(id).numbers for id in (first, second)}
    for checkpoints in folder.path.glob("**/checkpoints"):
        shutil.rmtree(checkpoints)
    # The second was not measured when the other machine was lost.
    (folder.path / "cells" / second / "measures.json").unlink()
    for results in folder.path.glob(f"downstream/*/{second}*/seed-0/results.json"):
        results.unlink()
    ablate(project / "sizes.yaml", [], folder.path, "cpu", None, None)
    assert {id: folder.measures(id).numbers for id in expected} == expected
    assert not (folder.path / "cells" / first / "checkpoints").exists(), "a measured cell was trained again"
    assert (folder.path / "cells" / second / "checkpoints").is_dir()


def test_a_fine_tuning_is_extended_by_a_seed(moved: Moved) -> None:
    project, runs, before = moved
    overrides = ["seeds=[0, 1]"]
    if not project.is_relative_to(before.parent):  # its examples are elsewhere too
        with pytest.raises(DataError, match=r"animals/finetuning.yaml:\d+: dataset: .* --set dataset.KEY=PLACE"):
            resume_finetuning(runs / "animals", "cpu", overrides)
        overrides.append(f"dataset.folder={project / 'texts'}")
    resume_finetuning(runs / "animals", "cpu", overrides)
    assert (runs / "animals" / "seed-1" / "results.json").is_file()
    assert not before.exists()


def test_the_config_of_a_job_is_run_elsewhere(moved: Moved, tmp_path: Path) -> None:
    project, runs, before = moved
    cell = AblationFolder(runs / "sizes").plan.cells[0]
    text = f"corpus.paths=[{project / 'corpus.txt'}]"
    for file in (runs / "sizes" / "plan" / f"{cell.id}.yaml", runs / "child" / "config.yaml"):
        execute.run(file, [text], tmp_path / file.stem, "cpu")
    stored = [yaml.safe_load(path.read_text())["data"]["store"] for path in tmp_path.glob("*/config.yaml")]
    assert [(tmp_path / "x" / store).resolve() for store in stored] == [runs / ".store"] * 2
    texts = f"dataset.folder={project / 'texts'}"
    downstream = next((runs / "sizes").glob("downstream/*/*"))
    for file in (runs / "animals", *(runs / "inits" / "cells").iterdir(), downstream):
        finetune(file / "finetuning.yaml", [texts], tmp_path / f"tuned-{file.name}", "cpu")
    assert not before.exists()


def test_a_token_store_that_cannot_be_written_names_its_key(original: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"--set data\.store="):
        execute.run(original / "tiny.yaml", [f"data.store={tmp_path / 'file' / 'store'}"], tmp_path / "run", "cpu")


def test_paths_that_were_written_as_absolute_stay_absolute(original: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(original)
    store = f"data.store={original / 'runs' / '.store'}"
    execute.run(original / "tiny.yaml", [store], tmp_path / "run", "cpu")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]["store"] == store.partition("=")[2]


@pytest.mark.parametrize("base", ["animals", "child"])
def test_no_seed_begins_with_other_weights_than_those_before(original: Path, tmp_path: Path, base: str) -> None:
    """Neither of a fine-tuning nor of a run that starts from another one."""
    project, out = Path(shutil.copytree(original, tmp_path / "project")), tmp_path / "out"
    file, model = project / "weights.yaml", project / "runs" / "tiny" / "one"
    keys = "vary: {train.batch_size: [2]}\nseeds: [0]\nlauncher: {type: in_process}\nretries: 0\n"
    file.write_text(f"name: weights\nbase: {base}.yaml\n{keys}")
    ablate(file, [], out, "cpu", None, None)
    execute.resume(model, "cpu", ["train.steps=2"])
    with pytest.raises(CellsFailed):
        ablate(file, ["seeds=[0, 1]"], out, "cpu", None, None)
    [failed] = (out / "failed").iterdir()
    assert re.match(r"\S*runs/tiny/one: has changed ", json.loads(failed.read_text())["error"])
    assert not (cell := out / "cells" / failed.stem).exists()
    shutil.rmtree(model)  # restored, the other seed is trained
    shutil.copytree(original / "runs" / "tiny" / "one", model)
    ablate(file, ["seeds=[0, 1]"], out, "cpu", None, None)
    assert cell.is_dir()


def test_other_weights_are_noticed_wherever_they_are(moved: Moved) -> None:
    project, runs, _ = moved
    execute.resume(runs / "tiny" / "one", "cpu", ["train.steps=2"])
    with pytest.raises(DataError, match=r"the weights of .* have changed"):
        resume_finetuning(runs / "animals", "cpu", ["seeds=[0, 1]", f"dataset.folder={project / 'texts'}"])


def test_bundles_are_continued_where_nothing_of_the_project_is(original: Path, tmp_path: Path, monkeypatch) -> None:
    """By a colleague, who has neither the files of the project, nor its text, nor its examples."""
    names = ("sizes", "inits", "child", "animals")
    for name in names:
        has_tokens = name in ("sizes", "child")
        bundle(original / "runs" / name, tmp_path / f"{name}.zip", checkpoints=has_tokens, tokens=has_tokens)
    numbers = {name: (original / "runs" / name / "table.csv").read_bytes() for name in ("sizes", "inits")}
    aside = original.rename(original.with_name("aside"))
    try:
        home = tmp_path / "colleague"
        home.mkdir()
        monkeypatch.chdir(home)
        places = {}
        for name in names:
            described, code = unpack(tmp_path / f"{name}.zip", Path(name))
            places[name] = Path(name, described.main)
            assert [Path(copies[0]).name[-8:] for copies in code] == ([] if name == "child" else ["lines.py"])
        for name, before in numbers.items():
            file = places[name] / "ablation.yaml"
            check(file, [])
            assert "left to do: nothing." in dry_run(file, [], None, "cpu", None, None)
            ablate(file, [], None, "cpu", None, None)
            assert (places[name] / "table.csv").read_bytes() == before
        for run in (places["child"], next((places["sizes"] / "cells").glob("generator*"))):
            last = steps(run / "checkpoints")[-1]
            execute.resume(run, "cpu", [f"train.steps={last + 1}"])
            assert steps(run / "checkpoints")[-1] == last + 1
        resume_finetuning(places["animals"], "cpu")
        assert report_finetuning(places["animals"]).is_file()
        assert not original.exists()
        assert not (home / "runs").exists(), "nothing was begun again"
    finally:
        aside.rename(original)
