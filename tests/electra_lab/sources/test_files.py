"""Finding files, reading them plain or compressed, and hashing what was read."""

import bz2
import gzip
import lzma
import os
import stat
import zlib
from contextlib import nullcontext
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
    ".bz2": bz2.compress,
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


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("*", "x/a.txt x/deep/c.txt y/b.txt"),
        ("x/*", "x/a.txt"),
        ("y x y", "y/b.txt x/a.txt x/deep/c.txt"),
        ("y/b.txt */*.txt y/b.txt", "y/b.txt x/a.txt"),
        ("[y-z]/[a-b].txt", "y/b.txt"),
        ("**/c.*", "x/deep/c.txt"),
        # Existing paths are taken literally: experiments may be in folders such as `run[1]`.
        ("run[1]/a[?].txt", "run[1]/a[?].txt"),
        ("run[1]/a*.txt", "run[1]/a[?].txt run[1]/ab.txt"),
        ("run[1]/[ab]b.txt", "run[1]/ab.txt"),
        ("run[1]", "run[1]/a[?].txt run[1]/ab.txt"),
    ],
)
def test_a_pattern_means_files_and_otherwise_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: str, expected: str
) -> None:
    """Paths in the given order, a pattern's files by name, each file once."""
    write(tmp_path, "x/a.txt", "y/b.txt", "x/deep/c.txt", "y/.d.txt")
    if "run" in paths:
        write(tmp_path, "run[1]/a[?].txt", "run[1]/ab.txt")
    assert names(files(*(tmp_path / path for path in paths.split())), tmp_path) == expected.split()
    monkeypatch.chdir(tmp_path)
    assert names(files(*map(Path, paths.split())), Path()) == expected.split()


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


LIBRARIES: dict[str, Any] = {
    ".gz": partial(zlib.decompressobj, 31),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


@pytest.mark.parametrize("ending", LIBRARIES)
@pytest.mark.parametrize("cut_at", [0, 0.5, 0.9999])
def test_a_file_that_is_cut_short(tmp_path: Path, ending: str, cut_at: float) -> None:
    """Everything that can still be decompressed comes before the error, which states its size."""
    packed = PACK[ending](TEXT)
    packed = packed[: int(cut_at * len(packed))]
    kept = LIBRARIES[ending]().decompress(packed)
    write(tmp_path, f"a.txt{ending}", content=packed)
    found = files(tmp_path)
    found.fingerprint()
    blocks: list[bytes] = []
    with pytest.raises(BadInput, match=f"is cut short after {len(kept):,} bytes") as refused:
        blocks.extend(found.blocks(found.files[0]))
    assert len(kept) >= cut_at * 0.7 * len(TEXT)
    assert b"".join(blocks) == kept == TEXT[: len(kept)]
    skipped = refused.value.skipped
    assert (skipped.place, skipped.number, skipped.unit) == (str(tmp_path / f"a.txt{ending}"), 1, "ends of files")


@pytest.mark.parametrize("ending", [".gz", ".xz"])
@pytest.mark.parametrize("follows", [b"\0" * 40_000, b"rubbish" * 9000])
def test_padding_may_follow_the_compressed_text_and_nothing_else(tmp_path: Path, ending: str, follows: bytes) -> None:
    write(tmp_path, f"a.txt{ending}", content=PACK[ending](b"text") + follows)
    found = files(tmp_path)
    found.fingerprint()
    blocks: list[bytes] = []
    with nullcontext() if follows[0] == 0 else pytest.raises(BadInput, match="is damaged"):
        blocks.extend(found.blocks(found.files[0]))
    assert b"".join(blocks) == b"text"


@pytest.mark.parametrize("ending", LIBRARIES)
def test_a_corrupt_file(tmp_path: Path, ending: str) -> None:
    packed = bytearray(PACK[ending](TEXT))
    packed[len(packed) // 2 : len(packed) // 2 + 8] = b"\xff" * 8
    for content in (bytes(packed), b"this is not compressed"):
        write(tmp_path, f"a.txt{ending}", content=content)
        found = files(tmp_path)
        with pytest.raises(BadInput, match=rf"a\.txt\{ending}: is damaged or not a \{ending} file, after [\d,]+ bytes"):
            list(found.blocks(found.files[0]))


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, ending: str, damaged: bool) -> None:
    """A file that is still being written has changed; it is not damaged."""
    file, text = tmp_path / f"a.txt{ending}", TEXT[:100_000]
    write(tmp_path, file.name, content=PACK[ending](text))
    found, read_first = files(file), files(file)
    before = found.fingerprint()
    list(found.blocks(file))
    list(read_first.blocks(file))  # counts without a fingerprint
    changed = PACK[ending](text[:-1] + b"!")
    file.write_bytes(changed[:-1] if damaged else changed)
    for reader in (found, read_first):
        with pytest.raises(DataError, match=r": changed while it was read\. Start again when it is complete\."):
            list(reader.blocks(file))
    assert found.fingerprint() != before
    if not damaged:
        list(found.blocks(file))


contents = st.lists(st.binary(max_size=20), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(contents=contents, place=st.integers(0), bit=st.integers(0, 7))
def test_same_content_same_fingerprint_one_changed_bit_another(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], place: int, bit: int
) -> None:
    def fingerprint(contents: list[bytes], mode: str = "a") -> str:
        folder = tmp_path_factory.mktemp("content")  # another path each time
        for number, content in enumerate(contents):
            write(folder, f"{number}.txt", content=content)
        return files(folder, mode=mode).fingerprint()

    before = fingerprint(contents)
    assert fingerprint(contents) == before
    assert fingerprint(contents, mode="b") != before
    assert fingerprint([*contents, b""]) != before
    assert len(contents) == 1 or fingerprint([contents[0] + contents[1], *contents[2:]]) != before
    number = place % len(contents)
    if contents[number]:
        changed = bytearray(contents[number])
        changed[place % len(changed)] ^= 1 << bit
        assert fingerprint([*contents[:number], bytes(changed), *contents[number + 1 :]]) != before


def test_an_optional_library_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    reason = r"zstandard is needed to read a\.txt\.zst\. Install it: pip install 'electra-lab\[data\]'\."
    write(tmp_path, "a.txt.zst", content=PACK[".zst"](b"text"))
    found = files(tmp_path)
    with pytest.raises(DataError, match=reason):
        list(found.blocks(found.files[0]))
    with pytest.raises(DataError, match="nonesuch is needed for this"):
        needed("nonesuch", "for this")


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one\rtwo\r\rthree", [b"one", b"two", b"", b"three"]),
        (b"one\rtwo\r", [b"one", b"two", b""]),
        (b"one\r\ntwo\r\n", [b"one\r", b"two\r", b""]),
        (b"one\ntwo\rthree\n", [b"one", b"two\rthree", b""]),
        (b"one\r", [b"one\r"]),
    ],
)
def test_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, content: bytes, expected: list[bytes]
) -> None:
    """Carriage returns end lines in files without line feeds; a reader may drop one before a line feed."""
    monkeypatch.setattr(sources, "BLOCK", block)
    write(tmp_path, "a.txt", content=content)
    found = files(tmp_path)
    assert list(found.lines(found.files[0])) == expected


