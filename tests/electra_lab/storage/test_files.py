"""Files that are complete or absent, sealed folders that reveal all damage, and locks that end with their process."""

import errno
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from filelock import FileLock

from electra_lab.storage import files
from electra_lab.storage.files import (
    MANIFEST,
    config_of,
    damage,
    disk,
    lock,
    new_folder,
    read_json,
    reading,
    seal,
    sha256,
    write_whole,
)
from registry.errors import CheckpointError, ConfigError
from tests.helpers import ROOT, python

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux exchanges two folders at once")


def test_it_is_on_the_disk_before_it_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        happened.append("its folder" if path == tmp_path else path.read_text())
        fsync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        happened.append("replace")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    for text in ("content", "zweite Fassung: ä → b\n", ""):
        happened.clear()
        write_whole(tmp_path / "notes.txt", text)
        assert happened == [text, "replace", "its folder"]
        assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("owner", "name"), [(Path, "open"), (os, "fsync"), (Path, "replace")], ids=["write", "flush", "rename"]
)
def test_a_disk_that_refuses_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    file = tmp_path / "notes.txt"
    write_whole(file, "old")
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(CheckpointError, match=rf"{file}: cannot be written \(No space left on device\)\."):
            write_whole(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_file_that_was_not_finished_does_not_appear(tmp_path: Path) -> None:
    def half() -> None:
        with files.new_file(tmp_path / "notes.txt") as stream:
            stream.write("half a sen")
            stream.flush()
            assert "half a sen" in {path.read_text() for path in tmp_path.iterdir()}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_named_by_the_file(tmp_path: Path) -> None:
    file, limits = tmp_path / "vectors.npy", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="vectors") as caught, files.new_file(file, "wb") as stream:
            stream.write(bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (caught.value.filename, os.listdir(tmp_path)) == (str(file), [])


def test_two_that_write_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    """At every moment: the file is read until its writer has changed twenty times."""
    file, seen, deadline, stop = tmp_path / "shared.txt", "", time.monotonic() + 60, threading.Event()

    def write(letter: str) -> None:
        while not stop.is_set():
            write_whole(file, letter * 300_000)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, letter) for letter in "ab"]
        try:
            while len(seen) < 20:
                assert not any(writer.done() for writer in writers)
                assert time.monotonic() < deadline
                if file.exists():
                    text = file.read_text()
                    assert text in ("a" * 300_000, "b" * 300_000)
                    seen += text[0] if not seen.endswith(text[0]) else ""
        finally:
            stop.set()
    assert [writer.exception() for writer in writers] == [None, None]
    assert os.listdir(tmp_path) == ["shared.txt"]


def test_json_is_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": "ä"}', encoding="utf-8")
    assert read_json(file) == {"a": "ä"}
    for content in (b"", b"{", b'{"a": "\xff"}', b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"^{file}: cannot be read \(.*\)\. Delete it\.$"):
            read_json(file, "Delete it.")
    with pytest.raises(CheckpointError, match=r"none.json: cannot be read \(.*No such file or directory.*\)\.$"):
        read_json(tmp_path / "none.json")


def test_errors_of_the_file_system_are_sentences_and_others_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"notes\.txt: cannot be written"), disk(tmp_path / "notes.txt"):
        raise OSError(5, "Input/output error")
    with pytest.raises(CheckpointError, match=r"other\.txt: cannot be written"), disk(tmp_path / "notes.txt"):
        raise OSError(5, "Input/output error", "other.txt")
    with pytest.raises(ValueError, match="ours"), disk(tmp_path):
        raise ValueError("ours")


