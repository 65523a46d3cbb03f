"""A folder of an export is whole or not there, and nothing that is not an export is overwritten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from electra_lab.export import export as module
from electra_lab.export.export import MARK, export
from electra_lab.pretrained import writing
from electra_lab.storage.files import damage
from electra_lab.storage.lock import lock
from registry.errors import CheckpointError, ConfigError, InUse
from tests.electra_lab.export import killed
from tests.electra_lab.export.exports import finished
from tests.electra_lab.jobs.pretraining.tiny import for_a_module
from tests.scorecard.lab import Lab

FILES = ["MANIFEST.json", "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with for_a_module():
        yield finished(tmp_path_factory.mktemp("folder"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_whole(folder: Path, step: int) -> None:
    assert json.loads((folder / MARK).read_text())["step"] == step
    assert sorted(content(folder)) == sorted(
        [MARK, *(f"{part}/{f}" for part in ("discriminator", "generator") for f in FILES)]
    )
    assert [damage(folder / part) for part in ("discriminator", "generator")] == [None, None]


def test_two_exports_are_the_same_bytes(run: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a", "b", "new/c"):
        export(run, tmp_path / name)
        assert_whole(tmp_path / name, 12)
        assert content(tmp_path / name) == content(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "new"]  # nothing beside them


def test_everybody_may_read_what_the_system_lets_them(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1


def test_an_earlier_export_is_replaced(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out", 8)
    assert_whole(tmp_path / "out", 8)
    export(run, tmp_path / "out")
    assert_whole(tmp_path / "out", 12)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["notes.txt", "discriminator/config.json", MARK, "MANIFEST.json"])
def test_a_folder_of_something_else_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"/out: exists, and is not an earlier export\. Choose another folder\.$"):
        export(run, tmp_path / "out")
    assert content(tmp_path / "out") == {name: b"{}"}


def test_a_file_and_a_run_directory_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    before = content(run)
    for path in (tmp_path / "file", run):
        with pytest.raises(ConfigError, match="is not an earlier export"):
            export(run, path)
    assert (tmp_path / "file").read_text() == "mine"
    assert content(run) == before


@pytest.mark.parametrize("name", ["tuned.safetensors", "generator/runs/log.txt"])
def test_what_was_added_to_an_export_is_not_deleted(run: Path, tmp_path: Path, name: str) -> None:
    export(run, tmp_path / "out")
    file = tmp_path / "out" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(ConfigError, match=rf"has changed since it was exported \({file} was added\)\. Delete it"):
        export(run, tmp_path / "out")
    assert file.read_text() == "mine"


def test_what_was_changed_in_an_export_is_not_deleted(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    card = tmp_path / "out" / "generator" / "README.md"
    card.write_text("mine")
    with pytest.raises(ConfigError, match=r"has changed since it was exported \(generator/README.md is damaged"):
        export(run, tmp_path / "out")
    assert card.read_text() == "mine"


@pytest.mark.parametrize("networks", [[1], ["discriminator"], "ab", {"../other": {}}, {"discriminator": 1}, None])
def test_a_mark_that_is_not_ours_is_no_permission(run: Path, tmp_path: Path, networks: object) -> None:
    export(run, tmp_path / "out")
    mark = json.loads((tmp_path / "out" / MARK).read_text())
    (tmp_path / "out" / MARK).write_text(json.dumps(mark | {"networks": networks}))
    before = content(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"/out: exists, and is not an earlier export\. Choose another folder\.$"):
        export(run, tmp_path / "out")
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("target", ["elsewhere", "none"])
def test_a_link_that_was_added_is_not_deleted(run: Path, tmp_path: Path, target: str) -> None:
    export(run, tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "out" / "generator" / "link"
    link.symlink_to(tmp_path / target)
    with pytest.raises(ConfigError, match=rf"has changed since it was exported \({link} was added\)"):
        export(run, tmp_path / "out")
    assert link.is_symlink()


def test_a_destination_that_cannot_be_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out'?: cannot be used \(embedded null byte\)\. Choose another one\.$"):
        export(run, tmp_path / "a\0out")


@pytest.mark.parametrize(
    ("owner", "part"), [(writing, "save_file"), (module, "write_tokenizer"), (module, "model_card")]
)
def test_a_disk_that_refuses_leaves_the_earlier_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, part: str
) -> None:
    export(run, tmp_path / "out", 8)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(owner, part, full)
    for name in ("out", "other"):
        with pytest.raises(CheckpointError, match=rf"/{name}: cannot be written \(No space left on device\)\."):
            export(run, tmp_path / name)
    assert_whole(tmp_path / "out", 8)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_processes_do_not_write_one_folder(run: Path, tmp_path: Path) -> None:
    with lock(tmp_path / ".out.lock"), pytest.raises(InUse, match=r"/out: another process is exporting to it\.$"):
        export(run, tmp_path / "out")
    export(run, tmp_path / "out")


def test_a_killed_export_leaves_the_old_folder_the_new_one_or_none(forks: Lab, run: Path, tmp_path: Path) -> None:
    """Killed at eleven points, with an earlier export of step 8 and without; the next export cleans up."""
    done = forks(f"{killed.__name__}:main", run, tmp_path, cwd=tmp_path)
    assert done.code == 0, done
    found: dict[str, list[int | None]] = {}
    for name, earlier, ended in (line.split(";") for line in done.out.splitlines()):
        assert ended == "-9", name
        out = tmp_path / f"{name}, {earlier}" / "out"
        step = json.loads((out / MARK).read_text())["step"] if out.exists() else None
        found.setdefault(name, []).append(step)
        if step:
            assert_whole(out, step)
        export(run, out)
        assert_whole(out, 12)
        assert [path.name for path in out.parent.iterdir()] == ["out"]
    unfinished, finished = [None, 8], [12, 12]
    assert list(found.values()) == [*[unfinished] * 5, finished, [8], [12], [None], [12], [12]], found
