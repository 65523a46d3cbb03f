"""The arguments of measures and the use of their numbers, inside and outside of an ablation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from electra_lab.analysis.run_comparison import Subject, subjects
from electra_lab.assembly.data import open_data
from electra_lab.config.load import load
from electra_lab.jobs import measuring
from electra_lab.jobs.measured import as_measured, numbers_of
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.ablation_folder import AblationFolder
from registry import Metric, MetricWithDocuments, Outcome, Tokens, Trained, measures
from registry.errors import BadResult, CheckpointError, ConfigError, Preempted
from tests.electra_lab.jobs.sweeps.small import ablate, first, worked, write
from tests.helpers import rewrite_config


def look_at(run: Trained) -> SimpleNamespace:
    """Return a run in the form that measures receive."""
    return SimpleNamespace(
        test=torch.cat([batch.tokens for batch in run.test(3)]),
        train=torch.cat([batch.tokens for batch in run.train(5, range(run.train_rows))]),
        detects=run.detects,
        metrics=dict(run.metrics),
        weights={name: value.clone() for name, value in run.model.named_parameters()},
        vocabulary=run.vocabulary.size,
        training=any(module.training for module in run.model.modules()),
        gradients=torch.is_grad_enabled(),
        autocast=torch.is_autocast_enabled("cpu"),
    )


class Spy:
    """A measure that records its arguments."""

    same_rows = False
    metrics: ClassVar[dict[str, Metric]] = {"luck": Metric("luck"), "more": Metric("more")}
    prepared: ClassVar[list[tuple[SimpleNamespace, dict[str, SimpleNamespace], Path]]] = []
    called: ClassVar[list[tuple[SimpleNamespace, Path]]] = []

    def __init__(self, /, *, value: float = 1.0) -> None:
        self.value = value

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {
            "long": {"seed": 77, "train": {**base["train"], "steps": 3, "precision": "bf16"}},
            "other": {"seed": 78},
        }

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None:
        self.prepared.append((look_at(run), {name: look_at(other) for name, other in references.items()}, folder))
        (folder / "kept.txt").write_text("for all")

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        assert (folder / "kept.txt").read_text() == "for all"
        self.called.append((look_at(run), folder))
        return {"luck": self.value, "more": float("nan")}


SPIED = """\
name: spied
base: tiny.yaml
set: {train.log_every: 1, evaluate.every: 1, embedding.tie: none}
vary:
  detector: {}
  predictor: {objective: {type: mlm}, generator: null, sampler: null, train.precision: bf16}
seeds: [4]
budget: {steps: 2}
measure: [{type: spy, value: 0.25}, {type: pretraining}]
launcher: {type: in_process}
"""


@pytest.fixture(scope="module")
def spied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AblationFolder]:
    """An ablation whose measure is the spy."""
    folder = tmp_path_factory.mktemp("spied")
    file = write(folder).with_name("spied.yaml")
    file.write_text(SPIED)
    Spy.prepared.clear()
    Spy.called.clear()
    with measures.isolated():
        measures.register("spy")(Spy)
        yield AblationFolder(ablate(file, folder / "out"))


def looks(spied: AblationFolder) -> dict[str, SimpleNamespace]:
    """Return the spy's records of the cells, by variant."""
    return dict(zip((cell.variant for cell in spied.plan.cells), (look for look, _ in Spy.called), strict=True))


def text(rows: torch.Tensor, length: int) -> list[int]:
    """Return the stream that rows were cut from: without [CLS] and without [SEP] or padding at their ends."""
    return [int(token) for row in rows for token in row[1:-1]][:length]


def stream(tokens: Tokens) -> list[int]:
    return [int(token) for token in tokens.read(np.arange(len(tokens)))]