def test_a_new_folder_appears_whole_and_after_all_of_it_is_on_the_disk(tmp_path: Path, monkeypatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(files, "flush", flushed.append)
    final, part = tmp_path / "a", tmp_path / ".a.part"
    part.mkdir()
    (part / "left.txt").touch()  # by a process that was killed
    final.mkdir()
    (final / "old.txt").touch()
    with new_folder(final) as building:
        assert list(building.iterdir()) == []
        (building / "new.txt").touch()
        assert os.listdir(final) == ["old.txt"]
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(final) == ["new.txt"]
    assert flushed == [part / "new.txt", part, tmp_path]  # the parent after the renaming


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    write_whole(file, "old")
    done = python(
        "-c",
        "import os, pathlib\nfrom electra_lab.storage import files\n"
        "files.flush = lambda _: os.kill(os.getpid(), 9)\nfiles.write_whole(pathlib.Path('notes.txt'), 'new')",
        cwd=tmp_path,
    )
    assert done.returncode == -9, done.stderr
    assert file.read_text() == "old"


def test_a_folder_that_a_killed_process_had_moved_away_is_not_lost(tmp_path: Path) -> None:
    """It is missing between two renames, in which the earlier one has another name."""
    final = tmp_path / "a"
    final.mkdir()
    (final / "old.txt").touch()
    done = python(
        "-c",
        "import os, pathlib\nfrom electra_lab.storage import files\nrename = pathlib.Path.rename\n"
        "pathlib.Path.rename = lambda s, t: os.kill(os.getpid(), 9) if t == pathlib.Path('a') else rename(s, t)\n"
        "with files.new_folder(pathlib.Path('a')) as building:\n    (building / 'new.txt').touch()",
        cwd=tmp_path,
    )
    assert done.returncode == -9, done.stderr
    assert sorted(os.listdir(tmp_path)) == [".a.old", ".a.part"]
    with pytest.raises(KeyboardInterrupt), new_folder(final):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(final) == ["old.txt"]


def test_an_earlier_folder_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the earlier or the new folder exists at all moments but one."""
    final = tmp_path / "a"
    final.mkdir()
    (final / "old.txt").touch()
    seen: list[list[str]] = []

    def watched(function: Any) -> Any:
        def call(*given: Any) -> Any:
            done = function(*given)
            seen.append(os.listdir(final) if final.exists() else [])
            return done

        return call

    for owner, name in ((Path, "rename"), (files, "flush")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    with new_folder(final) as building:
        (building / "new.txt").touch()
    old, new = ["old.txt"], ["new.txt"]
    assert seen == [old, old, [], new, new]
    assert os.listdir(tmp_path) == ["a"]


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / "sealed"
    folder.mkdir()
    (folder / "data.bin").write_bytes(random.Random(0).randbytes(37))
    (folder / "state.json").write_text('{"step": 7}')
    seal(folder)
    return folder


def test_the_manifest_holds_checksum_and_size_of_every_file(sealed: Path) -> None:
    manifest = {}
    for name in ("data.bin", "state.json"):
        content = (sealed / name).read_bytes()
        manifest[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        assert sha256(sealed / name) == manifest[name]["sha256"]
    assert json.loads((sealed / MANIFEST).read_text()) == manifest
    # A required file must be in it.
    (sealed / "late.txt").write_text("after the seal")
    assert damage(sealed) is None
    assert damage(sealed, ["late.txt"]) is not None


@pytest.mark.parametrize("name", ["data.bin", "state.json"])
def test_every_flipped_bit_and_every_cut_is_found(sealed: Path, name: str) -> None:
    file = sealed / name
    content = file.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            file.write_bytes(changed)
            assert damage(sealed) == f"{name} is damaged: its checksum is wrong"
        file.write_bytes(content[:place])
        assert damage(sealed) == f"{name} is damaged: it has {place} bytes, not {len(content)}"
    file.write_bytes(content + b"\0")
    assert damage(sealed) == f"{name} is damaged: it has {len(content) + 1} bytes, not {len(content)}"
    file.write_bytes(content)
    assert damage(sealed) is None


def test_whatever_happens_to_the_manifest_is_found_or_harmless(sealed: Path) -> None:
    """A changed byte may be white space; then the content is the same."""
    file = sealed / MANIFEST
    content = file.read_bytes()
    manifest = json.loads(content)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        if damage(sealed, manifest) is None:
            assert json.loads(file.read_bytes()) == manifest
        file.write_bytes(content[:place])
        assert damage(sealed, manifest) is not None
    for strange in ("", "[]", "null", "7", '{"data.bin": null}', '{"data.bin": {}}', "[" * 100_000):
        file.write_text(strange)
        assert str(damage(sealed, ["data.bin"])).startswith(f"{MANIFEST} is damaged"), strange


def test_what_is_missing_is_named(sealed: Path) -> None:
    (sealed / "data.bin").unlink()
    assert damage(sealed) == "data.bin is missing"
    assert damage(sealed, ["state.json"]) is None
    (sealed / MANIFEST).unlink()
    assert damage(sealed) == f"{MANIFEST} is missing"
    shutil.rmtree(sealed)
    assert damage(sealed) == f"{MANIFEST} is missing"


HOLDER = """
import pathlib, sys
from electra_lab.storage.files import lock
with lock(pathlib.Path(sys.argv[1])) as held:
    print(bool(held), flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that holds the lock until it is killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], env=environment, text=True, stdin=-1, stdout=-1, stderr=-1
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_only_one_process_holds_it_and_kill_9_ends_it(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with holder(file) as other:
        for _ in range(2):  # a failed attempt does not break it
            with lock(file) as ours:
                assert not ours
        other.kill()
        other.wait()
        with lock(file) as ours, lock(file) as again:
            assert (bool(ours), bool(again)) == (True, False)
    with lock(file) as ours:
        assert ours


def test_who_waits_gets_it_when_it_is_free(tmp_path: Path) -> None:
    order = []

    def wait() -> None:
        with lock(tmp_path / ".lock", wait=True) as ours:
            order.append(bool(ours))

    with lock(tmp_path / ".lock"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.3)
        order.append("released")
    waiting.join(30)
    assert order == ["released", True]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOLCK, "No locks available"), OSError(errno.ENOSYS, "no"), NotImplementedError("no flock")]
)
def test_a_file_system_without_locks_is_a_sentence(tmp_path: Path, monkeypatch, error: Exception) -> None:
    monkeypatch.setattr(FileLock, "acquire", Mock(side_effect=error))
    with pytest.raises(ConfigError, match=f"{tmp_path}: this file system does not support locks"), lock(tmp_path / "f"):
        pytest.fail("it is not held")


