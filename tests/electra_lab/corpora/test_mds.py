"""MDS shards: `tests/data/mds` was written by MosaicML's streaming 0.13.0, with five samples."""

import bz2
import gzip
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_lab.corpora.mds import Mds
from electra_lab.sources import files
from registry import Document, Skipped
from registry.errors import DataError
from tests.helpers import ROOT

WRITTEN = ROOT / "tests" / "data" / "mds"
TEXTS = ["one", "two\nlines", "grüße 你好 🙂", "five"]  # without the empty one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(WRITTEN / "plain", tmp_path / "plain"))


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_what_the_library_wrote(name: str) -> None:
    if name == "zstd":
        pytest.importorskip("zstandard")
    assert list(Mds(paths=[WRITTEN / name])) == TEXTS
    for key, values in (("book", ["0", "-1", "0", "0"]), ("name", ["n0", "n1", "n2", "n4"])):
        corpus = Mds(paths=[WRITTEN / name / "index.json"], key=key)
        assert list(corpus) == [Document(text, value) for text, value in zip(TEXTS, values, strict=True)]


@pytest.mark.parametrize(("kind", "key"), [('"uint64"', str(2**64 - 1)), ('"int64" ', "-1")])
def test_numbers_have_the_sign_of_their_type(folder: Path, kind: str, key: str) -> None:
    """The second key is 64 bits that are all one."""
    shard, columns = folder / "shard.00000.mds", b'"int", "str", "bytes", "str"'
    shard.write_bytes(shard.read_bytes().replace(columns, f'{kind},"str","bytes","str"'.encode()))
    keys = [item.key for item in Mds(paths=[folder], key="book") if isinstance(item, Document)]
    assert keys == ["0", key, "0", "0"]


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("br", bytes)])
def test_compressed_shards(folder: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        file = folder / shard["raw_data"]["basename"]
        packed = file.with_name(f"{file.name}.{ending}")
        packed.write_bytes(pack(file.read_bytes()))
        file.unlink()
        shard["zip_data"] = {"basename": packed.name}
    (folder / "index.json").write_text(json.dumps(index))
    if ending == "br":
        with pytest.raises(DataError, match=r"shard\.00000\.mds\.br: .* zstd"):
            Mds(paths=[folder])
    else:
        assert list(Mds(paths=[folder])) == TEXTS


def test_blocks_end_anywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 7, 64):
        monkeypatch.setattr(files, "BLOCK", size)
        assert list(Mds(paths=[folder])) == TEXTS


def test_the_order_is_that_of_the_index_and_moving_changes_nothing(folder: Path) -> None:
    before = Mds(paths=[folder]).fingerprint()
    index = json.loads((folder / "index.json").read_text())
    index["shards"].reverse()
    (folder / "index.json").write_text(json.dumps(index))
    reversed_ = Mds(paths=[folder])
    assert list(reversed_)[-1] == TEXTS[1]
    assert reversed_.fingerprint() != before
    assert Mds(paths=[WRITTEN / "plain"]).fingerprint() == before
    assert Mds(paths=[WRITTEN / "plain"], key="name").fingerprint() != before


@pytest.mark.parametrize(
    ("damage", "what", "kept"),
    [
        (lambda data: data[:-3], "sample 2", TEXTS),
        (lambda data: data + b"\0", "", TEXTS),
        (lambda data: data[:8] + b"\0\0\0\0" + data[12:], "sample 1", [*TEXTS[:2], "five"]),
        (lambda data: data.replace(b'{"column', b'["column'), "", [*TEXTS[:2], "five"]),
        (lambda data: data.replace(b" [8, null, null, null", b"[1e999,null,null,null"), "not a", [*TEXTS[:2], "five"]),
        (lambda data: data.replace(b'"name"', b'"text"'), "two columns", [*TEXTS[:2], "five"]),
        (lambda data: data[:4] + struct.pack("<3I", *[200_016] * 3) + b"[" * 200_000, "not a", [*TEXTS[:2], "five"]),
        (lambda _: b"This is a text, not a shard.", "1,936,287,828 samples", [*TEXTS[:2], "five"]),
    ],
)
def test_a_damaged_shard_is_named_and_what_precedes_the_damage_kept(
    folder: Path, damage: Callable[[bytes], bytes], what: str, kept: list[str]
) -> None:
    shard = folder / "shard.00001.mds"
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(DataError, match=f"^{shard}: .*{what}"):
        list(Mds(paths=[folder]))
    found = list(Mds(paths=[folder], on_error="skip"))
    (skipped,) = [item for item in found if isinstance(item, Skipped)]
    assert (skipped.place, skipped.unit) == (str(shard), "ends of files")
    assert [item for item in found if item != skipped] == kept


