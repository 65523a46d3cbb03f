"""A run directory is a model of its own: corpus, store and plug-ins may be gone, and it may have moved."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra_lab.jobs.pretraining import execute
from electra_lab.pretrained import opened as assembly_opened
from electra_lab.pretrained.opened import open_run
from electra_lab.storage.checkpoint import checkpoints
from electra_lab.storage.files import seal
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run, tensors
from tests.helpers import python

CPU = torch.device("cpu")
PLUGIN = '''\
from electra_lab.backbones.bert import Bert
from registry import backbones


@backbones.register("mine")
class Mine(Bert):
    """An encoder of one's own."""
'''


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run with a plug-in, alone in another folder, and its model before it was moved."""
    there, here = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("here")
    (there / "mine.py").write_text(PLUGIN)
    mine = "{type: mine, dim: 16, depth: 1, heads: 2}"
    with for_a_module():
        file = experiment(there, imports="[mine.py]", discriminator=mine, generator="{type: unigram}")
        made = run(file, there / "run")
        _, before = execute.reopen(made, "cpu")
    shutil.copytree(made, here / "run")
    shutil.rmtree(there)
    return here / "run", before


def test_it_opens_without_anything_else(moved: Any) -> None:
    path, before = moved
    with for_a_module():
        opened = open_run(path, CPU)
        assert opened.loaded.plugins[0].file.parent == path / "plugins"
    assert opened.step == 12
    assert not opened.objective.training
    for name, tensor in before.run.learner.objective.state_dict().items():
        assert torch.equal(opened.objective.state_dict()[name], tensor), name
    assert opened.tokenizer.get_vocab() == before.store.tokenizer.get_vocab()
    assert torch.equal(opened.vocabulary.counts, before.vocabulary.counts)
    assert torch.equal(opened.networks["generator"].scores, before.run.learner.objective.generator.scores)
    assert opened.networks["discriminator"] is opened.objective.discriminator


def test_it_opens_in_a_new_process_in_another_folder(moved: Any, tmp_path: Path) -> None:
    code = "import sys, torch, pathlib; from electra_lab.pretrained.opened import open_run as o; "
    code += "print(o(pathlib.Path(sys.argv[1]), torch.device('cpu')).step)"
    done = python("-c", code, str(moved[0]), cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("12\n", 0), done.stderr


def test_a_plug_in_that_is_loaded_already_is_not_defined_twice(moved: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(moved[0], other)
    with for_a_module():
        for path in (moved[0], other, moved[0]):
            opened = open_run(path, CPU)
            assert opened.loaded.plugins[0].file.parent == moved[0] / "plugins"
            assert type(opened.networks["discriminator"].backbone).__name__ == "Mine"


def test_any_kept_checkpoint_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "write_report", lambda directory: directory.path)
    path = run(experiment(tmp_path), tmp_path / "run")
    assert [each.name for each in checkpoints(path / "checkpoints")] == ["step-00000008", "step-00000012"]
    for step in (8, 12):
        opened = open_run(path, CPU, step)
        assert opened.step == step
        saved = tensors(path, step)
        for name, value in opened.objective.named_parameters():
            assert torch.equal(value, saved[f"model.{name}"])
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of step 4\. Kept: 8, 12\.$"):
        open_run(path, CPU, 4)
    (path / "checkpoints" / "step-00000012" / "state.safetensors").write_bytes(b"")
    assert open_run(path, CPU, 8).step == 8
    for step in (None, 12):  # an older one, without a word, would be another model
        with pytest.raises(CheckpointError, match=r"step-00000012: .* is damaged.*Sound are those of the steps 8;"):
            open_run(path, CPU, step)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = run(experiment(tmp_path), tmp_path / "run")
    newest = checkpoints(path / "checkpoints")[-1]
    saved = load_file(newest / "state.safetensors")
    name = "discriminator.heads.replaced.out.weight"
    saved[f"model.{name}"].view(-1)[3] = float("inf")
    save_file(saved, newest / "state.safetensors")
    seal(newest)
    with pytest.raises(CheckpointError, match=rf"{newest.name}/state\.safetensors: .* in {name} \(and 0 more"):
        open_run(path, CPU)


def test_sizes_are_compared_with_the_checkpoint_before_memory_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(experiment(tmp_path), tmp_path / "run")
    config = (path / "config.yaml").read_text()
    assert "  dim: 16\n" in config
    (path / "config.yaml").write_text(config.replace("  dim: 16\n", "  dim: 32768\n"))
    monkeypatch.setattr(assembly_opened, "build", None)
    with pytest.raises(CheckpointError, match=r"belongs to other networks; \S+ \(and \d+ more\) do not fit"):
        open_run(path, CPU)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run directory"):
        open_run(tmp_path, CPU)
