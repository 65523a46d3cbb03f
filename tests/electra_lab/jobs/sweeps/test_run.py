"""Ablations that really run: every cell once, whatever was interrupted before; failures do not stop other cells."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from electra_lab.analysis.results import cell_result, read
from electra_lab.jobs.sweeps import cells, run
from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.training import device as devices
from registry import Command, Outcome, discovery, launchers, objectives
from registry.errors import CellsFailed, CheckpointError, ConfigError, DataError
from tests.electra_lab.jobs.sweeps import small
from tests.electra_lab.jobs.sweeps.small import HERE, STEPS, InProcess, ablate, contents, first, lines, stamps, write
from tests.electra_lab.presentation.synthetic import measured
from tests.pages import Page

SMALL, LARGE = "generator.scale=0.5", "generator.scale=1.0"


def test_every_cell_is_trained_measured_and_reported(done: tuple[Path, Path]) -> None:
    _, out = done
    where = AblationFolder(out)
    plan = where.plan
    assert [(cell.variant, cell.seed) for cell in plan.cells] == [(SMALL, 0), (LARGE, 0), (SMALL, 1), (LARGE, 1)]
    table = Page(out / "report.html").table("The cells")
    for cell in plan.cells:
        state = cell_result(where, plan, cell.id)
        assert state.status == "done"
        found = {name.rpartition("-")[0]: values for name, values in where.measures(cell.id).numbers.items()}
        assert found.keys() == {"fixed_corruption", "pretraining", "detection_probe"}
        assert all(0 <= value <= 1 for value in found["fixed_corruption"].values())
        last = lines(out / "cells" / cell.id)[-1]
        assert found["pretraining"]["generator_loss"] == last["generator_loss"]
        assert last["step"] == STEPS
        row = next(row for row in table if row[0] == cell.variant)
        assert float(row[1 + cell.seed]) == pytest.approx(found["fixed_corruption"]["corruption_auc"], abs=1e-4)
    assert list(plan.measures[0].references) == ["small", "large"]
    assert all(where.measures(reference).numbers == {} for reference in plan.references)
    assert not list((out / "failed").iterdir())
    assert (out / "files" / done[0].name).read_text() == done[0].read_text()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_processes_give_the_same_numbers_bit_for_bit(done: tuple[Path, Path], out: Path, workers: int) -> None:
    """One of the cells, and one of the references that measures need, are trained again."""
    file, before = done
    other, threads = file.with_name("processes.yaml"), torch.get_num_threads()  # as many as in this process
    launcher = f"{{type: local, workers: {workers}, threads: {threads}}}"
    other.write_text(file.read_text().replace(HERE, launcher))
    plan = AblationFolder(out).plan
    again = [plan.cells[2].id, next(iter(plan.references))]
    for folder in (*(out / "cells" / id for id in again), out / "shared"):
        shutil.rmtree(folder)
    ablate(other, out)
    assert contents(out) == contents(before)
    for id in again:
        assert "<svg" in (out / "cells" / id / "report.html").read_text()


def test_cells_of_a_seed_read_the_same_rows_with_the_same_masks(done: tuple[Path, Path]) -> None:
    """Cells are paired: corruptions of the test text differ only by the generators' draws."""
    _, out = done
    share = [lines(out / "cells" / cell.id)[-1]["unigram_entropy"] for cell in AblationFolder(out).plan.cells]
    # It depends only on the masked test tokens: equal for both variants of a seed, different for two seeds.
    assert share[0] == share[1] != share[2] == share[3]


