"""FASTA files, ids, and lines with patterns: their content, the location of errors, and keys that stay together."""

import gzip
import json
import re
import tracemalloc
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from electra_lab.corpora import ids as ids_corpus
from electra_lab.corpora.fasta import Fasta
from electra_lab.corpora.ids import Ids
from electra_lab.corpora.text_files import TextFiles
from electra_lab.sources import files as sources
from registry import Document, Skipped
from registry.contracts.data import cut, pieces
from registry.errors import DataError


def fasta(folder: Path, content: bytes, name: str = "a.fa", **options: Any) -> list[Document | Skipped]:
    (folder / name).write_bytes(content)
    return list(Fasta(paths=[folder / name], **options))


def texts(found: list[Any]) -> list[tuple[str | None, str]]:
    return [(item.key, item.text) for item in found if isinstance(item, Document)]


def test_records_are_cut_into_windows_with_overlap(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf>one first\nACGT\r\nAC GT\nA\n>two\n;comment\nacgtw\n"
    assert texts(fasta(tmp_path, content, window=4, overlap=1)) == [
        ("one", "ACGT"), ("one", "TACG"), ("one", "GTA"), ("two", "ACGT"), ("two", "TW"),
    ]  # fmt: skip
    assert texts(fasta(tmp_path, gzip.compress(content), "b.fa.gz"))[0] == ("one", "ACGTACGTA")
    assert texts(fasta(tmp_path, b">x\nACGTACGT\n", window=4, overlap=2))[-1] == ("x", "ACGT")  # no new part is left
    for wrong in ({"window": 4, "overlap": 4}, {"window": 250_001, "kmers": 3}):
        with pytest.raises(ValueError, match=f"window {wrong['window']}"):
            Fasta(paths=[tmp_path], **wrong)


@settings(max_examples=150, deadline=None)
@given(
    sequence=st.text("ACGTNNNn", max_size=60),
    line=st.integers(1, 9), block=st.integers(1, 11), window=st.integers(1, 12), gap=st.none() | st.integers(0, 3),
    lower_case=st.sampled_from(["raise", "keep", "drop"]),
)  # fmt: skip
@example(sequence="NNN", line=1, block=1, window=1, gap=1, lower_case="raise")
def test_windows_are_those_of_the_whole_sequence(
    tmp_path_factory: Any, sequence: str, line: int, block: int, window: int, gap: int | None, lower_case: str
) -> None:
    """For any ends of lines and blocks: compared with cutting the whole sequence."""
    lines = [sequence[at : at + line] for at in range(0, len(sequence), line)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK", block)
        found = fasta(
            tmp_path_factory.mktemp("fasta"), ("\n".join([">a long header", *lines, ">end", "A"])).encode(),
            window=window, longest_gap=gap, lower_case=lower_case, on_error="skip",
        )  # fmt: skip
    whole = sequence.upper() if lower_case == "raise" else sequence
    parts = re.split("[a-z]+", whole) if lower_case == "drop" else [whole]
    if gap is not None:
        parts = [piece for part in parts for piece in re.split(f"[Nn]{{{gap + 1},}}", part)]
    expected = [part[at : at + window] for part in parts for at in range(0, len(part), window)]
    assert texts(found) == [*(("a", text) for text in expected), ("end", "A")]


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"ACGTRYSWKMBDHVNa", {"reverse_complement": True}, ["ACGTRYSWKMBDHVNA", "TNBDHVKMWSRYACGT"]),
        (b"acKmryBdhVn", {"reverse_complement": True, "lower_case": "keep"}, ["acKmryBdhVn", "nBdhVrykMgt"]),
        (b"AACU", {"letters": "rna", "reverse_complement": True}, ["AACU", "AGUU"]),
        (b"AtTkC", {"letters": "rna", "reverse_complement": True, "lower_case": "keep"}, ["AuUkC", "GmAaU"]),
        (b"ACGTA", {"kmers": 3}, ["ACG CGT GTA"]),
        (b"MN NN\tN*-kx", {"letters": "protein", "longest_gap": 1}, ["MNNNN*-KX"]),
        (b"ACGTN", {"kmers": 2, "reverse_complement": True}, ["AC CG GT TN", "NA AC CG GT"]),
        (b"ACgtaTT", {"lower_case": "raise"}, ["ACGTATT"]),
        (b"ACgtaTT", {"lower_case": "keep"}, ["ACgtaTT"]),
        (b"ACgtaTT", {"lower_case": "drop"}, ["AC", "TT"]),
    ],
)
def test_other_strands_k_mers_and_lower_case(tmp_path: Path, content: bytes, options: Any, expected: list[str]) -> None:
    assert texts(fasta(tmp_path, b">a\n" + content + b"\n", **options)) == [("a", text) for text in expected]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b">a\nACGT\n>p\nAC\nMEFL\n", 5),
        (b">a\nACGT\n>r\nACGU\n", 4),
        (b">a\n>b\nACGT\n", 1),
        (b"ACGT\n>a\nACGT\n", 1),
        (b">a\nAC\xffGT\n", 2),
    ],
)
def test_a_bad_record_is_named_and_may_be_skipped(tmp_path: Path, content: bytes, line: int) -> None:
    with pytest.raises(DataError, match=rf"a\.fa:{line}"):
        fasta(tmp_path, content)
    found = fasta(tmp_path, content, on_error="skip")
    assert [item.place for item in found if isinstance(item, Skipped)] == [f"{tmp_path / 'a.fa'}:{line}"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["line_feeds", "both", "carriage_returns"])
