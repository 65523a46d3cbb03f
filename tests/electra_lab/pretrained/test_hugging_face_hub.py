"""Models of the Hugging Face hub: found in its cache, downloaded, or refused in a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from electra_lab.pretrained.hugging_face import CONFIG
from registry.errors import DataError
from tests.electra_lab.pretrained.test_hugging_face import WHOLE, assert_same, read, refusal, tensors
from tests.helpers import python


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's package, which asks nobody."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def test_a_name_of_the_hub_is_found_in_its_cache(folder: Path, offline: Path) -> None:
    cached = offline / "models--google--electra-tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0123abcd")
    (cached / "snapshots").mkdir()
    (cached / "snapshots" / "0123abcd").symlink_to(folder)
    assert read("google/electra-tiny").path == cached / "snapshots" / "0123abcd"
    assert_same(tensors(Path("google/electra-tiny")), load_file(folder / WHOLE))


def test_of_a_model_of_the_hub_what_is_read_is_downloaded(folder: Path, tmp_path: Path) -> None:
    """From a hub of this machine; .bin files only if there is nothing else."""
    for name in ("both", "old", "other"):
        (tmp_path / "org" / name).mkdir(parents=True)
        for file in (CONFIG, "spm.model", "tf_model.h5", "pytorch_model.bin", WHOLE):
            (tmp_path / "org" / name / file).write_bytes(b"x")
        (tmp_path / "org" / name / CONFIG).write_bytes((folder / CONFIG).read_bytes())
    for name in ("old", "other"):
        torch.save(load_file(folder / WHOLE), tmp_path / "org" / name / "pytorch_model.bin")
        (tmp_path / "org" / name / WHOLE).unlink()
    save_file({"other": torch.zeros(1)}, tmp_path / "org" / "other" / "adapter.safetensors")
    (tmp_path / "org" / "both" / WHOLE).write_bytes((folder / WHOLE).read_bytes())
    hub = Path(__file__).with_name("hub_here.py")
    done = python(str(hub), str(tmp_path), "org/both", "org/old", "org/other", "org/none", cwd=folder)
    assert done.returncode == 0, done.stderr
    number = len(load_file(folder / WHOLE))
    assert done.stdout.splitlines() == [
        f"config.json model.safetensors spm.model {number}",
        f"config.json pytorch_model.bin spm.model {number}",
        f"adapter.safetensors config.json pytorch_model.bin spm.model {number}",
        "org/none: is neither a folder here, such as a run directory or an export, nor a model that can be downloaded: "
        "the Hugging Face hub has no model of that name that you may read. Check the name, or name a folder.",
    ]


@pytest.mark.parametrize("name", ["google/electra-none", "electra-none"])
def test_without_network_a_name_is_one_clear_sentence(offline: Path, name: str) -> None:
    assert refusal(DataError, name) == (
        f"{name}: is neither a folder here, such as a run directory or an export, nor a model that can be downloaded: "
        "the Hugging Face hub cannot be reached, and its local cache has no copy. Check the name, or name a folder."
    )


def test_a_name_that_the_hub_does_not_allow(offline: Path) -> None:
    said = refusal(DataError, "a--b/c..d")
    assert "nor a model that can be downloaded: the Hugging Face hub did not give it (" in said


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refusal(DataError, "google/electra-none").endswith("pip install 'electra-lab[hugging-face]'")


def test_folders_need_neither_the_package_nor_the_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("huggingface_hub", "transformers", "tokenizers"):
        monkeypatch.setitem(sys.modules, name, None)
    assert read(folder).tensors
