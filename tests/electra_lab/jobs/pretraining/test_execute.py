"""Runs: their directory, reopening, and the messages for everything that prevents them from continuing."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.experiment import pack
from electra_lab.config.load import load
from electra_lab.data.store import load_store
from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.jobs import lifecycle, saving
from electra_lab.jobs.pretraining import execute
from electra_lab.presentation.console import Console
from electra_lab.storage import files, run_directory
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, ConfigError, InUse, OutOfMemoryError
from tests.electra_lab.jobs.pretraining import tiny
from tests.electra_lab.jobs.pretraining.tiny import assert_same, experiment, lines, lose_checkpoints, outcome, run

pytestmark = pytest.mark.usefixtures("no_report")

CPU = torch.device("cpu")


def test_a_run_that_is_complete_stays_as_it_is(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (path / "metrics.jsonl").read_text()
    execute.resume(path, "cpu")
    assert (path / "metrics.jsonl").read_text() == before
    assert "the run is already complete" in capsys.readouterr().err


def test_a_resume_reads_its_history_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, open_regular = Counter[str](), files.open_regular

    def counted(file: Path, flags: int = os.O_RDONLY) -> Any:
        read[file.name] += not flags & os.O_WRONLY
        return open_regular(file, flags)

    monkeypatch.setattr(files, "open_regular", counted)
    monkeypatch.setattr(run_directory, "open_regular", counted)
    shutil.rmtree(path / "checkpoints" / "step-00000012")
    execute.resume(path, "cpu")
    assert [read[name] for name in ("provenance.json", "metrics.jsonl")] == [1, 1]
    directory = RunDirectory(path)
    with directory.locked():
        directory.append({"step": 13, "split": "train"})
        assert directory.records()[-1]["step"] == 13
        directory.truncate(12)
        assert directory.records() == lines(path)
    (path / "metrics.jsonl").unlink()
    assert directory.records() == []


def test_a_damaged_checkpoint_costs_its_steps_alone(finished: Path, path: Path, capsys) -> None:
    (path / "checkpoints" / "step-00000012" / "state.safetensors").write_bytes(b"broken")
    execute.resume(path, "cpu")
    said = capsys.readouterr().err
    assert "step-00000012: state.safetensors is damaged" in said
    assert "resuming after step 8" in said
    assert_same(finished / "run", path)


def test_a_used_out_is_refused_before_the_corpus_is_read(tmp_path: Path) -> None:
    file = experiment(tmp_path / "there")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        run(file, tmp_path / "there")
    assert not (tmp_path / "there" / "store").exists()


def test_what_cannot_be_built_is_refused_before_the_corpus_is_read(tmp_path: Path) -> None:
    odd = "{type: transformer, dim: 12, depth: 1, heads: 4, rotary: true}"
    with pytest.raises(ConfigError, match="transformer refuses this"):
        run(experiment(tmp_path, discriminator=odd), tmp_path / "run")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("verb", "first"), [("run", 1), ("resume", 9)])
def test_a_run_holds_its_directory_as_long_as_it_trains(tmp_path: Path, path: Path, monkeypatch, verb, first) -> None:
    refused: list[int] = []
    place = tmp_path / "new" if verb == "run" else path

    def advance(_: Console, done: int) -> None:
        if done in (first, 12) and done not in refused:
            with pytest.raises(InUse), RunDirectory(place).locked():
                pass
            refused.append(done)

    shutil.rmtree(path / "checkpoints" / "step-00000012")
    monkeypatch.setattr(Console, "advance", advance)
    if verb == "run":
        run(experiment(tmp_path), place)
    else:
        execute.resume(place, "cpu")
    assert refused == [first, 12]
    with RunDirectory(place).locked():
        pass


def test_a_damaged_line_of_metrics_is_named_and_left_out(path: Path, capsys) -> None:
    metrics = path / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + "half a rec")
    execute.resume(path, "cpu")
    assert metrics.read_text() == whole
    metrics.write_text("[]\n" + whole)
    execute.resume(path, "cpu")
    assert metrics.read_text() == whole
    assert (path / "metrics.damaged.jsonl").read_text() == "[]\n" + whole
    said = capsys.readouterr().err
    assert "metrics.jsonl:1: is not a record" in said
    assert "the file as it was is metrics.damaged.jsonl" in said


def test_a_run_without_a_checkpoint_starts_again(finished: Path, path: Path, capsys) -> None:
    lose_checkpoints(path)
    execute.resume(path, "cpu")
    assert "there is no checkpoint yet; starting again from the beginning" in capsys.readouterr().err
    assert_same(finished / "run", path)


def test_checkpoints_that_are_gone_are_missed(path: Path) -> None:
    """Their disk may not be mounted; nothing may be deleted then."""
    shutil.rmtree(path / "checkpoints")
    (path / "checkpoints").mkdir()
    before = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    with pytest.raises(CheckpointError, match="is empty or missing, but this run has saved checkpoints"):
        execute.resume(path, "cpu")
    assert before == {file: file.read_bytes() for file in path.iterdir() if file.is_file()}


@pytest.mark.parametrize(
    ("error", "kind"),
    [*((MemoryError(), kind) for kind in ("run", "resume", "reopen")), (RuntimeError("a bug"), "run")],
)
def test_too_little_memory_is_a_sentence_and_another_error_stays_what_it_is(
    finished: Path, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(*((execute, "assemble") if kind == "reopen" else (lifecycle, "train")), full)
    start = {
        "run": lambda: run(finished / "tiny.yaml", tmp_path / "new"),
        "resume": lambda: execute.resume(path, "cpu"),
        "reopen": lambda: execute.reopen(path, "cpu"),
    }
    as_it_is = RuntimeError, "^a bug$"
    expected, said = (OutOfMemoryError, r"train\.micro_batch_size") if isinstance(error, MemoryError) else as_it_is
    with pytest.raises(expected, match=said):
        start[kind]()


def test_the_run_directory_holds_what_it_promises(finished: Path) -> None:
    path = finished / "run"
    promised = {"config.yaml", "source.yaml", "provenance.json", "metrics.jsonl", "examples.json", "checkpoints",
                "tokenizer.json", "vocabulary.safetensors", "saved.json", "best.json"}  # fmt: skip
    assert promised == {p.name for p in path.iterdir() if not p.name.startswith(".")}
    assert (path / "source.yaml").read_text() == (finished / "tiny.yaml").read_text()
    assert {p.name for p in (path / "checkpoints").iterdir()} == {"step-00000008", "step-00000012"}
    assert [(r["step"], r["split"]) for r in lines(path)] == [
        (5, "train"), (6, "validation"), (10, "train"), (12, "train"), (12, "validation"), (12, "test"),
    ]  # fmt: skip


def test_records_are_on_the_disk_before_a_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure, no checkpoint may be ahead of the records."""
    shutil.rmtree(path / "checkpoints" / "step-00000012")
    order: list[str] = []
    flush, save = RunDirectory.flush, saving.save
    monkeypatch.setattr(RunDirectory, "flush", lambda self: (order.append("flush"), flush(self)))
    monkeypatch.setattr(saving, "save", lambda *given, **how: (order.append("save"), save(*given, **how)))
    execute.resume(path, "cpu")
    assert order == ["flush", "save"]


