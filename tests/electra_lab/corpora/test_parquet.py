"""Parquet files: types of columns, nulls, keys, memory."""

import os
from pathlib import Path
from typing import Any

import pytest

from electra_lab.corpora import parquet as module
from electra_lab.corpora.parquet import Parquet
from registry import Document, Skipped
from registry.errors import DataError

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


SCHEMA = pyarrow.schema({"text": pyarrow.string()})


def corpus(folder: Path, options: dict[str, Any] | None = None, row_group_size: int = 2, **columns: Any) -> Parquet:
    pq.write_table(pyarrow.table(columns), folder / "a.parquet", row_group_size=row_group_size)
    return Parquet(paths=[folder], **options or {})


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_columns_of_text_of_every_type(tmp_path: Path, kind: str) -> None:
    texts = ["one", "", "grüße 🙂\0\ud7a3", "one", " two\r\n "]
    dictionary = kind == "dictionary"
    kept = pyarrow.dictionary(pyarrow.int32(), pyarrow.string()) if dictionary else getattr(pyarrow, kind)()
    found = list(corpus(tmp_path, text=pyarrow.array(texts).cast(kept), other=range(5)))
    assert found == ["one", "grüße 🙂\0\ud7a3", "one", "two"]


def test_keys_and_other_columns(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"body": ["one", "two"], "book": ["a", "b"], "number": [1, 2]}
    for key, values in (("book", ("a", "b")), ("number", ("1", "2"))):
        made = corpus(tmp_path, {"column": "body", "key": key}, **columns)
        assert list(made) == [Document("one", values[0]), Document("two", values[1])]
        assert made.fingerprint() != corpus(tmp_path, {"column": "body"}, **columns).fingerprint()


def test_rows_in_their_order_over_groups_batches_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 30)
    texts = [f"text {number}" for number in range(50)]
    pq.write_table(pyarrow.table({"text": ["last"]}), tmp_path / "b.parquet")
    assert list(corpus(tmp_path, row_group_size=7, text=texts)) == [*texts, "last"]


def test_nulls_are_named_or_skipped(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"text": ["one", None, "two"], "id": [1, 2, None]}
    file = tmp_path / "a.parquet"
    with pytest.raises(DataError, match=r"a\.parquet: row 2: .* set on_error: skip\."):
        list(corpus(tmp_path, **columns))
    skipped = Skipped(f"{file}: row 2", "the field 'text' is null, not text")
    assert list(corpus(tmp_path, {"on_error": "skip"}, **columns)) == ["one", skipped, "two"]
    with_key = list(corpus(tmp_path, {"on_error": "skip", "key": "id"}, **columns))
    reason = "the field 'id' is null, so it cannot be a key"
    assert with_key == [Document("one", "1"), skipped, Skipped(f"{file}: row 3", reason)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"column": "txt"}, r"a\.parquet: has no column 'txt'\. Did you mean 'text'\? Known: number, raw, text\."),
        ({"key": "id"}, r"a\.parquet: has no column 'id'\."),
        ({"column": "number"}, r"the column 'number' is of type int64, not text\."),
        ({"column": "raw"}, r"the column 'raw' is of type binary, not text\."),
    ],
)
def test_a_wrong_column_is_an_error_always(tmp_path: Path, options: Any, reason: str) -> None:
    for on_error in ("stop", "skip"):
        with pytest.raises(DataError, match=reason):
            list(corpus(tmp_path, {**options, "on_error": on_error}, text=["a"], number=[1], raw=[b"a"]))


