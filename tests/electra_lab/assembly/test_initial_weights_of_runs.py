"""Weights that training starts from: run directories, and how a run that started so is resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electra_lab.assembly.experiment import check
from electra_lab.config.load import load
from electra_lab.export.export import export
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
from tests.electra_lab.jobs.pretraining.tiny import for_a_module, lose_checkpoints, run
from tests.helpers import line_of

pytestmark = pytest.mark.usefixtures("no_report")


STARTED = "{discriminator: run, generator: run}"


@pytest.mark.parametrize("tie", TIES)
def test_a_run_that_goes_on_from_another_begins_where_that_one_ended(tmp_path: Path, tie: str) -> None:
    sections = SAME_SIZES if tie in ("all", "{layers: 1}") else {}
    path = run(write(tmp_path, tie=tie, **sections), tmp_path / "run")
    ended = [record for record in RunDirectory(path).records() if record["split"] == "validation"][-1]
    for now in (tie, "none", "gradient_disentangled"):
        experiment = made(write(tmp_path, tie=now, init=STARTED, **sections))
        begins = validated(experiment)
        assert begins["loss"] > 0
        assert begins == pytest.approx({name: ended[name] for name in begins}, abs=1e-5), now
        assert [(start.new, start.unused, start.tokenizer) for start in experiment.init.values()] == [
            ([], [], True)
        ] * 2
    fresh = validated(made(write(tmp_path, tie=tie, **sections)))
    assert abs(fresh["loss"] - ended["loss"]) > 1e-3, "three steps changed something"


def test_what_two_networks_of_a_run_do_not_share_cannot_be_shared_now(beside: Path) -> None:
    said = refusal(write(beside, tie="embeddings", init=STARTED))
    assert said.startswith("the two models have different values of embeddings.tokens.weight, which both")
    made(write(beside, tie="embeddings", init="{discriminator: run}"))


def test_a_run_without_generator_starts_either_network(tmp_path: Path) -> None:
    mlm = {"objective": "{type: mlm}", "generator": "null", "sampler": "null"}
    path = run(write(tmp_path, **mlm), tmp_path / "run")
    file = path / "checkpoints" / "step-00000003" / "state.safetensors"
    saved = {n.removeprefix("model.discriminator."): t for n, t in load_file(file).items() if n.startswith("model.")}
    experiment = made(write(tmp_path, init=STARTED, **SAME_SIZES))
    for name, network in networks(experiment).items():
        for key, parameter in network.named_parameters():
            assert key.startswith("heads.replaced.") or torch.equal(parameter, saved[key]), f"{name} {key}"
    heads = {name: ({n.split(".")[1] for n in s.new}, {n.split(".")[1] for n in s.unused})
             for name, s in experiment.init.items()}  # fmt: skip
    assert heads == {"generator": (set(), set()), "discriminator": ({"replaced"}, {"tokens"})}


def test_a_head_that_only_the_other_network_of_a_run_has_is_new(tmp_path: Path) -> None:
    run(write(tmp_path, **SAME_SIZES), tmp_path / "run")
    mlm = {"objective": "{type: mlm}", "generator": "null", "sampler": "null"}
    (start,) = made(write(tmp_path, init="{discriminator: run}", **mlm)).init.values()
    assert {name.rsplit(".", 1)[0] for name in start.new} == {"heads.tokens", "heads.tokens.dense", "heads.tokens.norm"}
    assert {name.split(".")[1] for name in start.unused} == {"replaced"}


def test_any_backbone_goes_on_with_its_buffers(tmp_path: Path) -> None:
    section = {"discriminator": "{type: performer, dim: 16, depth: 1, heads: 2, dropout: 0.0}"}
    path = run(write(tmp_path, **section), tmp_path / "run")
    ended = [record for record in RunDirectory(path).records() if record["split"] == "validation"][-1]
    export(path, tmp_path / "out")
    for start in (STARTED, "{discriminator: out, generator: out}"):
        begins = validated(made(write(tmp_path, init=start, seed="7", **section), "seed=0"))
        assert begins == pytest.approx({name: ended[name] for name in begins}, abs=1e-5)


RUNS: dict[str, tuple[dict[str, str], str]] = {
    "depth": ({"discriminator": "{type: bert, dim: 16, depth: 2, heads: 2}"}, "generator.depth is 2 here and 1 there"),
    "heads": ({"discriminator": "{type: bert, dim: 16, depth: 1, heads: 4}"}, "generator.heads is 2 here and 1 there"),
    "options": ({"discriminator": "{type: bert, dim: 16, depth: 1, heads: 2, ff_mult: 2}"},
                "generator.ff_mult is 2.0 here and 4.0 there"),
    "type": ({"generator": "{type: transformer, dim: 8, depth: 1, heads: 1}"},
             "generator.type is transformer here and bert there"),
    "embeddings": ({"embedding": "{dim: 12, max_length: 16, tie: none}"}, "embedding.dim is 12 here and 8 there"),
    "positions": ({"embedding": "{dim: 8, max_length: 24, tie: none}"}, "embedding.max_length is 24 here and 16 there"),
}  # fmt: skip


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run."""
    folder = tmp_path_factory.mktemp("earlier")
    with for_a_module():
        run(write(folder, checkpoint="{every: 9}"), folder / "run")
    return folder