def test_a_measure_reads_the_splits_by_their_names(spied: AblationFolder) -> None:
    store = open_data(load(spied.experiment(spied.plan.cells[0].id)), print)
    train, validation, tested = (stream(split) for split in (store.train, store.validation, store.test))
    assert train[: len(tested)] != tested != validation
    references = [look for _, looks, _ in Spy.prepared for look in looks.values()]
    assert len(references) == 2
    for look in [*looks(spied).values(), *references, *(run for run, *_ in Spy.prepared)]:
        assert text(look.test, len(tested)) == tested
        assert text(look.train, len(train)) == train
        assert len(look.test) == -(-len(tested) // 14)
        assert look.vocabulary == store.tokenizer.get_vocab_size()


def saved(spied: AblationFolder, id: str, step: int, network: str) -> dict[str, torch.Tensor]:
    """Return a network of the checkpoint of a step."""
    file = spied.run(id).checkpoints / f"step-{step:08d}" / "state.safetensors"
    tensors = {name.removeprefix("model."): value for name, value in load_file(file).items()}
    return {name.removeprefix(f"{network}."): v for name, v in tensors.items() if name.startswith(f"{network}.")}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_measure_sees_the_network_as_it_ended_and_its_test(spied: AblationFolder) -> None:
    """The discriminator in eval mode, in its training precision, and the record of its test."""
    for cell in spied.plan.cells:
        look, detects = looks(spied)[cell.variant], cell.variant == "detector"
        assert same(look.weights, saved(spied, cell.id, 2, "discriminator"))
        assert not look.training
        assert not look.gradients
        assert (look.detects, look.autocast) == (detects, not detects)
        records = [record for record in spied.run(cell.id).records() if record["split"] != "train"]
        assert [(r["step"], r["split"]) for r in records] == [(1, "validation"), (2, "validation"), (2, "test")]
        assert look.metrics == records[2]
        assert records[1]["loss"] != records[2]["loss"]
    assert not same(*(look.weights for look in looks(spied).values()))


def test_rows_of_training_text_are_read_by_their_numbers(spied: AblationFolder) -> None:
    run, _ = as_measured(spied.run(spied.plan.cells[0].id), "cpu", lambda file: 0.0)
    whole = torch.cat([batch.tokens for batch in run.train(64, range(run.train_rows))])
    assert len(whole) == run.train_rows > 20
    asked = [17, 3, 8, 3, run.train_rows - 1]
    for size in (1, 2, 5, 64):
        batches = list(run.train(size, asked))
        assert [len(batch) for batch in batches][:-1] == [size] * (len(batches) - 1)
        assert torch.equal(torch.cat([batch.tokens for batch in batches]), whole[asked])
        assert torch.cat([batch.example_ids for batch in batches]).tolist() == asked
    assert list(run.train(4, [])) == []


def test_a_measure_is_prepared_once_with_a_cell_and_its_references(spied: AblationFolder) -> None:
    [(run, references, _)] = Spy.prepared
    planned = spied.plan.measures[0]
    assert list(references) == list(planned.references) == ["long", "other"]
    for (name, look), steps in zip(references.items(), (3, 2), strict=True):
        id = planned.references[name]
        assert spied.run(id).provenance().steps == steps
        assert same(look.weights, saved(spied, id, steps, "discriminator"))
        assert look.metrics == spied.run(id).records()[-1]
        assert not look.training
        assert not look.gradients
        assert look.autocast  # in the precision of the first reference, for any cell that prepares it
    cell = next(cell for cell in spied.plan.cells if same(run.weights, looks(spied)[cell.variant].weights))
    assert same(run.weights, saved(spied, cell.id, 2, "discriminator"))
    assert run.metrics == looks(spied)[cell.variant].metrics
    # Every cell gets the prepared folder, under the measure's key.
    assert {folder for _, folder in Spy.called} == {spied.shared(planned)}
    assert len(Spy.called) == len(spied.plan.cells)  # references themselves are not measured


def test_the_numbers_of_a_measure_are_noted_under_its_key_and_its_output_is_in_the_log(spied, capsys) -> None:
    key, other = (measure.key for measure in spied.plan.measures)
    for cell in spied.plan.cells:
        measured, name = spied.measures(cell.id).numbers, "generator_loss"
        if cell.variant == "predictor":
            name = "discriminator_token_loss"
        assert measured.keys() == {key, other}
        assert measured[key] == {"luck": 0.25}
        assert measured[other][name] == spied.run(cell.id).records()[-1][name]
        assert "step      2  test      " in (spied.path / "logs" / f"{cell.id}.txt").read_text()
    assert capsys.readouterr() == ("", "")


class Broken(Spy):
    """A measure that does everything wrong."""

    metrics: ClassVar[dict[str, Metric]] = {"broken": Metric("nothing")}

    def __init__(self, /, *, how: str = "none") -> None:
        self.how = how

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None:
        (folder / "half").touch()
        if self.how == "prepare":
            raise RuntimeError("while it was prepared")

    def __call__(self, run: Trained, folder: Path) -> Any:
        if self.how == "raise":
            raise RuntimeError("as it was asked to")
        if self.how == "preempted":
            raise Preempted("saved.")
        return {"none": None, "other": {"unknown": 1.0}}[self.how]


def planned(out: Path, how: str, **more: Any) -> tuple[AblationFolder, str]:
    """Plan a broken measure before `pretraining`, under another key; returns the folder and a trained cell."""
    measures.register("broken")(Broken)
    values = json.loads((out / "plan.json").read_text())
    pretraining = next(measure for measure in values["measures"] if measure["type"] == "pretraining")
    broken = {"type": "broken", "options": {"how": how}, "key": "broken-1", "metrics": {"broken": {}}}
    values["measures"] = [broken | more, {**pretraining, "key": "pretraining-2"}]
    values["imports"] = [str(file) for file in out.parent.glob("*.py")]
    (out / "plan.json").write_text(json.dumps(values | {"metric": "broken"}))
    return AblationFolder(out), first(out)


PLUGIN = """\
from registry import Metric, measures


@measures.register("mine")
class Mine:
    "Raises."
    same_rows, metrics = False, {"broken": Metric("nothing")}
    def __init__(self, /): ...
    def references(self, base): return {}
    def prepare(self, run, references, folder): ...
    def __call__(self, run, folder): raise KeyError("no such thing")
"""


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("none", "measure 'broken' returned None, must be numbers by their names."),
        ("other", "measure 'broken' returned unknown, which it does not declare."),
        ("raise", "RuntimeError: as it was asked to"),
        ("prepare", "RuntimeError: while it was prepared"),
        ("plug-in", "mine.py:11: measure 'mine' failed: KeyError: 'no such thing'"),
    ],
)
def test_a_measure_that_fails_is_named_and_does_not_keep_others_from_being_taken(out: Path, how, reason) -> None:
    own: dict[str, Any] = {}
    if how == "plug-in":
        (out.parent / "mine.py").write_text(PLUGIN)
        own = {"type": "mine", "options": {}}
    where, id = planned(out, how, **own)
    assert worked(out, id).code != 0
    note = where.failure(id)
    assert note is not None
    assert reason in note.error
    assert where.measures(id).numbers["pretraining-2"].keys() >= {"discriminator_auc"}
    assert "broken-1" not in where.measures(id).numbers
    # The folder that a measure prepares is complete or absent.
    assert [folder.name for folder in (where.path / "shared").iterdir()].count("broken-1") == (how != "prepare")
    assert not list((where.path / "shared").glob(".broken*"))


