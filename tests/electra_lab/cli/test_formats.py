"""Formats of texts and records, from arguments, files and standard input."""

import csv
import gzip
import io
import lzma
import os
import re
from pathlib import Path
from typing import Any

import pytest

import electra_lab
from electra_lab.cli._inputs import LONGEST
from electra_lab.cli._items import Reading, read
from tests.electra_lab.cli.conftest import CPU, rows, scored

LINES = b"\xef\xbb\xbfthe cat\rsat\r\nthe \xff cat\n\n3 \xe2\x80\xa8 \x7f dogs\n\xe9t\xe9\n\xef\xbb\xbflast\r"
READ = ["the cat\rsat", "", "3 \u2028 \x7f dogs", "\ufefflast\r"]


@pytest.mark.parametrize("verb", ["detect", "corrupt", "fill", "embed"])
@pytest.mark.parametrize("way", ["file", "standard input", "arguments"])
def test_texts_are_read_as_those_of_a_corpus(lab, model, tmp_path, given, verb, way) -> None:
    """A byte order mark is dropped, lines end at line feeds alone, and bad bytes are an error, or left out."""
    (tmp_path / "a.txt").write_bytes(LINES)
    words, place, before, good, bad = {
        "file": (["--file", tmp_path / "a.txt"], f"{tmp_path}/a.txt:2", READ[:1], READ, [2, 5]),
        "standard input": (["-"], "standard input:2", READ[:1], READ, [2, 5]),
        "arguments": ([os.fsdecode(word) for word in (b"the \xff cat", "one", b"\xe9")], "TEXT 1", [], ["one"], [1, 3]),
    }[way]
    given(LINES)
    code, out, err = lab(verb, model, *words, "--json", *CPU)
    assert (code, err.splitlines()[-1].startswith(f"{place}: byte 4 ")) == (3, True)
    assert [row["text"] for row in rows(out)] == before
    given(LINES)
    code, out, err = lab(verb, model, *words, "--json", "--on-error", "skip", *CPU)
    assert (code, [row["text"] for row in rows(out)]) == (0, good)
    assert [int(number) for number in re.findall(r"(\d+): byte", err)] == bad


WRITTEN = {
    "a.csv": 'n,text,line\n1,"the, cat",a\n2,3 dogs,b\n',
    "b.csv": "sep=;\r\nn;text;line\r\n1;the, cat;a\r\n2;3 dogs;b\r\n",
    "c.csv": "n\ttext\tline\n1\tthe, cat\ta\n2\t3 dogs\tb\n",
    "d.tab": "n\ttext\tline\n1\tthe, cat\ta\n2\t3 dogs\tb\n",
    "e.jsonl": '{"text": "the, cat", "line": "a"}\n\n{"text": "3 dogs", "line": "b"}\n',
    "f.fa": ">1 one\nthe, \n; left out\n cat\n\n>2\r\n3 do\r\ngs\r\n",
    "none.csv": "1,the,a\n2,dogs,b\n",
}


@pytest.mark.parametrize("verb", ["detect", "corrupt", "fill", "embed", "score"])
def test_every_verb_reads_tables_and_records(lab, model, tmp_path: Path, given: Any, verb: str) -> None:
    for name, content in WRITTEN.items():
        (tmp_path / name).write_text(content, newline="")

    def read(*words: object) -> list[str]:
        code, out, err = lab(verb, model, *words, "--json", *CPU)
        assert code == 0, err
        return [row["text"] for row in rows(out)] if "--field" not in words or verb != "score" else rows(out)

    read_of = {name: read("--file", tmp_path / name) for name in list(WRITTEN)[:6]}
    assert read_of == {name: ["the, cat", "3 dogs"] for name in list(WRITTEN)[:5]} | {"f.fa": ["the,cat", "3dogs"]}
    given(WRITTEN["a.csv"].encode())
    fields = ("--field", "line", "--field", "text")
    joined = ["a the, cat", "b 3 dogs"]
    if verb == "score":  # which keeps the fields
        expected = electra_lab.load(model, device="cpu").score(joined)
        assert [row["score"] for row in read("-", "--format", "csv", *fields)] == pytest.approx(
            [found.score for found in expected], abs=1e-5
        )
    else:
        assert read("-", "--format", "csv", *fields) == joined
    lab.fails(3, verb, model, "--file", tmp_path / "a.csv", "--field", "none", *CPU)