def test_every_end_of_a_line_is_one(tmp_path: Path, end: bytes) -> None:
    lines = [b"\xef\xbb\xbf>one first", b"ACGT", b"AC", b"", b">two", b"TT", b""]
    assert texts(fasta(tmp_path, end.join(lines))) == [("one", "ACGTAC"), ("two", "TT")]
    with pytest.raises(DataError, match=r"a\.fa:3"):
        fasta(tmp_path, end.join([b">one", b"ACGT", b"EF"]))


def test_a_record_of_one_long_line_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_bytes(b">chromosome\n" + b"ACGT" * 6_000_000)
    tracemalloc.start()
    assert sum(len(item.text) for item in Fasta(paths=[tmp_path / "a.fa"])) == 24_000_000  # type: ignore[union-attr]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_a_record_of_gaps_has_letters_but_no_window(tmp_path: Path) -> None:
    content = b";comment\n>gap\nNNNN\n>repeat\nacgt\n>\xc2\xa0\nAC\n"
    assert texts(fasta(tmp_path, content, longest_gap=2, lower_case="drop")) == [("record 4", "AC")]


def test_short_windows_of_a_long_line_take_little_time(tmp_path: Path) -> None:
    """Time is proportional to the sequence for any window: the rest of the block is not copied for each window."""
    (tmp_path / "a.fa").write_bytes(b">a\n" + b"ACGT" * 250_000)
    before = process_time()
    assert sum(1 for _ in Fasta(paths=[tmp_path / "a.fa"], window=10)) == 100_000
    assert process_time() - before < 1


def ids(file: Path, **options: Any) -> list[Document | Skipped]:
    return list(Ids(paths=[file], vocab_size=100, **options))


def test_ids_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"ids": [5, 99, 0], "user": 7}, {"ids": [], "user": 8}, {"ids": [6], "user": 7}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert ids(tmp_path / name) == [Document("5 99 0"), Document("6")]
        assert ids(tmp_path / name, key="user", padding=0) == [Document("5 99", "7"), Document("6", "7")]
    (tmp_path / "b.jsonl").write_text("[1, 2]\n[3]\n")
    assert ids(tmp_path / "b.jsonl", field=None) == [Document("1 2"), Document("3")]
    np.save(tmp_path / "a.npy", np.array([[5, 0, 99, 0], [6, 0, 0, 0]], np.uint16))
    assert ids(tmp_path / "a.npy", padding=0) == [Document("5 99"), Document("6")]
    nested = [{"of": {"buyer": {"items": [1, 2]}}}]
    (tmp_path / "c.jsonl").write_text(json.dumps(nested[0]))
    parquet.write_table(pyarrow.Table.from_pylist(nested), tmp_path / "c.parquet")
    for name in ("c.jsonl", "c.parquet"):
        assert ids(tmp_path / name, field="of.buyer.items") == [Document("1 2")]
    np.save(tmp_path / "b.npy", np.arange(4))
    assert ids(tmp_path / "b.npy", field=None) == [Document("0 1 2 3")]


@pytest.mark.parametrize(
    "wrong", ["[1, 100]", "[1, null]", "[-1]", "[1, true]", "[1.5]", '"1 2"', "{}", "[9999999999999999999]", "[1"]
)
def test_a_bad_list_is_named_and_may_be_skipped(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"ids": [1]}}\n{{"ids": {wrong}}}\n{{"ids": [2]}}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2"):
        ids(tmp_path / "a.jsonl")
    found = ids(tmp_path / "a.jsonl", on_error="skip")
    assert [type(item) for item in found] == [Document, Skipped, Document]