def test_a_measure_that_is_preempted_ends_the_piece(out: Path) -> None:
    where, id = planned(out, "preempted")
    assert worked(out, id) == Outcome(75, "saved.")
    assert "pretraining-2" not in where.measures(id).numbers


def test_a_result_must_be_numbers_that_the_measure_declares() -> None:
    entry = measures.get("pretraining")
    measure = Broken().metrics
    assert numbers_of(entry, measure, {"broken": 1}) == ({"broken": 1.0}, {})
    assert numbers_of(entry, measure, {"broken": np.float32(0.5)}) == ({"broken": 0.5}, {})
    assert numbers_of(entry, measure, {"broken": float("inf")}) == numbers_of(entry, measure, {}) == ({}, {})
    sampled = numbers_of(entry, measure, {"broken": MetricWithDocuments(0.5, [0.25, 0.75])})
    assert sampled == ({"broken": 0.5}, {"broken": [0.25, 0.75]})
    assert type(sampled[0]["broken"]) is float
    for documents in ([], [0.5, float("nan")]):
        assert numbers_of(entry, measure, {"broken": MetricWithDocuments(0.5, documents)}) == ({"broken": 0.5}, {})
    for wrong in (1.0, [("broken", 1.0)], {"broken": torch.ones(1)}, {"broken": None}):
        with pytest.raises(BadResult, match="must be numbers by their names"):
            numbers_of(entry, measure, wrong)


ON = "{type: fixed_corruption, steps: 4}"


def read(out: Path) -> list[Subject]:
    return subjects([out / "cells" / cell.id for cell in AblationFolder(out).plan.cells])


