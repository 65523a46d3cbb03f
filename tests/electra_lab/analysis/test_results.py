"""The folder of an ablation as values: of the runs that have begun, otherwise of the plan."""

import json
import shutil
from pathlib import Path

import pytest

from electra_lab.analysis.results import read
from electra_lab.presentation.text import within
from registry.errors import CheckpointError
from tests.electra_lab.presentation.synthetic import (
    CORRUPTION,
    OWN,
    SCALES,
    STEPS,
    TOKENS_A_STEP,
    fail,
    measured,
    score,
    write_folder,
)

SMALL, LARGE = "generator.scale=0.25", "generator.scale=1.0"


def test_values_are_those_of_the_cells_by_variant_and_seed(folder: Path) -> None:
    results = read(folder)
    found = results.values("reference_auc")
    assert list(found) == list(SCALES)
    for i, scores in enumerate(found.values()):
        assert scores == {0: score(i, 0), 1: score(i, 1)}
    assert results.values("own_loss")[LARGE][1] == 6 - 3 * score(3, 1)
    assert [cell.plan.id for cell in results.of(LARGE)] == ["v3-s0", "v3-s1"]


def test_a_cell_without_a_metric_is_left_out(folder: Path) -> None:
    file = folder / "cells" / "v1-s1" / "measures.json"
    file.write_text(measured("v1-s1", {CORRUPTION: {"reference_auc": 0.5}, OWN: {}}, STEPS - 40))
    (folder / "cells" / "v2-s0" / "measures.json").write_text(measured("v2-s0", {OWN: {"own_loss": 1.0}}))
    results = read(folder)
    assert results.values("own_loss")["generator.scale=0.5"].keys() == {0}
    assert results.values("reference_auc")["generator.scale=0.75"].keys() == {1}


def test_numbers_that_are_not_finite_or_not_declared_do_not_count(folder: Path) -> None:
    file = folder / "cells" / "v0-s0" / "measures.json"
    numbers = {
        CORRUPTION: {"reference_auc": float("nan"), "reference_accuracy": None, "more": 1.0},
        OWN: {},
        "fixed_corruption-of-another-plan": {"reference_auc": 0.9},
    }
    file.write_text(measured("v0-s0", numbers))
    cell = read(folder).cells[0]
    assert (cell.status, cell.metrics) == ("done", {})


def test_the_costs_of_a_run_are_its_own_and_before_it_has_begun_those_of_the_plan(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SCALES, (0, 1), state={"v0-s1": "missing", "v1-s0": "unfinished", "v1-s1": "begun"})
    file = folder / "cells" / "v0-s0" / "provenance.json"
    real = {"flops": 3e11, "parameters": {"discriminator": 40, "shared": 0, "total": 50}}
    file.write_text(json.dumps(json.loads(file.read_text()) | real))
    ran, planned, unfinished, begun, *_ = read(folder).cells
    assert (ran.costs.steps, ran.costs.flops, ran.costs.parameters["total"]) == (STEPS, 3e11, 50)
    assert (planned.costs.steps, planned.costs.flops, planned.costs.parameters["total"]) == (STEPS, 1e12, 4_200_000)
    assert (ran.tokens, ran.seconds) == (STEPS * TOKENS_A_STEP, pytest.approx(STEPS * TOKENS_A_STEP / 9000))
    for cell in (planned, unfinished, begun):
        assert (cell.tokens, cell.seconds, cell.trained) == (None, None, False)
    assert [cell.provenance is not None for cell in (ran, planned, unfinished, begun)] == [True, False, True, False]
    assert planned.records == begun.records == []


def test_cells_are_counted_by_their_state(tmp_path: Path) -> None:
    state = {"v0-s0": "missing", "v0-s1": "failed", "v1-s0": "begun", "v1-s1": "unfinished", "v2-s0": "unmeasured",
             "v2-s1": "partial", "v3-s0": "cleaned"}  # fmt: skip
    results = read(write_folder(tmp_path, SCALES, (0, 1), state=state))
    counts = {status: results.count(status) for status in ("done", "unmeasured", "unfinished", "failed", "missing")}
    assert counts == {"done": 2, "unmeasured": 2, "unfinished": 2, "failed": 1, "missing": 1}
    assert [cell.trained for cell in results.cells] == [False] * 4 + [True] * 4


def test_a_cell_whose_measures_failed_is_trained_all_the_same(tmp_path: Path) -> None:
    """Its compute and curves count; a cell whose training failed has neither."""
    folder = write_folder(tmp_path, SCALES, (0, 1), state={"v0-s0": "failed", "v2-s0": "unmeasured"})
    fail(folder, "v2-s0", "out of luck")
    by_id = {cell.plan.id: cell for cell in read(folder).cells}
    for id, trained in (("v0-s0", False), ("v2-s0", True)):
        assert by_id[id].status == "failed"
        assert by_id[id].trained is trained
        assert (by_id[id].tokens is not None) is trained


def test_references_that_failed_say_why_with_the_names_of_files_in_the_folder(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    plan["measures"][0]["references"] = {"one": "reference-b", "two": "reference-a"}
    (folder / "plan.json").write_text(json.dumps(plan))
    fail(folder, "reference-a", f"{folder}/cells/reference-a: is damaged; see {folder}.")
    assert [*read(folder).failed_references] == ["reference-a"]
    (folder / "shared" / CORRUPTION).mkdir(parents=True)  # the only measure that needs the reference has used it
    assert read(folder).failed_references == {}


def test_names_of_files_are_shortened_within_the_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    said = f"{tmp_path}/real/a and {tmp_path}/link/b, {tmp_path}/c"
    assert within(tmp_path / "link", said) == f"a and b, {tmp_path}/c"
    monkeypatch.chdir(tmp_path)
    assert within(Path("real"), f"{tmp_path}/real: x") == ".: x"
    assert within(Path("/"), "/usr/lib") == "/usr/lib"


@pytest.mark.parametrize("file", ["provenance.json", "metrics.jsonl"])
def test_a_damaged_file_of_a_run_is_named_with_a_cure_that_works(folder: Path, file: str) -> None:
    run = folder / "cells" / "v0-s0"
    (run / file).write_text("{}\n{}\n")
    cell = read(folder).cells[0]
    with pytest.raises(CheckpointError, match=rf"^{run / file}:.* Remove {run}, and `electra-lab ablate` rec"):
        _ = (cell.records, cell.provenance)
    shutil.rmtree(run)
    assert read(folder).cells[0].missing == ("training",)
