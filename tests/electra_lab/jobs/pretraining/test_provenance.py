"""The provenance of a run: every field is correct, and differences on a resume are reported."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import electra_lab
from electra_lab.data.splits import SPLITS
from electra_lab.jobs import provenance as module
from electra_lab.jobs.pretraining import execute
from electra_lab.metrics import PRETRAINING
from electra_lab.storage.provenance import FORMAT, Environment
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run, tensors
from tests.helpers import ROOT

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that uses a plug-in."""
    folder = tmp_path_factory.mktemp("provenance")
    (folder / "mine.py").write_text(PLUG_IN)
    sampler = "{type: mine_of_provenance}\nimports: [mine.py]"
    file = experiment(folder, sampler=sampler, embedding="{dim: 8, max_length: 16, tie: embeddings}")
    with for_a_module() as patched:
        patched.setattr(sys, "argv", ["electra-lab", "run", "tiny.yaml"])
        run(file, folder / "run", "train.steps=7")
    return folder


PLUG_IN = '''
from registry import samplers


@samplers.register("mine_of_provenance")
def mine(logits, rng, /):
    """Mine."""
    return logits.argmax(-1)
'''


@pytest.fixture
def written(finished: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((finished / "run" / "provenance.json").read_text())
    return found


def test_it_names_the_lab_the_command_the_files_and_the_machine(finished: Path, written: dict[str, Any]) -> None:
    assert written["format"] == FORMAT == 1
    assert written["electra_lab"] == electra_lab.__version__
    assert written["command"] == ["electra-lab", "run", "tiny.yaml"]
    config = (finished / "run" / "config.yaml").read_bytes()
    assert written["config_sha256"] == hashlib.sha256(config).hexdigest()
    plugin = (finished / "mine.py").read_bytes()
    digest = hashlib.sha256(plugin).hexdigest()
    assert written["plugins"] == [{"file": str(finished / "mine.py"), "sha256": digest, "package": None}]
    assert (finished / "run" / "plugins" / f"{digest[:8]}-mine.py").read_bytes() == plugin
    last = [r for r in RunDirectory(finished / "run").records() if r["split"] == "train"][-1]
    assert written["steps"] == last["step"] == 7
    assert written["flops"] == last["flops"] == 7 * written["flops_per_step"]
    environment = written["environment"]
    assert environment["python"] == platform.python_version()
    assert environment["threads"] == torch.get_num_threads()
    assert environment["processor"] == torch.backends.cpu.get_cpu_capability()
    assert (environment["device"], environment["precision"]) == ("cpu", "fp32")
    assert environment["packages"].keys() >= {"torch", "tokenizers", "numpy", "safetensors"}
    for package, found in environment["packages"].items():
        assert found == version(package)


def test_it_names_the_data_and_counts_it(finished: Path, written: dict[str, Any]) -> None:
    (store,) = (p for p in (finished / "store").iterdir() if (p / "manifest.json").is_file())
    manifest = json.loads((store / "manifest.json").read_text())
    assert written["data"]["store"] == store.name
    for split in SPLITS:
        lengths = [np.load(file) for file in store.glob(f"{split}-*.lengths.npy")]
        assert written["data"]["documents"][split] == sum(map(len, lengths))
        assert written["data"]["tokens"][split] == sum(map(np.sum, lengths))
    assert all(written["data"]["tokens"].values())
    assert written["data"]["overlap"] == manifest["overlap"]
    tokenizer = json.loads((store / "tokenizer.json").read_text())
    assert written["data"]["vocab_size"] == len(tokenizer["model"]["vocab"])


def test_parameters_are_those_of_the_checkpoint(finished: Path, written: dict[str, Any]) -> None:
    """A shared table is stored once, under the first network."""
    sizes = {name: tensor.numel() for name, tensor in tensors(finished / "run").items() if name.startswith("model.")}

    def of(part: str) -> int:
        return sum(size for name, size in sizes.items() if name.startswith(f"model.{part}"))

    shared = of("generator.embeddings.")
    networks = {"generator": of("generator"), "discriminator": of("discriminator") + shared}
    assert written["parameters"] == {**networks, "shared": shared, "total": of("")}


def test_metrics_are_declared_as_the_objective_declares_them(finished: Path, tmp_path: Path) -> None:
    assert dict(RunDirectory(finished / "run").provenance().metrics) == PRETRAINING
    (tmp_path / "judged.py").write_text(JUDGED)
    path = run(
        experiment(tmp_path, objective="{type: judged}\nimports: [judged.py]"), tmp_path / "run", "train.steps=4"
    )
    declared = RunDirectory(path).provenance().metrics
    assert list(declared) == ["rows_seen"]
    assert (declared["rows_seen"].unit, declared["rows_seen"].higher_is_better) == ("rows", False)
    tested = RunDirectory(path).records()[-1]
    assert tested["rows_seen"] > 0
    assert "discriminator_auc" not in tested


JUDGED = '''
from electra_lab.objectives.electra import Electra
from registry import Metric, objectives


class Rows:
    metrics = {"rows_seen": Metric("rows of the evaluation", "rows", "rows", higher_is_better=False)}
    number = 0

    def update(self, batch, losses): self.number += len(batch)
    def values(self): return {"rows_seen": self.number}
    def examples(self): return []


@objectives.register("judged")
class Judged(Electra):
    """Has a metric of its own."""

    def __init__(self, generator, discriminator, masking, sampler, vocabulary, /):
        super().__init__(generator, discriminator, masking, sampler, vocabulary)

    def accumulator(self, show): return Rows()
'''


def test_the_commit_is_that_of_the_running_code(written: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    def git(*arguments: str, cwd: Path = ROOT) -> str:
        return subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        assert written["git"] is None
    else:
        changed = bool(git("status", "--porcelain", "--", "electra_lab", "registry"))
        assert written["git"] == {"commit": head, "changed": changed}
    # Code that merely lies inside another repository has no commit.
    git("init", "-q", str(tmp_path), cwd=tmp_path)
    author = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    git(*author, "commit", "-q", "--allow-empty", "-m", "Theirs", cwd=tmp_path)
    for name in ("electra_lab", "registry"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.setattr(module, "CODE", (tmp_path / "electra_lab", tmp_path / "registry"))
    module._git.cache_clear()
    assert module._git() is None
    module._git.cache_clear()


ENVIRONMENT = Environment(
    python="3.11.7", packages={"torch": "2.10", "tokenizers": "0.22"}, device="cpu", processor="AVX2", threads=2,
    precision="fp32",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"threads": 1}, ["threads 2 -> 1"]),
        ({"python": "3.12.0", "precision": "bf16"}, ["python 3.11.7 -> 3.12.0", "precision fp32 -> bf16"]),
        ({"packages": {"torch": "2.11", "tokenizers": "0.22"}}, ["torch 2.10 -> 2.11"]),
        ({"packages": {"torch": "2.10", "tokenizers": "0.22", "numpy": "2"}}, ["numpy None -> 2"]),
        ({"packages": {"torch": "2.10", "tokenizers": None}}, ["tokenizers 0.22 -> None"]),
    ],
)
def test_differences_are_described_one_by_one(change: dict[str, Any], said: list[str]) -> None:
    now = ENVIRONMENT.model_copy(update=change)
    assert module.differences(ENVIRONMENT, now) == said


