"""Initial weights from run directories, and resuming a run that started from them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.experiment import check
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import ConfigError, DataError
from tests.electra_lab.assembly.initial_weights import (
    BOTH,
    SAME_SIZES,
    TABLE,
    TIES,
    made,
    networks,
    refusal,
    resaved,
    validated,
    write,
)
from tests.electra_lab.jobs.pretraining.tiny import for_a_module, lose_checkpoints, run, tensors
from tests.helpers import line_of

pytestmark = pytest.mark.usefixtures("no_report")


STARTED = "{discriminator: run, generator: run}"


@pytest.mark.parametrize("tie", TIES)
def test_a_run_that_goes_on_from_another_begins_where_that_one_ended(tmp_path: Path, tie: str) -> None:
    sections = SAME_SIZES if tie in ("all", "{layers: 1}") else {}
    path = run(write(tmp_path, tie=tie, **sections), tmp_path / "run")
    ended = [record for record in RunDirectory(path).records() if record["split"] == "validation"][-1]
    for now in dict.fromkeys((tie, "none", "gradient_disentangled")):
        experiment = made(write(tmp_path, tie=now, init=STARTED, **sections))
        begins = validated(experiment)
        assert begins["loss"] > 0
        assert begins == pytest.approx({name: ended[name] for name in begins}, abs=1e-5), now
        for start in experiment.init.values():
            assert (start.new, start.unused, start.tokenizer) == ([], [], True)
    fresh = validated(made(write(tmp_path, tie=tie, **sections)))
    assert abs(fresh["loss"] - ended["loss"]) > 1e-3, "three steps must change the loss"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    with for_a_module():
        run(write(folder, checkpoint="{every: 9}"), folder / "run")
    return folder


@pytest.fixture
def beside(earlier: Path, tmp_path: Path) -> Path:
    shutil.copytree(earlier / "run", tmp_path / "run")
    return tmp_path


MLM = {"objective": "{type: mlm}", "generator": "null", "sampler": "null"}


def test_a_run_without_generator_starts_either_network(tmp_path: Path) -> None:
    saved = tensors(run(write(tmp_path, **MLM), tmp_path / "run"))
    experiment = made(write(tmp_path, init=STARTED, **SAME_SIZES))
    for name, network in networks(experiment).items():
        for key, parameter in network.named_parameters():
            new = key.startswith("heads.replaced.")
            assert new or torch.equal(parameter, saved[f"model.discriminator.{key}"]), f"{name} {key}"
    assert heads(experiment) == {"generator": (set(), set()), "discriminator": ({"replaced"}, {"tokens"})}


def heads(experiment: Any) -> dict[str, tuple[set[str], set[str]]]:
    """Return the heads of each network that are new, and those that were not used."""
    found = {}
    for name, start in experiment.init.items():
        new, unused = ({tensor.split(".")[1] for tensor in names} for names in (start.new, start.unused))
        found[name] = (new, unused)
    return found


def test_a_head_that_only_the_other_network_of_a_run_has_is_new(beside: Path) -> None:
    found = heads(made(write(beside, init="{discriminator: run}", **MLM)))
    assert found == {"discriminator": ({"tokens"}, {"replaced"})}


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"discriminator": "{type: bert, dim: 16, depth: 1, heads: 2, ff_mult: 2}"},
         "generator.ff_mult is 2.0 here and 4.0 there"),
        ({"embedding": "{dim: 8, max_length: 24, tie: none}"}, "embedding.max_length is 24 here and 16 there"),
    ],
)  # fmt: skip
def test_a_run_with_another_network_is_refused_without_the_corpus(beside: Path, sections, reason) -> None:
    said = refusal(write(beside, init=STARTED, **sections), key="generator")
    assert said.startswith(f"{beside / 'run'}: does not fit this network: {reason}. ")


def test_dropout_data_and_training_may_differ_from_the_run(beside: Path) -> None:
    others = {
        "data": "{sequence_length: 12}", "masking": "{type: span}", "train": "{steps: 9, batch_size: 2}",
        "discriminator": "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.2}",
        "corpus": "{type: text_files, paths: [run/source.yaml]}",
    }  # fmt: skip
    assert check(load(write(beside, init=STARTED, **others))) is None


LLAMA = "{type: hugging_face, model_type: llama, dim: 16, depth: 1, heads: 2"


@pytest.mark.parametrize(
    ("network", "theta", "key", "buffer"),
    [
        ("{type: transformer, dim: 16, depth: 1, heads: 2, rotary: true", "theta: %s", "theta is 10000.0 here and 2000",
         "backbone.encoder.rotary_pos_emb.inv_freq"),
        (LLAMA, "config: {rope_parameters: {rope_type: default, rope_theta: %s}}", "config.rope_parameters is ",
         "backbone.model.rotary_emb.inv_freq"),
    ],
    ids=["lab", "transformers"],
)  # fmt: skip
def test_the_theta_of_rotary_positions_may_be_changed(tmp_path, network, theta, key, buffer) -> None:
    """For example for longer rows. If it is not written, it must not change by mistake."""
    run(write(tmp_path, discriminator=f"{network}, {theta % '2.0e+4'}}}", **SAME_SIZES), tmp_path / "run")
    said = refusal(write(tmp_path, init=STARTED, discriminator=f"{network}}}", **SAME_SIZES), key="generator")
    assert f"generator.{key}" in said
    begun = made(write(tmp_path, init=STARTED, discriminator=f"{network}, {theta % '5.0e+5'}}}", **SAME_SIZES))
    for found in networks(begun).values():
        torch.testing.assert_close(found.get_buffer(buffer), 5e5 ** -(torch.arange(0, 8, 2) / 8))
    assert_weights_of(tmp_path / "run", begun, but=buffer)


def assert_weights_of(path: Path, experiment: Any, but: str = "") -> None:
    saved = tensors(path)
    for name, network in networks(experiment).items():
        weights = network.state_dict()
        weights.pop(but, None)
        for key, tensor in weights.items():
            assert torch.equal(tensor, saved[f"model.{name}.{key}"]), key


def test_rows_may_become_longer_where_no_table_of_positions_ends(tmp_path: Path) -> None:
    """A second phase on longer rows starts from the weights of the first."""
    section = {"discriminator": "{type: modernbert, dim: 16, depth: 1, heads: 2, ff_mult: 2, dropout: 0.0}"}
    run(write(tmp_path, **section), tmp_path / "run")
    longer = {"embedding": "{dim: 8, max_length: 40, tie: none}", "data": "{sequence_length: 40, held_out: 0.3}"}
    assert_weights_of(tmp_path / "run", made(write(tmp_path, init=STARTED, **section, **longer)))


def test_a_run_with_other_tokens_is_refused_once_they_are_known(beside: Path) -> None:
    file = write(beside, init=STARTED)
    (beside / "corpus.txt").write_text((beside / "corpus.txt").read_text().replace("cat", "walrus"))
    assert check(load(file)) is None
    place = f"{file}:{line_of('init', file.read_text())}: init.generator: {beside / 'run'}"
    cure = f"Write tokenizer: {{type: pretrained, path: {beside / 'run'}}}."
    reason = r"has other tokens: '##al' is token \d+ here and absent there\."
    with pytest.raises(ConfigError, match=f"^{place}: {reason} {cure}$"):
        execute.run(file, [], beside / "next", "cpu")
    assert not (beside / "next").exists()


def of_another_format(run: Path) -> None:
    directory = RunDirectory(run)
    directory.write_json("provenance.json", directory.read_json("provenance.json") | {"format": 9})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: shutil.rmtree(run / "checkpoints"), "{run} is not a run directory with a checkpoint."),
        (lambda run: (run / "checkpoints/step-00000003/state.safetensors").write_bytes(b""), "No other is sound"),
        (lambda run: (run / "tokenizer.json").unlink(), "its tokenizer cannot be read"),
        (of_another_format, "in format 9; this version"),
    ],
)
def test_a_run_that_is_not_all_there_stops_a_run(beside: Path, damage: Callable[[Path], Any], reason: str) -> None:
    damage(beside / "run")
    said = refusal(write(beside, init=STARTED), DataError, "generator")
    assert reason.format(run=beside / "run") in said


@pytest.mark.parametrize("section", ["discriminator:", "embedding:"])
def test_a_run_whose_config_was_edited_is_refused(beside: Path, section: str) -> None:
    config = beside / "run" / "config.yaml"
    config.write_text(config.read_text().replace(f"\n{section}", "\nother:"))
    assert refusal(write(beside, init="{discriminator: run}")).startswith(f"{config}: has changed since the run began")


def test_a_network_that_the_objective_takes_from_a_run_is_not_started_twice(earlier: Path, beside: Path) -> None:
    sections = {
        "objective": "{type: frozen_generator, run: run}",
        "corpus": f"{{type: text_files, paths: [{earlier / 'corpus.txt'}]}}",
    }
    assert "weights from objective.run. Remove" in refusal(write(beside, init=STARTED, **sections), key="generator")


# Resuming


def test_a_run_needs_its_model_until_it_has_a_checkpoint_and_the_same_weights(tmp_path, pair) -> None:
    path = run(write(tmp_path, init=BOTH), tmp_path / "run")
    newest = path / "checkpoints" / "step-00000003"
    weights = (newest / "state.safetensors").read_bytes()
    lose_checkpoints(path)
    execute.resume(path, "cpu")
    assert (newest / "state.safetensors").read_bytes() == weights
    shutil.rmtree(newest)
    (tmp_path / "pair").rename(tmp_path / "moved")
    execute.resume(path, "cpu")
    assert (newest / "state.safetensors").read_bytes() == weights
    (tmp_path / "moved").rename(tmp_path / "pair")
    lose_checkpoints(path)
    resaved(tmp_path / "pair" / "discriminator", lambda given: given[TABLE].add_(1) is None)
    with pytest.raises(DataError, match=rf"^{path}: the models that it starts from have changed since the run began"):
        execute.resume(path, "cpu")
