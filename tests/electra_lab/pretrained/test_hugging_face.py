"""Models in Hugging Face format: every file format of tensors, every kind of damage, the hub, sizes."""

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save, save_file
from torch import Tensor
from transformers import BertForPreTraining, ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from electra_lab.pretrained.families import FAMILIES, Config
from electra_lab.pretrained.families.electra import FIXED
from electra_lab.pretrained.hugging_face import CONFIG, files_of, locate, read_config, read_folders, read_tensors
from electra_lab.pretrained.trained_model import Part
from electra_lab.storage.files import sha256
from registry.errors import ConfigError, DataError, LabError
from tests.electra_lab.export.hub import TOKEN, Hub, Repository
from tests.electra_lab.model.theirs import TINY, model, saved
from tests.helpers import pipe

WHOLE, OLD = "model.safetensors", "pytorch_model.bin"
INDEX = f"{OLD}.index.json"


def sections(values: dict[str, Any], place: object = CONFIG) -> Any:
    return FAMILIES[values.get("model_type", "electra")].read(Config(values, str(place)))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    made = tmp_path / "copy"
    made.mkdir()
    for file in folder.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    return made


def tensors(folder: Path) -> dict[str, Tensor]:
    return read_tensors(locate(str(folder)))


def read(source: object, network: str = "discriminator", **options: Any) -> Part:
    return read_folders(str(source), network=network, **options).part(network)


def refusal(kind: type[LabError], source: object, **options: Any) -> str:
    with pytest.raises(kind) as refused:
        read(source, **options)
    return str(refused.value)


