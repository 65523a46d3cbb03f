"""Weights of earlier runs: the right network of the right run. See also objectives/test_frozen_generator."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch

from electra_lab.assembly.experiment import check
from electra_lab.config.load import load
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import ConfigError, DataError
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run, tensors

UNTIED = {"embedding": "{dim: 8, max_length: 16, tie: none}"}
SHORT = {"train": "{steps: 3, batch_size: 2, precision: fp32}", "evaluate": "{examples: 0}", **UNTIED}
SCALED = "{type: bert, dim: 8, depth: 1, heads: 1}"
KINDS: dict[str, dict[str, str]] = {
    "electra": {},
    "mlm": {"objective": "{type: mlm}", "generator": "null", "sampler": "null", "discriminator": SCALED},
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    with for_a_module():
        for kind, sections in KINDS.items():
            run(experiment(folder, **SHORT, **sections), folder / kind)
    return folder


@pytest.fixture
def folder(no_report: None, shared: Path, tmp_path: Path) -> Path:
    """The earlier runs in a folder for an experiment with the same data."""
    return Path(shutil.copytree(shared, tmp_path / "folder"))


def frozen(shared: Path, folder: Path, kind: str = "electra", **sections: str) -> Path:
    given = {
        "corpus": f"{{type: text_files, paths: [{shared / 'corpus.txt'}]}}", "generator": SCALED,
        "objective": f"{{type: frozen_generator, run: {folder / kind}}}",
        "data": f"{{sequence_length: 16, held_out: 0.3, store: {shared / 'store'}}}",
    }  # fmt: skip
    return experiment(folder, **given | SHORT | sections)


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_is_that_of_the_earlier_run(shared: Path, folder: Path, kind: str) -> None:
    """Or its model, if it has no generator; provenance names the checkpoint and its checksum."""
    path = run(frozen(shared, folder, kind), folder / "run")
    before, after = tensors(folder / kind), tensors(path)
    network = "generator" if kind == "electra" else "discriminator"
    names = [name for name in after if name.startswith("model.generator.")]
    assert names
    for name in names:
        assert torch.equal(after[name], before[name.replace("generator", network)]), name
    content = (folder / kind / "checkpoints" / "step-00000003" / "state.safetensors").read_bytes()
    start = RunDirectory(path).provenance().init["generator"]
    assert (start.source, [*start.sha256.values()]) == (str(folder / kind), [hashlib.sha256(content).hexdigest()])


def test_sections_that_must_agree_are_compared_and_no_others(shared: Path, folder: Path) -> None:
    others = ("seed=7", "train.steps=9", "data.sequence_length=12", "embedding.dropout=0.0", "sampler.temperature=2.0")
    assert check(load(frozen(shared, folder), list(others))) is None
    for override in ("embedding.dim=12", "embedding.max_length=24", "generator.depth=2"):
        with pytest.raises(ConfigError, match=rf"objective\.run: {folder / 'electra'}: "):
            check(load(frozen(shared, folder), [override]))
    data = ("data.held_out=0.25", "data.overlap=0.2", "data.split=by_order", "data.tokenizer_characters=5000.0")
    for override in ("tokenizer.vocab_size=150", *data):
        key, value = override.split("=")
        with pytest.raises(
            ConfigError, match=rf"--set \S+: {key}: is {value}, but the run .*{folder / 'electra'}, has "
        ):
            check(load(frozen(shared, folder), [override]))


def test_the_texts_are_compared_and_not_their_paths(shared: Path, folder: Path) -> None:
    text = (shared / "corpus.txt").read_text()
    copy, data = folder / "copy.txt", f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}"
    elsewhere = frozen(shared, folder, corpus=f"{{type: text_files, paths: [{copy}]}}", data=data)
    copy.write_text(text)
    assert run(elsewhere, folder / "run").is_dir()
    copy.write_text(text.replace("mat", "rug"))  # its tokenizer has other tokens; the one of the run is no cure
    with pytest.raises(
        ConfigError, match=r"objective\.run: .* has other tokens: .* sections corpus and tokenizer"
    ) as said:
        run(elsewhere, folder / "other")
    assert "pretrained" not in str(said.value)
    copy.write_text("\n\n".join(reversed(text.split("\n\n"))))  # the same tokens
    with pytest.raises(DataError, match=r"objective\.run: .* was trained on other data"):
        run(elsewhere, folder / "other")


def test_a_run_whose_config_was_edited_is_named(shared: Path, folder: Path) -> None:
    config = folder / "electra" / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("tokenizer:", "tokeniser:"))
    with pytest.raises(ConfigError, match=rf"objective\.run: {config}: .*tokenizer.type wordpiece -> unset"):
        check(load(frozen(shared, folder)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 9}, r"electra: was written by electra_lab \S+ in format 9; this version reads"),
        ({"steps": "many"}, r"provenance\.json: is damaged: steps"),
        (None, r"electra: is neither .* nor a run directory"),
    ],
)
def test_a_run_that_cannot_be_understood_is_refused(shared, folder, change, sentence) -> None:
    earlier = RunDirectory(folder / "electra")
    if change is None:
        (earlier.path / "provenance.json").unlink()
    else:
        earlier.write_json("provenance.json", earlier.read_json("provenance.json") | change)
    with pytest.raises(DataError, match=rf"objective\.run: .*{sentence}"):
        run(frozen(shared, folder), folder / "run")
