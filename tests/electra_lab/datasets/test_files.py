"""Common features of all readers of files: compression, line ends, encodings, paths, held-out examples."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_lab.datasets.blimp import Blimp
from electra_lab.datasets.conll import Conll
from electra_lab.datasets.glue import Glue
from electra_lab.datasets.json_lines import JsonLines
from electra_lab.datasets.squad import Squad
from electra_lab.datasets.table import TableFiles
from registry.errors import DataError
from tests.electra_lab.datasets.written import answer, article, articles, json_lines, question, write

# For each reader: its constructor, the name and content of a file, and the split of this file.
READERS: dict[str, tuple[Callable[[Path], Any], str, str, str]] = {
    "glue": (lambda file: Glue(name="STS-B", folder=file.parent), "train.tsv",
             "sentence1\tsentence2\tscore\nA grüße\tB\t1.5\nC\tD\t2.5\n", "train"),
    "csv": (lambda file: TableFiles(test=file), "a.csv", 'text,label\n"grüße",1\nzwei,2\n', "test"),
    "tsv": (lambda file: TableFiles(test=file), "a.tsv", "text\tlabel\ngrüße\t1\nzwei\t2\n", "test"),
    "json_lines": (lambda file: JsonLines(test=file), "a.jsonl",
                   json_lines({"text": "grüße", "label": "1"}, {"text": "zwei", "label": "2"}), "test"),
    "conll": (lambda file: Conll(test=file), "eng.testa", "grüße NN B-A\nzwei NN O\n\nja NN O\n", "test"),
    "squad": (lambda file: Squad(test=file), "test.json",
              articles(article(question("grüße", answers=[answer("Ada")]), question("b"))), "test"),
    "blimp": (lambda file: Blimp(folder=file), "a.jsonl",
              json_lines(*({"sentence_good": text, "sentence_bad": "b"} for text in ("grüße", "zwei"))), "test"),
}  # fmt: skip
VARIANTS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "compressed": (".gz", gzip.compress),
    "carriage returns": ("", lambda data: data.replace(b"\n", b"\r\n")),
    "a byte order mark": ("", lambda data: b"\xef\xbb\xbf" + data),
    "no line end": ("", lambda data: data.rstrip(b"\n")),
    "blank lines at the end": ("", lambda data: data + b"\n\n\n"),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", READERS)
def test_variants_of_a_file_are_read_the_same(name: str, variant: str, tmp_path: Path) -> None:
    make, file, content, split = READERS[name]
    ending, change = VARIANTS[variant]
    written = make(write(tmp_path / "plain" / file, content)).read(split)
    other = make(write(tmp_path / "other" / f"{file}{ending}", change(content.encode()))).read(split)
    expected = [repr(example).replace("/plain/", "/other/") for example in written]
    assert [repr(example).replace(f"{file}{ending}", file) for example in other] == expected
    assert len(expected) == 2


@pytest.mark.parametrize("name", READERS)
def test_bytes_that_are_not_utf8_are_named(name: str, tmp_path: Path) -> None:
    make, file, content, split = READERS[name]
    latin = content.encode("latin-1")
    line = latin[: latin.index(b"\xfc")].count(b"\n") + 1
    written = write(tmp_path / file, latin)
    with pytest.raises(DataError, match=rf"^{written}:{line}: byte .* is not UTF-8\. C"):
        list(make(written).read(split))


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf", b"\r\n \r\n"])
@pytest.mark.parametrize("name", READERS)
def test_files_without_examples_are_named(name: str, content: bytes, tmp_path: Path) -> None:
    make, file, _, split = READERS[name]
    written = write(tmp_path / file, content)
    with pytest.raises(DataError, match=f"^{written}:"):
        list(make(written).read(split))


def test_the_fingerprint_knows_content_options_and_splits_but_not_folders(tmp_path: Path) -> None:
    first, second, elsewhere = (tmp_path / name for name in ("1.tsv", "2.tsv", "b/1.tsv"))
    for file in (first, second, elsewhere):
        write(file, f"text\tlabel\n{file.stem}\tx\n")
    given = {"train": first, "test": second}
    options: list[dict[str, Any]] = [
        {"train": second, "test": first}, {"train": first, "validation": second}, {"train": first},
        given | {"held_out": 0.2}, given | {"label": "text"},
    ]  # fmt: skip
    found = TableFiles(**given).fingerprint()
    assert len({found, *(TableFiles(**chosen).fingerprint() for chosen in options)}) == 6
    assert TableFiles(train=elsewhere, test=second).fingerprint() == found


def test_paths(tmp_path: Path) -> None:
    for name in ("x/b.tsv", "x/a.csv.gz", "x/c.txt", "y.tsv"):
        data = b"text,label\na,x\n" if "csv" in name else b"text\tlabel\nb\tx\n"
        write(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
    dataset = TableFiles(train=tmp_path / "x", test=tmp_path / "*.tsv", held_out=0)
    assert [example.text for example in dataset.read("train")] == ["a", "b"]
    assert [example.id for example in dataset.read("train")] == ["0", "1"]
    assert [example.text for example in dataset.read("test")] == ["b"]
    with pytest.raises(DataError, match=r"z\.tsv: no file matches\."):
        TableFiles(train=tmp_path / "z.tsv")
    with pytest.raises(ValueError, match=r"no file is named\. Set train or validation or test\."):
        TableFiles()
    with pytest.raises(DataError, match=r"b\.tsv: is read for train and for test\. A file belongs to one split\."):
        TableFiles(train=tmp_path / "x", test=tmp_path / "x" / "b.tsv")
