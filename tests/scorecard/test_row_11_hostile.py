"""Row 11: malicious names, run directories and checkpoints."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.helpers import ROOT, write_experiment
from tests.scorecard.conftest import Score
from tests.scorecard.lab import Lab
from tests.scorecard.project import SECTIONS, Project
from tests.scorecard.rows import FULL

TENSORS, STATE, MANIFEST = "state.safetensors", "state.json", "MANIFEST.json"
Change = Callable[[Path], object]  # of a checkpoint


class Bomb:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.canary),))


def seal(checkpoint: Path) -> None:
    """Write a correct manifest, as the author of a malicious checkpoint would."""
    manifest = {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
        for path in sorted(checkpoint.iterdir())
        if path.name != MANIFEST and path.is_file()
    }
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


def state(**values: Any) -> Change:
    def change(checkpoint: Path) -> None:
        file = checkpoint / STATE
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    def apply(checkpoint: Path) -> None:
        save_file(change(load_file(checkpoint / TENSORS)), checkpoint / TENSORS)

    return apply


def raw(name: str, content: bytes) -> Change:
    return lambda checkpoint: (checkpoint / name).write_bytes(content)


def header(text: bytes, claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if claimed is None else claimed) + text


WEIGHTS, MOMENTS = r"model\.", r".*\.exp_avg"


def each(names: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return tensors(lambda t: {name: make(value) if re.match(names, name) else value for name, value in t.items()})


HUGE = b'{"a":{"dtype":"F32","shape":[1125899906842624],"data_offsets":[0,4503599627370496]}}'
SEALED: dict[str, Change] = {  # with a correct manifest
    "state.json is a list": raw(STATE, b"[]"),
    "state.json is nested 100,000 deep": raw(STATE, b"[" * 100_000),
    "state.json is not UTF-8": raw(STATE, b"\xff\xff"),
    "state.json has no window": raw(STATE, b'{"step": 12}'),
    "step -3": state(step=-3),
    "step 10^30": state(step=10**30),
    "step 'x'": state(step="x"),
    "step 6.5": state(step=6.5),
    "step true": state(step=True),
    "the step of another checkpoint": state(step=3),
    "tokens of text": state(tokens="many"),
    "a window that is too short": state(window={"steps": 3, "names": ["a"], "totals": [1.0]}),
    "a window of text": state(window={"steps": 3, "names": "ab", "totals": ["x"] * 8}),
    "tensors are garbage": raw(TENSORS, b"garbage" * 10),
    "tensors' header is longer than the file": raw(TENSORS, header(b"{}", 1 << 62)),
    "tensors' header is nested": raw(TENSORS, header(b'{"a":' + b"[" * 100_000)),
    "tensors claim 4 petabytes": raw(TENSORS, header(HUGE)),
    "no tensors": raw(TENSORS, header(b"{}")),
    "weights NaN": each(WEIGHTS, lambda v: v * float("nan") if v.is_floating_point() else v),
    "moments NaN": each(MOMENTS, lambda v: v * float("nan")),
    "weights of int8": each(WEIGHTS, lambda v: v.to(torch.int8)),
    "moments of another shape": each(MOMENTS, lambda v: torch.zeros(3)),
    "moments of no element": each(MOMENTS, lambda v: torch.zeros(0)),
    "moments of int64": each(MOMENTS, lambda v: v.long()),
    "no moments": tensors(lambda t: {name: v for name, v in t.items() if name.startswith("model.")}),
    "a moment is missing": tensors(lambda t: {n: v for n, v in t.items() if n != max(k for k in t if "exp_avg" in k)}),
    "a weight is missing": tensors(lambda t: {n: v for n, v in t.items() if n != min(k for k in t if k[0] == "m")}),
    "a weight too many": tensors(lambda t: {**t, "model.more": torch.zeros(2)}),
    "an optimizer's tensor without a name": tensors(lambda t: {**t, "optimizer.": torch.zeros(2)}),
}
UNSEALED: dict[str, Change] = {
    "MANIFEST.json nested": raw(MANIFEST, b"[" * 100_000),
    "MANIFEST.json {}": raw(MANIFEST, b"{}"),
    "MANIFEST.json null": raw(MANIFEST, b"null"),
    "MANIFEST.json names files elsewhere": raw(MANIFEST, b'{"../../../victim": {"sha256": "x", "bytes": 1}}'),
    "the checkpoint is a link to itself": lambda c: (shutil.rmtree(c), c.symlink_to(c.name)),
    "checkpoints is a file": lambda c: (shutil.rmtree(c.parent), c.parent.write_text("x")),
    "checkpoints is a link to nowhere": lambda c: (shutil.rmtree(c.parent), c.parent.symlink_to("/nowhere/at/all")),
    "an empty step-99999999999999999999": lambda c: (c.parent / "step-99999999999999999999").mkdir(),
    "step-00000099 is a file": lambda c: (c.parent / "step-00000099").write_text("x"),
    "a step of other digits": lambda c: (c.parent / "step-٠٠٠٠٠٠٩٩").mkdir(),
    ".lock is a link to a file": lambda c: link(c.parents[1] / ".lock"),
    ".lock is a folder": lambda c: ((c.parents[1] / ".lock").unlink(), (c.parents[1] / ".lock").mkdir()),
    ".lock is a pipe": lambda c: ((c.parents[1] / ".lock").unlink(), os.mkfifo(c.parents[1] / ".lock")),
    "report.html is a link to a file": lambda c: link(c.parents[1] / "report.html"),
    "metrics.jsonl is a link to a file": lambda c: link(c.parents[1] / "metrics.jsonl"),
    "config.yaml runs code": lambda c: (c.parents[1] / "config.yaml").write_text("name: !!python/name:os.system\n"),
    "config.yaml is nested": lambda c: (c.parents[1] / "config.yaml").write_text("a: " + "[" * 50_000),
    "provenance.json is nested": lambda c: (c.parents[1] / "provenance.json").write_text("[" * 100_000),
    "tokenizer.json is nested": lambda c: (c.parents[1] / "tokenizer.json").write_text("[" * 100_000),
    "examples.json is nested": lambda c: (c.parents[1] / "examples.json").write_text("[" * 100_000),
}


# The lab leaves foreign files where they are, so they are removed before a finished run is compared.
PLANTED = {
    "an empty step-99999999999999999999": lambda out: (out / "checkpoints/step-99999999999999999999").rmdir(),
    "step-00000099 is a file": lambda out: (out / "checkpoints/step-00000099").unlink(),
    "a step of other digits": lambda out: (out / "checkpoints/step-٠٠٠٠٠٠٩٩").rmdir(),
}
OTHER_RECORDS = "metrics.jsonl is a link to a file"  # the file holds a record, which then belongs to the run


def link(path: Path) -> None:
    """Replace a file of the run by a link to the victim, which lies next to the run directory."""
    path.unlink(missing_ok=True)
    path.symlink_to(path.parents[1] / "victim")


def outside(project: Project, out: Path) -> dict[str, bytes]:
    """Return all files outside of a run, except the token store's notes."""
    return {
        str(path): path.read_bytes()
        for path in project.folder.rglob("*")
        if path.is_file() and out not in path.parents and ".verified" not in str(path)
    }


