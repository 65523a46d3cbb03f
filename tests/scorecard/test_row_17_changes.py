"""Row 17: what has changed between a run and its resume: config, text, token store, code, place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT
from tests.scorecard.conftest import Score
from tests.scorecard.lab import Lab, likeness, saved
from tests.scorecard.project import STEPS, Project

STOP = 5  # the step after which the runs are stopped
PLUGIN = """\
from registry import samplers


@samplers.register("mine")
def mine(logits, rng, /):
    "Take the largest."
    return logits.argmax(-1)
"""


@pytest.fixture(scope="module")
def begun(project: Project) -> Project:
    """The project of all tests, whose text and store are changed for a moment."""
    return project


@pytest.fixture(scope="module")
def source(begun: Project) -> Path:
    """A run that was stopped."""
    return begun.stopped(STOP)


@pytest.fixture(autouse=True)
def _restored(begun: Project, source: Path, tmp_path: Path) -> Iterator[None]:
    kept = tmp_path / "kept"
    shutil.copytree(begun.folder, kept)
    yield
    shutil.rmtree(begun.folder)
    shutil.copytree(kept, begun.folder)


SETTINGS = {  # what decided the steps so far
    "seed": 1, "train.learning_rate": 0.002, "train.batch_size": 8, "train.clip_norm": 0.5, "data.sequence_length": 8,
    "discriminator.depth": 2, "generator.scale": 1.0, "masking.mask_prob": 0.3, "sampler.temperature": 2.0,
    "objective.discriminator_weight": 10.0, "optimizer.weight_decay": 0.5, "embedding.tie": "none",
    "schedules.learning_rate.warmup_steps": 3, "tokenizer.vocab_size": 100, "data.held_out": 0.2, "name": "other",
    "packing.type": "documents",
}  # fmt: skip
FREE = {  # what has not
    "train.log_every": 2, "evaluate.every": 6, "evaluate.batch_size": 4, "evaluate.examples": 1, "checkpoint.every": 2,
    "checkpoint.keep": 5, "checkpoint.minutes": 10, "run.max_minutes": 60, "train.on_non_finite": "skip",
}  # fmt: skip


@pytest.mark.scorecard
def test_settings_that_decided_the_steps_so_far_are_refused_by_name(score: Score, begun: Project, source: Path) -> None:
    for key, value in score.chosen(SETTINGS.items(), lambda case: "{}={}".format(*case)):
        out = begun.copy(source)
        with score.trial(f"resume --set {key}={value}"):
            ended = begun.resume(out, "--set", f"{key}={value}")
            assert ended.code == 2, ended
            assert not ended.traced, ended
            named = key.split(".")[0] in ended.last and str(value) in ended.last
            assert named, f"does not say what differs: {ended}"
            begun.ends_alike(out)  # the attempt has changed nothing


@pytest.mark.scorecard
def test_a_config_that_was_edited_is_refused_by_key(score: Score, begun: Project, source: Path) -> None:
    out = begun.copy(source)
    with score.trial("config.yaml with another learning rate"):
        file = out / "config.yaml"
        text = file.read_text()
        changed = text.replace("learning_rate: 0.0005", "learning_rate: 0.002")
        assert changed != text
        file.write_text(changed)
        ended = begun.resume(out)
        assert ended.code == 2, ended
        assert not ended.traced, ended
        assert "learning_rate" in ended.last, f"does not say which value: {ended}"


@pytest.mark.scorecard
def test_settings_that_may_change(score: Score, begun: Project, source: Path) -> None:
    for key, value in score.chosen(FREE.items(), lambda case: "{}={}".format(*case)):
        out = begun.copy(source)
        with score.trial(f"resume --set {key}={value}"):
            ended = begun.resume(out, "--set", f"{key}={value}")
            assert ended.code == 0, ended
            assert likeness(out).tensors == begun.expected.tensors, "the weights differ"
            assert f"{key.split('.')[1]}: {value}" in (out / "config.yaml").read_text(), "config.yaml does not have it"
            again = begun.resume(out)
            assert again.code == 0, f"resumed once more: {again}"


@pytest.mark.scorecard
def test_more_steps_continue_a_finished_run(score: Score, begun: Project) -> None:
    out = begun.copy()
    with score.trial("resume --set train.steps=18 of a finished run"):
        ended = begun.resume(out, "--set", "train.steps=18")
        assert ended.code == 0, ended
        assert "learning rate" in ended.err, f"says nothing of the schedule that had ended: {ended}"
        assert saved(out)[-1].name == "step-00000018", saved(out)
        steps = [each["step"] for each in likeness(out).records if each["split"] == "train"]
        assert steps == list(range(1, 19)), f"records of steps {steps}"


def stores(project: Project) -> Path:
    return next(path for path in (project.folder / "store").iterdir() if not path.name.startswith("."))


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path} has no {old}"
    path.write_text(text.replace(old, new))


def overwritten(path: Path, do: Callable[[bytearray], object]) -> None:
    """Change a file's bytes, neither its size nor its time."""
    content, before = bytearray(path.read_bytes()), path.stat()
    do(content)
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def provenance(out: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = out / "provenance.json"
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


@dataclass(frozen=True)
class Case:
    """A change, and what a resume makes of it."""

    name: str
    change: Callable[[Project, Path], object]
    codes: tuple[int, ...] = (0,)
    says: str = ""  # a word that must occur, unless codes has 0 and the result is that of an undisturbed run
    arguments: tuple[str, ...] = ()
    alike: bool = True  # it ends as the undisturbed run


def moved(project: Project, out: Path) -> None:
    (project.folder / "corpus.txt").rename(project.folder / "moved.txt")


CASES = [
    Case("nothing", lambda p, out: None),
    Case("a comment in source.yaml", lambda p, out: (out / "source.yaml").open("a").write("# note\n")),
    Case("the original file has another seed", lambda p, out: p.file.write_text(p.file.read_text() + "seed: 7\n")),
    Case("corpus: one letter", lambda p, out: changed(p.folder / "corpus.txt", "number 7", "number 8"), (3,), "corpus"),
    Case("corpus: a document more", lambda p, out: (p.folder / "corpus.txt").open("a").write("\n\nof"), (3,), "corpus"),
    Case("corpus: its time", lambda p, out: os.utime(p.folder / "corpus.txt", (1, 1))),
    Case("corpus: moved", moved, (3,), "corpus"),
    Case("corpus: moved, and named", moved, (0,), arguments=("--set", "corpus.paths=[moved.txt]")),
    Case("corpus: gone, but its store is named", moved, (0,), arguments=("--set", "data.store={store}")),
    Case("store: gone", lambda p, out: shutil.rmtree(p.folder / "store")),
    Case("store: 64 bytes of tokens are zero",
         lambda p, out: overwritten(stores(p) / "train-00000.bin", lambda b: b.__setitem__(slice(200, 264), bytes(64))),
         (3,), "train-00000.bin"),
    Case("store: ids that do not exist",
         lambda p, out: overwritten(stores(p) / "validation-00000.bin", lambda b: b.__setitem__(21, 255)),
         (3,), "validation-00000.bin"),
    Case("store: cut", lambda p, out: os.truncate(stores(p) / "train-00000.bin", 100), (3,), "train-00000.bin"),
    Case("store: two tokens exchanged",
         lambda p, out: overwritten(stores(p) / "tokenizer.json", lambda b: b.__setitem__(
             slice(None), b.replace(b'"cat"', b'"@@@"').replace(b'"mat"', b'"cat"').replace(b'"@@@"', b'"mat"'))),
         (3,), "tokenizer.json"),
    Case("store: its manifest is empty", lambda p, out: (stores(p) / "manifest.json").write_text(""), (3,), "manifest"),
    Case("another release of the lab", lambda p, out: provenance(out, lambda v: v.update(electra_lab="0.0.1")),
         (0, 2, 4), "electra_lab", alike=False),
    Case("another torch", lambda p, out: provenance(out, lambda v: v["environment"].update(
        json.loads(json.dumps(v["environment"]).replace('"torch": "2', '"torch": "1')))), (0,), "torch"),
    Case("provenance.json is a list", lambda p, out: (out / "provenance.json").write_text("[]"), (2, 4), "provenance"),
    Case("provenance.json is empty", lambda p, out: (out / "provenance.json").write_text(""), (2, 4), "provenance"),
    Case("config.yaml is gone", lambda p, out: (out / "config.yaml").unlink(), (2, 4), "config.yaml"),
    Case("a record in the middle is damaged",
         lambda p, out: changed(out / "metrics.jsonl", '{"step": 2', '{"step" 2'), (0,), "metrics.jsonl", alike=False),
    Case("the last record is followed by zeros", lambda p, out: (out / "metrics.jsonl").open("ab").write(bytes(512))),
    Case("the records are gone", lambda p, out: (out / "metrics.jsonl").unlink(), (0, 4), "metrics.jsonl", alike=False),
    Case("checkpoints is gone, as not mounted", lambda p, out: shutil.rmtree(out / "checkpoints"), (4,), "checkpoints"),
]  # fmt: skip


def test_what_lies_around_the_run(score: Score, begun: Project, source: Path) -> None:
    for case in score.chosen(CASES, lambda case: case.name):
        out = begun.copy(source)
        kept = begun.folder.with_name("around")
        shutil.copytree(begun.folder, kept)
        with score.trial(case.name):
            try:
                store = stores(begun)
                arguments = [each.format(store=store) for each in case.arguments]
                case.change(begun, out)
                before = (out / "metrics.jsonl").read_bytes() if (out / "metrics.jsonl").exists() else b""
                ended = begun.resume(out, *arguments)
                assert ended.code in case.codes, f"not exit {' or '.join(map(str, case.codes))}, but {ended}"
                assert not ended.traced, ended
                assert case.says in ended.err, f"does not speak of {case.says}: {ended}"
                if ended.code == 0 and case.alike:
                    begun.is_alike(out)
                if ended.code:
                    after = (out / "metrics.jsonl").read_bytes() if (out / "metrics.jsonl").exists() else b""
                    assert before == after, "it was refused, but the records have changed"
                    found = {path.name for path in (begun.folder / "store").glob("[!.]*")}
                    assert found <= {store.name}, f"a store was built, only to be refused: {found}"
            finally:
                shutil.rmtree(begun.folder)
                kept.rename(begun.folder)


@pytest.mark.scorecard
def test_a_plug_in_that_changed_is_refused(score: Score, lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    plugin = tmp_path / "p" / "mine.py"
    plugin.write_text(PLUGIN)
    project = Project.create(lab, tmp_path / "p", imports="[mine.py]", sampler="{type: mine}")
    out = project.stopped(STOP)
    with score.trial("the plug-in takes the smallest, not the largest"):
        plugin.write_text(PLUGIN.replace("argmax", "argmin"))
        ended = project.resume(project.copy(out))
        assert ended.code == 2, ended
        assert "mine.py" in ended.last, f"does not name it: {ended}"
    with score.trial("the plug-in was moved, and is named"):
        plugin.write_text(PLUGIN)
        plugin.rename(tmp_path / "p" / "moved.py")
        ended = project.resume(out, "--set", "imports=[moved.py]")
        assert ended.code == 0, ended
        project.is_alike(out)


@pytest.mark.scorecard
def test_the_run_directory_was_moved(score: Score, begun: Project, source: Path, tmp_path: Path) -> None:
    place = tmp_path / "moved ü 日本" / "run"
    shutil.copytree(source, place)
    with score.trial("the run directory was moved, and is resumed from elsewhere"):
        ended = begun.lab("resume", os.path.relpath(place, tmp_path), cwd=tmp_path)
        assert ended.code == 0, ended
        begun.is_alike(place)


@pytest.mark.scorecard
def test_the_code_of_the_lab_changed(score: Score, begun: Project, source: Path, tmp_path: Path) -> None:
    """The learning rate is halved in a copy of the lab: a real process, as a forked one has the old code."""
    for room in ("electra_lab", "registry"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    step = tmp_path / "electra_lab" / "training" / "step.py"
    changed(step, 'group["initial_lr"] * rate', 'group["initial_lr"] * rate * 0.5')
    out = begun.copy(source)
    with score.trial("the lab halves the learning rate now"):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "electra_lab", "resume", str(out)]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode in (0, 2, 4), ended.stderr[-500:]
        noted = "not bit-exact" in ended.stderr and "electra_lab" in ended.stderr.split("not bit-exact")[1]
        assert noted or ended.returncode, "no word, and other weights" if _differs(begun, out) else "no word"


def _differs(project: Project, out: Path) -> bool:
    return saved(out)[-1].name == f"step-{STEPS:08d}" and likeness(out).tensors != project.expected.tensors