def copied(finished: Path, folder: Path, **changes: Any) -> RunDirectory:
    """Return a copy of the run with changed provenance."""
    directory = RunDirectory(Path(shutil.copytree(finished / "run", folder)))
    directory.write_json("provenance.json", directory.read_json("provenance.json") | changes)
    return directory


def test_a_resume_says_what_changed_and_is_silent_otherwise(finished: Path, written, tmp_path: Path, capsys) -> None:
    execute.resume(copied(finished, tmp_path / "same").path, "cpu")
    assert "bit-exact" not in capsys.readouterr().err
    packages = written["environment"]["packages"]
    environment = written["environment"] | {"threads": 99, "packages": packages | {"torch": "1.0"}}
    execute.resume(copied(finished, tmp_path / "other", environment=environment).path, "cpu")
    now = f"threads 99 -> {torch.get_num_threads()}, torch 1.0 -> {packages['torch']}"
    assert f"note: numbers are not bit-exact, because of {now}\n" in capsys.readouterr().err


def test_changed_plug_ins_are_refused(finished: Path, written: dict[str, Any], tmp_path: Path) -> None:
    other = [{**written["plugins"][0], "sha256": "0" * 64}]
    for number, plugins in enumerate((other, [], written["plugins"] * 2)):
        with pytest.raises(ConfigError, match="the plug-ins have changed since the run began"):
            execute.resume(copied(finished, tmp_path / str(number), plugins=plugins).path, "cpu")


def test_a_run_of_another_format_is_not_resumed_or_reopened(finished: Path, tmp_path: Path) -> None:
    directory = copied(finished, tmp_path / "run", format=FORMAT + 1)
    before = {p: p.read_bytes() for p in directory.path.rglob("*") if p.is_file() and p.name != ".lock"}
    sentence = rf"in format {FORMAT + 1}; this version reads format {FORMAT}\."
    for verb in (execute.resume, execute.reopen):
        with pytest.raises(CheckpointError, match=sentence):
            verb(directory.path, "cpu")
    assert {p: p.read_bytes() for p in directory.path.rglob("*") if p.is_file() and p.name != ".lock"} == before
