"""Models of the Hugging Face hub: found in its cache, downloaded, or refused in a sentence."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save

from electra_lab.pretrained.hugging_face import CONFIG, locate, read_tensors
from registry.errors import DataError
from tests.electra_lab.export.hub import TOKEN, Hub, Repository
from tests.electra_lab.pretrained.test_hugging_face import WHOLE, read, refusal


def test_of_a_model_of_the_hub_what_is_read_is_downloaded(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """From a hub of this machine; .bin files only if there is nothing else."""
    torch.save(load_file(folder / WHOLE), tmp_path / "old.bin")
    config, adapter = {CONFIG: (folder / CONFIG).read_bytes()}, {"adapter.safetensors": save({"a": torch.zeros(1)})}
    whole, old = {WHOLE: (folder / WHOLE).read_bytes()}, {"pytorch_model.bin": (tmp_path / "old.bin").read_bytes()}
    others = {"spm.model": b"x", "tf_model.h5": b"x"}
    hub, number = Hub(), len(load_file(folder / WHOLE))
    for name, files in {"both": whole | old, "old": old, "other": old | adapter}.items():
        hub.repositories[f"org/{name}"] = Repository(private=False, trees={"main": config | others | files})
    for name in ("HUGGINGFACE_CO_URL_TEMPLATE", "ENDPOINT"):
        monkeypatch.setattr(constants, name, getattr(constants, name).replace(constants.ENDPOINT, hub.url))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name, expected in {"both": whole, "old": old, "other": old | adapter}.items():
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
