"""Finding files, reading them plain or compressed, and hashing what was read."""

from __future__ import annotations

import gzip
import lzma
import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.sources import files as sources
from electra_lab.sources.files import BadInput, Files, needed
from registry.errors import DataError

zstandard = pytest.importorskip("zstandard")

PACK: dict[str, Any] = {
    "": bytes,
    ".gz": partial(gzip.compress, mtime=0),
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}
TEXT = b"".join(b"line %d of a text that is longer than a block\n" % number for number in range(50_000))
needs_permissions = pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")


def files(*paths: Path, extensions: tuple[str, ...] = (".txt",), **options: Any) -> Files:
    return Files(paths, extensions, options)


def names(found: Files, folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in found.files]


def write(folder: Path, *paths: str, content: bytes = b"text") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def test_a_folder_is_all_files_below_it_by_their_relative_paths(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", "a/z.txt.gz", "a.txt", "a/B.TXT", "a/deep/er/c.txt.zst", "no.md", "txt", "a/x.txt.bak",
          ".hidden.txt", ".git/a.txt", "a/.b.txt", "c.txt.xz")  # fmt: skip
    expected = ["a.txt", "a/B.TXT", "a/deep/er/c.txt.zst", "a/z.txt.gz", "b.txt", "c.txt.xz"]
    assert names(files(tmp_path), tmp_path) == expected
    walk = os.walk

    def backwards(*args: Any, **options: Any) -> Any:
        for at, folders, found in walk(*args, **options):
            folders.sort(reverse=True)
            yield at, folders, sorted(found, reverse=True)

    with mock.patch("os.walk", backwards):
        assert names(files(tmp_path), tmp_path) == expected


def test_a_pattern_means_files_and_otherwise_folders(tmp_path: Path) -> None:
    write(tmp_path, "x/a.txt", "y/b.txt", "x/deep/c.txt", "y/.d.txt")
    assert names(files(tmp_path / "*"), tmp_path) == ["x/a.txt", "x/deep/c.txt", "y/b.txt"]
    assert names(files(tmp_path / "x" / "*"), tmp_path) == ["x/a.txt"]
    assert names(files(tmp_path / "y", tmp_path / "x", tmp_path / "y"), tmp_path)[0] == "y/b.txt"


def test_a_folder_without_such_files(tmp_path: Path) -> None:
    write(tmp_path, "a.md", ".b.txt")
    with pytest.raises(DataError, match=r": this folder has no file that ends in \.txt or \.text\. Give a pattern or"):
        files(tmp_path, extensions=(".txt", ".text"))


@needs_permissions
def test_folders_and_files_without_rights(tmp_path: Path) -> None:
    write(tmp_path, "a/b/c.txt", "d.txt")
    (tmp_path / "d.txt").chmod(0)
    (tmp_path / "a" / "b").chmod(0)
    try:
        with pytest.raises(DataError, match=r"a/b: cannot be read \(Permission denied\)\."):
            files(tmp_path / "a")
        with pytest.raises(DataError, match=r"\*\.txt: cannot be read \(no permission to list .*a/b\)\."):
            files(tmp_path / "a" / "b" / "*.txt")
        with pytest.raises(DataError, match=r"d\.txt: cannot be read \(Permission denied\)\."):
            files(tmp_path / "d.txt").fingerprint()
    finally:
        (tmp_path / "a" / "b").chmod(0o700)


@pytest.mark.parametrize("ending", PACK)
def test_what_was_compressed_is_read_in_bounded_blocks(tmp_path: Path, ending: str) -> None:
    write(tmp_path, f"a.txt{ending}", content=PACK[ending](TEXT) + (PACK[ending](b"second part") if ending else b""))
    found = files(tmp_path)
    blocks = list(found.blocks(found.files[0]))
    assert b"".join(blocks) == TEXT + (b"second part" if ending else b"")
    assert max(map(len, blocks)) <= sources.BLOCK


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("cut_at", [0, 0.5, 0.9999])
def test_a_file_that_is_cut_short(tmp_path: Path, ending: str, cut_at: float) -> None:
    packed = PACK[ending](TEXT)
    write(tmp_path, f"a.txt{ending}", content=packed[: int(cut_at * len(packed))])
    found = files(tmp_path)
    found.fingerprint()
    with pytest.raises(BadInput) as refused:
        list(found.blocks(found.files[0]))
    file = tmp_path / f"a.txt{ending}"
    assert str(refused.value) == f"{file}: is cut short. Copy or download it again."
    assert (refused.value.skipped.place, refused.value.skipped.reason) == (str(file), "is cut short")


