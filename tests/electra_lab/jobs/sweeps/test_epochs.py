"""Ablations whose cells last for epochs: the steps of each are known once its text is tokenized."""

from __future__ import annotations

from pathlib import Path

from electra_lab.jobs.sweeps import run
from electra_lab.storage.ablation_folder import AblationFolder
from tests.electra_lab.jobs.sweeps.small import HERE, ablate, write


def test_a_budget_of_epochs_is_as_many_steps_as_each_cell_needs(tmp_path: Path) -> None:
    """A cell with twice the batch takes half the steps. References have steps of their own."""
    file = write(tmp_path, seeds="[0]", launcher=HERE)
    text = file.read_text().replace("budget: {steps: 8}", "budget: {epochs: 0.5}")
    text = text.replace("{generator.scale: [0.5, 1.0]}", "{train.batch_size: [2, 4]}")
    file.write_text(text.replace("  - {type: detection_probe, rows: 8}\n", ""))
    before = run.dry_run(file, [], tmp_path / "out", "cpu", None, None, tries=False)
    assert before.count("unknown") == 2 * 3 + 2  # steps, FLOPs and time of both cells, time of both references
    folder = AblationFolder(ablate(file, tmp_path / "out"))
    plan, done = folder.plan, {cell.variant: folder.run(cell.id).provenance() for cell in folder.plan.cells}
    rows = done["train.batch_size=2"].data.rows
    assert rows
    assert [began.steps for began in done.values()] == [round(0.5 * rows / 2), round(0.5 * rows / 4)]
    assert [cell.steps for cell in plan.cells] == [began.steps for began in done.values()]
    assert None not in [cell.flops for cell in plan.cells]
    assert {folder.run(id).provenance().steps for id in plan.references} == {4}
    assert "0.5 epochs" in (tmp_path / "out" / "report.html").read_text()
    after = run.dry_run(file, [], tmp_path / "other", "cpu", None, None, tries=False)
    assert [f" {began.steps:,} " in after for began in done.values()] == [True, True]
    assert after.count("unknown") == 2 + 2 + 1  # no time, nor of all
