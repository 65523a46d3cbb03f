"""Bundles: complete, the same bytes for the same files, and harmless to open whoever wrote them."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
import zipfile
from pathlib import Path

import pytest

from electra_lab.jobs import bundling
from electra_lab.jobs.bundling import MANIFEST, bundle, unpack
from electra_lab.storage.files import lock
from registry.errors import ConfigError, DataError, InUse
from tests.electra_lab.presentation.synthetic import write_cell
from tests.helpers import write_experiment

PLUGIN = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
DESCRIBED = json.dumps({"electra_lab": "0.1.0", "kind": "experiment", "main": "a.yaml", "folder": False})
HARMLESS = {MANIFEST: DESCRIBED, "a.yaml": "name: a\n"}


def write_zip(file: Path, contents: dict[str, str], **entries: dict[str, int]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in contents.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            for key, value in entries.get(name, {}).items():
                setattr(entry, key, value)
            archive.writestr(entry, text)
    return file


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An experiment that extends a file in another folder, with plug-in and tokenizer, and an ablation of it."""
    project = tmp_path / "project"
    write_experiment(project / "base", "b.yaml", tokenizer="{type: pretrained, path: ../tokens}")
    (project / "tokens").mkdir()
    for name in ("vocab.txt", "tokenizer_config.json", "notes.md"):
        (project / "tokens" / name).write_text("{}")
    (project / "mine.py").write_text(PLUGIN)
    for name in ("one", "two"):
        (project / f"{name}.yaml").write_text(f"extends: base/b.yaml\nimports: [mine.py]\nname: {name}\n")
    (project / "sub").mkdir()
    (project / "sub" / "a.yaml").write_text(
        "name: a\nbase: ../one.yaml\nseeds: [0]\nset: {imports: [../mine.py]}\n"
        "vary: {tokenizer.path: [../tokens, ../tokens/vocab.txt]}\nmeasure: [{type: downstream, file: ../two.yaml}]\n"
    )
    return project


