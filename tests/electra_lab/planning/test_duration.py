"""The time that a dry run estimates: of steps and evaluations as in the run, or why it is unknown."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly import budget, needs
from electra_lab.assembly.data import open_data
from electra_lab.config.load import load
from electra_lab.corpora.text_files import TextFiles
from electra_lab.jobs.pretraining import execute
from electra_lab.planning import forecast as module
from electra_lab.planning.forecast import TRIES  # the number for users; the other tests try two
from tests.helpers import write_experiment

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_stage_every_evaluation_and_every_checkpoint_counts(tmp_path: Path, monkeypatch: Any) -> None:
    """A simulated clock: 1 s per step of the first stage, 10 s of the second, 7 s per batch; the first adds 100 s."""
    sections = {"embedding": "{dim: 8, max_length: 16, tie: none}", "evaluate": "{every: 2}"}
    file = write_experiment(tmp_path, objective="{type: two_stage, generator_steps: 2}", **sections)
    milestones = "milestones: {tokens: [64], words: [40, 90]}"
    loaded = load(file, ["train.steps=5", f"checkpoint={{every: 3, {milestones}}}", "evaluate.at_start=true"])
    found = needs.forecast(loaded, CPU)
    clock, steps = [0.0], list[int]()

    def advance(run: Any, *_: object) -> None:
        clock[0] += (1.0 if run.step < 2 else 10.0) + 100.0 * (run.step in (0, 2) and run.step not in steps)
        steps.append(run.step)

    def evaluation(*_: object, **__: object) -> Iterator[None]:
        for first in (100.0, 0.0, 0.0, 0.0, 1e6):  # the last pause is that of the metrics
            clock[0] += 7.0 + first
            yield None

    monkeypatch.setattr(module, "TRIES", TRIES)
    monkeypatch.setattr(module, "advance", advance)
    monkeypatch.setattr(module, "evaluation", evaluation)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    time = needs.trial(loaded, found, CPU)
    assert steps == [0, 1, 0, 1, 0, 1, 0, 2, 3, 4]  # never a step of another stage; five seconds are enough
    assert time.training == pytest.approx(101 + 1 + 110 + 2 * 10)
    assert time.step == pytest.approx(time.training / 5)
    rows = 4 * 65_536 // 16 + 262_144 // 16  # validation after the steps 0, 2, 4 and 5, then the test
    assert time.evaluation == pytest.approx(7 * rows / 32)
    saves = 4 + 2  # after the steps 0, 2, 3 and 5, and for two numbers of words
    assert time.saving == pytest.approx(saves * found.state_bytes / module.DISK)
    assert time.total == time.training + time.evaluation + time.saving


def test_steps_are_recorded_as_in_the_training(tmp_path: Path, monkeypatch: Any) -> None:
    """A simulated clock: the steps that are done eagerly, or twice, take 100 s, and replays 1 s."""
    loaded, clock, asked = load(write_experiment(tmp_path), ["train.steps=200", "train.graph=on"]), [0.0], []

    def record_steps(graph: str, run: Any, *_: object) -> None:
        asked.append(graph)
        run.compute = None

    def advance(run: Any, *_: object) -> None:
        clock[0] += 100.0 if run.step < 5 else 1.0

    monkeypatch.setattr(module, "record_steps", record_steps)
    monkeypatch.setattr(module, "advance", advance)
    monkeypatch.setattr(module, "evaluation", lambda *_, **__: (pause for pause in [None]))
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    assert needs.trial(loaded, needs.forecast(loaded, CPU), CPU).training == pytest.approx(5 * 100 + 195)
    assert asked == ["on"]


def test_an_evaluation_of_a_split_shorter_than_a_batch_is_one_batch(tmp_path: Path, monkeypatch: Any) -> None:
    file = write_experiment(
        tmp_path, data="{sequence_length: 16, held_out: 0.3, store: store}", evaluate="{every: 2, batch_size: 4096}"
    )
    loaded = load(file, ["train.steps=5"])
    store, clock = open_data(loaded, lambda _: None), [0.0]
    assert 1 < store.documents["test"] < 4096

    def evaluation(*_: object, **__: object) -> Iterator[None]:
        clock[0] += 7.0
        yield None

    monkeypatch.setattr(module, "advance", lambda *_: None)
    monkeypatch.setattr(module, "evaluation", evaluation)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    time = needs.trial(loaded, needs.forecast(loaded, CPU, store), CPU, store)
    assert time.evaluation == pytest.approx(7 * (3 + 1))  # validation after the steps 2, 4 and 5, then the test


def test_steps_are_tried_with_the_choices_of_auto_on_the_rows_of_the_store(tmp_path: Path, monkeypatch: Any) -> None:
    """Full rows of 16 without a store; with it, rows of the text, cut to its documents of at most four words."""
    (tmp_path / "short").mkdir()
    documents = "\n\n".join(f"{n} {n + 1} {n + 2}" for n in range(200))
    file = write_experiment(
        tmp_path / "short", packing="{type: documents}",
        data="{sequence_length: 16, held_out: 0.3, group_by_length: true, store: store}",
        train="{steps: 40, batch_size: 4, micro_batch_size: 2, precision: bf16, attention: products, compile: layers}",
    )  # fmt: skip
    (file.parent / "corpus.txt").write_text(documents)
    seen: dict[str, Any] = {}

    def duration(run: Any, settings: Any, train: Any, held_out: Any, *_: object, **__: object) -> str:
        batches = [train.training_batch(settings.seed, step, 4, CPU) for step in range(5)]
        seen["widths"] = {batch.tokens.shape[1] for batch in batches}
        seen["rows"] = [rows for _, rows in held_out]
        seen["settings"] = (settings.steps, settings.micro_batch_size, settings.precision)
        return "tried"

    monkeypatch.setattr(budget, "missing_compiler", lambda _: None)  # looking for one takes seconds
    monkeypatch.setattr(needs, "duration", duration)
    monkeypatch.setattr(needs, "use_kernel", lambda kernel, _: seen.update(kernel=kernel))
    monkeypatch.setattr(needs, "compile_modules", lambda how, *_: seen.update(how=how))
    text = execute.dry_run(file, [], None, "cpu")
    assert "  time            tried" in text
    assert re.search("  epochs +known after", text)
    assert (seen["settings"], seen["kernel"], seen["how"]) == ((40, 2, "bf16"), "products", "layers")
    assert (seen["widths"], seen["rows"]) == ({16}, [4096, 16_384])
    store = open_data(load(file), lambda _: None)
    text = execute.dry_run(file, [], None, "cpu")
    assert f"  epochs          {40 * 4 / store.documents['train']:.2f}, of {store.documents['train']} rows each" in text
    assert max(seen["widths"]) < 16
    assert seen["rows"] == [store.documents["validation"], store.documents["test"]]


def test_what_is_not_tried_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    file = write_experiment(tmp_path)
    monkeypatch.setattr(needs, "duration", lambda *_, **__: pytest.fail("it was tried"))
    text = execute.dry_run(file, [], None, "cpu", tries=False)
    assert re.search("^  time  .*--no-trial", text, re.MULTILINE)
    loaded = load(file)
    found = needs.forecast(loaded, CPU)
    for reason, device, place, value in (
        ("FLOPs", "cpu", (module, "SHORT"), {"cpu": 1.0}),
        ("GB", "cpu", (module, "SMALL"), 1.0),
        ("memory", "cpu", (module, "free_bytes"), lambda _: 1),
        ("CUDA", "cuda", (torch.cuda, "is_available"), lambda: False),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(*place, value)
            assert reason in str(needs.trial(loaded, found, torch.device(device)))


def test_a_dry_run_writes_nothing_and_hashes_no_corpus_of_another_recipe(tmp_path: Path, monkeypatch: Any) -> None:
    """A copied store has not been verified here; it stays unchanged."""
    file = write_experiment(tmp_path)
    store = open_data(load(file), lambda _: None)
    next(store.folder.glob(".verified-*")).unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert " rows each\n" in execute.dry_run(file, [], None, "cpu")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    monkeypatch.setattr(TextFiles, "fingerprint", lambda _: pytest.fail("the corpus is hashed"))
    assert "known after" in execute.dry_run(file, ["data.held_out=0.4"], None, "cpu")