@pytest.mark.parametrize(("data", "reason"), [(slice(-3), "cut short"), (slice(1, None), "damaged or not a .zstd")])
def test_where_nothing_can_be_decompressed_the_reason_is_that(tmp_path: Path, data: slice, reason: str) -> None:
    pytest.importorskip("zstandard")
    shard = Path(shutil.copytree(WRITTEN / "zstd", tmp_path / "zstd")) / "shard.00000.mds.zstd"
    shard.write_bytes(shard.read_bytes()[data])
    with pytest.raises(DataError, match=f"^{shard}: is {reason}.* after 0 bytes"):
        list(Mds(paths=[shard.parent]))
    assert [type(item) for item in Mds(paths=[shard.parent], on_error="skip")] == [Skipped]


def test_a_sample_that_is_not_text(folder: Path) -> None:
    shard = folder / "shard.00001.mds"
    shard.write_bytes(shard.read_bytes().replace("grüße".encode(), b"gr\xff\xff\xff\xffe"))
    with pytest.raises(DataError, match="byte 2 of the column 'text'"):
        list(Mds(paths=[folder]))
    found = [item if isinstance(item, str) else item.place for item in Mds(paths=[folder], on_error="skip")]
    assert found == ["one", "two\nlines", f"{shard}: sample 1", "five"]


@pytest.mark.parametrize(
    ("column", "key", "what"),
    [
        ("txt", None, r"'txt'\. Did you mean 'text'\?"),
        ("text", "bok", r"'bok'\. Did you mean 'book'\?"),
        ("tokens", None, "ndarray:int32"),
        ("book", None, "of type int,"),
        ("text", "x", "float32"),
    ],
)
def test_a_wrong_column_is_an_error_always(folder: Path, column: str, key: str | None, what: str) -> None:
    for on_error in ("stop", "skip"):
        with pytest.raises(DataError, match=what):
            list(Mds(paths=[folder], column=column, key=key, on_error=on_error))  # type: ignore[arg-type]


def test_other_files_are_no_indexes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")
    monkeypatch.chdir(folder)
    for given in (folder, Path()):
        assert list(Mds(paths=[given])) == TEXTS
    with pytest.raises(DataError, match=r"shard\.00000\.mds: .* index\.json"):
        Mds(paths=[folder / "shard.00000.mds"])


def test_a_wrong_index(folder: Path) -> None:
    index = folder / "index.json"
    good = index.read_text()
    (folder / "shard.00001.mds").rename(folder / "elsewhere")
    with pytest.raises(DataError, match=r"shard\.00001\.mds: is missing"):
        Mds(paths=[folder])
    for wrong in ('{"shards": [], "version": 2}', '{"shards": 1}', "[]", "{", '{"shards": [{}]}', "\xff", "[" * 200_000,
                  good.replace('"mds"', '"json"'), good.replace(': 2, "size', ': 1e999, "size')):  # fmt: skip
        index.write_text(wrong, encoding="latin-1")
        with pytest.raises(DataError, match=r"index\.json: "):
            Mds(paths=[folder])
    index.unlink()
    with pytest.raises(DataError, match=r"index\.json"):
        Mds(paths=[folder])


@pytest.mark.parametrize(
    "name", ["../shard.00000.mds", "part/../shard.00000.mds", "{folder}/shard.00000.mds", "part/one.mds"]
)
def test_an_index_lists_shards_below_its_folder_and_each_once(folder: Path, name: str) -> None:
    """The file exists, also where the name leads out of the folder and back."""
    index, shard = folder / "index.json", folder / "shard.00000.mds"
    (folder / "part").mkdir()
    for copy in (folder.parent / shard.name, folder / "part" / "one.mds"):
        shutil.copy(shard, copy)
    content = json.loads(index.read_text())
    content["shards"][0]["raw_data"]["basename"] = name.format(folder=folder)
    index.write_text(json.dumps(content))
    if name == "part/one.mds":
        assert list(Mds(paths=[folder])) == TEXTS
        content["shards"] = content["shards"][:1] * 2
        index.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"index\.json: .*mds'"):
        Mds(paths=[folder])


@pytest.mark.parametrize("samples", [1, 3, -1])
def test_a_shard_with_another_number_of_samples_than_its_index_says_is_named(folder: Path, samples: int) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["shards"][1]["samples"] = samples
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=rf"shard\.00001\.mds: has 2 samples, .* {samples}\."):
        list(Mds(paths=[folder]))