def test_nothing_is_done_twice_and_more_seeds_run_alone(here: Path, out: Path, capfd) -> None:
    before = stamps(out)
    assert ablate(here, out) == out
    assert stamps(out) == before
    said = capfd.readouterr().err
    assert f"sizes: 4 cells and 2 for measures, 6 already done, in {out}" in said
    assert "With 2 seeds this is exploratory:" in said
    assert said.rstrip().endswith(f"report {out / 'report.html'}")
    more = here.with_name("more.yaml")
    more.write_text(here.read_text().replace("seeds: [0, 1]", "seeds: [0, 1, 2]"))
    ablate(more, out)
    plan = AblationFolder(out).plan
    assert len(plan.cells) == 6
    reached = cell_result(AblationFolder(out), plan, plan.cells[5].id).metrics["corruption_auc"]
    assert f"{LARGE}, seed 2: corruption_auc {reached:.4f}\n" in capfd.readouterr().err
    after = stamps(out)
    assert {path: after[path] for path in before} == before
    more.write_text(here.read_text().replace(f"steps: {STEPS}", f"steps: {STEPS + 1}"))
    said = rf"its cell \S+ \(.* is not in this one: train\.steps {STEPS} -> {STEPS + 1}\. "
    with pytest.raises(ConfigError, match=said):
        ablate(more, out)
    text = here.read_text().replace("name: sizes", "name: others")  # this does not change any cell
    text = text.replace("scale: [0.5, 1.0]", "scale: [0.5, 0.25]").replace("seeds: [0, 1]", "seeds: [0, 1, 2]")
    more.write_text(text)
    with pytest.raises(ConfigError, match=r"cell \S*scale=1\.0-s0\S+ \(and 2 more\) is not in this one: gen") as caught:
        ablate(more, out)
    assert "name" not in str(caught.value)


def test_other_options_of_a_measure_are_measured_again(here: Path, out: Path) -> None:
    """Numbers of different corruptions are never compared; training is not repeated."""
    id, where = first(out), AblationFolder(out)
    old, state = where.measures(id).numbers, where.run(id).last_checkpoint() / "state.safetensors"
    stamp = state.stat().st_mtime_ns
    other = here.with_name("other.yaml")
    other.write_text(here.read_text().replace("steps: 4}", "steps: 4, mask_prob: 0.6}"))
    ablate(other, out)
    [was] = [values for key, values in old.items() if key.startswith("fixed")]
    [now] = [values for key, values in where.measures(id).numbers.items() if key.startswith("fixed") and key not in old]
    assert was != now
    table = (out / "table.csv").read_text()
    assert str(now["corruption_auc"]) in table
    assert str(was["corruption_auc"]) not in table
    assert state.stat().st_mtime_ns == stamp


def test_what_is_damaged_or_needed_again_is_recreated_and_nothing_else(done, out: Path, capfd) -> None:
    file, before = done
    plan = AblationFolder(out).plan
    ids = [cell.id for cell in plan.cells]
    runs = [out / "cells" / id for id in ids]
    # Results computed from earlier weights belong to a discarded continuation.
    state = runs[0] / "checkpoints" / f"step-{STEPS:08d}" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    old = {key: dict.fromkeys(values, 0.5) for key, values in AblationFolder(out).measures(ids[0]).numbers.items()}
    old.pop(next(iter(old)))
    (runs[0] / "measures.json").write_text(measured(ids[0], old, STEPS))
    (out / "downstream" / ids[0] / "task").mkdir(parents=True)
    (runs[1] / "measures.json").write_text("")
    shutil.rmtree(runs[2] / "checkpoints")  # measured: its checkpoints were removed to make room
    (runs[3] / "measures.json").unlink()
    (runs[3] / "provenance.json").write_text("[]")
    # A reference that measures need again.
    shutil.rmtree(out / "shared")
    (out / "shared").mkdir()
    small.state_of(out / "cells" / plan.references[1], 4).write_bytes(b"damaged")
    ablate(file, out)
    assert not (runs[2] / "checkpoints").exists()
    assert not (out / "downstream" / ids[0]).exists()
    shutil.copytree(before / "cells" / ids[2] / "checkpoints", runs[2] / "checkpoints")
    assert contents(out) == contents(before)
    aside = {folder.name for folder in (out / "damaged").iterdir()}
    assert aside == {f"{ids[3]}-0", f"{plan.references[1]}-0"}
    assert f"{runs[3]}: cannot be read" in capfd.readouterr().err


