"""The pre-trained model that fine-tuning starts from: runs, exports, and random weights in their place."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble
from electra_lab.assembly.networks import OpenedModel, open_source
from electra_lab.config.load import load, load_finetuning
from electra_lab.export.export import export
from electra_lab.storage import checkpoint
from electra_lab.storage.files import sha256
from registry.errors import ConfigError, LabError
from tests.electra_lab.export.exports import inputs, states
from tests.electra_lab.jobs.finetuning.small import pretrained, write_finetuning
from tests.electra_lab.jobs.pretraining.tiny import experiment

DROPOUT = {"model": 0.1, "lab_model": 0.3}  # of the embeddings, 0.1 by default


def source(folder: Path, model: object, *overrides: str, seed: int | None = None) -> OpenedModel:
    loaded = load_finetuning(write_finetuning(folder, Path(str(model))), overrides)
    return open_source(loaded, seed)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrained(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def lab_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run around a backbone that transformers does not have, with another dropout than the default."""
    encoder, embedding = "{type: transformer, dim: 16, depth: 1, heads: 2}", "{dim: 16, max_length: 16, dropout: 0.3}"
    return pretrained(tmp_path_factory.mktemp("lab"), discriminator=encoder, embedding=embedding)


def test_a_run_may_remove_what_was_read(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuning and `init` note the checksum of the files they read, and read no file twice."""
    run = Path(shutil.copytree(model, tmp_path / "run"))
    newest = max((run / "checkpoints").glob("step-*"))
    checksum = sha256(newest / "state.safetensors")
    sound = checkpoint._sound

    def once(path: Path) -> Any:
        found = sound(path)
        path.rename(tmp_path / "removed")
        return found

    monkeypatch.setattr(checkpoint, "_sound", once)
    expected = {f"{newest.name}/state.safetensors": checksum}
    assert source(tmp_path, run).start.sha256 == expected
    (tmp_path / "removed").rename(newest)
    text = f"{{type: text_files, paths: [{model.parent / 'corpus.txt'}]}}"
    loaded = load(experiment(tmp_path / "next", init=f"{{discriminator: {run}}}", corpus=text))
    built = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))
    assert built.init["discriminator"].sha256 == expected


@pytest.mark.parametrize("kind", ["model", "lab_model"])
def test_an_export_has_the_states_of_its_run(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    run = request.getfixturevalue(kind)
    folder = export(run, tmp_path / "exported").path
    of_run = source(tmp_path, run)
    for path, parts in ((folder, ("discriminator", "generator")), (folder / "discriminator", ("discriminator",))):
        of_export = source(tmp_path, path)
        sums = [sha256(folder / part / "model.safetensors") for part in parts]
        assert list(of_export.start.sha256.values()) == sums
        given = inputs(of_run.vocabulary.size, 2, 9)
        ours, theirs = (states(opened.networks["discriminator"], given) for opened in (of_run, of_export))
        assert torch.equal(ours[given["attention_mask"].bool()], theirs[given["attention_mask"].bool()])
        assert of_export.length == of_run.length == of_export.longest == of_run.longest == 16
        assert of_export.tokenizer.get_vocab() == of_run.tokenizer.get_vocab()
        assert list(of_export.networks["discriminator"].heads) == ["replaced"]
        dropouts = [opened.networks["discriminator"].embeddings.dropout.p for opened in (of_run, of_export)]
        assert dropouts == [DROPOUT[kind]] * 2


@pytest.mark.parametrize("kind", ["run", "export"])
def test_random_weights_depend_on_the_seed_and_on_nothing_that_was_trained(tmp_path, model, kind) -> None:
    path = model if kind == "run" else export(model, tmp_path / "exported").path
    one, same, other = (source(tmp_path, path, seed=seed).networks["discriminator"] for seed in (1, 1, 2))
    trained = dict(source(tmp_path, path).networks["discriminator"].named_parameters())
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, dict(same.named_parameters())[name])
        if parameter.dim() > 1:
            assert not torch.equal(parameter, trained[name]), name
            assert not torch.equal(parameter, dict(other.named_parameters())[name]), name
        else:  # biases and gains as they are before training
            assert torch.equal(parameter, torch.full_like(parameter, float("norm" in name and "weight" in name))), name


def test_weights_that_cannot_be_drawn_again_name_the_run(tmp_path: Path, lab_model: Path) -> None:
    folder = export(lab_model, tmp_path / "exported").path
    with pytest.raises(ConfigError, match="Name the run that it was exported from"):
        source(tmp_path, folder, seed=0)
    drawn = source(tmp_path, lab_model, seed=0).networks["discriminator"]
    trained = dict(source(tmp_path, lab_model).networks["discriminator"].named_parameters())
    changed = [name for name, parameter in drawn.named_parameters() if not torch.equal(parameter, trained[name])]
    assert len(changed) == len(trained)


def test_a_network_that_the_model_lacks_is_named_with_those_it_has(tmp_path: Path, model: Path) -> None:
    folder = export(model, tmp_path / "exported").path
    with pytest.raises(ConfigError, match=r"network: .* has no generator. Write network: discriminator\."):
        source(tmp_path, folder / "discriminator", "network=generator")


def test_a_task_that_trains_nothing_may_name_its_network_itself(tmp_path: Path, model: Path) -> None:
    folder = export(model, tmp_path / "exported").path / "generator"
    sections = {
        "task": {"type": "minimal_pairs", "network": "generator"},
        "train": None,
        "evaluate": None,
        "checkpoint": None,
    }
    path = write_finetuning(tmp_path, folder, dataset={"type": "line_pairs", "folder": "texts"}, **sections)
    assert list(open_source(load_finetuning(path, [])).networks) == ["generator"]


def test_the_length_is_that_of_training_if_the_networks_can_read_it(tmp_path: Path, model: Path) -> None:
    opened = source(tmp_path, model)
    for trained, length in ((9, 9), (512, 16), (None, 16)):
        assert replace(opened, model=replace(opened.model, length=trained)).length == length


def test_what_is_no_model_is_refused_at_its_line(tmp_path: Path) -> None:
    for name in ("nothing/here", "texts"):
        with pytest.raises(LabError, match=rf"^{tmp_path / 'animals.yaml'}:\d+: model: "):
            source(tmp_path, name)
