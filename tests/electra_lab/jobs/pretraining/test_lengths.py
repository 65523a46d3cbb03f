"""Lengths in epochs, and a growing batch size: rows, tokens, FLOPs, budgets, and a resume in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from electra_lab.assembly.budget import budgeted_steps, steps_of
from electra_lab.assembly.data import number_of_rows, open_data
from electra_lab.assembly.experiment import assemble, check, refuse_uneven
from electra_lab.assembly.needs import forecast
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.pretraining.facts import planned
from electra_lab.jobs.pretraining.replay import replay
from electra_lab.presentation.run_page import write_report
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.loop import batch_of
from registry import BatchSizes, Flops
from registry.contracts.objective import World
from registry.errors import ConfigError
from tests.electra_lab.jobs.pretraining.tiny import assert_same, experiment, for_a_module, lines, run, stop_at, tensors
from tests.helpers import line_of, write_experiment
from tests.pages import Page

CPU = torch.device("cpu")
OTHERS = "batch_size: 4, micro_batch_size: 2, precision: fp32, log_every: 5"


def lasting(folder: Path, epochs: float, **sections: str) -> Path:
    return experiment(folder, train=f"{{epochs: {epochs}, {OTHERS}}}", **sections)


@pytest.fixture(scope="module")
def rows(finished: Path) -> int:
    """The number of training rows, counted by hand: full rows of 14 tokens besides [CLS] and the closing [SEP]."""
    store = open_data(load(finished / "tiny.yaml"), lambda _: None)
    return -(-len(store.train) // 14)


def test_epochs_are_the_steps_that_read_the_rows_so_often(rows: int, tmp_path: Path, capsys) -> None:
    """A run extended to more epochs is identical to one of as many steps; its files have the epochs and the steps."""
    path, steps = tmp_path / "run", round(1.5 * rows / 4)
    with for_a_module():
        stop_at(5, lambda: run(lasting(tmp_path, 1.0), path))
        execute.resume(path, "cpu", ["train.epochs=1.5"])
        said = capsys.readouterr().err
        other = run(experiment(tmp_path, train=f"{{steps: {steps}, {OTHERS}}}"), tmp_path / "other")
        whole = run(lasting(tmp_path, 1.5), tmp_path / "whole")
    assert_same(whole, other)
    assert f"note: {steps} steps instead of {round(rows / 4)}: " in said
    assert lines(path)[-1]["step"] == steps
    for folder in (path, whole):
        assert (RunDirectory(folder).provenance().steps, RunDirectory(folder).provenance().data.rows) == (steps, rows)
        written = yaml.safe_load((folder / "config.yaml").read_text())["train"]
        assert (written["epochs"], "steps" in written) == (1.5, False)
    loaded, opened = execute.reopen(path, "cpu")
    assert (loaded.config.train.epochs, opened.settings.steps, opened.run.step) == (1.5, steps, steps)
    with pytest.raises(ConfigError, match=f"{steps} steps, .* {round(rows / 4)}"):
        execute.resume(path, "cpu", ["train.epochs=1"])


def test_the_run_and_its_page_say_how_often_the_text_is_read(rows: int, tmp_path: Path, capsys) -> None:
    path, steps = execute.run(lasting(tmp_path, 0.5), [], tmp_path / "run", "cpu"), round(0.5 * rows / 4)
    said = f"{4 * steps / rows:.2f}, of {rows} rows each"
    assert f"  epochs        {said}\n" in capsys.readouterr().err
    assert said in Page((path / "report.html").read_text()).text
    # A run of an earlier release has not recorded its rows.
    old = json.loads((path / "provenance.json").read_text())
    del old["data"]["rows"]
    (path / "provenance.json").write_text(json.dumps(old))
    assert "rows each" not in write_report(RunDirectory(path)).read_text()


def test_what_does_not_fit_is_refused_at_its_line_once_the_rows_are_counted(tmp_path: Path, rows: int) -> None:
    file = lasting(tmp_path, 1, schedules="{learning_rate: {warmup_steps: 1000}}")
    assert check(load(file)) is None  # unknown before the text is read
    with pytest.raises(ConfigError, match=rf"^{file}:11: schedules\.learning_rate: .* {round(rows / 4)} steps"):
        run(file, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=rf"^{file}:11: schedules\.learning_rate: "):
        execute.dry_run(file, [], None, "cpu")  # the text is tokenized now
    late = lasting(tmp_path, 1, checkpoint="{milestones: {tokens: [1.0e6]}}")
    with pytest.raises(ConfigError, match=r"checkpoint\.milestones\.tokens: "):
        run(late, tmp_path / "run")


@pytest.mark.parametrize("train", ["{epochs: 1, steps: 3}", "{epochs: 1, flops: 1e9}", "{}", "{epochs: 0}"])
def test_exactly_one_length_is_given(tmp_path: Path, train: str) -> None:
    file = write_experiment(tmp_path, train=train)
    with pytest.raises(ConfigError, match=rf"^{file}:{line_of('train')}: train"):
        load(file)
    assert load(file, ["train.epochs=0.3"]).config.train.epochs == 0.3


def test_rows_are_those_of_the_packing(tmp_path: Path) -> None:
    loaded = load(experiment(tmp_path, packing="{type: documents}"))
    store = open_data(loaded, lambda _: None)
    assert number_of_rows(loaded, store) == store.documents["train"]


WARMUP = "batch_warmup: {start: 2, increment: 3, every: 2}"
EIGHT = ["train.batch_size=8", "train.micro_batch_size=8"]
ROWS = [2, 2, 5, 5, 8, 8, 9, 9]  # per step; the last increment is cut


def warming(folder: Path, length: str = "steps: 8", micro: int = 9) -> Path:
    """Write an experiment with a warm-up to 9 rows; evaluations are small, as they would take most of the time."""
    train = f"{{{length}, batch_size: 9, micro_batch_size: {micro}, {WARMUP}, precision: fp32, log_every: 1}}"
    return experiment(folder, train=train, evaluate="{tokens: 64, test_tokens: 64, examples: 0}")


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warmup")
    with for_a_module():
        return run(warming(folder), folder / "run")


def test_records_and_the_page_count_the_rows_that_are_read(warmed: Path) -> None:
    records, began = lines(warmed, "train"), RunDirectory(warmed).provenance()
    read = [sum(ROWS[: step + 1]) for step in range(8)]
    assert [record["batch_size"] for record in records] == ROWS
    assert [record["tokens"] for record in records] == [16 * rows for rows in read]
    assert [record["flops"] for record in records] == [began.flops_per_step * rows // 9 for rows in read]
    assert began.flops == records[-1]["flops"]
    page = Page(write_report(RunDirectory(warmed)).read_text()).text
    assert f"{sum(ROWS) / began.data.rows:.2f}, of {began.data.rows} rows each" in page


def test_a_resume_within_the_warm_up_and_micro_batches_change_nothing(warmed: Path, tmp_path: Path) -> None:
    with for_a_module():
        stop_at(3, lambda: run(warming(tmp_path), tmp_path / "run"))
        execute.resume(tmp_path / "run", "cpu")
        assert_same(warmed, tmp_path / "run")
        exact = ("discriminator.dropout=0", "embedding.dropout=0")
        split = tensors(run(warming(tmp_path, micro=3), tmp_path / "split", *exact))
        plain = tensors(run(warming(tmp_path), tmp_path / "plain", *exact))
    for name, tensor in plain.items():
        torch.testing.assert_close(split[name], tensor, rtol=1e-3, atol=1e-5)
    assert replay(tmp_path / "split", "cpu").kind == "nothing"


def sized(size: int, rank: int = 0) -> Any:
    world = World()
    world.size, world.rank = size, rank
    return world


def test_ranks_divide_every_batch(tmp_path: Path) -> None:
    loaded = load(warming(tmp_path), [*EIGHT, "train.batch_warmup={start: 2, increment: 4, every: 2}"])
    refuse_uneven(loaded, sized(2))
    made = assemble(loaded, open_data(loaded, lambda _: None), CPU)
    for step in range(6):
        found = []
        for world in (sized(2, 0), sized(2, 1), World()):
            made.run.learner.world = world
            found.append(batch_of(step, made.run, made.settings, made.train, CPU))
        assert torch.equal(torch.cat([found[0].tokens, found[1].tokens]), found[2].tokens)
        assert [len(batch) for batch in found] == [[1, 1, 2], [3, 3, 6], [4, 4, 8]][step // 2]
    for change, place in (("start: 3, increment: 4", "start"), ("start: 2, increment: 3", "increment")):
        uneven = load(warming(tmp_path), [*EIGHT, f"train.batch_warmup={{{change}, every: 2}}"])
        with pytest.raises(ConfigError, match=rf"train\.batch_warmup\.{place}: 3 rows"):
            refuse_uneven(uneven, sized(2))


@pytest.mark.parametrize(
    ("budget", "steps"),  # of 16 tokens a row; after 6 steps 30 rows are read, and 9 in each later one
    [("tokens: 624", 7), ("tokens: 623", 6), ("flops: 390", 7), ("flops: 389", 6)],
)
def test_budgets_pay_for_rows(tmp_path: Path, budget: str, steps: int) -> None:
    loaded = load(warming(tmp_path, budget))
    flops = Flops(90, batches=loaded.config.train.batches)
    assert budgeted_steps(loaded, flops, flops) == steps
    assert flops.total(steps) == 10 * sum(ROWS[:steps])
    staged = Flops(90, first=3, at_first=45, batches=flops.batches)  # nine rows at 10, the first nine at 5
    assert [staged.total(step) for step in (2, 3, 4, 7)] == [20, 45, 95, 345]


def test_epochs_the_dry_run_and_a_training_that_is_too_short(tmp_path: Path) -> None:
    sizes = BatchSizes(9, 2, 3, 2)
    assert [steps_of(3, rows, sizes) for rows in (10, 13, 14, 16)] == [6, 7, 7, 8]  # 30, 39, 42 and 48 rows
    loaded = load(warming(tmp_path, "steps: 7"))
    text = planned(loaded, forecast(loaded, CPU), CPU, "")
    assert "7 steps of 2 to 9 x 16 tokens" in text
    assert "624 in total" in text
    for length in ("steps: 5", "tokens: 400", "flops: 2000000"):
        with pytest.raises(ConfigError, match=r"train\.batch_warmup: a warm-up of 6 steps"):
            forecast(load(warming(tmp_path, length)), CPU)
    with pytest.raises(ConfigError, match=r"train\.batch_warmup\.start"):
        load(warming(tmp_path), ["train.batch_warmup.start=9"])