def test_a_cell_that_was_removed_is_trained_again(here: Path, done: tuple[Path, Path], out: Path) -> None:
    shutil.rmtree(out / "cells" / first(out))
    (out / "plan.json").write_text("")
    with pytest.raises(CheckpointError, match=r"plan\.json: cannot be read .* Remove it, and `electra-lab ablate`"):
        ablate(here, out)
    (out / "plan.json").unlink()
    ablate(here, out)
    assert contents(out) == contents(done[1])


class Picky(InProcess):
    """A launcher that records its calls, and refuses to run if `refusal` is set."""

    calls: ClassVar[list[str]] = []
    refusal: ClassVar[str] = ""

    def check(self) -> None:
        self.calls.append("check")
        if self.refusal:
            raise ConfigError(self.refusal)

    def __call__(self, commands: Mapping[str, Command], folder: Path, /) -> Iterator[tuple[str, Outcome]]:
        self.calls.append("launch")
        yield from super().__call__(commands, folder)


class Remote(Picky):
    """The same launcher, for other machines."""

    here = False


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> type[Picky]:
    monkeypatch.setattr(Picky, "calls", [])
    launchers.register("picky")(Picky)
    launchers.register("remote")(Remote)
    return Picky


def test_the_launcher_is_checked_before_anything_is_written_or_any_text_read(
    here: Path, tmp_path: Path, picky: type[Picky], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picky, "refusal", "there is no cluster here.")
    monkeypatch.setattr(run, "open_data", lambda *_: pytest.fail("it reads the corpus"))
    with pytest.raises(ConfigError, match="there is no cluster here"):
        ablate(here, tmp_path / "out", launcher="picky")
    assert picky.calls == ["check"]
    assert not (tmp_path / "out").exists()


def test_a_launcher_is_neither_checked_nor_started_if_everything_is_done(here, out, picky, monkeypatch) -> None:
    """An ablation from a cluster can be reported on any machine."""
    monkeypatch.setattr(picky, "refusal", "there is no cluster here.")
    (out / "report.html").unlink()
    assert ablate(here, out, launcher="picky") == out
    assert picky.calls == []
    assert (out / "report.html").is_file()
    # One missing measure of one cell is enough.
    (out / "cells" / first(out) / "measures.json").unlink()
    with pytest.raises(ConfigError, match="there is no cluster here"):
        ablate(here, out, launcher="picky")


def test_a_launcher_that_runs_elsewhere_does_not_need_this_machines_devices(here, out, picky, monkeypatch) -> None:
    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="cuda"):
        run.ablate(here, [], out, "cuda", "picky", None)
    assert run.ablate(here, [], out, "cuda", "remote", None) == out


def test_the_device_of_the_command_is_that_of_every_cell(here: Path, tmp_path: Path, picky, monkeypatch) -> None:
    asked: list[str] = []

    def work(folder: Path, id: str, device: str) -> None:
        asked.append(device)
        raise RuntimeError("no.")

    monkeypatch.setattr(cells, "work", work)
    with pytest.raises(CellsFailed):
        run.ablate(here, [], tmp_path / "out", "cuda", "remote", None)
    assert set(asked) == {"cuda"}