def test_another_error_of_the_file_system_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|Not a directory"), lock(tmp_path / "file" / "lock"):
        pytest.fail("it is not held")


def test_a_listing_that_looks_at_a_lock_keeps_nobody_out(tmp_path: Path) -> None:
    (file := tmp_path / ".lock").touch()
    with reading(file) as free, lock(file) as held:
        assert (free, bool(held)) == (True, False)

    def look() -> None:
        with reading(file):
            looked.set()
            time.sleep(0.01)

    looked, thread = threading.Event(), threading.Thread(target=look)
    thread.start()
    looked.wait()
    with lock(file) as held:
        assert held
    thread.join()


@pytest.mark.parametrize("content", [None, b"name: [", b"[" * 9_000, b"- " * 9_000, b"name: " + b"[" * 100 + b"]" * 100,
                                     b"a: &a {b: 1}\n<<: *a\n", b"", b"name: \xff", b"- a\n"])  # fmt: skip
def test_a_config_is_read_as_it_was_written_or_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "finetuning.yaml"
    deepest = "[" * 99 + "]" * 99
    file.write_text(f"name: größe\nseeds: [0, 1]\n'<<': {deepest}\n", encoding="utf-8")
    assert config_of(file) == {"name": "größe", "seeds": [0, 1], "<<": json.loads(deepest)}
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"^{file}: is damaged\.$"):
        config_of(file)
