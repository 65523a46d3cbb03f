"""Cells, measures and references that were moved, copied or exchanged, or that changed while they were worked on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from electra_lab.analysis.catalog import jobs
from electra_lab.analysis.results import cell_result, read
from electra_lab.analysis.run_comparison import subjects
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.sweeps import cells
from electra_lab.presentation.sweep_page import write_report
from electra_lab.storage.ablation_folder import AblationFolder
from registry import discovery, samplers
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.jobs.sweeps.small import HERE, ablate, contents, stamps, worked, write

Change = Callable[[Path, Path], object]  # of two cells


def exchange(one: Path, other: Path) -> None:
    aside = one.rename(one.with_name("aside"))
    other.rename(one)
    aside.rename(other)


def copy(one: Path, other: Path) -> None:
    if other.is_dir():
        shutil.rmtree(other)
    (shutil.copytree if one.is_dir() else shutil.copy)(one, other)


def copy_unmeasured(one: Path, other: Path) -> None:
    copy(one, other)
    (other / "measures.json").unlink()


def in_cells(name: str, change: Change) -> Change:
    """Change a file or folder of two cells, of which the second one is then measured again."""

    def call(one: Path, other: Path) -> None:
        change(one / name, other / name)
        if name != "measures.json":
            (other / "measures.json").unlink()

    return call


CHANGES: dict[str, Change] = {
    "exchanged": exchange,
    "copied": copy,
    "copied, unmeasured": copy_unmeasured,
    "measures copied": in_cells("measures.json", copy),
    "measures exchanged": in_cells("measures.json", exchange),
    "provenance copied": in_cells("provenance.json", copy),
    "config copied": in_cells("config.yaml", copy),
    "records copied": in_cells("metrics.jsonl", copy),
    "checkpoints copied": in_cells("checkpoints", copy),
    "the last checkpoint copied": in_cells("checkpoints/step-00000008", copy),
}


@pytest.mark.parametrize(("name", "places"), [*((name, (0, 1)) for name in CHANGES), ("exchanged", (0, 2))])
def test_numbers_of_another_cell_are_never_shown_and_cells_are_done_again(here, done, out, name, places) -> None:
    plan, before = AblationFolder(out).plan, contents(done[1])
    one, other = (out / "cells" / plan.cells[place].id for place in places)
    CHANGES[name](one, other)
    results = {cell.id: cell_result(AblationFolder(out), plan, cell.id) for cell in plan.cells}
    truth = {cell.plan.id: cell.metrics for cell in read(done[1]).cells}
    assert all(result.metrics in ({}, truth[id]) for id, result in results.items())
    assert results[other.name].missing
    (listed,) = jobs(out)
    assert listed.state != "finished"
    ablate(here, out)
    assert contents(out) == before


def test_a_cell_in_the_place_of_another_is_no_run_to_compare_or_to_resume(out: Path) -> None:
    one, other = (out / "cells" / cell.id for cell in AblationFolder(out).plan.cells[:2])
    exchange(one, other)
    for verb in (lambda: subjects([one, other]), lambda: execute.resume(one, "cpu"), lambda: write_report(out)):
        with pytest.raises(CheckpointError, match=f"belongs to {other.name}, not to {one.name}"):
            verb()


def test_a_moved_ablation_and_a_cell_of_a_copy_are_its_own(here: Path, out: Path, tmp_path: Path) -> None:
    moved = out.rename(tmp_path / "moved")
    twin = Path(shutil.copytree(moved, tmp_path / "twin"))
    id = AblationFolder(twin).plan.cells[0].id
    copy(moved / "cells" / id, twin / "cells" / id)
    before = stamps(twin)
    ablate(here, twin)
    assert stamps(twin) == before
    alone = (twin / "cells" / id).rename(tmp_path / "alone")  # a run like any other
    execute.resume(alone, "cpu")


def test_a_cell_that_was_trained_longer_by_hand_is_done_again(out: Path) -> None:
    folder, said = AblationFolder(out), list[str]()
    id = folder.plan.cells[0].id
    execute.resume(out / "cells" / id, "cpu", ["train.steps=10"])
    assert cell_result(folder, folder.plan, id).missing
    assert not cell_result(folder, folder.plan, id).metrics
    cells.quarantine_damaged(folder, folder.plan, said.append)
    assert len(said) == 1


def test_a_reference_of_another_measure_is_set_aside(out: Path) -> None:
    folder, said = AblationFolder(out), list[str]()
    one, other = (out / "cells" / id for id in folder.plan.references)
    exchange(one, other)
    shutil.rmtree(out / "shared" / folder.plan.measures[0].key)
    cells.quarantine_damaged(folder, folder.plan, said.append)
    assert len(said) == 2
    assert not one.exists()


def test_what_another_measure_shares_is_set_aside(out: Path) -> None:
    folder, said = AblationFolder(out), list[str]()
    one, other = (folder.shared(measure) for measure in folder.plan.measures[::2])
    exchange(one, other)
    cells.quarantine_damaged(folder, folder.plan, said.append)
    assert [line.startswith(str(path)) for line, path in zip(said, (one, other), strict=True)] == [True, True]


def test_a_lost_claim_ends_the_work_on_a_cell(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    id = AblationFolder(out).plan.cells[0].id
    (out / "cells" / id / "measures.json").unlink()
    train = cells._train

    def lose(*arguments: object) -> None:
        train(*arguments)
        (out / "claims" / id).unlink()

    monkeypatch.setattr(cells, "_train", lose)
    outcome = worked(out, id)
    assert (outcome.code, str(out / "claims" / id) in outcome.error) == (4, True)
    assert not (out / "cells" / id / "measures.json").exists()


def test_changed_plug_ins_are_another_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from registry import samplers\n\n\n@samplers.register('greedy')\ndef greedy(logits, rng, /):\n    'Best.'\n"
    file = write(tmp_path, seeds="[0]", launcher=HERE, imports="[greedy.py]", sampler="{type: greedy}")
    file.write_text(file.read_text().split("measure:")[0] + f"measure: [{{type: pretraining}}]\nlauncher: {HERE}\n")
    for result, refused in (("argmax", nullcontext()), ("argmin", pytest.raises(ConfigError, match="plug-ins differ"))):
        monkeypatch.setattr(discovery, "_loaded", {})  # the file is loaded once in a process
        (tmp_path / "greedy.py").write_text(f"{text}    return logits.{result}(-1)\n")
        with samplers.isolated(), refused:
            ablate(file, tmp_path / "out")
    assert len([*(tmp_path / "out").glob("cells/*/plugins/*-greedy.py")]) == 2
