"""Row 17: changes between a run and its resume: of config, text, token store, code and location."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT
from tests.scorecard.conftest import Score
from tests.scorecard.lab import likeness, saved
from tests.scorecard.others import count_tests
from tests.scorecard.project import STEPS, Project

STOP = 5  # the step after which the runs are stopped


@pytest.fixture(scope="module")
def source(project: Project) -> Path:
    """A run that was stopped."""
    return project.stopped(STOP)


@pytest.mark.scorecard
def test_settings_and_plug_ins(score: Score, tmp_path: Path) -> None:
    """Settings that shaped earlier steps are refused by name; others change no weight; a run may get more steps."""
    folder = "tests/electra_lab/jobs/pretraining"
    refused = f"{folder}/test_provenance.py::test_changed_plug_ins_are_refused"
    count_tests(score, tmp_path, f"{folder}/test_changes.py", f"{folder}/test_execute.py", refused)


def stores(project: Project) -> Path:
    return next(path for path in (project.folder / "store").iterdir() if not path.name.startswith("."))


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path} has no {old}"
    path.write_text(text.replace(old, new))


def overwritten(path: Path, do: Callable[[bytearray], object]) -> None:
    """Change a file's bytes, but neither its size nor its time."""
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
    """A change, and the expected outcome of a resume."""

    name: str
    change: Callable[[Project, Path], object]
    codes: tuple[int, ...] = (0,)
    says: str = ""  # a word that the output must contain, unless codes has 0 and the result is undisturbed
    arguments: tuple[str, ...] = ()
    alike: bool = True  # its result equals that of the undisturbed run


def moved(project: Project, out: Path) -> None:
    (project.folder / "corpus.txt").rename(project.folder / "moved.txt")


CASES = [
    Case("nothing", lambda p, out: None),
    Case("a comment in source.yaml", lambda p, out: (out / "source.yaml").open("a").write("# note\n")),
    Case("the original file has another seed", lambda p, out: p.file.write_text(p.file.read_text() + "seed: 7\n")),
    Case("corpus: one letter", lambda p, out: changed(p.folder / "corpus.txt", "number 7", "number 8"), (3,), "corpus"),
    Case("corpus: a document more", lambda p, out: (p.folder / "corpus.txt").open("a").write("\n\nof"), (3,), "corpus"),
    Case("corpus: its time", lambda p, out: os.utime(p.folder / "corpus.txt", (1, 1))),
    Case("corpus: moved", moved),
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


def kept(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def test_what_lies_around_the_run(score: Score, project: Project, source: Path) -> None:
    for case in score.chosen(CASES, lambda case: case.name):
        before = project.folder.with_name("around")
        shutil.copytree(project.folder, before)
        with project.trial(score, case.name, project.copy(source)) as out:
            store = stores(project)
            case.change(project, out)
            records = kept(out / "metrics.jsonl")
            ended = project.resume(out, *(word.format(store=store) for word in case.arguments)).must(*case.codes)
            assert case.says in ended.err, f"does not mention {case.says}: {ended}"
            if ended.code == 0 and case.alike:
                project.is_alike(out)
            if ended.code:
                assert kept(out / "metrics.jsonl") == records, "it was refused, but the records have changed"
                found = {path.name for path in (project.folder / "store").glob("[!.]*")}
                assert found <= {store.name}, f"a store was built, only to be refused: {found}"
        shutil.rmtree(project.folder)
        before.rename(project.folder)


@pytest.mark.scorecard
def test_the_run_directory_was_moved(score: Score, project: Project, source: Path, tmp_path: Path) -> None:
    place = tmp_path / "moved ü 日本" / "run"
    shutil.copytree(source, place)
    with score.trial("the run directory was moved, and is resumed from elsewhere"):
        project.lab("resume", os.path.relpath(place, tmp_path), cwd=tmp_path).must(0)
        project.is_alike(place)


@pytest.mark.scorecard
def test_the_code_of_the_lab_changed(score: Score, project: Project, source: Path, tmp_path: Path) -> None:
    """The learning rate is halved in a copy of the lab: in a new process, as a forked one has the old code."""
    for room in ("electra_lab", "registry"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    step = tmp_path / "electra_lab" / "training" / "step.py"
    changed(step, 'group["initial_lr"] * rate', 'group["initial_lr"] * rate * 0.5')
    out = project.copy(source)
    with score.trial("the lab halves the learning rate now"):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "electra_lab", "resume", str(out)]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ended.returncode in (0, 2, 4), ended.stderr[-500:]
        noted = "not bit-exact" in ended.stderr and "electra_lab" in ended.stderr.split("not bit-exact")[1]
        assert noted or ended.returncode, "no word, and other weights" if _differs(project, out) else "no word"


def _differs(project: Project, out: Path) -> bool:
    return saved(out)[-1].name == f"step-{STEPS:08d}" and likeness(out).tensors != project.expected.tensors