def test_what_follows_the_compressed_text_is_hashed_too(tmp_path: Path) -> None:
    write(tmp_path, "a.txt.xz", content=PACK[".xz"](b"text") + bytes(range(1, 256)) * 20_000)
    found = files(tmp_path)
    found.fingerprint()
    assert list(found.blocks(found.files[0])) == [b"text"]


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_a_corrupt_file(tmp_path: Path, ending: str) -> None:
    packed = bytearray(PACK[ending](TEXT))
    packed[len(packed) // 2 : len(packed) // 2 + 8] = b"\xff" * 8
    for content in (bytes(packed), b"this is not compressed"):
        write(tmp_path, f"a.txt{ending}", content=content)
        found = files(tmp_path)
        with pytest.raises(BadInput, match=rf"a\.txt\{ending}: is damaged or not a \{ending} file\. Copy or download"):
            list(found.blocks(found.files[0]))


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, ending: str, damaged: bool) -> None:
    """A file that is still being written to is one that changed, not one that is damaged."""
    file = tmp_path / f"a.txt{ending}"
    write(tmp_path, file.name, content=PACK[ending](TEXT))
    found = files(file)
    before = found.fingerprint()
    list(found.blocks(file))
    changed = PACK[ending](TEXT[:-1] + b"!")
    file.write_bytes(changed[:-1] if damaged else changed)
    with pytest.raises(DataError, match=r": changed while it was read\. Start again when it is complete\."):
        list(found.blocks(file))
    assert found.fingerprint() != before
    if not damaged:
        list(found.blocks(file))


def test_what_was_read_first_is_what_counts_without_a_fingerprint(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    found = files(tmp_path)
    list(found.blocks(found.files[0]))
    write(tmp_path, "a.txt", content=b"other")
    with pytest.raises(DataError, match="changed while it was read"):
        list(found.blocks(found.files[0]))


contents = st.lists(st.binary(max_size=20), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(contents=contents, place=st.integers(0), bit=st.integers(0, 7))
def test_same_content_same_fingerprint_one_changed_bit_another(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], place: int, bit: int
) -> None:
    def fingerprint(contents: list[bytes]) -> str:
        folder = tmp_path_factory.mktemp("content")  # another path each time
        for number, content in enumerate(contents):
            write(folder, f"{number}.txt", content=content)
        return files(folder, mode="a").fingerprint()

    before = fingerprint(contents)
    assert fingerprint(contents) == before
    assert fingerprint([*contents, b""]) != before
    assert len(contents) == 1 or fingerprint([contents[0] + contents[1], *contents[2:]]) != before
    number = place % len(contents)
    if contents[number]:
        changed = bytearray(contents[number])
        changed[place % len(changed)] ^= 1 << bit
        assert fingerprint([*contents[:number], bytes(changed), *contents[number + 1 :]]) != before


def test_options_are_in_the_fingerprint(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    assert files(tmp_path, mode=1).fingerprint() != files(tmp_path, mode=2).fingerprint()


def test_an_optional_library_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    reason = r"zstandard is needed to read a\.txt\.zst\. Install it: pip install 'electra-lab\[data\]'\."
    write(tmp_path, "a.txt.zst", content=PACK[".zst"](b"text"))
    found = files(tmp_path)
    with pytest.raises(DataError, match=reason):
        list(found.blocks(found.files[0]))
    with pytest.raises(DataError, match="nonesuch is needed for this"):
        needed("nonesuch", "for this")
