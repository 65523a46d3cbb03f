"""The number of rows at a time that fit into memory, by shapes and by a trial, with simulated memory."""

from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly import experiment as module
from electra_lab.assembly import needs
from electra_lab.assembly.build import build
from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble
from electra_lab.assembly.needs import rows_at_a_time
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.provenance import environment_of
from electra_lab.planning import forecast
from electra_lab.planning.forecast import FREE, Workload, parts_of
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.step import Learner
from registry.contracts.objective import World
from registry.errors import OutOfMemoryError
from tests.electra_lab.jobs.pretraining.tiny import experiment, run, tensors

TRAIN = "{steps: 4, batch_size: 4, micro_batch_size: auto, log_every: 2, learning_rate: 0.01}"
BERT = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}"
CPU = torch.device("cpu")


@pytest.fixture
def auto(no_report: None, tmp_path: Path) -> Path:
    return experiment(tmp_path, train=TRAIN, embedding="{dim: 8, max_length: 16, dropout: 0.0}", discriminator=BERT)


def rows_of(path: Path) -> Any:
    return RunDirectory(path).provenance().environment.micro_batch_size


def memory(monkeypatch: pytest.MonkeyPatch, free: float, state: float = 0, row: float = 1) -> None:
    """Simulate `free` bytes for tensors; the state takes `state` of them, and each row of a micro-batch `row`."""
    monkeypatch.setattr(needs, "free_bytes", lambda device: free / FREE)
    monkeypatch.setattr(Workload, "state_bytes", lambda self: state)
    monkeypatch.setattr(Workload, "working_bytes", lambda self: row * self.settings.micro_batch_size)


def test_parts_divide_the_batch_and_halve_at_least() -> None:
    assert list(parts_of(12)) == [12, 6, 3, 1]
    assert list(parts_of(7)) == [7, 1]


@pytest.mark.parametrize(("room", "expected"), [(4, 4), (3.9, 2)])
def test_as_many_rows_as_fit_with_the_same_result(auto, tmp_path, monkeypatch, capsys, room, expected) -> None:
    memory(monkeypatch, 30 + room, state=30)
    path = run(auto, tmp_path / "auto")
    assert rows_of(path) == expected
    assert (f"  micro-batches {expected} of 4 rows at a time\n" in capsys.readouterr().err) == (expected < 4)
    whole = tensors(run(auto, tmp_path / "whole", "train.micro_batch_size=4"))
    assert all(torch.allclose(weight, whole[name], rtol=1e-3, atol=1e-5) for name, weight in tensors(path).items())
    memory(monkeypatch, 99)
    assert execute.reopen(path, "cpu")[1].settings.micro_batch_size == expected


def test_a_trial_that_fails_for_want_of_memory_halves_too(auto: Path, tmp_path: Path, monkeypatch) -> None:
    backward = needs.backward

    def short(terms: Any, *others: Any) -> None:
        backward(terms, *others)
        if terms["discriminator"].count > 2 * 16:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(needs, "backward", short)
    path = run(auto, tmp_path / "run")
    assert rows_of(path) == 2
    whole = tensors(run(auto, tmp_path / "said", "train.micro_batch_size=2"))
    assert all(torch.equal(weight, whole[name]) for name, weight in tensors(path).items()), "the trial left a trace"


def test_of_two_stages_the_second_is_tried(auto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backward, counts = needs.backward, list[int]()

    def noting(terms: Any, *others: Any) -> None:
        counts.append(int(terms["discriminator"].count))
        backward(terms, *others)

    monkeypatch.setattr(needs, "backward", noting)
    run(auto, tmp_path / "run", "objective={type: two_stage, generator_steps: 2}", "embedding.tie=none")
    assert counts == [4 * 16]


class Two(World):
    """One of two processes with equal memory."""

    size = 2


def rows_of_two(auto: Path, parallel: str) -> int:
    loaded = load(auto, [f"train.parallel={parallel}"])
    alone = assemble(load(auto, ["train.micro_batch_size=1"]), open_data(loaded, lambda _: None), CPU)
    made = build(loaded, alone.vocabulary, seed=0)
    return rows_at_a_time(loaded, made, alone.train, CPU, Two(), "fp32")


def test_processes_of_one_machine_share_its_memory(auto: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 3.5)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rows_of_two(auto, "ddp") == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert rows_of_two(auto, "ddp") == 2


def test_what_fsdp_divides_is_counted_once(auto: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 2 * 60, state=100)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rows_of_two(auto, "fsdp") == 2
    with pytest.raises(OutOfMemoryError, match=r"by train\.parallel: fsdp"):
        rows_of_two(auto, "ddp")
    memory(monkeypatch, 0)
    with pytest.raises(OutOfMemoryError, match=r"or the networks' sizes\.$"):
        rows_of_two(auto, "fsdp")


@pytest.mark.parametrize(("processes", "now", "expected"), [(1, 2, 2), (2, 1, 4), (2, 2, 1), (1, 1, 1)])
def test_another_number_of_processes_decides_again(auto, monkeypatch, processes, now, expected) -> None:
    memory(monkeypatch, 99)
    monkeypatch.setattr(module, "parallelize", lambda *_, **__: None)
    loaded = load(auto)
    store = open_data(loaded, lambda _: None)
    began = environment_of(assemble(load(auto, ["train.micro_batch_size=1"]), store, CPU))
    began = began.model_copy(update={"processes": processes})
    world = Two() if now == 2 else World()
    made = assemble(loaded, store, CPU, world=world, began=began)
    assert made.settings.micro_batch_size == expected


def test_the_rows_of_another_number_of_processes_are_not_kept(auto: Path, tmp_path: Path) -> None:
    path = run(auto, tmp_path / "run")
    began, found = RunDirectory(path).provenance(), execute.reopen(path, "cpu")[1]
    assert execute._rows_now(began, found) == {"environment": began.environment}
    found.run.learner.world = Two()
    assert execute._rows_now(began, found) == {}


def test_rows_are_tried_at_their_full_length(auto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are cut to their longest row, so the first one may be short."""
    shapes: list[tuple[int, ...]] = []
    losses = Learner.losses

    def noting(learner: Learner, batch: Any, *others: Any) -> Any:
        if learner.objective.training:
            shapes.append(tuple(batch.tokens.shape))
        return losses(learner, batch, *others)

    monkeypatch.setattr(Learner, "losses", noting)
    long = ["data.sequence_length=64", "embedding.max_length=64", "packing={type: documents}"]
    run(auto, tmp_path / "run", *long, "data.group_by_length=true", "train.steps=3")
    assert shapes[-4] == (4, 64)  # the trial
    assert all(width < 64 for _, width in shapes[-3:])  # the steps


def test_where_no_row_fits_nothing_is_written(auto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 0.5)
    with pytest.raises(OutOfMemoryError) as caught:
        run(auto, tmp_path / "run")
    assert caught.value.exit_code == 6
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_how_many_rows_would_fit_here(auto: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same rule: with more memory than two rows need and less than four."""

    def planned(*overrides: str) -> str:
        return execute.dry_run(auto, ["evaluate.batch_size=1", *overrides], None, "cpu", tries=False)

    bytes_of = {}
    for rows in (2, 4):
        text = planned(f"train.micro_batch_size={rows}")
        bytes_of[rows] = float(text.split("about ")[1].split(" MB")[0])
        assert f" {rows} rows at a time (train.micro_batch_size)" in text
    monkeypatch.setattr(forecast, "free_bytes", lambda device: sum(bytes_of.values()) / 2 * 1e6 / FREE)
    assert " 2 rows at a time (train.micro_batch_size)" in planned()
