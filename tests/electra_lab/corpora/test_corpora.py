"""The corpora: what a document is, what cannot be read, what the fingerprint says."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from electra_lab.corpora import docstrings, text_files
from electra_lab.corpora.docstrings import Docstrings
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

LONG = "A sentence that is long enough to be a document of the corpus, as it has more than eighty characters."


def python_file(folder: Path, name: str, text: str | bytes) -> tuple[Path, str]:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file, name


def found(monkeypatch: pytest.MonkeyPatch, files: list[tuple[Path, str]], minimum: int = 80) -> list[str]:
    """The corpus over the given files; the help topics are left out."""
    monkeypatch.setattr(docstrings, "_files", lambda: files)
    monkeypatch.setattr("pydoc_data.topics.topics", {})
    return list(Docstrings(min_characters=minimum))


def test_docstrings_of_every_kind_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = python_file(
        tmp_path, "a.py",
        f'"""Module. {LONG}"""\nclass A:\n    """Class. {LONG}"""\n    def b(self):\n        """Method. {LONG}\n\n'
        f'        Indented.\n        """\n    async def c(self):\n        """Async. {LONG}"""\nx = """No. {LONG}"""\n',
    )  # fmt: skip
    texts = sorted(found(monkeypatch, [file]))
    assert [text.split(".")[0] for text in texts] == ["Async", "Class", "Method", "Module"]
    assert texts[2] == f"Method. {LONG}\n\nIndented."


def test_strings_given_to_compiled_functions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = python_file(
        tmp_path, "a.py",
        f'add_docstr(torch.abs, r"""Plain. {LONG}""")\nadd_docstr_all("item", "Second. {LONG}")\n'
        f'add_docstr(torch.b, "Formatted. {LONG} {{x}}".format(x=1))\nother(torch.c, "No. {LONG}")\n',
    )  # fmt: skip
    assert [t.split(".")[0] for t in found(monkeypatch, [file])] == ["Plain", "Second", "Formatted"]


def test_short_and_repeated_ones_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f'"""{LONG}"""\ndef f():\n    """Short."""\ndef g():\n    """{LONG}\n    """\n'
    files = [python_file(tmp_path, name, text) for name in ("a.py", "b.py")]
    assert found(monkeypatch, files) == [LONG]
    assert found(monkeypatch, files, minimum=6) == [LONG, "Short."]
    assert found(monkeypatch, files, minimum=len(LONG)) == [LONG]
    assert found(monkeypatch, files, minimum=len(LONG) + 1) == []


@pytest.mark.parametrize(
    "broken",
    ["def f(:\n", b"\x00\x01", b"# coding: nonsense\n", b"'\xff'\n", "(" * 5000],
    ids=["syntax", "null bytes", "unknown coding", "not UTF-8", "brackets"],
)
def test_broken_python_files_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str | bytes) -> None:
    files = [python_file(tmp_path, "a.py", broken), python_file(tmp_path, "b.py", f'"""{LONG}"""')]
    assert found(monkeypatch, [*files, (tmp_path / "gone.py", "gone.py")]) == [LONG]


def test_the_files_are_pythons_and_torchs_in_one_order() -> None:
    files = docstrings._files()
    names = [name for _, name in files]
    assert names == sorted(names)
    assert {name.split("/")[0] for name in names} == {"python", "torch"}
    assert {"python/json/decoder.py", "torch/nn/modules/linear.py"} <= set(names)
    assert not any(part in name.split("/") for name in names for part in ("test", "tests", "site-packages"))


def test_the_fingerprint_of_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable, and other for other options, other files and other sizes; where the files lie does not matter."""
    assert Docstrings().fingerprint() == Docstrings().fingerprint() != Docstrings(min_characters=81).fingerprint()

    def of(*files: tuple[Path, str]) -> str:
        monkeypatch.setattr(docstrings, "_files", lambda: list(files))
        return Docstrings().fingerprint()

    with monkeypatch.context() as other:
        before = of()
        other.setattr(docstrings, "FORMAT", docstrings.FORMAT + 1)
        assert of() != before
    with monkeypatch.context() as other:
        other.setattr(docstrings, "sys", SimpleNamespace(version_info=(3, 99, 0)))
        assert of() != before

    (tmp_path / "other").mkdir()
    one, moved = (python_file(folder, "a.py", "1") for folder in (tmp_path, tmp_path / "other"))
    before = of(one)
    assert of(moved) == before
    assert of((one[0], "b.py")) != before
    assert of(python_file(tmp_path, "a.py", "12")) != before


@pytest.fixture(scope="module")
def all_docstrings() -> list[str]:
    return list(Docstrings())


@pytest.mark.slow
def test_every_installation_has_enough_text(all_docstrings: list[str]) -> None:
    assert len(all_docstrings) > 5000
    assert sum(map(len, all_docstrings)) > 3_000_000
    assert len(set(all_docstrings)) == len(all_docstrings)
    assert min(map(len, all_docstrings)) >= 80
    assert all(text == text.strip() for text in all_docstrings)


@pytest.mark.slow
def test_known_texts_are_among_them(all_docstrings: list[str]) -> None:
    """A docstring of the standard library, one of torch, one that torch gives to a compiled function, a help topic."""
    import json

    import torch

    documents = set(all_docstrings)
    for known in (json.dumps, torch.nn.Linear):
        assert inspect.cleandoc(known.__doc__ or "").strip() in documents
    assert any("Computes the absolute value of each element" in text for text in documents)
    assert any(text.startswith('The "assert" statement') for text in documents)
