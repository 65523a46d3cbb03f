"""Folders that are not as they should be: a sentence, never random weights, a hang or a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import ElectraConfig, ElectraForPreTraining, PreTrainedTokenizerFast

import electra_lab
from electra_lab.assembly import networks
from electra_lab.export.export import export
from electra_lab.interop.hugging_face import models
from electra_lab.model.embeddings import Embeddings
from electra_lab.pretrained.hugging_face import MARK
from electra_lab.tokenizers.wordpiece import wordpiece
from registry.errors import ConfigError, DataError, LabError

DOCUMENTS = [f"the cat number {n} sat on the mat and saw {n + 1} dogs" for n in range(40)]
TEXT = "the cat sat on the mat"
PREFIX = "electra_lab.network."


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=wordpiece(DOCUMENTS, vocab_size=150))


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A discriminator around another backbone than `bert`."""
    return ours(tmp_path / "model", tokenizer, {"type": "transformer"})


def ours(folder: Path, tokenizer: PreTrainedTokenizerFast, backbone: dict[str, Any], length: int = 32) -> Path:
    torch.manual_seed(0)
    config = models.ElectraLabConfig(
        vocab_size=len(tokenizer),
        backbone={"dim": 16, "depth": 1, "heads": 2} | backbone,
        embedding={"dim": 8, "max_length": length, "dropout": 0.0},
    )
    models.ElectraLabForPreTraining(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def electra(folder: Path, tokenizer: PreTrainedTokenizerFast, layers: int = 2) -> Path:
    torch.manual_seed(0)
    config = ElectraConfig(vocab_size=len(tokenizer), embedding_size=8, hidden_size=16, num_hidden_layers=layers,
                           num_attention_heads=2, intermediate_size=32, max_position_embeddings=16)  # fmt: skip
    ElectraForPreTraining(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    given = load_file(folder / "model.safetensors")
    edit(given)
    save_file(given, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(source: object, kind: type[LabError] = DataError) -> str:
    with pytest.raises(kind) as refused:
        electra_lab.load(str(source), device="cpu")
    assert "\n" not in str(refused.value)
    return str(refused.value)


OUT = f"{PREFIX}heads.replaced.out.weight"
EDITS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    **{
        f"{PREFIX}{name} is missing.": lambda given, name=name: given.pop(PREFIX + name)  # type: ignore[misc]
        for name in ("heads.replaced.out.weight", "backbone.encoder.final_norm.gamma", "project.bias")
    },
    f"{PREFIX}heads.replaced is missing.": lambda given: [given.pop(name) for name in list(given) if ".heads." in name],
    f"{OUT} has the shape [1, 9], not [1, 16].": lambda given: given.update({OUT: torch.zeros(1, 9)}),
    f"{PREFIX}more is left over.": lambda given: given.update({f"{PREFIX}more": torch.zeros(1)}),
}


@pytest.mark.parametrize("reason", EDITS)
def test_a_tensor_that_does_not_fit_is_named(folder: Path, reason: str) -> None:
    """The network would compute with whatever was in memory before."""
    tensors(folder, EDITS[reason])
    assert refusal(folder) == f"{folder}: does not fit: {reason} Export it again."


def test_a_second_head_in_the_file_is_used(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """As in the run that it was exported from; transformers gives one class one head."""
    with pytest.raises(ConfigError, match="no head that predicts tokens"):
        electra_lab.load(folder, device="cpu").fill("the [MASK]")
    config = models.ElectraLabConfig.from_pretrained(folder)
    both = models.make_network(config, ("replaced", "tokens")).state_dict()
    save_file({f"{PREFIX}{n}": t for n, t in both.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    pair = electra_lab.load(folder, device="cpu")
    assert pair.detects
    assert pair.fill("the [MASK]").candidates


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"backbone": None}, "config.json: backbone is missing or damaged. Export it again."),
        ({"backbone": {"type": "bert", "dim": 16, "depth": 1, "heads": 2, "width": 1}}, "backbone.width: unknown par"),
        ({"vocab_size": 10**13}, "Export it again."),
    ],
)
def test_a_config_that_cannot_be_is_a_sentence_that_says_why(folder: Path, values: Any, said: str) -> None:
    change(folder, **values)
    assert said in refusal(folder)


@pytest.mark.parametrize("pad", [1000, -1, "0", 3])
def test_rows_are_padded_with_the_pad_token_whatever_the_config_says(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, pad: object
) -> None:
    change(electra(tmp_path / "model", tokenizer), pad_token_id=pad)
    pair = electra_lab.load(tmp_path / "model", device="cpu")
    assert pair.discriminator is not None
    assert pair.discriminator.pad_id == 0
    assert pair.detect([TEXT, "the"])[1].probabilities == pytest.approx(pair.detect("the").probabilities, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64])