def test_reopened_it_has_its_final_weights(finished: Path, path: Path) -> None:
    loaded, experiment = execute.reopen(path, "cpu")
    assert loaded.config.name == "tiny"
    weights = outcome(finished / "run")[1]
    for name, parameter in experiment.run.learner.objective.named_parameters():
        assert parameter.equal(weights[f"model.{name}"]), name
    assert experiment.run.step == 12
    shutil.rmtree(path / "checkpoints" / "step-00000012")
    with pytest.raises(CheckpointError, match=r"final checkpoint is missing or damaged\. Recreate it: electra-lab res"):
        execute.reopen(path, "cpu")
    shutil.rmtree(path / "checkpoints")
    with pytest.raises(CheckpointError, match="final checkpoint is missing or damaged"):
        execute.reopen(path, "cpu")


def test_one_of_several_processes_needs_to_know_the_others(path, finished, tmp_path: Path, monkeypatch) -> None:
    """tests/electra_lab/parallel tests processes together; `torchrun --nproc-per-node 1` is a single process."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sentence = re.escape("WORLD_SIZE is 2, but MASTER_ADDR is not set.")
    with pytest.raises(ConfigError, match=sentence):
        run(finished / "tiny.yaml", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigError, match=sentence):
        execute.resume(path, "cpu")
    monkeypatch.setenv("WORLD_SIZE", "1")
    execute.resume(path, "cpu")


def test_milestones_are_kept_through_a_whole_run_and_a_resumed_one(finished: Path, tmp_path: Path) -> None:
    """Words are counted by their first tokens; the lab spreads a document's words evenly, which differs by less than
    half a step."""
    store = load_store(finished / "store" / RunDirectory(finished / "run").provenance().data.store)
    vocabulary = make_vocabulary(store.tokenizer, torch.from_numpy(store.counts), CPU)
    rows = pack(load(finished / "tiny.yaml"), store.train, vocabulary)
    batches = [rows.training_batch(0, step, 4, CPU) for step in range(12)]
    read = torch.tensor([int(vocabulary.word_start[batch.tokens].sum()) for batch in batches]).cumsum(0).tolist()
    early, late = (read[1] + read[2]) // 2, (read[8] + read[9]) // 2
    milestones = f"checkpoint.milestones={{tokens: [64, 320], words: [{early}, {late}]}}"
    for number, stop in enumerate((None, 7)):
        out = tmp_path / str(number)
        if stop is None:
            run(finished / "tiny.yaml", out, milestones)
        else:
            tiny.stop_at(stop, partial(run, finished / "tiny.yaml", out, milestones), signal.SIGTERM)
            execute.resume(out, "cpu")
        assert tiny.steps(out) == [0, 1, 3, 5, 8, 10, 12]
        names = {"step-0": 0, "tokens-64": 1, "tokens-320": 5, f"words-{early}": 3, f"words-{late}": 10}
        assert RunDirectory(out).provenance().milestones == names
        assert_same(out, finished / "run")
    with pytest.raises(ConfigError, match=r"checkpoint\.milestones\.words: .* never reached: .* after "):
        run(finished / "tiny.yaml", tmp_path / "far", f"checkpoint.milestones={{words: [{2 * read[-1]}]}}")
    assert not (tmp_path / "far").exists()
    one, other = (tiny.tensors(tmp_path / "0", step) for step in (0, 12))
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert not [name for name in one if name.startswith("optimizer.")]
