"""What `auto` means is decided before the first step, kept, and used again: by clocks and memory of our own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly import choices
from electra_lab.assembly.build import build, sketch
from electra_lab.assembly.experiment import assemble, open_data
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.provenance import environment_of
from electra_lab.parallel.world import World
from electra_lab.planning import forecast
from electra_lab.planning.forecast import parts_of
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training import compilation
from electra_lab.training.step import Learner
from registry.errors import ConfigError, OutOfMemoryError
from tests.electra_lab.jobs.pretraining.tiny import experiment, outcome, run, tensors

TRAIN = "{steps: 4, batch_size: 4, log_every: 2, learning_rate: 0.01}"
BERT = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}"
QUICK = {"fp32 fused": 1.0, "fp32 products": 2.0, "bf16 fused": 1.5, "bf16 products": 1.5}
CPU = torch.device("cpu")
Tried = list[list[str]]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(execute, "write_report", lambda directory: directory.path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return experiment(tmp_path, train=TRAIN, embedding="{dim: 8, max_length: 16, dropout: 0.0}", discriminator=BERT)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, float], Tried]:
    """A machine with bf16, on which every training is long; how long each way takes, and what was tried."""
    seconds, tried = dict(QUICK), Tried()

    def seconds_of(ways: Mapping[str, Any], device: torch.device) -> dict[str, float]:
        for way in ways.values():
            way()
        tried.append(list(ways))
        return {name: seconds[name] for name in ways}

    monkeypatch.setattr(choices, "seconds_of", seconds_of)
    monkeypatch.setattr(choices, "narrowest", lambda device: "bf16")
    monkeypatch.setattr(choices, "LONG", {"cpu": 1.0})
    return seconds, tried


def environment(path: Path) -> Any:
    return RunDirectory(path).provenance().environment


def test_the_fastest_way_is_tried_out_once_and_is_what_runs(
    file: Path, clock: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds, tried = clock
    seconds["bf16 products"] = 0.5
    path = run(file, tmp_path / "one")
    assert tried == [list(QUICK)]
    assert (environment(path).precision, environment(path).attention) == ("bf16", "products")
    assert ", bf16, into" in (said := capsys.readouterr().err)
    assert "  attention     by products\n" in said
    explicit = run(file, tmp_path / "said", "train.precision=bf16", "train.attention=products")
    assert outcome(path)[0] == outcome(explicit)[0]
    assert all(torch.equal(weight, tensors(path)[name]) for name, weight in tensors(explicit).items())
    seconds["bf16 products"] = 9.0  # the machine is busy: what is known counts
    assert environment(run(file, tmp_path / "two")).attention == "products"
    assert len(tried) == 1, "what is known, or said, is tried again"


def test_trying_leaves_no_trace(file: Path, clock: Any, tmp_path: Path) -> None:
    """The same weights as without, to the last bit."""
    path = run(file, tmp_path / "tried")
    assert len(clock[1]) == 1
    plain = run(file, tmp_path / "plain", "train.precision=fp32", "train.attention=fused")
    assert all(torch.equal(weight, tensors(path)[name]) for name, weight in tensors(plain).items())


@pytest.mark.parametrize(
    ("overrides", "ways"),
    [
        (["train.precision=bf16"], ["bf16 fused", "bf16 products"]),
        (["train.attention=products"], ["fp32 products", "bf16 products"]),
        (["discriminator={type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 8}"], ["fp32 fused", "bf16 fused"]),
    ],
)
def test_only_what_is_open_is_tried(file: Path, clock: Any, tmp_path: Path, overrides: list[str], ways: Any) -> None:
    run(file, tmp_path / "run", *overrides)
    assert clock[1] == [ways]


def test_what_differs_is_tried_anew(file: Path, clock: Any, tmp_path: Path) -> None:
    run(file, tmp_path / "one")
    for number, change in enumerate(["discriminator.depth=2", "train.batch_size=2", "data.sequence_length=8"]):
        run(file, tmp_path / f"other-{number}", change)
    run(file, tmp_path / "again", "seed=5", "train.steps=3")
    assert len(clock[1]) == 4


def test_a_short_training_is_not_worth_it(
    file: Path, clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "LONG", {"cpu": 1e14})
    path = run(file, tmp_path / "run")
    assert clock[1] == []
    assert (environment(path).precision, environment(path).attention) == ("fp32", "fused")
    assert not (tmp_path / "cache").exists()


def test_a_resume_goes_by_what_the_run_began_with(file: Path, clock: Any, tmp_path: Path) -> None:
    seconds, tried = clock
    seconds["fp32 products"] = 0.1
    whole, path = run(file, tmp_path / "whole"), run(file, tmp_path / "cut")
    for newest in (path / "checkpoints").glob("step-*"):
        shutil.rmtree(newest)
    (path / "saved.json").unlink()  # as if it had been killed before it saved
    (tmp_path / "cache" / "electra_lab" / "measured").rename(tmp_path / "lost")
    seconds["fp32 products"] = 9.0
    execute.resume(path, "cpu")
    assert len(tried) == 1
    assert outcome(path)[0] == outcome(whole)[0]
    assert environment(path).attention == "products"


def test_on_another_device_a_resume_decides_again_and_says_so(
    file: Path, clock: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds, tried = clock
    seconds["bf16 products"] = 0.1
    path = run(file, tmp_path / "run")
    began = json.loads((path / "provenance.json").read_text())
    began["environment"]["device"] = "NVIDIA H100"
    (path / "provenance.json").write_text(json.dumps(began))
    seconds["bf16 products"] = 9.0
    (tmp_path / "cache" / "electra_lab" / "measured").rename(tmp_path / "lost")
    capsys.readouterr()
    execute.resume(path, "cpu")
    assert len(tried) == 2
    said = capsys.readouterr().err
    assert "device NVIDIA H100 -> cpu" in said
    assert "precision bf16 -> fp32" in said
    assert "attention products -> fused" in said


def test_experiments_that_are_compared_decide_once(file: Path, clock: Any, tmp_path: Path) -> None:
    """The first one does, for sizes that would decide otherwise, and for short ones."""
    seconds, tried = clock
    seconds["bf16 fused"] = 0.5
    shared = tmp_path / "measured"
    execute.run(file, [], tmp_path / "one", "cpu", shared)
    seconds["bf16 fused"] = 9.0
    execute.run(file, ["discriminator.depth=2"], tmp_path / "two", "cpu", shared)
    execute.run(file, ["train.steps=3", "data.sequence_length=8"], tmp_path / "three", "cpu", shared)
    assert [environment(tmp_path / name).precision for name in ("one", "two", "three")] == ["bf16"] * 3
    assert len(tried) == 1
    assert not (tmp_path / "cache").exists()


def test_a_cell_that_goes_on_on_another_device_goes_by_what_was_decided_for_it(
    file: Path, clock: Any, tmp_path: Path
) -> None:
    """By the others of its ablation, not by what this machine measured for experiments of its own."""
    seconds, tried = clock
    shared = tmp_path / "measured"
    seconds["bf16 products"] = 0.1
    execute.run(file, [], tmp_path / "one", "cpu", shared)
    path = tmp_path / "two"
    execute.run(file, ["seed=2"], path, "cpu", shared)
    began = json.loads((path / "provenance.json").read_text())
    began["environment"] |= {"device": "NVIDIA H100", "attention": "fused"}
    (path / "provenance.json").write_text(json.dumps(began))
    seconds["bf16 products"] = 9.0
    execute.resume(path, "cpu", shared=shared)
    assert len(tried) == 1


def test_experiments_that_are_compared_are_compiled_alike(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first, whichever side of the limit the others are on; what an experiment says of itself stands."""
    limit = sketch(load(file)).flops.total(4)
    monkeypatch.setattr(
        choices, "choose_compile",
        lambda name, _, __, flops: ("off" if name == "off" or flops <= limit else "layers", "by length"),
    )  # fmt: skip
    missing: list[str | None] = [None]
    monkeypatch.setattr(choices, "missing_compiler", lambda: missing[0])

    def compiled(shared: Path | None, *overrides: str) -> tuple[str, str]:
        loaded = load(file, list(overrides))
        found = assemble(loaded, open_data(loaded, lambda _: None), CPU, shared=shared).choices
        return found.compile, found.reason

    shared = tmp_path / "measured"
    assert compiled(shared, "train.steps=9") == ("layers", "by length")
    assert compiled(shared) == ("layers", "by length")
    assert compiled(shared, "train.compile=off")[0] == "off"
    assert compiled(None)[0] == "off"
    missing[0] = "no g++"
    assert compiled(shared)[0] == "off"


