"""One function decides what remains to be done: `ablate`, its dry run and the report agree with it in every state."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from electra_lab.analysis.results import TRAINING, CellResult, cell_result, is_ready, waiting_work
from electra_lab.jobs.sweeps import cells, run
from electra_lab.jobs.sweeps.file import Ablation, load_ablation
from electra_lab.jobs.sweeps.plan import checked, write_plan
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.files import seal
from electra_lab.storage.plan import Plan, PlannedMeasure
from electra_lab.testing.optimizers import STATE
from registry import launchers, measures
from tests.electra_lab.jobs.sweeps.small import InProcess, write
from tests.electra_lab.presentation.synthetic import fail, provenance
from tests.electra_lab.presentation.synthetic import measured as measures_text

# A run has not begun, was killed before its first file, has no checkpoint yet, has an earlier one, has the final one
# but no page, has it without its manifest, had its checkpoints removed, or is trained.
RUNS = ("absent", "killed", "begun", "interrupted", "unreported", "incomplete", "cleaned", "trained")
MEASURED = ("nothing", "one", "all", "damaged", "of another plan", "of another cell")
ORDERS = [
    (run, measured, failed)
    for run, measured, failed in itertools.product(RUNS, MEASURED, (False, True))
    if run != "absent" or measured == "nothing"
]
SEEDS = -(-len(ORDERS) // 2)


def lay(folder: AblationFolder, id: str, how: str, measured: str, failed: bool, keys: list[str]) -> None:
    """Write the files of this state to the disk."""
    path, steps = folder.path / "cells" / id, 8
    if failed:
        fail(folder.path, id, "step 3: the loss was not finite.", 2)
    if how == "absent":
        return
    path.mkdir()
    texts = {
        "one": measures_text(id, {keys[0]: {}}, steps),
        "all": measures_text(id, {key: {} for key in keys}, steps),
        "damaged": measures_text(id, {"a": {"b": "c"}}, steps),
        "of another plan": measures_text(id, {f"{keys[0]}0": {}, keys[1][:-1]: {}}, steps),
        "of another cell": measures_text(f"{id}0", {key: {} for key in keys}, steps),
    }
    if measured in texts:
        (path / "measures.json").write_text(texts[measured])
    if how == "killed":
        return
    cell = {"parameters": {"total": 1}, "steps": steps, "flops": 1e6}
    (path / "provenance.json").write_text(json.dumps(provenance(path, cell)))
    (path / "config.yaml").write_text("name: sizes\n")
    if how in ("interrupted", "unreported", "incomplete", "trained"):
        checkpoint = path / "checkpoints" / f"step-{steps - 2 if how == 'interrupted' else steps:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.safetensors").write_text(id)
        (checkpoint / "state.json").write_text(json.dumps(STATE | {"run": id, "step": int(checkpoint.name[5:])}))
        if how != "incomplete":
            seal(checkpoint)
    if how in ("incomplete", "cleaned", "trained"):
        (path / "report.html").write_text("")


def expected(how: str, measured: str, failed: bool, keys: list[str]) -> tuple[str, tuple[str, ...]]:
    """Return the status and the missing parts by the text of the contract."""
    if measured == "all":
        return "done", ()  # fully measured, even if other files are missing
    if how == "trained":
        return "failed" if failed else "unmeasured", (keys[1],) if measured == "one" else tuple(keys)
    began = "missing" if how == "absent" else "unfinished"
    return "failed" if failed else began, (TRAINING,)


class Bench(NamedTuple):
    """A checked ablation, its plan, and a folder with a cell in each state."""

    checked: Ablation
    plan: Plan
    folder: AblationFolder


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    file = write(tmp_path_factory.mktemp("states"), seeds=str(list(range(SEEDS))))
    file.write_text(file.read_text().replace("  - {type: detection_probe, rows: 8}\n", ""))
    made = checked(load_ablation(file))
    folder = AblationFolder.create(file.parent / "out")
    plan = write_plan(made, folder)
    for cell, (how, measured, failed) in zip(plan.cells, ORDERS, strict=False):
        lay(folder, cell.id, how, measured, failed, [measure.key for measure in plan.measures])
    return Bench(made, plan, folder)


# The state of a reference, whether its measure has used it, whether it has failed. The other reference is trained.
REFERENCES = {
    f"{how}{', used' * used}{', failed' * failed}": (how, used, failed)
    for how, used, failed in itertools.product(("absent", "begun", "trained"), (False, True), (False, True))
}
some = pytest.mark.parametrize("laid", ["absent", "absent, used", "trained"], indirect=True)


@pytest.fixture
def laid(request: pytest.FixtureRequest, bench: Bench, tmp_path: Path) -> AblationFolder:
    """A copy of the folder, with a reference in one of its states."""
    folder = AblationFolder(Path(shutil.copytree(bench.folder.path, tmp_path / "out")))
    how, used, failed = REFERENCES[request.param]
    reference, other = bench.plan.references
    for id, state, note in ((reference, how, failed), (other, "trained", False)):
        lay(folder, id, state, "nothing", note, [measure.key for measure in bench.plan.measures])
    if used:
        folder.shared(bench.plan.measures[0]).mkdir()
    return folder


def states(folder: AblationFolder, plan: Plan) -> dict[str, CellResult]:
    return {id: cell_result(folder, plan, id) for id in plan.by_id}


@pytest.mark.parametrize("laid", REFERENCES, indirect=True)
def test_every_state_is_the_one_of_the_contract(laid: AblationFolder, bench: Bench, request) -> None:
    plan, found = bench.plan, states(laid, bench.plan)
    keys = [measure.key for measure in plan.measures]
    for cell, (how, measured, failed) in zip(plan.cells, ORDERS, strict=False):
        state = found[cell.id]
        assert (state.status, state.missing) == expected(how, measured, failed, keys), (how, measured, failed)
        assert state.attempts == (2 if state.status == "failed" else 0)
        shows = measured in ("damaged", "of another cell") and state.status != "failed"
        assert state.error.startswith(f"{laid.run(cell.id).path}/measures.json: ") == shows
    how, used, failed = REFERENCES[request.node.callspec.params["laid"]]
    reference, other = plan.references
    assert found[other].status == "done"
    state = found[reference]
    if how == "trained" or used:
        assert (state.status, state.error) == ("done", "")
    else:
        began = "missing" if how == "absent" else "unfinished"
        assert (state.status, state.missing) == ("failed" if failed else began, (TRAINING,))
    assert is_ready(laid, plan, plan.measures[0]) == (how == "trained" or used)
    assert is_ready(laid, plan, plan.measures[1])


def forecast(*_: object) -> SimpleNamespace:
    return SimpleNamespace(parameters={"discriminator": 1}, steps=8, total_flops=1e9, bytes=3)


@some
def test_the_dry_run_counts_the_same(laid: AblationFolder, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_prepared", lambda *_: (bench.checked, InProcess(), laid.path))
    monkeypatch.setattr(run, "forecast", forecast)
    monkeypatch.setattr(run, "trial", lambda *_: SimpleNamespace(total=1.0))
    text = run.dry_run(Path(), [], None, "cpu", None, None)
    found = states(laid, bench.plan).values()
    train = sum(TRAINING in state.missing for state in found)
    measure = sum(bool(state.missing) and TRAINING not in state.missing for state in found)
    assert f", 2 reference runs, {sum(not state.missing for state in found)} already done, in " in text
    assert re.search(r"left to do: (\d+) to train, (\d+) to measure, ", text).groups() == (str(train), str(measure))


def test_the_dry_run_times_steps_with_the_threads_that_cells_will_have(tmp_path: Path, bench, monkeypatch) -> None:
    before, seen = torch.get_num_threads(), set[int]()
    monkeypatch.setattr(run, "forecast", forecast)
    monkeypatch.setattr(run, "trial", lambda *_: str(seen.add(torch.get_num_threads())))
    for launch in (launchers.get("local").component(threads=before + 1), InProcess()):
        monkeypatch.setattr(run, "_prepared", lambda *_, launch=launch: (bench.checked, launch, tmp_path))
        run.dry_run(Path(), [], None, "cpu", None, None)
        assert torch.get_num_threads() == before
    assert seen == {before + 1, before}


@some
def test_ablate_would_do_the_same(laid: AblationFolder, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, found = bench.plan, states(laid, bench.plan)
    keys = [measure.key for measure in plan.measures]
    ready = [measure.key for measure in plan.measures if is_ready(laid, plan, measure)]
    waiting = waiting_work(laid, plan, found)
    assert waiting == {id: state.missing for id, state in found.items() if {TRAINING, *ready} & set(state.missing)}

    did: dict[str, list[str]] = {}

    def trained(path: Path) -> None:
        did.setdefault(path.name, []).append(TRAINING)
        measured = (path / "measures.json").read_text() if (path / "measures.json").is_file() else ""
        shutil.rmtree(path, ignore_errors=True)
        lay(laid, path.name, "trained", "", False, keys)
        if measured:
            (path / "measures.json").write_text(measured)

    def noted(self: AblationFolder, id: str, step: int, key: str, *numbers: Any) -> None:
        did.setdefault(id, []).append(key)
        note(self, id, step, key, *numbers)

    note = AblationFolder.note_measure
    monkeypatch.setattr(AblationFolder, "note_measure", noted)
    monkeypatch.setattr(cells, "load", lambda path: path.stem)
    monkeypatch.setattr(cells, "as_planned", lambda id, folder: folder.plan.seals.get(id))
    monkeypatch.setattr(cells, "digest", lambda id, seal: seal)
    monkeypatch.setattr(cells.execute, "run", lambda file, overrides, out, device, **_: trained(out))
    monkeypatch.setattr(cells.execute, "resume", lambda path, device, **_: trained(path))
    monkeypatch.setattr(cells, "scale_of", lambda *_: None)
    monkeypatch.setattr(cells, "_refuse_other_weights", lambda *_: None)
    monkeypatch.setattr(cells, "_shared", lambda *_: laid.path)
    monkeypatch.setattr(cells, "as_measured", lambda *_: (SimpleNamespace(declared={}), nullcontext))
    for kind in {measure.type for measure in plan.measures}:
        monkeypatch.setattr(measures.get(kind).component, "__call__", lambda self, run, shared: {})
    for id in reversed(found):  # references last, so that cells still see it in this state
        cells.work(laid.path, id, "cpu")

    for id, state in found.items():
        if id in plan.references or TRAINING not in state.missing:
            assert did.get(id, []) == [part for part in state.missing if part in (TRAINING, *ready)]
        else:
            how, measured, _ = ORDERS[[cell.id for cell in plan.cells].index(id)]
            kept = keys[:1] if measured == "one" and how != "killed" else []  # killed runs are removed
            assert did[id] == [TRAINING, *(key for key in ready if key not in kept)]


@pytest.fixture
def one(tmp_path: Path) -> tuple[AblationFolder, Plan]:
    folder = AblationFolder.create(tmp_path / "one")
    measures: list[PlannedMeasure] = [
        PlannedMeasure(type=name, key=f"{name}-1", metrics={name: {}}, references=references)
        for name, references in (("a", {"x": "r"}), ("b", {"x": "q", "y": "r"}), ("c", {"x": "q"}), ("d", {}))
    ]
    return folder, Plan.model_validate({
        "name": "x", "base": "y", "variants": [{"label": "v"}], "baseline": "v", "seeds": [0],
        "measures": [measure.model_dump() for measure in measures], "metric": "a",
        "cells": [{"id": "v", "variant": "v", "seed": 0}],
    })  # fmt: skip


def test_a_reference_of_two_measures_is_needed_until_both_have_used_it(one: tuple[AblationFolder, Plan]) -> None:
    folder, plan = one
    a, b, c, _ = plan.measures
    assert cell_result(folder, plan, "r").missing == (TRAINING,)
    folder.shared(a).mkdir()
    folder.shared(c).mkdir()
    assert cell_result(folder, plan, "r").missing == cell_result(folder, plan, "q").missing == (TRAINING,)
    assert [is_ready(folder, plan, measure) for measure in plan.measures] == [True, False, True, True]
    folder.shared(b).mkdir()
    assert cell_result(folder, plan, "r").missing == cell_result(folder, plan, "q").missing == ()


@pytest.mark.parametrize("trained", [(), ("q",), ("r",), ("q", "r")])
def test_a_measure_waits_for_all_of_its_references(one: tuple[AblationFolder, Plan], trained: tuple[str, ...]) -> None:
    folder, plan = one
    for id in trained:
        lay(folder, id, "trained", "nothing", False, ["", ""])
    ready = ["r" in trained, {"q", "r"} <= {*trained}, "q" in trained, True]
    assert [is_ready(folder, plan, measure) for measure in plan.measures] == ready
    lay(folder, "v", "trained", "nothing", False, ["", ""])
    waiting = waiting_work(folder, plan, ["v"])
    assert waiting == {"v": ("a-1", "b-1", "c-1", "d-1")}  # d needs none
    folder.note_measure("v", 8, "d-1", {})
    missing = ("a-1", "b-1", "c-1")
    assert waiting_work(folder, plan, ["v"]) == ({"v": missing} if trained else {})
