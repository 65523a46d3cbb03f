"""A run directory is a self-contained model: corpus, store and plug-ins may be missing, and it may have moved."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra_lab.assembly.networks import build_networks
from electra_lab.export.export import export
from electra_lab.jobs.pretraining import execute
from electra_lab.pretrained.opening import open_model, read_run
from electra_lab.storage.checkpoint import checkpoints
from electra_lab.storage.files import seal
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run, tensors
from tests.helpers import rewrite_config
from tests.scorecard.lab import Lab

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
    """A finished run with a plug-in, moved without the files it was made from, and its model from before the move."""
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
        opened = build_networks(open_model(path), CPU)
        assert opened.model.plugins[0].file.parent == path / "plugins"
    network = opened.networks["discriminator"]
    assert not network.training
    for name, tensor in before.run.learner.objective.discriminator.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
    assert opened.model.run.step == 12
    assert opened.tokenizer.get_vocab() == before.store.tokenizer.get_vocab()
    assert torch.equal(opened.vocabulary.counts, before.vocabulary.counts)
    assert torch.equal(opened.fixed.scores, before.run.learner.objective.generator.scores)


def test_it_opens_in_a_new_process_in_another_folder(moved: Any, forks: Lab, tmp_path: Path) -> None:
    done = forks("detect", moved[0], "the cat", "--json", cwd=tmp_path)
    assert (json.loads(done.out)["tokens"], done.code) == (["the", "cat"], 0), done


def test_a_plug_in_that_is_loaded_already_is_not_defined_twice(moved: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(moved[0], other)
    with for_a_module():
        for path in (moved[0], other, moved[0]):
            opened = build_networks(open_model(path), CPU)
            assert opened.model.plugins[0].file.parent == moved[0] / "plugins"
            assert type(opened.networks["discriminator"].backbone).__name__ == "Mine"


@pytest.fixture
def path(run_directory: Path, tmp_path: Path) -> Path:
    """A run that a test may damage."""
    return shutil.copytree(run_directory, tmp_path / "run")


def test_any_kept_checkpoint_can_be_opened(path: Path) -> None:
    assert [checkpoint.name for checkpoint in checkpoints(path / "checkpoints")] == ["step-00000008", "step-00000012"]
    for step in (8, 12):
        saved = tensors(path, step)
        for part, network in build_networks(open_model(path, step=step), CPU).networks.items():
            for name, value in network.named_parameters():
                shared = f"model.generator.{name}"  # where tied embeddings are
                assert torch.equal(value, saved.get(f"model.{part}.{name}", saved.get(shared)))
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of step 4\. Kept: 8, 12\.$"):
        read_run(path, 4)
    (path / "checkpoints" / "step-00000012" / "state.safetensors").write_bytes(b"")
    assert read_run(path, 8).parts
    for step in (None, 12):  # silently opening an older one would be another model
        with pytest.raises(CheckpointError, match=r"step-00000012: .* is damaged.*Sound are those of the steps 8;"):
            read_run(path, step)


def test_tensors_that_cannot_be_those_of_the_run_are_refused(path: Path, tmp_path: Path) -> None:
    newest = checkpoints(path / "checkpoints")[-1]
    saved = load_file(newest / "state.safetensors")
    saved["model.discriminator.heads.replaced.out.weight"].view(-1)[3] = float("inf")
    save_file(saved, newest / "state.safetensors")
    seal(newest)
    reason = r"heads\.replaced\.out\.weight has NaN or infinite"
    with pytest.raises(CheckpointError, match=reason):
        build_networks(open_model(path), CPU)
    with pytest.raises(CheckpointError, match=r"discriminator_predictions|heads\.replaced"):
        export(path, tmp_path / "out")
    save_file({name.replace("discriminator", "critic"): t for name, t in saved.items()}, newest / "state.safetensors")
    seal(newest)
    with pytest.raises(CheckpointError, match="has no discriminator"):
        read_run(path)


def test_sizes_are_compared_with_the_checkpoint_before_memory_is_asked_for(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = (path / "config.yaml").read_text()
    assert "  dim: 16\n" in config
    rewrite_config(path, config.replace("  dim: 16\n", "  dim: 32768\n"))
    monkeypatch.setattr(torch.nn.Module, "to_empty", None)
    for act in (lambda: build_networks(open_model(path), CPU), lambda: export(path, tmp_path / "out")):
        with pytest.raises(CheckpointError, match=r"step-00000012: does not fit the config\.yaml of its run: "):
            act()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run directory"):
        read_run(tmp_path)