def test_memory_that_does_not_suffice_for_trying_leaves_the_usual(
    file: Path, clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")

    monkeypatch.setattr(choices, "seconds_of", short)
    assert environment(run(file, tmp_path / "run")).precision == "fp32"


# Rows at a time.


@pytest.fixture
def auto(file: Path) -> Path:
    file.write_text(file.read_text().replace("batch_size: 4", "batch_size: 4, micro_batch_size: auto", 1))
    return file


def test_parts_divide_the_batch_and_halve_at_least() -> None:
    assert list(parts_of(12)) == [12, 6, 3, 1]
    assert list(parts_of(128)) == [128, 64, 32, 16, 8, 4, 2, 1]
    assert list(parts_of(7)) == [7, 1]


def memory_for(monkeypatch: pytest.MonkeyPatch, rows: float) -> None:
    """Let there be memory for so many rows."""
    monkeypatch.setattr(choices, "free_bytes", lambda device: 100)
    monkeypatch.setattr(choices, "state_bytes", lambda *_: 30)
    monkeypatch.setattr(choices, "working_bytes", lambda _, __, size, ___: (100 * choices.FREE - 30) * size / rows)


@pytest.mark.parametrize(("room", "expected"), [(9, 4), (4, 4), (3.9, 2), (1.5, 1)])
def test_as_many_rows_as_fit_with_the_same_result(
    auto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], room: float,
    expected: int,
) -> None:  # fmt: skip
    memory_for(monkeypatch, room)
    path = run(auto, tmp_path / "auto")
    assert environment(path).micro_batch_size == expected
    assert (f"  micro-batches {expected} of 4 rows at a time\n" in capsys.readouterr().err) == (expected < 4)
    whole = tensors(run(auto, tmp_path / "whole", "train.micro_batch_size=4"))
    assert all(torch.allclose(weight, whole[name], rtol=1e-3, atol=1e-5) for name, weight in tensors(path).items())