def test_several_files_are_read_in_order(lab: Any, model: Path, tmp_path: Path) -> None:
    for name, content in WRITTEN.items():
        (tmp_path / name).write_text(content, newline="")
    twice = [str(tmp_path / "d.tab"), str(tmp_path / "[ab].csv")]
    found = scored(lab, model, *(word for file in twice for word in ("--file", file)))
    assert [(row["n"], row["text"]) for row in found] == [("1", "the, cat"), ("2", "3 dogs")] * 3
    (tmp_path / "other.csv").write_text("m,text\n1,the cat\n")
    both = ("--file", tmp_path / "a.csv", "--file", tmp_path / "other.csv")
    code, out, err = lab("score", model, *both, "--json", *CPU)
    assert (code, out.count("\n"), err.splitlines()[-1].startswith(f"{tmp_path}/other.csv")) == (3, 2, True)
    for name in ("one.log", "two.log"):
        (tmp_path / name).write_text("the cat\n3 dogs\n")
    assert [row["name"] for row in scored(lab, model, "--file", tmp_path / "f.fa")] == ["1", "2"]
    found = scored(lab, model, "--file", tmp_path / "*.log", "--above", -99)
    assert [row["line"] for row in found] == [f"{tmp_path}/{name}.log:{n}" for name in ("one", "two") for n in (1, 2)]
    assert "'*.log'" not in lab.fails(3, "score", model, "--file", tmp_path / "*.none", *CPU)