def test_the_numbers_are_those_of_an_ablation_and_are_kept(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with the ablation, which trained its own references on the same text."""
    cells, folder = read(out), AblationFolder(out)
    found = measuring.measure(cells[1:], ON, "cpu")
    key = next(measure.key for measure in folder.plan.measures if measure.type == "fixed_corruption")
    assert len(cells) == 4
    for cell in cells[1:]:
        assert found.numbers[cell.label] == folder.measures(cell.directory.path.name).numbers[key]
    assert len({numbers["corruption_auc"] for numbers in found.numbers.values()}) == 3

    # Nothing is opened or trained again; a fourth run is measured with the existing references.
    opened, reopen = list[Path](), execute.reopen
    monkeypatch.setattr(execute, "reopen", lambda path, device: (opened.append(path), reopen(path, device))[1])
    monkeypatch.setattr(execute, "run", lambda *_, **__: pytest.fail("a reference is trained again"))
    assert measuring.measure(cells[:0:-1], ON, "cpu").numbers == found.numbers
    assert opened == []
    begun = cells[1].began.started
    cells[0] = Subject(cells[0].label, cells[0].directory, cells[0].began.model_copy(update={"started": begun + "1"}),
                       cells[0].records, cells[0].config)  # fmt: skip
    more = measuring.measure(cells, ON, "cpu").numbers
    assert more[cells[0].label] == folder.measures(cells[0].directory.path.name).numbers[key]
    assert opened == [cells[0].directory.path]

    # Numbers of another checkpoint are measured again, and so are damaged ones.
    manifest = cells[1].directory.last_checkpoint() / "MANIFEST.json"
    manifest.write_text(manifest.read_text() + "\n")
    cells[2].directory.write(measuring.KEPT, "[1]")
    assert measuring.measure(cells[1:], ON, "cpu").numbers == found.numbers
    assert opened[1:] == [cells[1].directory.path, cells[2].directory.path]

    # A run that uses another run's tokenizer, as in continued pre-training, reads the same rows.
    path, tokenizer = cells[2].directory.path, cells[1].directory.path / "tokenizer.json"
    config, provenance = yaml.safe_load((path / "config.yaml").read_text()), path / "provenance.json"
    config["tokenizer"] = {"type": "pretrained", "path": str(tokenizer)}
    rewrite_config(path, yaml.safe_dump(config))
    provenance.write_text(provenance.read_text().replace(cells[2].began.data.store, "another"))
    paths = [cell.directory.path for cell in cells[1:]]
    assert measuring.measure(subjects(paths), ON, "cpu").numbers == found.numbers
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(ConfigError, match="reads other rows"):
        measuring.measure(subjects(paths), ON, "cpu")


def test_references_are_those_of_the_run_that_began_first(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order of the arguments: with its config, steps and compute, in its directory."""
    taken, cells = list[tuple[Path, Any, int]](), read(out)[1:3]
    for place, (started, steps) in enumerate((("2026-02", 8), ("2026-01", 6))):
        began = cells[place].began.model_copy(update={"started": started, "steps": steps, "flops": 10 * steps})
        cells[place] = replace(cells[place], began=began)
        file = cells[place].directory.path / "config.yaml"
        config = yaml.safe_load(file.read_text())
        config["train"]["learning_rate"] = steps / 1000
        file.write_text(yaml.safe_dump(config))

    def shared(home: Path, _: Any, __: Path, references: Any, train: Any, ___: str) -> None:
        taken.append((home, references, train.keywords["scale"].flops))

    monkeypatch.setattr(measuring, "_shared", shared)
    monkeypatch.setattr(measuring, "_open", lambda path, _: (path.name, None))
    monkeypatch.setattr(measuring, "measured", lambda *_: ({"corruption_auc": 0.5}, None))
    for order in (cells, cells[::-1]):
        measuring.measure(order, "fixed_corruption", "cpu")
        for cell in cells:
            (cell.directory.path / measuring.KEPT).unlink()
    assert len(taken) == 4
    for home, references, flops in taken:
        assert home.is_relative_to(cells[1].directory.path)
        assert [(run["train"]["steps"], run["train"]["learning_rate"]) for run in references.values()] == [
            (6, 0.006)
        ] * 2
        assert flops == 60


def test_refusals(out: Path) -> None:
    cells = read(out)[:2]
    for wrong in ("nothing", "{type: fixed_corruption, step: 4}", "[1]", "{steps: 4}", "pretraining"):
        with pytest.raises(ConfigError):
            measuring.measure(cells, wrong, "cpu")
    config = (cells[1].directory.path / "config.yaml").read_text()
    rewrite_config(cells[1].directory.path, config.replace("held_out: 0.3", "held_out: 0.4"))
    with pytest.raises(ConfigError, match=r"reads other rows .*\bdata\b"):
        measuring.measure(subjects([cell.directory.path for cell in cells]), ON, "cpu")
    rewrite_config(cells[1].directory.path, config)
    shutil.rmtree(cells[1].directory.last_checkpoint())
    with pytest.raises(CheckpointError, match="electra-lab resume"):
        measuring.measure(cells, ON, "cpu")
    assert not (cells[0].directory.path / "compared").exists()


def test_a_run_directory_that_cannot_be_written_is_measured_all_the_same(out: Path, monkeypatch: Any) -> None:
    cells, said = read(out)[:2], list[str]()
    (cells[0].directory.path / measuring.KEPT).mkdir()
    monkeypatch.setattr(measuring.Console, "say", lambda self, text: said.append(text))
    measuring.measure(cells, "detection_probe", "cpu")
    assert any(measuring.KEPT in text for text in said)
    assert json.loads((cells[1].directory.path / measuring.KEPT).read_text())