def test_a_resume_takes_the_rows_that_it_began_with(
    auto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_for(monkeypatch, 2)
    path = run(auto, tmp_path / "run")
    memory_for(monkeypatch, 9)
    _, found = execute.reopen(path, "cpu")
    assert found.settings.micro_batch_size == 2


def test_a_trial_that_fails_for_want_of_memory_halves_too(
    auto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What shapes do not show, such as the workspace of a kernel."""
    backward = choices.backward

    def short(terms: Any, *others: Any) -> None:
        backward(terms, *others)
        if terms["discriminator"].count > 2 * 16:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(choices, "backward", short)
    path = run(auto, tmp_path / "run")
    assert environment(path).micro_batch_size == 2
    whole = tensors(run(auto, tmp_path / "said", "train.micro_batch_size=2"))
    assert all(torch.equal(weight, whole[name]) for name, weight in tensors(path).items()), "the trial left a trace"


def test_of_two_stages_the_second_is_tried(auto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has both networks; in the first, the discriminator does not run."""
    backward, counts = choices.backward, list[int]()

    def noting(terms: Any, *others: Any) -> None:
        counts.append(int(terms["discriminator"].count))
        backward(terms, *others)

    monkeypatch.setattr(choices, "backward", noting)
    stages = ["objective={type: two_stage, generator_steps: 2}", "embedding.tie=none"]
    run(auto, tmp_path / "run", *stages)
    assert counts == [4 * 16]


class _Two(World):
    """A process of two, whose memory is alike."""

    size = 2


def rows_of_two(auto: Path, parallel: str) -> int:
    loaded = load(auto, [f"train.parallel={parallel}"])
    alone = assemble(load(auto, ["train.micro_batch_size=1"]), open_data(loaded, lambda _: None), CPU)
    made = build(loaded, alone.vocabulary, seed=0)
    return choices.decide(loaded, made, alone.train, CPU, _Two()).micro_batch_size


def test_processes_of_one_machine_share_its_memory(auto: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "state_bytes", lambda *_: 0)
    monkeypatch.setattr(choices, "working_bytes", lambda _, __, size, ___: size)
    monkeypatch.setattr(choices, "free_bytes", lambda device: 3.5 / choices.FREE)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rows_of_two(auto, "ddp") == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert rows_of_two(auto, "ddp") == 2


@pytest.mark.parametrize(
    ("processes", "world", "expected"), [(1, _Two(), 2), (2, World(), 4), (2, _Two(), 1), (1, World(), 1)]
)
def test_another_number_of_processes_decides_again(
    auto: Path, monkeypatch: pytest.MonkeyPatch, processes: int, world: World, expected: int
) -> None:
    """One row at a time, by so many processes, says nothing about others; the same number goes on with it."""
    memory_for(monkeypatch, 9)
    loaded = load(auto)
    alone = assemble(load(auto, ["train.micro_batch_size=1"]), open_data(loaded, lambda _: None), CPU)
    made = build(loaded, alone.vocabulary, seed=0)
    began = environment_of(alone).model_copy(update={"processes": processes})
    assert began.micro_batch_size == 1
    assert choices.decide(loaded, made, alone.train, CPU, world, began=began).micro_batch_size == expected


def test_the_rows_of_another_number_of_processes_are_not_kept(auto: Path, tmp_path: Path) -> None:
    """Where the run began, it goes on with as many as before."""
    path = run(auto, tmp_path / "run")
    directory, found = RunDirectory(path), execute.reopen(path, "cpu")[1]
    assert execute._rows_now(directory, found) == {"environment": environment(path)}
    found.run.learner.world = _Two()
    assert execute._rows_now(directory, found) == {}


def test_what_fsdp_divides_is_counted_once(auto: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "state_bytes", lambda *_: 100)
    monkeypatch.setattr(choices, "working_bytes", lambda _, __, size, ___: size)
    monkeypatch.setattr(choices, "free_bytes", lambda device: 2 * 60 / choices.FREE)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rows_of_two(auto, "fsdp") == 2
    with pytest.raises(OutOfMemoryError, match=r"by train\.parallel: fsdp"):
        rows_of_two(auto, "ddp")
    monkeypatch.setattr(choices, "free_bytes", lambda device: 0)
    with pytest.raises(OutOfMemoryError, match=r"or the networks' sizes\.$"):
        rows_of_two(auto, "fsdp")


def test_rows_are_tried_at_their_full_length(auto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where batches are cut to their longest row, the first one may be short."""
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
    memory_for(monkeypatch, 0.5)
    with pytest.raises(OutOfMemoryError, match="not enough memory for a step of one row at a time") as caught:
        run(auto, tmp_path / "run")
    assert caught.value.exit_code == 6
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_how_many_rows_would_fit_here(
    auto: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the same rule: at a memory between what two and what four rows need."""
    needs = {}
    for rows in (2, 4):
        text = execute.dry_run(auto, [f"train.micro_batch_size={rows}", "evaluate.batch_size=1"], None, "cpu")
        needs[rows] = float(text.split("about ")[1].split(" MB")[0])
        assert f" {rows} rows at a time (train.micro_batch_size)" in text
    monkeypatch.setattr(forecast, "free_bytes", lambda device: sum(needs.values()) / 2 * 1e6 / forecast.FREE)
    assert " 2 rows at a time (train.micro_batch_size)" in execute.dry_run(auto, ["evaluate.batch_size=1"], None, "cpu")


def test_a_machine_without_a_compiler_says_so_itself(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rank 0, which decides what `auto` means, has one."""

    class Second(World):
        rank, size = 1, 2

        def once(self, work: Any) -> str:
            return choices.Measured(precision="fp32", attention="fused").model_dump_json()

    loaded = load(file, ["train.compile=layers"])
    alone = assemble(load(file), open_data(loaded, lambda _: None), CPU)

    def decided() -> choices.Choices:
        made = build(loaded, alone.vocabulary, seed=0)
        return choices.decide(loaded, made, alone.train, CPU, Second())

    monkeypatch.setattr(compilation, "missing_compiler", lambda: None)
    assert decided().compile == "layers"
    monkeypatch.setattr(compilation, "missing_compiler", lambda: "no g++")
    with pytest.raises(ConfigError, match=r"train.compile: layers needs a C\+\+ compiler"):
        decided()