def test_run_directories_of_others(score: Score, project: Project) -> None:
    cases = [(name, change, True) for name, change in SEALED.items()]
    cases += [(name, change, False) for name, change in UNSEALED.items()]
    (project.folder / "victim").write_text('{"step": 1, "split": "train"}\n')
    for name, change, sealed in score.chosen(cases, lambda case: case[0]):
        for verb in ("resume", "report") if FULL else ("resume",):
            out = project.copy()
            checkpoint = out / "checkpoints" / "step-00000012"
            change(checkpoint)
            if sealed:
                seal(checkpoint)
            before = outside(project, out)
            with score.trial(f"{verb}, {name}"):
                ended = project.lab(verb, out, cwd=project.folder, timeout=30).must(0, 2, 3, 4)
                changed = [path for path, content in outside(project, out).items() if before.get(path) != content]
                assert not changed, f"written outside of the run directory: {changed}"
                if verb == "resume" and ended.code == 0 and name != OTHER_RECORDS:
                    PLANTED.get(name, lambda _: None)(out)
                    project.is_alike(out)
            shutil.rmtree(out, ignore_errors=True)


@pytest.mark.scorecard
def test_a_pickle_is_never_read(score: Score, project: Project, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    content = pickle.dumps(Bomb(canary))
    names = [f"checkpoints/step-00000012/{name}" for name in (TENSORS, STATE, MANIFEST)]
    names += ["vocabulary.safetensors", "tokenizer.json", "provenance.json", "config.yaml", "examples.json"]
    for name in score.chosen(names):
        for verb in ("resume", "report", "export"):
            out = project.copy()
            (out / name).write_bytes(content)
            if name.startswith("checkpoints") and not name.endswith(MANIFEST):
                seal((out / name).parent)
            with score.trial(f"{verb}, {name} is a pickle that runs code"):
                more = (tmp_path / "exported",) if verb == "export" else ()
                project.lab(verb, out, *more, cwd=project.folder).must(0, 2, 3, 4)
                assert not canary.exists(), "code has run"
            shutil.rmtree(out)
            shutil.rmtree(tmp_path / "exported", ignore_errors=True)


NAMES = ["../x", "/tmp/x", "a/b", "a\\b", "x" * 300, "..", ".", "a b", "", "x\0y", "-rf", "$(id)", "\x1b[31m"]
TYPES = ["os.system", "__import__('os')", "torch.nn.Linear", "../reformer", "bert/..", "_shared", "__init__",
         "_target_"]  # fmt: skip


def test_names(score: Score, lab: Lab, tmp_path: Path) -> None:
    """The config is refused at its line; nothing is written."""
    cases = [("name", json.dumps(name)) for name in NAMES]
    for section, rest in (("discriminator", "dim: 16, depth: 1, heads: 2"), ("sampler", ""), ("objective", "")):
        cases += [(section, f"{{type: {json.dumps(name)}, {rest}}}") for name in TYPES]
    cases += [("sampler", "{_target_: os.system, type: gumbel}"), ("trackers", '[{type: "os.system"}]')]
    for key, value in score.chosen(cases, lambda case: f"{case[0]}: {case[1][:60]}"):
        folder = tmp_path / "p"
        shutil.rmtree(folder, ignore_errors=True)
        file = write_experiment(folder, **{**SECTIONS, key: value})
        with score.trial(f"{key}: {value[:60]}"):
            ended = lab("run", file, cwd=folder).must(2)
            assert f"{file.name}:" in ended.err, f"does not name the line: {ended}"
            assert {path.name for path in folder.iterdir()} == {file.name, "corpus.txt"}, list(folder.iterdir())
            assert {path.name for path in tmp_path.iterdir()} == {"p"}, list(tmp_path.iterdir())


def test_places(score: Score, project: Project, tmp_path: Path) -> None:
    """`--out` with paths that cannot exist, or that exist as something else."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    names = ("file", "file/run", "full", "loop", "/proc/nowhere/x", "x" * 300, os.fsdecode(b"\xff\xfe"))
    for name in score.chosen(names):
        with score.trial(f"--out {name[:20]!r}"):
            project.run(tmp_path / name).must(2, *([0] if "\udcff" in name else []))
            assert (tmp_path / "file").read_text() == (tmp_path / "full" / "mine.txt").read_text() == "mine"


# Modules and calls that execute what they read. A plug-in, which the user lists, is code and is executed in one
# place; torch's own files are read with weights_only, which refuses code.
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"}
ALLOWED = {("registry/discovery.py", "exec"), ("electra_lab/pretrained/hugging_face.py", "pickle.UnpicklingError")}


def ways(tree: ast.AST) -> list[tuple[int, str]]:
    """Return imports and calls that could execute code from files, with their lines."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in MODULES]
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        if isinstance(node, ast.Call):
            call, options = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
            unsafe = call == "torch.load" and options.get("weights_only") != "True"
            unsafe |= call in ("np.load", "numpy.load") and options.get("allow_pickle", "False") != "False"
            found += [(node.lineno, call)] if unsafe or call in CALLS else []
    return found


@pytest.mark.parametrize("room", ["electra_lab", "registry"])
def test_the_code_has_no_way_to_run_what_it_reads(score: Score, room: str) -> None:
    with score.trial(f"all files of {room}"):
        wrong = [
            f"{file.relative_to(ROOT)}:{line}: {what}"
            for file in sorted((ROOT / room).rglob("*.py"))
            for line, what in ways(ast.parse(file.read_text(encoding="utf-8")))
            if (str(file.relative_to(ROOT)), what) not in ALLOWED
        ]
        assert not wrong, wrong