@pytest.fixture
def beside(earlier: Path, tmp_path: Path) -> Path:
    """The run in a folder of the test's own."""
    shutil.copytree(earlier / "run", tmp_path / "run")
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_another_network_is_refused_without_the_corpus(beside: Path, name: str) -> None:
    sections, reason = RUNS[name]
    said = refusal(write(beside, init=STARTED, **sections), key="generator")
    assert said.startswith(f"{beside / 'run'}: does not fit this network: {reason}. ")


def test_dropout_data_and_training_may_differ_from_the_run(beside: Path) -> None:
    (beside / "more.txt").write_text((beside / "run" / "source.yaml").read_text())
    section = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.2}"
    others = {"data": "{sequence_length: 12}", "masking": "{type: span}", "train": "{steps: 9, batch_size: 2}"}
    corpus = {"corpus": "{type: text_files, paths: [more.txt]}"}
    assert check(load(write(beside, init=STARTED, discriminator=section, **others, **corpus))) is None


def test_the_theta_of_rotary_positions_may_be_written_anew(tmp_path: Path) -> None:
    """As for longer rows. One that is not written would be changed by mistake."""
    rotary = "{type: transformer, dim: 16, depth: 1, heads: 2, rotary: true"
    run(write(tmp_path, discriminator=f"{rotary}, theta: 2.0e4}}", **SAME_SIZES), tmp_path / "run")
    said = refusal(write(tmp_path, init=STARTED, discriminator=f"{rotary}}}", **SAME_SIZES), key="generator")
    assert "generator.theta is 10000.0 here and 20000.0 there" in said
    begun = made(write(tmp_path, init=STARTED, discriminator=f"{rotary}, theta: 5.0e5}}", **SAME_SIZES))
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-00000003" / "state.safetensors")
    for name, network in networks(begun).items():
        weights = network.state_dict(prefix=f"model.{name}.")
        frequencies = weights.pop(f"model.{name}.backbone.encoder.rotary_pos_emb.inv_freq")
        torch.testing.assert_close(frequencies, 5e5 ** -(torch.arange(0, 8, 2) / 8))
        assert all(torch.equal(tensor, saved[key]) for key, tensor in weights.items())


def test_the_theta_of_an_encoder_of_transformers_may_be_written_anew(tmp_path: Path) -> None:
    """One that is not written would be changed by mistake."""
    section = "{type: hugging_face, model_type: llama, dim: 16, depth: 1, heads: 2"

    def theta(base: float) -> str:
        return f"{section}, config: {{rope_parameters: {{rope_type: default, rope_theta: {base}}}}}}}"

    run(write(tmp_path, discriminator=theta(2e4), **SAME_SIZES), tmp_path / "run")
    said = refusal(write(tmp_path, init=STARTED, discriminator=f"{section}}}", **SAME_SIZES), key="generator")
    assert "generator.config.rope_parameters is" in said
    begun = made(write(tmp_path, init=STARTED, discriminator=theta(5e5), **SAME_SIZES))
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-00000003" / "state.safetensors")
    for name, network in networks(begun).items():
        frequencies = network.get_buffer("backbone.model.rotary_emb.inv_freq")
        torch.testing.assert_close(frequencies, 5e5 ** -(torch.arange(0, 8, 2) / 8))
        weights = network.state_dict(prefix=f"model.{name}.")
        assert all(torch.equal(tensor, saved[key]) for key, tensor in weights.items())