def test_columns_without_a_header_have_numbers(lab: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(WRITTEN["none.csv"])
    found = scored(lab, model, "--file", tmp_path / "a.csv", "--field", "2", "--csv")
    assert [[*row.items()][:3] for row in found] == [
        [("1", "1"), ("2", "the"), ("3", "a")],
        [("1", "2"), ("2", "dogs"), ("3", "b")],
    ]
    for row in ("the cat,1", "text,1"):  # a cell of the first row, or the name of a column
        (tmp_path / "b.csv").write_text(f"{row}\na dog,0\n")
        said = lab.fails(3, "score", model, "--file", tmp_path / "b.csv", "--field", "1", *CPU)
        assert said.startswith(f"{tmp_path}/b.csv:1: ")
        assert [row["2"] for row in scored(lab, model, "--file", tmp_path / "b.csv", "--field", "2")] == ["1", "0"]
    (tmp_path / "a.csv").write_text("2,1\nthe,cat\n")  # these are names
    assert [row["2"] for row in scored(lab, model, "--file", tmp_path / "a.csv", "--field", "2")] == ["the"]
    lab.fails(3, "score", model, "--file", tmp_path / "a.csv", "--field", "3", *CPU)


@pytest.mark.parametrize("verb", ["detect", "corrupt", "fill", "embed", "score", "predict"])
def test_a_field_of_text_is_refused(lab, model, tuned, tmp_path: Path, given: Any, verb: str) -> None:
    """Lines of JSON must not be read as text."""
    (tmp_path / "a.log").write_bytes(line := b'{"line": "the cat"}\n')
    given(line)
    for words in (["-"], ["--file", tmp_path / "a.log"], ["the cat"]):
        err = lab.fails(2, verb, tuned["labels"] if verb == "predict" else model, *words, "--field", "line", *CPU)
        assert err.startswith("--field: ")


@pytest.mark.parametrize("verb", ["detect", "corrupt", "fill", "embed", "score", "predict"])
def test_headers_of_sequences_are_not_read_as_text(lab, model, tuned, tmp_path: Path, given: Any, verb: str) -> None:
    """A file that looks like FASTA is refused, unless the format says what it is."""
    folder, content = tuned["labels"] if verb == "predict" else model, b">one\nTHE CAT\n"
    (tmp_path / "a.txt").write_bytes(content)
    given(content)
    for words, name in ((["-"], "standard input"), (["--file", tmp_path / "a.txt"], f"{tmp_path}/a.txt")):
        assert lab.fails(3, verb, folder, *words, *CPU).startswith(f"{name}:1: ")
    for format, number in (("text", 2), ("fasta", 1)):
        code, out, _ = lab(verb, folder, "--file", tmp_path / "a.txt", "--format", format, "--json", *CPU)
        assert (code, len(rows(out))) == (0, number)
    (tmp_path / "a.txt").write_bytes(b"the\n>cat\n" * 9)
    for words in ([">one"], ["--file", tmp_path / "a.txt"]):
        assert lab(verb, folder, *words, *CPU)[0] == 0


def test_a_fasta_file_that_is_none_or_too_long(lab: Any, model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a.fa").write_text("\nthe cat\n>1\ndogs\n")
    assert lab.fails(3, "score", model, "--file", tmp_path / "a.fa", *CPU).startswith(f"{tmp_path}/a.fa:2: ")
    monkeypatch.setattr("electra_lab.cli._inputs.LONGEST", 10)
    (tmp_path / "a.fa").write_text(">1\n" + "ab\n" * 4)
    assert lab("score", model, "--file", tmp_path / "a.fa", *CPU)[0] == 0
    (tmp_path / "a.fa").write_text(">1\n" + "ab\n" * 5)
    assert lab.fails(3, "score", model, "--file", tmp_path / "a.fa", *CPU).startswith(f"{tmp_path}/a.fa:1: ")
    for wrong in (b">1\rab\r>2\rcd\r", b">1\na\xff\n"):  # lines end with CR alone; letters are not UTF-8
        (tmp_path / "a.fa").write_bytes(wrong)
        assert lab.fails(3, "score", model, "--file", tmp_path / "a.fa", *CPU).startswith(f"{tmp_path}/a.fa:1: ")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_refused(lab: Any, model: Path, tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_text(f"{'the cat ' * 9}\n3 dogs\n", encoding=encoding)
    assert lab.fails(3, "score", model, "--file", tmp_path / "a.txt", *CPU).startswith(f"{tmp_path}/a.txt: ")


def test_a_table_has_the_probability_of_each_letter(lab: Any, model: Path, tmp_path: Path) -> None:
    """The name is that of the sequence, otherwise the number of the line; positions begin with 1."""
    (tmp_path / "a.fa").write_text(">one x\nth\ne3 \n>two\nsat\n")
    for words, names, texts in (
        (("--file", tmp_path / "a.fa"), ["one", "two"], ["the3", "sat"]),
        (("the cat", "sat"), ["1", "2"], ["the cat", "sat"]),
    ):
        code, out, _ = lab("detect", model, *words, "--csv", *CPU)
        expected = list[tuple[str, str, str]]()
        chances = list[float]()
        for name, found in zip(names, electra_lab.load(model, device="cpu").detect(texts), strict=True):
            expected += [(name, str(at + 1), token) for (at, _), token in zip(found.offsets, found.tokens, strict=True)]
            chances += found.probabilities
        table = list(csv.DictReader(io.StringIO(out)))
        assert (code, [(row["name"], row["position"], row["token"]) for row in table]) == (0, expected)
        assert [float(row["probability"]) for row in table] == pytest.approx(chances, abs=1e-5)
    (tmp_path / "a.txt").write_bytes(b"the\n\xff\nsat\n")
    skip = ("--file", tmp_path / "a.txt", "--on-error", "skip", "--csv", *CPU)
    assert {row["name"] for row in csv.DictReader(io.StringIO(lab("detect", model, *skip)[1]))} == {"1", "3"}
    (tmp_path / "a.txt").write_text("")
    assert lab("detect", model, *skip)[1] == out.splitlines()[0] + "\n"
    for other in (("--json",), ("--html", "a.html")):
        lab.fails(2, "detect", model, "a", "--csv", *other, *CPU)


def test_arguments_are_text_in_every_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("latin-1", "surrogateescape"))
    assert [item["text"] for _, _, item in read(["caf\xe9 \xff"], None, Reading("stop"))] == ["caf\xe9 \xff"]


def test_a_line_without_an_end_is_not_read_to_its_end(lab: Any, model: Path, given: Any, monkeypatch) -> None:
    """The results of a line take 250 times its bytes."""
    assert LONGEST <= 1 << 21
    monkeypatch.setattr("electra_lab.cli._inputs.LONGEST", 10)
    for verb in ("detect", "score"):
        given(b"the cat\n" + b"x" * 11)
        code, out, err = lab(verb, model, "-", *CPU)
        assert (code, out.count("\n"), err.partition(": ")[0]) == (3, 1, "standard input:2")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_compressed_files_are_read(lab: Any, model: Path, tmp_path: Path, pack: Any) -> None:
    """With all line endings, also a missing one at the end, they are read as without compression."""
    ending = {gzip.compress: "gz", lzma.compress: "xz"}[pack]
    table = b"n\ttext\r\n1\tthe cat\n\n2\tsat\r on the mat"
    (tmp_path / "a.tsv").write_bytes(table)
    (tmp_path / f"a.tsv.{ending}").write_bytes(pack(table))
    plain, packed = (scored(lab, model, "--file", tmp_path / name, "--csv") for name in ("a.tsv", f"a.tsv.{ending}"))
    assert packed == plain
    assert "no file matches" in lab.fails(3, "score", "no model", "--file", f"absent.{ending}", *CPU)
    (tmp_path / f"cut.txt.{ending}").write_bytes(pack(b"the cat\n" * 9)[:-30])
    code, _, err = lab("detect", model, "--file", tmp_path / f"cut.txt.{ending}", *CPU)
    assert (code, "cut short" in err) == (3, True)
