"""The corpora: what a document is, what cannot be read, what the fingerprint says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from electra_lab.corpora import text_files
from electra_lab.corpora.text_files import TextFiles
from registry.errors import DataError

TEXT = "one\ntwo\n\n \t\nthree\n\n\n\nfour\nfive\n"


def write(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        raw = content.encode() if isinstance(content, str) else content
        (folder / f"{name}.txt").write_bytes(raw)
    return folder


def read(*paths: Path, documents: Any = "paragraphs") -> list[str]:
    return list(TextFiles(paths=list(paths), documents=documents))


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("paragraphs", ["one\ntwo", "three", "four\nfive"]),
        ("lines", ["one", "two", "three", "four", "five"]),
        ("files", ["one\ntwo\n\n \t\nthree\n\n\n\nfour\nfive"]),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_what_one_document_is(
    tmp_path: Path, documents: str, expected: list[str], newline: str, end: str, mark: bytes
) -> None:
    text = (TEXT.rstrip() + end).replace("\n", newline)
    write(tmp_path, a=mark + text.encode())
    assert read(tmp_path / "a.txt", documents=documents) == [d.replace("\n", newline) for d in expected]


@pytest.mark.parametrize("documents", ["paragraphs", "lines", "files"])
def test_a_document_does_not_span_files(tmp_path: Path, documents: str) -> None:
    write(tmp_path, a="one", b="two", c="", d=" \n\n ")
    assert read(tmp_path / "*.txt", documents=documents) == ["one", "two"]


def test_other_scripts_and_marks_within_a_file_are_kept(tmp_path: Path) -> None:
    write(tmp_path, a="\ufeffgrüße 你好\n\n\ufeff🙂")
    assert read(tmp_path / "a.txt") == ["grüße 你好", "\ufeff🙂"]


def test_patterns_and_order(tmp_path: Path) -> None:
    """Paths in the order they are given, a pattern's files by name, folders below by two stars, each file once."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write(tmp_path, b="b", a="a")
    write(tmp_path / "deep" / "er", c="c")
    assert read(tmp_path / "*.txt") == ["a", "b"]
    assert read(tmp_path / "[b-z].txt") == ["b"]
    assert read(tmp_path / "b.txt", tmp_path / "a.txt") == ["b", "a"]
    assert sorted(read(tmp_path / "**" / "*.txt")) == ["a", "b", "c"]
    assert read(tmp_path / "b.txt", tmp_path / "*.txt", tmp_path / "b.txt") == ["b", "a"]


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a="a")
    monkeypatch.chdir(tmp_path)
    assert read(Path("a.txt")) == read(Path("*.txt")) == ["a"]
    with pytest.raises(DataError, match=r"no\.txt: no file matches"):
        TextFiles(paths=[Path("no.txt")])


def test_brackets_in_names_are_meant_as_they_are_written(tmp_path: Path) -> None:
    """Experiments live in folders such as `run[1]`, and files are called `notes [old].txt`."""
    folder = tmp_path / "run[1]" / "what?"
    folder.mkdir(parents=True)
    write(folder, **{"notes [old]": "notes", "n": "other"})
    assert read(folder / "notes [old].txt") == ["notes"]
    assert read(folder / "n*.txt") == ["other", "notes"]
    assert read(folder / "[mn].txt") == ["other"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.txt", r"no\.txt: no file matches\."),
        ("*.md", r"\*\.md: no file matches\."),
        ("folder", r"folder: it is a folder; write a pattern such as its \*\.txt\."),
    ],
)
def test_what_is_not_there_is_a_sentence(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    write(tmp_path, a="a")
    with pytest.raises(DataError, match=message):
        TextFiles(paths=[tmp_path / "a.txt", tmp_path / path])


@pytest.mark.parametrize(
    ("content", "line", "byte"),
    [
        (b"caf\xe9\n", 1, 3),
        (b"one\ntwo\n\nth\xffree\n", 4, 11),
        (b"\xef\xbb\xbfone\xff", 1, 6),
        (b"\xef\xbb\xbfone\ntw\xff", 2, 9),
        (b"cut short \xe2\x82", 1, 10),
    ],
)
def test_what_is_not_utf8_is_named_by_line_and_byte(tmp_path: Path, content: bytes, line: int, byte: int) -> None:
    write(tmp_path, a=content)
    with pytest.raises(DataError, match=rf"a\.txt:{line}: byte {byte} is not UTF-8\. Convert it"):
        read(tmp_path / "a.txt")


def test_a_file_that_goes_away_is_a_sentence(tmp_path: Path) -> None:
    corpus = TextFiles(paths=[write(tmp_path, a="a") / "a.txt"])
    (tmp_path / "a.txt").unlink()
    for reading in (lambda: list(corpus), corpus.fingerprint):
        with pytest.raises(DataError, match=r"a\.txt: cannot be read \(No such file or directory\)"):
            reading()


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    write(tmp_path, a="one\n\ntwo", b="three", c="one\n\ntwo", d="one\n\ntwoth", e="ree")

    def fingerprint(*names: str, documents: Any = "paragraphs") -> str:
        return TextFiles(paths=[tmp_path / f"{name}.txt" for name in names], documents=documents).fingerprint()

    assert fingerprint("a") == fingerprint("c") == fingerprint("a", "a")
    others = [
        fingerprint("a"), fingerprint("b"), fingerprint("a", "b"), fingerprint("b", "a"), fingerprint("d", "e"),
        fingerprint("a", documents="lines"),
    ]  # fmt: skip
    assert len(set(others)) == len(others)


def test_the_fingerprint_is_of_all_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the first block that is read."""
    monkeypatch.setattr(text_files, "BLOCK", 4)
    write(tmp_path, a="text one", b="text two")
    assert len({TextFiles(paths=[tmp_path / f"{name}.txt"]).fingerprint() for name in "ab"}) == 2


# The docstrings corpus.