def test_rows_may_become_longer_where_no_table_of_positions_ends(tmp_path: Path) -> None:
    """A second phase on longer rows starts from the weights of the first."""
    section = {"discriminator": "{type: modernbert, dim: 16, depth: 1, heads: 2, ff_mult: 2, dropout: 0.0}"}
    run(write(tmp_path, **section), tmp_path / "run")
    longer = {"embedding": "{dim: 8, max_length: 40, tie: none}", "data": "{sequence_length: 40, held_out: 0.3}"}
    begun = networks(made(write(tmp_path, init=STARTED, **section, **longer)))
    saved = load_file(max(tmp_path.glob("run/checkpoints/step-*/state.safetensors")))
    for name, network in begun.items():
        assert all(
            torch.equal(t, saved[k]) for k, t in network.state_dict(prefix=f"model.{name}.").items() if k in saved
        )


def test_a_run_with_other_tokens_is_refused_once_they_are_known(beside: Path) -> None:
    file = write(beside, init=STARTED)
    text = (beside / "corpus.txt").read_text()
    (beside / "corpus.txt").write_text(text.replace("cat", "walrus"))
    assert check(load(file)) is None
    with pytest.raises(ConfigError) as refused:
        execute.run(file, [], beside / "next", "cpu")
    said = str(refused.value)
    place = f"{file}:{line_of('init', file.read_text())}: init.generator"
    assert said.startswith(f"{place}: {beside / 'run'}: has other tokens: ")
    assert said.endswith(f" there. Write tokenizer: {{type: pretrained, path: {beside / 'run'}}}.")
    assert not (beside / "next").exists()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: shutil.rmtree(run / "checkpoints"), "{run} is not a run directory with a checkpoint."),
        (lambda run: (run / "checkpoints/step-00000003/state.safetensors").write_bytes(b""), "No other is sound"),
        (lambda run: (run / "tokenizer.json").unlink(), "its tokenizer cannot be read"),
        (lambda run: (run / "provenance.json").write_text("{}"), "provenance.json: "),
        (lambda run: changed_provenance(run, format=1), "in format 1; this version"),
    ],
)
def test_a_run_that_is_not_all_there_stops_a_run(beside: Path, damage: Callable[[Path], Any], reason: str) -> None:
    damage(beside / "run")
    said = refusal(write(beside, init=STARTED), DataError, "generator")
    assert reason.format(run=beside / "run") in said


def changed_provenance(run: Path, **values: Any) -> None:
    directory = RunDirectory(run)
    directory.write_json("provenance.json", directory.read_json("provenance.json") | values)


@pytest.mark.parametrize("section", ["discriminator:", "embedding:"])
def test_a_run_whose_config_is_not_complete_is_refused(beside: Path, section: str) -> None:
    config = beside / "run" / "config.yaml"
    config.write_text(config.read_text().replace(f"\n{section}", "\nother:"))
    assert refusal(write(beside, init="{discriminator: run}")) == f"{config}: is not a complete experiment."


def test_the_newest_checkpoint_is_used_and_recorded(tmp_path: Path) -> None:
    path = run(write(tmp_path), tmp_path / "run")
    (start,) = made(write(tmp_path, init="{discriminator: run}")).init.values()
    assert list(start.sha256) == ["step-00000003/state.safetensors"]
    (path / "checkpoints" / "step-00000003" / "state.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"step-00000003: .* Sound are those of the steps 2;"):
        made(write(tmp_path, init="{discriminator: run}"))


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