def test_other_than_floating_point_numbers_are_not_converted(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype
) -> None:
    electra(tmp_path / "model", tokenizer)
    tensors(tmp_path / "model", lambda given: given.update({n: t.to(dtype) for n, t in given.items()}))
    assert f"word_embeddings.weight holds {dtype}, not floating-point numbers" in refusal(tmp_path / "model")


# Numbers that are not finite, and sizes that the tensors do not have


@pytest.mark.parametrize(("dtype", "bad"), [(torch.float32, "nan"), (torch.float16, "inf"), (torch.bfloat16, "-inf")])
@pytest.mark.parametrize("kind", ["electra", "lab"])
def test_numbers_that_are_not_finite_are_named_by_tensor(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, kind: str, dtype: torch.dtype, bad: str
) -> None:
    """The answers would be NaN."""
    made = electra if kind == "electra" else partial(ours, backbone={"type": "transformer"})
    path = made(tmp_path / "model", tokenizer)
    for name in sorted(load_file(path / "model.safetensors"))[::7]:
        made(path, tokenizer)
        tensors(path, lambda given: given.update({n: t.to(dtype) for n, t in given.items()}))
        assert electra_lab.load(path, device="cpu").detects
        tensors(path, lambda given, name=name: given[name].view(-1)[-1:].fill_(float(bad)))  # type: ignore[misc]
        assert f"{name} has NaN or infinite numbers (1 of " in refusal(path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_hidden_layers": 3}, "layer.2.attention.self.query.weight is missing"),
        ({"num_hidden_layers": 1}, "layer.1.attention.output.LayerNorm.bias is left over"),
        ({"hidden_size": 1 << 15}, "embeddings_project.weight has the shape [16, 8], not [32768, 8]"),
        ({"vocab_size": 1 << 24}, "word_embeddings.weight has the shape [SIZE, 8], not [16777216, 8]"),
        ({"embedding_size": 1 << 15}, "word_embeddings.weight has the shape [SIZE, 8], not [SIZE, 32768]"),
        ({"max_position_embeddings": 1 << 24}, "position_embeddings.weight has the shape [16, 8], not [16777216, 8]"),
        ({"intermediate_size": 1 << 13}, "intermediate.dense.weight has the shape [32, 16], not [8192, 16]"),
    ],
)
def test_sizes_are_compared_with_the_tensors_before_memory_is_asked_for(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, values: dict[str, Any], said: str, monkeypatch: Any
) -> None:
    change(electra(tmp_path / "model", tokenizer), **values)
    monkeypatch.setattr(torch.nn.Module, "to_empty", None)
    assert said.replace("SIZE", str(len(tokenizer))) in refusal(tmp_path / "model")


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("backbone", {"depth": 1 << 24}, "backbone.depth: "),
        ("backbone", {"depth": 0}, "backbone.depth: "),
        ("backbone", {"dim": True}, "backbone.dim: "),
        ("backbone", {"dim": 60_000}, f"{PREFIX}project.weight has the shape [16, 8], not [60000, 8]"),
        ("embedding", {"dim": 60_000}, f"{PREFIX}embeddings.tokens.weight has the shape [SIZE, 8], not [SIZE, 60000]"),
        ("embedding", {"max_length": 1 << 24}, "embeddings.positions.weight has the shape [32, 8], not [16777216"),
        ("embedding", {"max_length": "32"}, "embedding.max_length: "),
        ("embedding", {"dropout": None}, "embedding.dropout: "),
    ],
)
def test_so_are_those_around_other_backbones(
    folder: Path, tokenizer: PreTrainedTokenizerFast, section: str, values: dict[str, Any], said: str, monkeypatch: Any
) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(folder, **{section: config[section] | values})
    make = networks.make_network
    built = []
    monkeypatch.setattr(
        networks, "make_network", lambda *given, **device: built.append(given) or make(*given, **device)
    )
    assert said.replace("SIZE", str(len(tokenizer))) in refusal(folder)
    assert said.endswith(": ") or len(built) == 1, "from shapes alone"