def test_torchrun_is_refused(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE is 2"):
        ablate(here, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_launcher_with_a_required_option_cannot_be_chosen_by_name_alone(here: Path, tmp_path: Path) -> None:
    @launchers.register("queued")
    class Queued(InProcess):
        """Needs a queue."""

        def __init__(self, /, *, workers: int = 1, threads: int = 1, queue: str) -> None: ...

    with pytest.raises(ConfigError, match=r"--launcher queued: queue: .*'\{type: NAME"):
        ablate(here, tmp_path / "out", launcher="queued")
    with pytest.raises(ConfigError, match=r"--launcher .* qeue: unknown parameter"):
        ablate(here, tmp_path / "out", launcher="{type: queued, qeue: short}")


def test_a_start_that_was_cut_off_is_continued(done: tuple[Path, Path], tmp_path: Path) -> None:
    file, before = done
    where = AblationFolder.create(tmp_path / "out")
    shutil.copy(before / "ablation.yaml", where.path)
    (where.path / ".plan.json.0123abcd.part").touch()  # killed while it was written
    (where.path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty and not the folder of an ablation"):
        ablate(file, where.path)
    (where.path / "thesis.tex").unlink()
    for name in ("cells", "shared"):
        shutil.copytree(before / name, where.path / name, dirs_exist_ok=True)
    assert ablate(file, where.path) == where.path
    assert where.plan == AblationFolder(before).plan


def test_other_text_is_noticed_though_nothing_is_trained(done: tuple[Path, Path], out: Path, tmp_path: Path) -> None:
    file = write(tmp_path, launcher=HERE)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(corpus.read_text() + "\n\none document more\n")
    # As if it had been created from this file.
    plan = json.loads((out / "plan.json").read_text())
    for cell, was in zip(load_ablation(file).cells, plan["cells"], strict=True):
        (out / "cells" / was["id"]).rename(out / "cells" / cell.id)
        was["id"] = cell.id
        file_of_run = out / "cells" / cell.id / "provenance.json"
        file_of_run.write_text(json.dumps(json.loads(file_of_run.read_text()) | {"id": cell.id}))
    (out / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(DataError, match=r"was trained on other text \(token store "):
        ablate(file, out)


def test_a_budget_of_epochs_is_as_many_steps_as_each_cell_needs(tmp_path: Path) -> None:
    """A cell with twice the batch takes half the steps. References have their own number of steps."""
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
    assert after.count("unknown") == 2 + 2 + 1  # the times, and their total


OBJECTIVE = """
from dataclasses import replace

import torch

from registry import Metric, Term, objectives


@objectives.register("counting")
class Counting(objectives.get("electra").component):
    "ELECTRA that counts what it reads."

    metrics = {
        "mean_length": Metric("tokens of a row", higher_is_better=False, baselines=("one",)),
        "one": Metric("1, which needs no training", higher_is_better=False),
    }

    def forward(self, batch, rng):
        length, rows = batch.attention_mask.sum(), torch.tensor(len(batch))
        counted = {"mean_length": Term(length, rows), "one": Term(rows, rows)}
        return replace(super().forward(batch, rng), metrics=counted)
"""


def test_a_metric_that_an_objective_declares_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lead, in its direction and with its baseline; a variant with another objective does not have it."""
    (tmp_path / "counting.py").write_text(OBJECTIVE)
    monkeypatch.setattr(discovery, "_loaded", {})
    variants = "vary: {counts: {}, plain: {objective: {type: electra}}}"
    with objectives.isolated():
        file = write(
            tmp_path, "[0]", 2, "metric: mean_length", HERE, imports="[counting.py]", objective="{type: counting}"
        )
        text = file.read_text().replace("vary: {generator.scale: [0.5, 1.0]}", variants)
        file.write_text(re.sub(r"  - \{type: (fixed|detection).*\n", "", text))
        out = ablate(file, tmp_path / "out")
    plan, (counts, plain) = AblationFolder(out).plan, read(out).cells
    assert (plan.metric, plan.metrics["mean_length"].higher_is_better) == ("mean_length", False)
    assert "one" in plan.trivial
    test = [record for record in counts.records if record["split"] == "test"][-1]
    assert counts.metrics["mean_length"] == test["mean_length"] > 1
    assert counts.metrics["generator_mask_loss"] == test["generator_mask_loss"]
    assert "mean_length" not in plain.metrics
    with (out / "table.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert [row[header.index("mean_length")] for row in rows] == [str(test["mean_length"]), ""]
    assert "## mean_length, " in (out / "table.md").read_text()
