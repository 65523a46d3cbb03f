"""The folder of an export is complete or absent, and only exports are overwritten."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from electra_lab.export import export as module
from electra_lab.export.export import MARK, export
from electra_lab.export.model_folder import copy_folder
from electra_lab.pretrained import writing
from electra_lab.storage.files import damage, lock, seal
from registry.errors import ConfigError, DataError, InUse
from tests.electra_lab.export.exports import finished
from tests.electra_lab.jobs.pretraining.tiny import for_a_module

FILES = ["MANIFEST.json", "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
FILES += ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"]  # for sentence-transformers


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with for_a_module():
        yield finished(tmp_path_factory.mktemp("folder"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def out(run: Path, tmp_path: Path) -> Path:
    """An export."""
    return export(run, tmp_path / "out").path


def assert_whole(folder: Path, step: int) -> None:
    assert json.loads((folder / MARK).read_text())["step"] == step
    parts = [folder / part for part in ("discriminator", "generator")]
    assert {*content(folder)} == {MARK, *(f"{part.name}/{file}" for part in parts for file in FILES)}
    assert [damage(part) for part in parts] == [None, None]


def test_two_exports_are_the_same_bytes(run: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers, whose import takes seconds, is not needed."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "b").mkdir()
    for name in ("b", "new/c"):
        export(run, tmp_path / name)
        assert_whole(tmp_path / name, 12)
        assert content(tmp_path / name) == content(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "new", "out"]  # nothing else
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1, "all files have the same permissions"


def test_an_earlier_export_is_replaced(run: Path, tmp_path: Path) -> None:
    for step in (8, 12):
        export(run, tmp_path / "out", step)
        assert_whole(tmp_path / "out", step)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def refused(run: Path, folder: Path, reason: str) -> None:
    """Check that the export is refused and does not change the folder."""
    before = content(folder)
    with pytest.raises(ConfigError, match=f"{folder}: {reason}"):
        export(run, folder)
    assert content(folder) == before


@pytest.mark.parametrize("name", ["notes.txt", "discriminator/config.json", MARK, "MANIFEST.json"])
def test_a_folder_of_something_else_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    refused(run, tmp_path / "out", "exists, and is not an earlier export")


def test_a_file_a_run_directory_and_the_marks_of_others_are_refused(run: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", run):
        refused(run, path, "exists, and is not an earlier export")
    assert (tmp_path / "file").read_text() == "mine"
    mark = json.loads((out / MARK).read_text())
    for networks in ([1], ["discriminator"], "ab", {"../other": {}}, {"discriminator": 1}, None):
        (out / MARK).write_text(json.dumps(mark | {"networks": networks}))
        refused(run, out, "exists, and is not an earlier export")


def test_what_was_added_to_an_export_is_not_deleted(run: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name, target in (("tuned.safetensors", ""), ("generator/link", "elsewhere"), ("generator/link", "none")):
        file = out / name
        if target:
            file.symlink_to(tmp_path / target)
        else:
            file.write_text("mine")
        refused(run, out, rf"was edited or damaged after the export \({file} was added\)")
        assert file.is_symlink() == bool(target)
        file.unlink()
    (out / "generator" / "runs").mkdir()
    (out / "generator" / "runs" / "log.txt").write_text("mine")
    refused(run, out, rf"was edited or damaged after the export \({out}/generator/runs/log.txt was added\)")


def again(source: Path, destination: Path, **options: Any) -> None:
    """Export a run, or copy a network of an export."""
    (copy_folder if (source / "config.json").exists() else export)(source, destination, **options)


@pytest.fixture(params=["a pair", "one model"])
def earlier(request: Any, run: Path, out: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two kinds of exports: what was exported, the folder, and that of a network."""
    if request.param == "a pair":
        return run, out, out / "generator"
    copy_folder(out / "generator", tmp_path / "copy")
    return out / "generator", tmp_path / "copy", tmp_path / "copy"


def test_a_copy_has_the_licence(out: Path, tmp_path: Path) -> None:
    before = ModelCard.load(out / "generator" / "README.md")
    copy_folder(out / "generator", tmp_path / "copy", license="mit")
    card = ModelCard.load(tmp_path / "copy" / "README.md")
    assert card.data.to_dict() == {**before.data.to_dict(), "license": "mit"}
    assert card.text == before.text
    (tmp_path / "copy" / "README.md").unlink()
    copy_folder(tmp_path / "copy", tmp_path / "again", license="mit")
    assert ModelCard.load(tmp_path / "again" / "README.md").data.to_dict() == {"license": "mit"}


def test_nothing_that_was_changed_is_deleted(earlier: tuple[Path, Path, Path]) -> None:
    source, folder, network = earlier
    before = content(folder)
    again(source, folder)
    assert content(folder) == before
    changes = {"README.md": "is damaged", "config.json": "is damaged", "MANIFEST.json": "is damaged"}
    for file, said in {**changes, "notes.txt": "was added"}.items():
        original = (network / file).read_bytes() if (network / file).exists() else None
        (network / file).write_text("mine")
        with pytest.raises(ConfigError, match=rf"{folder}: was edited or damaged after the export \(.*{file} {said}"):
            again(source, folder)
        assert (network / file).read_text() == "mine"
        (network / file).unlink() if original is None else (network / file).write_bytes(original)


def test_no_onnx_file_of_an_earlier_export_is_lost(earlier: tuple[Path, Path, Path]) -> None:
    source, folder, network = earlier
    for name, option, given in (("model.onnx", "--onnx", {}), ("model_int8.onnx", "--int8", {"onnx": True})):
        (network / name).write_text("mine")
        (network / "MANIFEST.json").unlink()
        seal(network)
        with pytest.raises(ConfigError, match=rf"{folder}: has {name}, which would be lost\. Add {option}"):
            again(source, folder, **given)
        assert (network / name).read_text() == "mine"


def test_the_parts_of_a_pair_and_of_a_fine_tuning_are_not_replaced_by_a_model(out: Path, tmp_path: Path) -> None:
    """They are sealed as an export of one model is."""
    fine = tmp_path / "fine" / "seed-0"
    shutil.copytree(out / "generator", fine / "model")
    for file in (fine.parent / "finetuning.yaml", fine / "config.yaml", fine / "provenance.json"):
        file.touch()
    for place in (out / "discriminator", fine / "model"):
        before = content(place)
        with pytest.raises(ConfigError, match=f"{place}: exists, and is not an earlier export"):
            copy_folder(out / "generator", place)
        assert content(place) == before


def test_a_destination_that_cannot_be_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out'?: cannot be used \(embedded null byte\)"):
        export(run, tmp_path / "a\0out")


FIRST_AND_LAST = [(writing, "save_file"), (module, "model_card")]


@pytest.mark.parametrize(("owner", "part"), FIRST_AND_LAST)
def test_a_disk_that_refuses_leaves_the_earlier_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, part: str
) -> None:
    export(run, tmp_path / "out", 8)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(owner, part, full)
    for name in ("out", "other"):
        with pytest.raises(DataError, match=rf"/{name}: cannot be written \(No space left on device\)\."):
            export(run, tmp_path / name)
    assert_whole(tmp_path / "out", 8)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_processes_do_not_write_one_folder(run: Path, tmp_path: Path) -> None:
    with lock(tmp_path / ".out.lock"), pytest.raises(InUse, match=r"/out: another process is exporting to it\.$"):
        export(run, tmp_path / "out")
    export(run, tmp_path / "out")
