"""A length in epochs: the steps of a run follow from its rows, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from electra_lab.assembly.experiment import check, open_data
from electra_lab.assembly.rows import number_of_rows
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.presentation.run_page import write_report
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import ConfigError
from tests.electra_lab.jobs.pretraining.tiny import assert_same, experiment, for_a_module, run, stop_at
from tests.helpers import write_experiment
from tests.pages import Page

OTHERS = "batch_size: 4, micro_batch_size: 2, precision: fp32, log_every: 5"


def lasting(folder: Path, epochs: float, **sections: str) -> Path:
    return experiment(folder, train=f"{{epochs: {epochs}, {OTHERS}}}", **sections)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of training rows, counted by hand: full rows of 14 tokens without [CLS] and the closing [SEP]."""
    store = open_data(load(experiment(tmp_path_factory.mktemp("text"))), lambda _: None)
    return -(-len(store.train) // 14)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with for_a_module():
        return run(lasting(folder, 1.5), folder / "run")


def test_epochs_are_the_steps_that_read_the_rows_so_often(whole: Path, rows: int, tmp_path: Path) -> None:
    """The run is that of these steps, bit by bit; its files have what was written, and the number of steps."""
    began, steps = RunDirectory(whole).provenance(), round(1.5 * rows / 4)
    assert (began.steps, began.data.rows) == (steps, rows)
    written = yaml.safe_load((whole / "config.yaml").read_text())["train"]
    assert (written["epochs"], "steps" in written) == (1.5, False)
    with for_a_module():
        other = run(experiment(tmp_path, train=f"{{steps: {steps}, {OTHERS}}}"), tmp_path / "run")
    assert_same(whole, other)


def test_the_run_and_its_page_say_how_often_the_text_is_read(whole: Path, rows: int, tmp_path: Path, capsys) -> None:
    store = load(whole / "config.yaml").config.data.store
    file = lasting(tmp_path, 0.5, data=f"{{sequence_length: 16, held_out: 0.3, store: {store}}}")
    execute.run(file, [], tmp_path / "run", "cpu")
    steps = round(0.5 * rows / 4)
    said = f"{4 * steps / rows:.2f}, of {rows} rows each"
    assert f"  epochs        {said}\n" in capsys.readouterr().err
    directory = RunDirectory(tmp_path / "run")
    assert said in Page((directory.path / "report.html").read_text()).text
    # A run of an earlier release has not noted its rows.
    old = json.loads((directory.path / "provenance.json").read_text())
    del old["data"]["rows"]
    (directory.path / "provenance.json").write_text(json.dumps(old))
    assert "rows each" not in write_report(directory).read_text()


def test_a_resume_has_the_same_length_and_may_get_another(whole: Path, rows: int, tmp_path: Path, capsys) -> None:
    with for_a_module():
        stop_at(5, lambda: run(lasting(tmp_path, 1.0), tmp_path / "run"))
        execute.resume(tmp_path / "run", "cpu", ["train.epochs=1.5"])
    assert f"note: {round(1.5 * rows / 4)} steps instead of {round(rows / 4)}: " in capsys.readouterr().err
    assert RunDirectory(tmp_path / "run").provenance().steps == round(1.5 * rows / 4)
    loaded, opened = execute.reopen(tmp_path / "run", "cpu")
    assert (loaded.config.train.epochs, opened.settings.steps) == (1.5, round(1.5 * rows / 4))
    assert opened.run.step == opened.settings.steps
    with pytest.raises(ConfigError, match=f"{round(1.5 * rows / 4)} steps, .* {round(rows / 4)}"):
        execute.resume(tmp_path / "run", "cpu", ["train.epochs=1"])


def test_what_does_not_fit_is_refused_at_its_line_once_the_rows_are_counted(tmp_path: Path, rows: int) -> None:
    sections = {"schedules": "{learning_rate: {warmup_steps: 1000}}"}
    file = lasting(tmp_path, 1, **sections)
    assert check(load(file)) is None  # before the text is read, nobody can know
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
    line = next(n for n, text in enumerate(file.read_text().splitlines(), start=1) if text.startswith("train"))
    with pytest.raises(ConfigError, match=rf"^{file}:{line}: train"):
        load(file)
    assert load(file, ["train.epochs=0.3"]).config.train.epochs == 0.3


def test_rows_are_those_of_the_packing(tmp_path: Path) -> None:
    loaded = load(experiment(tmp_path, packing="{type: documents}"))
    store = open_data(loaded, lambda _: None)
    assert number_of_rows(loaded, store) == store.documents["train"]