@pytest.mark.parametrize("content", [b"", b"plain text, no Parquet", "cut short", "flipped"])
def test_a_damaged_file(tmp_path: Path, content: bytes | str) -> None:
    list(corpus(tmp_path, text=["one", "two"] * 1000, row_group_size=2000))
    file, rows = tmp_path / "a.parquet", content == "flipped"
    whole = file.read_bytes()
    damaged = {"cut short": whole[:-10], "flipped": whole[:10] + b"\xff" * 20 + whole[30:]}
    file.write_bytes(content if isinstance(content, bytes) else damaged[content])
    pq.write_table(pyarrow.table({"text": ["next"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"a\.parquet.*: is damaged or not a Parquet file \(.+\)\. Copy or downlo"):
        list(Parquet(paths=[tmp_path]))
    *_, skipped, following = Parquet(paths=[tmp_path], on_error="skip")
    assert isinstance(skipped, Skipped)
    assert (skipped.place, following) == (f"{file}{': rows 1 to 2000' * rows}", "next")
    assert (skipped.number, skipped.unit) == ((2000, "records") if rows else (file.stat().st_size, "bytes"))


@pytest.mark.parametrize("batch", [100, 10_000])
def test_damage_in_a_group_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """The other groups are read, and so are the batches of rows before the damage."""
    monkeypatch.setattr(module, "_rows", lambda group, columns: batch)
    texts = [f"row {number} of many rows" for number in range(1000)]
    file, table = tmp_path / "a.parquet", pyarrow.table({"id": range(1000), "text": texts})
    pq.write_table(table, file, row_group_size=250, use_dictionary=False, data_page_size=1000, write_batch_size=10)
    column = pq.ParquetFile(file).metadata.row_group(1).column(1)
    data = bytearray(file.read_bytes())
    end = column.data_page_offset + column.total_compressed_size
    data[end - 400 : end] = b"\xff" * 400
    file.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"a\.parquet: rows \d+ to 500: is damaged"):
        list(Parquet(paths=[file]))
    found = list(Parquet(paths=[file], key="id", on_error="skip"))
    (skipped,) = [item for item in found if isinstance(item, Skipped)]
    begin = 250 if batch == 10_000 else 350  # reading a batch needs one page beyond it
    assert skipped.place == f"{file}: rows {begin + 1} to 500"
    assert (skipped.number, skipped.unit) == (500 - begin, "records")
    kept = [text for number, text in enumerate(texts) if not begin <= number < 500]
    assert [item.text for item in found if isinstance(item, Document)] == kept
    assert [item.key for item in found if isinstance(item, Document)][-1] == "999"


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    """Arrow does not check it; one such row does not affect others."""
    wrong = pyarrow.array([b"one", b"\xff", b"two"]).view(pyarrow.string())
    with pytest.raises(DataError, match=r"a\.parquet: row 2: is not UTF-8\."):
        list(corpus(tmp_path, text=wrong))
    skipped = Skipped(f"{tmp_path / 'a.parquet'}: row 2", "is not UTF-8")
    assert list(corpus(tmp_path, {"on_error": "skip"}, text=wrong)) == ["one", skipped, "two"]


@pytest.mark.parametrize("kind", [pyarrow.timestamp("us"), pyarrow.duration("s")], ids=str)
def test_a_key_that_python_cannot_hold_is_named(tmp_path: Path, kind: Any) -> None:
    keys = pyarrow.array([2**62], kind)
    with pytest.raises(DataError, match=r"a\.parquet: row 1: "):
        list(corpus(tmp_path, {"key": "id"}, text=["one"], id=keys))
    assert [type(item) for item in corpus(tmp_path, {"key": "id", "on_error": "skip"}, text=["one"], id=keys)] == [
        Skipped
    ]


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """Or becomes a pipe, which the reader must not wait for."""
    made = corpus(tmp_path, text=["one"])
    list(made)
    pq.write_table(pyarrow.table({"text": ["other"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: changed while it was read\."):
        list(made)
    (tmp_path / "a.parquet").unlink()
    os.mkfifo(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read \(it is not a regular file\)"):
        list(made)


def test_memory_is_bounded_in_one_large_row_group(tmp_path: Path) -> None:
    texts = [f"{number:06} {'word ' * 2000}" for number in range(5000)]  # 50 MB
    table = pyarrow.table({"text": texts})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=len(texts), use_dictionary=False, compression="none")
    del table, texts
    before = pyarrow.total_allocated_bytes()
    allocated = [pyarrow.total_allocated_bytes() - before for _ in Parquet(paths=[tmp_path])]
    assert len(allocated) == 5000
    assert (highest := max(allocated)) < 25e6, f"{highest / 1e6:.0f} MB for 50 MB of text"


@pytest.mark.parametrize("options", [{}, {"column": "raw", "key": "text"}])
def test_a_column_that_is_there_twice_is_an_error(tmp_path: Path, options: Any) -> None:
    table = pyarrow.Table.from_arrays([["a"], ["b"], ["c"]], names=["text", "raw", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: several columns are called 'text'"):
        list(Parquet(paths=[tmp_path], **options))


@pytest.mark.parametrize("encoding", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY"])
@pytest.mark.parametrize("most", [1 << 27, 1 << 20])
def test_memory_is_bounded_where_all_rows_repeat_a_long_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, most: int
) -> None:
    monkeypatch.setattr(module, "MOST", most)
    texts = pyarrow.DictionaryArray.from_arrays([0] * 2000, ["word " * 20_000])  # 200 MB in less than a kilobyte
    options = {} if encoding == "RLE_DICTIONARY" else {"use_dictionary": False, "column_encoding": encoding}
    pq.write_table(pyarrow.table({"text": texts}).cast(SCHEMA), tmp_path / "a.parquet", **options)
    before = pyarrow.total_allocated_bytes()
    allocated = [pyarrow.total_allocated_bytes() - before for _ in Parquet(paths=[tmp_path])]
    assert len(allocated) == 2000
    assert max(allocated) < min(25e6, 4 * most)
