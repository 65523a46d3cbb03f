"""What an ablation can tell is known before it is run: from a number in its file, or from a pilot."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from electra_lab.analysis.power import detectable
from electra_lab.analysis.results import cell_result, read
from electra_lab.jobs.sweeps import run
from electra_lab.jobs.sweeps.file import Ablation, load_ablation
from electra_lab.jobs.sweeps.plan import checked, plan_of, write_plan
from electra_lab.presentation.text import number
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.plan import Expected
from registry.errors import ConfigError
from tests.electra_lab.jobs.sweeps.small import write
from tests.electra_lab.presentation.synthetic import SCALES, add_references, score, write_folder


def made(folder: Path, power: str) -> Ablation:
    return checked(load_ablation(write(folder, seeds="[0, 1, 2, 3, 4]", more=power)))


def test_by_a_stated_deviation(tmp_path: Path) -> None:
    found = made(tmp_path, "power: {sd: 0.02}")
    assert plan_of(found).expected == Expected(sd=0.02, source="by the file")
    size = detectable(5, 1) or 0
    said = f"{number(0.02 * size)} in corruption_auc, judging by the file (standard deviation of paired differences"
    assert said in run.dry_run(tmp_path / "sizes.yaml", [], tmp_path / "out", "cpu", None, None)


def rename(pilot: Path, old: str, new: str) -> None:
    """Give a metric of a pilot another name."""
    for file in (pilot / "plan.json", *pilot.glob("cells/*/measures.json")):
        file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))


def test_by_a_pilot(tmp_path: Path) -> None:
    written = write_folder(tmp_path / "there" / "pilot", SCALES, (0, 1, 2))
    pilot = add_references(written, lambda reference, variant, seed: score(variant, seed + reference))
    rename(pilot, "reference_auc", "other")
    rename(pilot, "auc", "corruption_auc")
    errors = [d.error for d in read(pilot).comparisons.against("corruption_auc").values()]
    found = made(tmp_path / "here", "power: {pilot: ../there/pilot}")
    expected = plan_of(found).expected
    assert expected.sd == pytest.approx(math.sqrt(sum(3 * (error or 0) ** 2 for error in errors) / len(errors)))
    assert expected.source == "by the pilot ../there/pilot"


def test_what_a_pilot_said_stands_while_the_ablation_runs(tmp_path: Path) -> None:
    """Moving or damaging the pilot later changes nothing; a new ablation gets an error at the line that names it."""
    pilot = write_folder(tmp_path / "pilot", SCALES, (0, 1, 2))
    rename(pilot, "reference_auc", "corruption_auc")
    found, folder = made(tmp_path, "power: {pilot: pilot}"), AblationFolder.create(tmp_path / "runs")
    plan = write_plan(found, folder)
    assert plan.expected is not None
    (pilot / "plan.json").write_text("{")
    assert plan_of(found, folder).expected == plan.expected
    with pytest.raises(ConfigError, match=r"sizes\.yaml:\d+: power\.pilot: .*plan\.json"):
        plan_of(found)
    shutil.rmtree(pilot)
    assert plan_of(found, folder).expected == plan.expected
    assert plan_of(made(tmp_path, "power: {sd: 0.5}"), folder).expected == Expected(sd=0.5, source="by the file")


@pytest.mark.parametrize(
    ("power", "reason"),
    [
        ("{}", "power: needs either `sd` or `pilot`."),
        ("{sd: 0.1, pilot: there}", "power: needs either `sd` or `pilot`."),
        ("{sd: 0}", "power.sd: must be greater than 0"),
        ("{pilot: nowhere}", "power.pilot: {folder}/nowhere is not the folder of an ablation."),
        ("{pilot: pilot}", "power.pilot: {folder}/pilot does not have corruption_auc of two variants with two seeds"),
    ],
)
def test_mistakes_are_named_at_their_line(tmp_path: Path, power: str, reason: str) -> None:
    write_folder(tmp_path / "pilot", SCALES, (0, 1))
    with pytest.raises(ConfigError) as error:
        plan_of(made(tmp_path, f"power: {power}"))
    assert reason.format(folder=tmp_path) in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'sizes.yaml'}:")


def test_it_changes_no_cell(tmp_path: Path) -> None:
    one, other = made(tmp_path / "a", ""), made(tmp_path / "a", "power: {sd: 0.1}")
    assert [cell.id for cell in one.pieces] == [cell.id for cell in other.pieces]


def test_cells_keep_what_each_document_contributes(done: tuple[Path, Path]) -> None:
    """The same documents for all of them, so that intervals can be about other documents, too."""
    folder = AblationFolder(done[1])
    found = [folder.by_document(cell.id, folder.plan) for cell in folder.plan.cells]
    parts = [f"corruption_auc_{name}" for name in ("small", "large", "unigram")]
    others = {"corruption_auc", "probe_auc", "head_auc", "corruption_rarity", "corruption_chance", "probe_chance"}
    assert {frozenset(each) for each in found} == {frozenset({*parts, *others})}
    assert len({len(each[name]) for each in found for name in parts}) == 1
    for cell, documents in zip(folder.plan.cells, found, strict=True):
        whole = documents["corruption_auc"]
        assert len(whole) > 2
        assert whole == pytest.approx(np.mean([documents[part] for part in parts], axis=0))
        for name, numbers in documents.items():
            value = cell_result(folder, folder.plan, cell.id).metrics[name]
            assert abs(sum(numbers) / len(numbers) - value) < 0.1