RUSSIAN = "всё равно\n" * 20


@pytest.mark.parametrize(
    "content",
    [
        RUSSIAN.encode("utf-16"),
        ("wörd\n" * 20).encode("utf-16-be"),
        ("word\n" * 20).encode("utf-16-le"),
        b"\xff\xfea\0",
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_utf16_is_named(tmp_path: Path, content: bytes, ending: str) -> None:
    write(tmp_path, f"a.txt{ending}", content=PACK[ending](content))
    found = files(tmp_path)
    with pytest.raises(BadInput, match=r"a\.txt.*: is UTF-16, not UTF-8\. .*iconv") as refused:
        list(found.blocks(found.files[0]))
    assert refused.value.skipped.number == found.files[0].stat().st_size
    write(tmp_path, "b.txt", content=b"every NUL\0 is in \0an odd place" * 9)
    assert list(files(tmp_path / "b.txt").blocks(tmp_path / "b.txt"))


def test_what_a_folder_holds_besides(tmp_path: Path) -> None:
    """Files with other endings and links to folders are listed; hidden files and those of other paths are not."""
    write(tmp_path, "x/a.txt", "x/b.jsonl", "x/c.csv.gz", "x/.d.csv", "x/deep/e", "y/f.txt")
    (tmp_path / "x" / "link").symlink_to(tmp_path / "y")
    found = files(tmp_path / "x")
    ignored = [file.relative_to(tmp_path).as_posix() for file in found.ignored]
    assert (names(found, tmp_path), ignored) == (["x/a.txt"], ["x/b.jsonl", "x/c.csv.gz", "x/deep/e", "x/link"])
    both = files(tmp_path / "x", tmp_path / "x" / "*.jsonl", tmp_path / "*" / "*")
    assert names(both, tmp_path)[-1] == "y/f.txt"
    assert [file.name for file in both.ignored] == ["e", "link", "deep"]


def test_links_that_lead_back_are_not_followed(tmp_path: Path) -> None:
    """Two of them would be followed 2^40 times. A link to another folder is followed."""
    write(tmp_path, "x/a.txt", "x/deep/b.txt", "y/c.txt", "y/.hidden/d.txt")
    for link, target in {"x/back": "..", "x/deep/again": "../..", "x/self": "self", "y/self.txt": "self.txt"}.items():
        (tmp_path / link).symlink_to(target)
    (tmp_path / "x" / "other").symlink_to("../y")
    with pytest.raises(DataError, match=r"self\.txt: cannot be read"):
        files(tmp_path / "**" / "*.txt")
    (tmp_path / "y" / "self.txt").unlink()
    (tmp_path / "x" / "self").unlink()
    expected = ["x/a.txt", "x/deep/b.txt", "x/other/c.txt", "y/c.txt"]
    assert names(files(tmp_path / "**" / "*.txt"), tmp_path) == expected
    assert names(files(tmp_path / "x" / "**"), tmp_path)[0] == "x/a.txt"
    assert names(files(tmp_path / "x"), tmp_path) == ["x/a.txt", "x/deep/b.txt"]


@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "dangling"])
def test_what_is_not_a_regular_file_is_an_error_and_waits_for_nobody(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x" / "a.txt"
    write(tmp_path, "x/b.txt")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nothing")
    for named in (path, tmp_path / "x", tmp_path / "x" / "*"):
        with pytest.raises(DataError, match=r"a\.txt: cannot be read \("):
            files(named)
    path.unlink()
    found = files(tmp_path / "x")
    (tmp_path / "x" / "b.txt").unlink()
    os.mkfifo(tmp_path / "x" / "b.txt")  # later
    for read in (found.fingerprint, lambda: list(found.blocks(found.files[0]))):
        with pytest.raises(DataError, match=r"b\.txt: cannot be read \(it is not a regular file\)"):
            read()


@pytest.mark.parametrize("name", ["n" * 300, "d/" + "n" * 300 + "/a.txt", "*" + "n" * 300, "x/" * 3000, "nul\0"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r": no file matches\."):
        files(tmp_path / name)