def test_a_length_may_be_written_as_a_float(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(folder, embedding=config["embedding"] | {"max_length": 32.0})
    assert len(electra_lab.load(folder, device="cpu").detect(" ".join(DOCUMENTS)).probabilities) > 100


def test_a_component_that_reads_numbers_while_it_is_built_is_built_with_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Embeddings.__init__

    def reads(self: Embeddings, *given: Any, **options: Any) -> None:
        built(self, *given, **options)
        self.sum = float(self.segments.weight.detach().sum())

    monkeypatch.setattr(Embeddings, "__init__", reads)
    assert electra_lab.load(folder, device="cpu").detects


def test_inputs_are_no_longer_than_what_the_backbone_pads_them_to(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Of 50 positions Reformer with buckets of 4 can use 48: 49 tokens would be padded to 56."""
    folder = ours(tmp_path / "model", tokenizer, {"type": "reformer", "bucket_size": 4, "rotary": False}, 50)
    pair = electra_lab.load(folder, device="cpu")
    assert pair.length == 48
    assert pair.detect(" ".join(DOCUMENTS)).probabilities


def test_a_part_of_a_pair_reads_as_much_as_the_pair(run_directory: Path, tmp_path: Path) -> None:
    exported = export(run_directory, tmp_path / "pair").path
    mark = json.loads((exported / MARK).read_text())
    (exported / MARK).write_text(json.dumps(mark | {"length": 9}))
    for source in (exported, exported / "discriminator", exported / "generator"):
        assert electra_lab.load(source, device="cpu").length == 9
    shutil.move(exported / "discriminator", tmp_path / "discriminator")
    assert electra_lab.load(tmp_path / "discriminator", device="cpu").length > 9, "without the mark nobody knows"


@pytest.mark.parametrize("length", [True, -5, 0, 2, "16", None])
def test_a_damaged_mark_is_a_sentence(run_directory: Path, tmp_path: Path, length: object) -> None:
    exported = export(run_directory, tmp_path / "pair").path
    mark = json.loads((exported / MARK).read_text())
    for content in (mark | {"length": length}, [], None):
        (exported / MARK).write_text(json.dumps(content))
        assert refusal(exported).startswith(f"{exported / MARK}: is damaged: ")


def test_a_home_folder_is_found(
    run_directory: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").symlink_to(run_directory)
    export(run_directory, tmp_path / "pair")
    for name in ("run", "pair", "pair/discriminator", "model"):
        assert electra_lab.load(f"~/{name}", device="cpu").detects


def test_pairs_and_models_of_the_lab_are_found_by_their_name_on_the_hub(
    run_directory: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    exported = export(run_directory, tmp_path / "exported").path
    for name, source in {"pair": exported, "part": exported / "discriminator", "lab": folder}.items():
        cached = tmp_path / "cache" / f"models--me--{name}"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text("0123abcd")
        (cached / "snapshots").mkdir()
        shutil.copytree(source, cached / "snapshots" / "0123abcd")
    pair = electra_lab.load("me/pair", device="cpu")
    assert pair.generator is not None
    assert pair.length == 16
    assert pair.detect(TEXT).probabilities == electra_lab.load("me/part", device="cpu").detect(TEXT).probabilities
    assert electra_lab.load("me/lab", device="cpu").detects


def test_a_step_that_is_no_number_and_a_path_that_cannot_be_are_refused(run_directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"^step must be a whole number or 'best', is '8'\.$"):
        electra_lab.load(run_directory, step="8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^'a\\x00b': cannot be a path\.$"):
        electra_lab.load("a\0b")