def test_a_table_of_long_sequences_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is read in several groups of rows, and whose column is there twice."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr(ids_corpus, "MOST", 1 << 16)
    rows = pyarrow.array([[5] * 10_000] * 40)  # 3 MB
    parquet.write_table(pyarrow.table({"ids": rows}), tmp_path / "a.parquet", row_group_size=30)
    before = pyarrow.total_allocated_bytes()
    allocated = [pyarrow.total_allocated_bytes() - before for _ in Ids(paths=[tmp_path / "a.parquet"], vocab_size=9)]
    assert len(allocated) == 40
    assert max(allocated) < 2e6
    parquet.write_table(pyarrow.Table.from_arrays([rows, rows], names=["ids", "ids"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: several columns are called 'ids'"):
        ids(tmp_path / "a.parquet")


def test_values_of_a_table_that_python_cannot_hold_are_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    not_text = pyarrow.array([b"\xff"]).view(pyarrow.string())
    for values in (pyarrow.array([[2**62]], pyarrow.list_(pyarrow.timestamp("us"))), not_text):
        parquet.write_table(pyarrow.table({"ids": values}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=r"a\.parquet: row 1: "):
            ids(tmp_path / "a.parquet")
        assert [type(item) for item in ids(tmp_path / "a.parquet", on_error="skip")] == [Skipped]


def test_a_long_sequence_is_cut_where_its_text_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes text in parts, which end anywhere."""
    lengths: list[int] = []
    monkeypatch.setattr(ids_corpus, "cut", lambda text: (lengths.append(len(text)), cut(text))[1])
    numbers = np.resize(np.array([1, 22, 3, 44]), 410_001)  # 1,025,002 characters
    np.save(tmp_path / "a.npy", numbers)
    found = ids(tmp_path / "a.npy")
    assert [item.text for item in found if isinstance(item, Document)] == pieces(" ".join(map(str, numbers.tolist())))
    assert len(lengths) == 4


HEADER = b"\x93NUMPY\x01\x00\x08\x00{'a': (\n"
LARGE = np.array([[1 << 63]], np.uint64)
BAD = [np.zeros((2, 2, 2), int), LARGE, np.zeros(3), b"no array", np.array([[1, 100]]), HEADER, {"a": np.arange(3)}]


def test_a_bad_row_of_an_array_is_named_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which counts all rows, though a few are read at a time."""
    monkeypatch.setattr(ids_corpus, "ROWS", 2)
    np.save(tmp_path / "a.npy", np.array([[1], [2], [3], [100], [5]]))
    with pytest.raises(DataError, match=r"a\.npy: row 4: "):
        ids(tmp_path / "a.npy")


@pytest.mark.parametrize("array", BAD)
def test_a_bad_array_is_named(tmp_path: Path, array: Any) -> None:
    file = tmp_path / "a.npy"
    with file.open("wb") as raw:
        if isinstance(array, dict):
            np.savez(raw, **array)
        else:
            raw.write(array) if isinstance(array, bytes) else np.save(raw, array)
    with pytest.raises(DataError, match=r"a\.npy"):
        ids(file)


def test_rows_of_an_array_are_counted_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids_corpus, "ROWS", 2)
    np.save(tmp_path / "a.npy", np.array([[5], [6], [100], [7]]))
    found = ids(tmp_path / "a.npy", on_error="skip")
    assert [item.place for item in found if isinstance(item, Skipped)] == [f"{tmp_path / 'a.npy'}: row 3"]


def test_an_array_or_a_table_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write_ids(token: int) -> None:
        np.save(tmp_path / "a.npy", np.array([[token]]))
        parquet.write_table(pyarrow.table({"ids": [[token]]}), tmp_path / "a.parquet")

    for name in ("a.npy", "a.parquet"):
        write_ids(5)
        made = Ids(paths=[tmp_path / name], vocab_size=100)
        list(made)
        write_ids(6)
        with pytest.raises(DataError, match=rf"{name}: changed while it was read"):
            list(made)


def test_a_record_without_a_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"ids": [1], "user": 7}\n{"ids": [2], "user": null}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2"):
        ids(tmp_path / "a.jsonl", key="user")


def test_patterns_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("10:01 web1 up\n10:02 web2 down\n10:03\nno host\n")

    def read(**options: str) -> list[Any]:
        return list(TextFiles(paths=[tmp_path / "a.log"], documents="lines", **options))

    found = read(remove=r"^\d+:\d+ ?", group=r"(web)\d")
    assert found == [
        Document("web1 up", "web", removed=True), Document("web2 down", "web", removed=True), Document("no host")
    ]  # fmt: skip
    assert read(group=r"web\d")[0] == Document("10:01 web1 up", "web1")
    assert [item.key for item in read(group=r"web(1?)")] == ["1", None, None, None]
    for options in ({"remove": "ZZZ"}, {"group": "ZZZ"}, {"group": "(ZZZ)*"}):
        with pytest.raises(DataError, match="ZZZ"):
            read(**options)