def test_a_file_comes_with_all_that_it_names(project: Path, tmp_path: Path) -> None:
    bundle(project / "sub" / "a.yaml", tmp_path / "a.zip")
    bundle(project / "sub" / "a.yaml", tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    shutil.rmtree(project)
    described, code = unpack(tmp_path / "a.zip", tmp_path / "out")
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    copies = {"sub/a.yaml", "one.yaml", "two.yaml", "base/b.yaml", "mine.py"}
    assert names == {MANIFEST, "requirements.txt", *copies, "tokens/vocab.txt", "tokens/tokenizer_config.json"}
    assert (described.kind, described.main, code) == ("ablation", "sub/a.yaml", [["mine.py"]])
    assert "torch==" in (tmp_path / "out" / "requirements.txt").read_text()


@pytest.mark.parametrize("line", ["extends: PATH", "imports: [PATH]", "base: PATH"])
def test_an_absolute_path_is_refused(tmp_path: Path, line: str) -> None:
    write_experiment(tmp_path, "other.yaml")
    file = tmp_path / "a.yaml"
    file.write_text(f"name: a\n{line.replace('PATH', str(tmp_path / 'other.yaml'))}\n")
    with pytest.raises(ConfigError, match=f"a.yaml: {line.split(':')[0]}: {tmp_path}"):
        bundle(file, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()


@pytest.mark.parametrize("line", ["extends: gone.yaml", "imports: [gone.py]", "tokenizer: {path: gone}"])
def test_a_missing_file_is_refused(tmp_path: Path, line: str) -> None:
    file = write_experiment(tmp_path, "a.yaml")
    (tmp_path / "b.yaml").write_text(f"{line}\n" if "extends" in line else f"extends: {file.name}\n{line}\n")
    with pytest.raises(ConfigError, match="gone"):
        bundle(tmp_path / "b.yaml", tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()


def test_copies_in_a_folder_are_whole_whatever_their_names(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plan.json").touch()
    kept = ["files/model/a", "files/x/.hidden/b", "files/claims/c", "plugins/.d", "cells/x/slurm/e"]
    for name in (*kept, "claims/f", "cells/x/model/g", "cells/x/.h"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).touch()
    found = {name for name, _ in bundling._files_of(tmp_path / "out", bundling.WEIGHTS)}
    assert found == {*kept, "plan.json"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    cell = {"id": "run", "seed": 3, "steps": 400, "flops": 1e12, "parameters": {"total": 1}}
    write_cell(tmp_path / "runs", cell)
    run = tmp_path / "runs" / "cells" / "run"
    for name in (".lock", ".metrics.jsonl.0123abcd.part"):
        (run / name).touch()
    (run / "plugins").mkdir()
    (run / "plugins" / "mine.py").write_text(PLUGIN)
    return run


def test_the_folder_of_a_run_without_locks_and_leftovers(run: Path, tmp_path: Path) -> None:
    weights = "run/checkpoints/step-00000400/MANIFEST.json"
    plain = bundle(run, tmp_path / "plain.zip")
    whole = bundle(run, tmp_path / "whole.zip", checkpoints=True)
    assert whole.keys() - plain.keys() == {weights}
    assert not [name for name in whole if "/." in name]
    described, code = unpack(tmp_path / "whole.zip", tmp_path / "out")
    assert (described.kind, described.main, code) == ("experiment", "run", [["run/plugins/mine.py"]])
    for file in run.rglob("[!.]*"):
        if file.is_file():
            assert (tmp_path / "out" / file.relative_to(run.parent)).read_bytes() == file.read_bytes()
    assert not [*tmp_path.rglob("ran")], "opening runs no code"
    with pytest.raises(ConfigError, match="--tokens"):
        bundle(run, tmp_path / "tokens.zip", tokens=True)


def test_a_bundle_is_refused_if_something_is_in_the_way(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there.zip").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        bundle(run, tmp_path / "there.zip")
    with lock(run / ".lock"), pytest.raises(InUse):
        bundle(run, tmp_path / "a.zip")
    (run / "elsewhere").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="elsewhere: is a link to a folder"):
        bundle(run, tmp_path / "a.zip")
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "there.zip"}


def test_a_full_disk_leaves_nothing(run: Path, tmp_path: Path, monkeypatch) -> None:
    bundle(run, tmp_path / "a.zip")
    (tmp_path / "empty").mkdir()

    def full(source: io.BufferedIOBase, target: io.BufferedIOBase, size: int) -> None:
        target.write(source.read(10))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundling.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        bundle(run, tmp_path / "b.zip")
    with pytest.raises(DataError, match="No space"):
        unpack(tmp_path / "a.zip", tmp_path / "out")
    with pytest.raises(ConfigError, match="empty: exists already"):
        unpack(tmp_path / "a.zip", tmp_path / "empty")
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "a.zip", "empty"}
    assert not [*(tmp_path / "empty").iterdir()]


LINK = {"external_attr": (stat.S_IFLNK | 0o777) << 16}
DEVICE = {"external_attr": (stat.S_IFCHR | 0o666) << 16}
HOSTILE: dict[str, tuple[dict[str, str], dict[str, dict[str, int]]]] = {
    "absolute": ({"/etc/evil": "x"}, {}),
    "above": ({"../evil": "x"}, {}),
    "above, later": ({"a/../../evil": "x"}, {}),
    "a dot": ({"./evil": "x"}, {}),
    "doubled": ({"a//evil": "x"}, {}),
    "backslashes": ({"..\\evil": "x"}, {}),
    "a drive": ({"C:evil": "x"}, {}),
    "a zero byte": ({"evil\x01.py": "x"}, {}),
    "a folder": ({"evil/": ""}, {}),
    "a link": ({"evil": "/etc/passwd"}, {"evil": LINK}),
    "a device": ({"evil": ""}, {"evil": DEVICE}),
    "twice": ({"A.yaml": "x"}, {}),
    "below a file": ({"a.yaml/evil": "x"}, {}),
    "a bomb": ({"evil": "0" * 5_000_000}, {}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_bundle_is_refused_whole(tmp_path: Path, case: str, monkeypatch) -> None:
    contents, entries = HOSTILE[case]
    monkeypatch.setattr(bundling, "HARMLESS", 1 << 20)
    file = write_zip(tmp_path / "a.zip", HARMLESS | contents, **entries)
    (tmp_path / "here").mkdir()
    with pytest.raises(DataError, match=r"a\.zip: .*Nothing was unpacked") as refused:
        unpack(file, tmp_path / "here" / "out")
    assert repr(MANIFEST) not in str(refused.value)
    assert not [*(tmp_path / "here").iterdir()]
    assert {path.name for path in tmp_path.iterdir()} == {"a.zip", "here"}


def test_what_is_not_a_bundle_is_refused(tmp_path: Path, monkeypatch) -> None:
    good = write_zip(tmp_path / "good.zip", HARMLESS).read_bytes()
    flawed = {
        "text": b"hello", "cut": good[:-30], "changed": good.replace(b"a.yaml", b"b.yaml", 1),
        "empty": b"PK\x05\x06" + bytes(18),
        "no main": write_zip(tmp_path / "x.zip", {MANIFEST: DESCRIBED}).read_bytes(),
    }  # fmt: skip
    other_format = {MANIFEST: DESCRIBED[:-1] + ', "format": 2}'}
    flawed["other format"] = write_zip(tmp_path / "x.zip", HARMLESS | other_format).read_bytes()
    damaged = bytearray(good)
    damaged[good.index(b"a.yaml") + 8] ^= 255  # of its content
    for name, content in (flawed | {"damaged": bytes(damaged)}).items():
        (tmp_path / "x.zip").write_bytes(content)
        with pytest.raises(DataError, match=r"x\.zip: is not a bundle"):
            unpack(tmp_path / "x.zip", tmp_path / name)
        assert not (tmp_path / name).exists(), name
    with pytest.raises(DataError, match="No such file"):
        unpack(tmp_path / "absent.zip", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="full: exists already"):
        unpack(tmp_path / "good.zip", tmp_path / "full")
    monkeypatch.setattr(bundling.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(DataError, match="the disk has 1"):
        unpack(tmp_path / "good.zip", tmp_path / "out")


def test_what_open_would_refuse_is_not_written(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is inside"):
        bundle(run, run / "a.zip")

    def refused(match: str) -> None:
        with pytest.raises(ConfigError, match=match):
            bundle(run, tmp_path / "a.zip")

    os.mkfifo(run / "pipe")
    refused("pipe: is not a regular file")
    (run / "pipe").unlink()
    for target, match in ((tmp_path / "gone", "link to nothing"), (Path(__file__), "a file elsewhere")):
        (run / "link").symlink_to(target)
        refused(match)
        (run / "link").unlink()
    (run / "a\\b").touch()
    refused("cannot hold a file of this name")
    (run / "a\\b").unlink()
    for name in ("README", "readme"):
        (run / name).touch()
    refused("are one file on other machines")


def test_tokens_are_in_the_bundle(tmp_path: Path) -> None:
    elsewhere = {MANIFEST: DESCRIBED[:-1] + ', "tokens": "../../etc"}'}
    with pytest.raises(DataError, match=r"it lacks \.\./\.\./etc"):
        unpack(write_zip(tmp_path / "y.zip", HARMLESS | elsewhere), tmp_path / "out")


def test_shell_lines_are_listed(tmp_path: Path) -> None:
    texts = {"a.yaml": "launcher: {type: slurm, 'set\\u0075p': x}\n", "b.yaml": 'launcher: {"set\\u0075p": x}\n'}
    texts |= {"c.yaml": "name: setup\n", "d.txt": "launcher:\n  sbatch: {qos: x}\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert bundling.shell_lines(tmp_path) == [tmp_path / "b.yaml", tmp_path / "d.txt"]