def assert_same(given: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert given.keys() == expected.keys()
    assert all(torch.equal(given[name], expected[name]) for name in expected)


def test_a_folder_is_its_config_its_kind_and_its_tensors(folder: Path, tmp_path: Path) -> None:
    part = read(folder)
    assert (part.path, part.format, part.backbone["dim"]) == (folder, "electra", 16)
    assert part.sums() == {WHOLE: sha256(folder / WHOLE)}
    given = load_file(folder / WHOLE)
    assert_same({part.stored_name(name): tensor for name, tensor in part.tensors.items()}, given)
    assert read(saved(model(BertForPreTraining), tmp_path)).format == "bert"


def test_a_model_in_pieces(folder: Path, copy: Path) -> None:
    (copy / WHOLE).unlink()
    model(ElectraForPreTraining).save_pretrained(copy, max_shard_size="4KB")
    assert len(files_of(copy)) > 2
    assert_same(tensors(copy), load_file(folder / WHOLE))


def split(folder: Path) -> dict[str, str]:
    """Replace the tensors of a folder by .bin files of eight each, with an index."""
    given = load_file(folder / WHOLE)
    (folder / WHOLE).unlink()
    places = {name: f"pytorch_model-{number // 8}.bin" for number, name in enumerate(given)}
    for file in set(places.values()):
        torch.save({name: given[name] for name, place in places.items() if place == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return places


@pytest.mark.parametrize("legacy", [False, True])
def test_an_old_file_of_plain_tensors(folder: Path, copy: Path, legacy: bool) -> None:
    """In torch's current format, and in the one from when ELECTRA was released."""
    given = load_file(copy / WHOLE)
    (copy / WHOLE).unlink()
    torch.save(given, copy / OLD, _use_new_zipfile_serialization=not legacy)
    assert_same(tensors(copy), given)
    save_file({"other": torch.zeros(1)}, copy / WHOLE)
    assert tensors(copy).keys() == {"other"}, "safetensors come first"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("was-here",)


ONE = torch.zeros(1)
CODE = [Evil(), {"a": ONE, "b": Evil()}]
ODD = [torch.zeros(2, device="meta"), torch.ones(2).to_sparse(), torch.ones(1).expand(9)]
# Also a pointer file from a clone without git-lfs, and a login page.
TORN = [None, b"", b"\x00", b"version https://git-lfs.github.com/spec/v1\n" * 4, b"<html>404"]
ELSEWHERE = [json.dumps({"weight_map": {"a": name}}) for name in ("../b", "..", ".", "", "b/c", "x\0", 3)]
NO_INDEX = ["[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}', "{", *ELSEWHERE]
REFUSED: list[tuple[str, Any, str]] = [
    *[(OLD, content, "holds more than tensors, which could be code") for content in CODE],
    *[(OLD, pickle.dumps(content, protocol=2), "holds more than tensors, which could be code") for content in CODE],
    *[(OLD, content, "is not a file of tensors") for content in (ONE, {"a": {"b": ONE}}, {1: ONE}, {("a", "b"): ONE})],
    *[(OLD, {"a": ONE, "b": odd}, "b has no dense values") for odd in ODD],
    *[(OLD, content, "cannot be read (") for content in TORN],
    *[(WHOLE, content, "cannot be read (") for content in TORN],
    *[(f"{WHOLE}.index.json", text.encode(), "") for text in NO_INDEX],
]


@pytest.mark.parametrize(("name", "content", "reason"), REFUSED)
def test_files_of_something_else_are_refused_and_no_code_runs(
    copy: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: object, reason: str
) -> None:
    monkeypatch.chdir(copy)
    whole = (copy / WHOLE).read_bytes()
    (copy / WHOLE).unlink()
    if content is None or isinstance(content, bytes):
        (copy / name).write_bytes(whole[:-10] if content is None else content)
    else:
        torch.save(content, copy / name)
    assert refusal(DataError, copy).startswith(f"{copy / name}: {reason}")
    assert not (copy / "was-here").exists()


def test_an_index_and_its_files_must_agree(copy: Path) -> None:
    places = split(copy)
    first, last = min(places), max(places)
    twice = copy / max(places.values())  # the last file would win, despite the index
    other = min(places, key=places.__getitem__)
    (copy / INDEX).write_text(json.dumps({"weight_map": {name: p for name, p in places.items() if name != last}}))
    assert refusal(DataError, copy).startswith(f"{copy / places[last]}: has {last}, ")
    (copy / INDEX).write_text(json.dumps({"weight_map": places | {"zzz": places[first]}}))
    assert refusal(DataError, copy).startswith(f"{copy / places[first]}: lacks zzz, ")
    (copy / INDEX).write_text(json.dumps({"weight_map": places}))
    torch.save(torch.load(twice, weights_only=True) | {other: torch.zeros(1)}, twice)
    assert refusal(DataError, copy).startswith(f"{twice}: has {other}, ")
    (copy / places[first]).unlink()
    assert refusal(DataError, copy).startswith(f"{copy / places[first]}: cannot be read (")


def rename(folder: Path, change: Callable[[str], str]) -> None:
    save_file({change(name): tensor for name, tensor in load_file(folder / WHOLE).items()}, folder / WHOLE)


def test_a_table_inside_a_backbone_is_not_that_of_the_network(copy: Path) -> None:
    inside = ("embeddings.tokens", "backbone.embeddings.word_embeddings")
    names = [f"electra_lab.network.{name}.weight" for name in inside]
    save_file({name: torch.zeros(1) for name in names}, copy / WHOLE)
    assert list(tensors(copy)) == sorted(names)


@pytest.mark.parametrize("name", [CONFIG, WHOLE, OLD, f"{WHOLE}.index.json", "pytorch_model-1.bin"])
def test_what_is_not_a_regular_file_is_refused_and_nobody_waits(copy: Path, name: str) -> None:
    if name == "pytorch_model-1.bin":
        split(copy)
    elif name != CONFIG:
        (copy / WHOLE).unlink()
    with pipe(copy / name):
        assert refusal(DataError, copy).startswith(f"{copy / name}: cannot be read (it is not a regular file).")
    for target, reason in {"/dev/zero": "it is not a regular file", name: "it is a link to itself"}.items():
        (copy / name).unlink()
        (copy / name).symlink_to(target)
        assert refusal(DataError, copy).startswith(f"{copy / name}: cannot be read ({reason}).")
    (copy / name).unlink()
    (copy / name).mkdir()
    assert refusal(DataError, copy).startswith(f"{copy / name}: cannot be read (it is a folder).")


def test_a_byte_order_mark_is_not_content(copy: Path) -> None:
    (copy / CONFIG).write_bytes(b"\xef\xbb\xbf" + (copy / CONFIG).read_bytes())
    assert read(copy).backbone["dim"] == 16


def test_a_pair_gives_the_part_that_is_asked_for(tmp_path: Path) -> None:
    parts = {"discriminator": ElectraForPreTraining, "generator": ElectraForMaskedLM}
    for part, kind in parts.items():
        saved(model(kind), tmp_path / part)
    for name in parts:
        part = read(tmp_path, name)
        assert (part.path, part.name) == (tmp_path / name, name)
        assert part.heads == (("replaced",) if name == "discriminator" else ("tokens",))
        assert read(tmp_path / name, name).path == tmp_path / name, "the part itself"
    assert sorted(read_folders(str(tmp_path)).parts) == sorted(parts)
    saved(model(ElectraForPreTraining), tmp_path)
    assert read(tmp_path, "generator").path == tmp_path, "a model comes before its sub-folders"


def test_paths_begin_in_the_working_directory_or_where_they_were_written(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, base in (("copy", None), ("./copy/", tmp_path), ("~/copy", copy)):
        assert read(name, base=base).path == copy


@pytest.mark.parametrize(("name", "reason"), [("none", "does not"), ("file/none", "does not"), ("file", "is a file")])
def test_what_is_not_there_is_named(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    assert refusal(DataError, f"./{name}", base=tmp_path).startswith(f"{tmp_path / name}: {reason}")


@pytest.mark.parametrize("content", ["", "[]", "{", '"a"'])
def test_a_damaged_config_is_refused(copy: Path, content: str) -> None:
    (copy / CONFIG).write_text(content)
    assert refusal(DataError, copy).startswith(f"{copy / CONFIG}: ")


def test_a_folder_without_tensors_or_config_is_refused(copy: Path) -> None:
    for name, reason in ((WHOLE, "has no tensors"), (CONFIG, "is neither a model in Hugging Face format")):
        (copy / name).unlink()
        assert refusal(DataError, copy).startswith(f"{copy}: {reason}")


@pytest.mark.parametrize("kind", ["gpt2", "", ["electra"]])
def test_other_kinds_are_refused_with_those_that_are_supported(copy: Path, kind: object) -> None:
    (copy / CONFIG).write_text(json.dumps({"model_type": kind}))
    said = refusal(ConfigError, copy)
    assert said.startswith(f"{copy / CONFIG}: model_type is {kind!r}; ")
    assert all(family in said for family in FAMILIES)


def test_a_config_without_a_type_is_refused_with_the_cure(copy: Path) -> None:
    (copy / CONFIG).write_text(json.dumps(TINY))
    said = refusal(ConfigError, copy)
    assert said.startswith(f"{copy / CONFIG}: lacks model_type")
    assert '"model_type": "electra"' in said


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
def test_a_tokenizer_is_seen(copy: Path, name: str) -> None:
    assert read_folders(str(copy)).tokenizer is None
    (copy / name).touch()
    assert refusal(DataError, copy).startswith(f"{copy / name}")


def test_sizes_are_in_our_words(folder: Path, tmp_path: Path) -> None:
    backbone = {"type": "bert", "dim": 16, "depth": 2, "heads": 4, "ff_mult": 1.5, "dropout": 0.0}
    embedding = {"dim": 8, "max_length": 20, "dropout": 0.0}
    assert sections(read_config(folder)) == (backbone, embedding, 37)
    bert = read(saved(model(BertForPreTraining, hidden_dropout_prob=0.3), tmp_path))
    assert bert.backbone == backbone | {"dropout": 0.3}
    assert bert.embedding == embedding | {"dim": 16, "dropout": 0.3}


def test_an_electra_that_does_not_say_how_wide_its_table_is_has_that_of_transformers(folder: Path) -> None:
    for kind, width in (("electra", ElectraConfig().embedding_size), ("bert", 16)):
        config = {**read_config(folder), "model_type": kind}
        del config["embedding_size"]
        assert sections(config)[1]["dim"] == width


ODDS = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "type_vocab_size": 1, "position_embedding_type":
        "relative_key", "is_decoder": True, "add_cross_attention": True}  # fmt: skip
SIZES: list[tuple[str, object, str]] = [
    *((key, value, f"is {value!r}, but the lab's `bert` computes with {FIXED[key]!r}.") for key, value in ODDS.items()),
    ("hidden_size", None, "is None; it must be a whole number from 1 to 16,777,216."),
    ("vocab_size", "37", "is '37'; it must be a whole number from 1 to 16,777,216."),
    ("num_hidden_layers", 0, "is 0; it must be a whole number from 1 to 1,000."),
    ("num_hidden_layers", 1 << 24, "is 16777216; it must be a whole number from 1 to 1,000."),
    ("vocab_size", 10**13, "is 10000000000000; it must be a whole number from 1 to 16,777,216."),
    ("hidden_size", True, "is True; it must be a whole number from 1 to 16,777,216."),
    ("num_attention_heads", 3, "3 does not divide hidden_size 16."),
    ("hidden_dropout_prob", 1, "is 1; it must be at least 0 and below 1."),
]


@pytest.mark.parametrize(("key", "value", "reason"), SIZES)
def test_an_encoder_that_cannot_be_or_computes_otherwise_is_refused(
    folder: Path, key: str, value: object, reason: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        sections({**read_config(folder), key: value}, "here")
    assert str(refused.value) == f"here: {key} {reason}"


def test_keys_that_are_missing_have_the_values_of_old_versions(folder: Path) -> None:
    config = read_config(folder)
    assert sections({key: value for key, value in config.items() if key not in ODDS}) == sections(config)


def test_of_a_model_of_the_hub_what_is_read_is_downloaded(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """From a hub on this machine; .bin files only if a model lacks others. Pieces may have any name."""
    torch.save(load_file(folder / WHOLE), tmp_path / "old.bin")
    config, adapter = {CONFIG: (folder / CONFIG).read_bytes()}, {"adapter.safetensors": save({"a": torch.zeros(1)})}
    whole, old = {WHOLE: (folder / WHOLE).read_bytes()}, {"pytorch_model.bin": (tmp_path / "old.bin").read_bytes()}
    others = {"spm.model": b"x", "tf_model.h5": b"x"}
    hub, number = Hub(), len(load_file(folder / WHOLE))
    pieces = {"part-1.safetensors": whole[WHOLE]}
    places = dict.fromkeys(load_file(folder / WHOLE), "part-1.safetensors")
    pieces[f"{WHOLE}.index.json"] = json.dumps({"weight_map": places}).encode()
    beside = {"generator_config.json": config[CONFIG], "pytorch_model.generator.bin": old["pytorch_model.bin"]}
    places = dict.fromkeys(places, "pytorch_model-1.bin")
    cut = {"pytorch_model-1.bin": old["pytorch_model.bin"]}
    cut["pytorch_model.bin.index.json"] = json.dumps({"weight_map": places}).encode()
    stored = {"both": whole | old, "old": old, "other": old | adapter, "pieces": pieces | old, "pair": whole | beside,
              "cut": cut}  # fmt: skip
    for name, files in stored.items():
        hub.repositories[f"org/{name}"] = Repository(private=False, trees={"main": config | others | files})
    for name in ("HUGGINGFACE_CO_URL_TEMPLATE", "ENDPOINT"):
        monkeypatch.setattr(constants, name, getattr(constants, name).replace(constants.ENDPOINT, hub.url))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name, expected in (stored | {"both": whole, "pieces": pieces}).items():
        found = locate(f"org/{name}")
        assert {file.name for file in found.iterdir()} == {*config, *expected, "spm.model"}
        assert len(read_tensors(found)) == number
    assert refusal(DataError, "org/none").startswith("org/none: ")
    hub.shutdown()
    hub.server_close()


@pytest.mark.parametrize("name", ["google/electra-none", "electra-none", "a--b/c..d"])
def test_without_network_a_name_is_one_clear_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    reason = "did not give it (" if name.startswith("a--b") else "cannot be reached, and its local cache has no copy"
    said = refusal(DataError, name)
    assert said.startswith(f"{name}: ")
    assert reason in said


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refusal(DataError, "google/electra-none").endswith("pip install 'electra-lab[hugging-face]'")


def test_folders_need_neither_the_package_nor_the_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("huggingface_hub", "transformers", "tokenizers"):
        monkeypatch.setitem(sys.modules, name, None)
    assert read(folder).tensors
