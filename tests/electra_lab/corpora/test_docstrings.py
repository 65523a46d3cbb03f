"""The documentation of the installed Python and torch as a corpus."""

import inspect
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from electra_lab.corpora import docstrings
from electra_lab.corpora.docstrings import Docstrings
from registry import Document
from registry.errors import DataError

LONG = "A sentence that is long enough to be a document of the corpus, as it has more than eighty characters."


def python_file(folder: Path, name: str, text: str | bytes) -> tuple[Path, str]:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file, name if "/" in name else f"python/{name}"


def found(monkeypatch: pytest.MonkeyPatch, files: list[tuple[Path, str]], minimum: int = 80) -> list[str]:
    """Return the corpus over the given files, without the help topics."""
    monkeypatch.setattr(docstrings, "installed_files", lambda: files)
    monkeypatch.setattr("pydoc_data.topics.topics", {})
    return [document.text for document in Docstrings(min_characters=minimum)]


def test_docstrings_of_every_kind_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that torch assigns to compiled functions. The tests of sources cover which docstrings are found."""
    file = python_file(
        tmp_path, "a.py",
        f'"""Module. {LONG}"""\nclass A:\n    def b(self):\n        """Method. {LONG}\n\n'
        f'        Indented.\n        """\nx = """No. {LONG}"""\n'
        f'add_docstr(torch.abs, r"""Plain. {LONG}""")\nadd_docstr_all("item", "Second. {LONG}")\n'
        f'add_docstr(torch.b, "Formatted. {LONG} {{x}}".format(x=1))\nother(torch.c, "No. {LONG}")\n',
    )  # fmt: skip
    texts = sorted(found(monkeypatch, [file]))
    assert [text.split(".")[0] for text in texts] == ["Formatted", "Method", "Module", "Plain", "Second"]
    assert texts[1] == f"Method. {LONG}\n\nIndented."


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


@pytest.fixture(scope="module")
def installed() -> list[tuple[Path, str]]:
    """The files of the corpus; finding them takes a second."""
    return docstrings.installed_files()


def test_the_files_are_pythons_and_torchs_in_one_order(installed: list[tuple[Path, str]]) -> None:
    names = [name for _, name in installed]
    assert names == sorted(names)
    assert {name.split("/")[0] for name in names} == {"python", "torch"}
    assert {"python/json/decoder.py", "torch/nn/modules/linear.py"} <= set(names)
    assert not any(part in name.split("/") for name in names for part in ("test", "tests", "site-packages"))


def test_the_fingerprint_of_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Depends on options, files, names and content, but not on the location of the files."""
    assert Docstrings().fingerprint() != Docstrings(min_characters=81).fingerprint()

    def of(*files: tuple[Path, str]) -> str:
        monkeypatch.setattr(docstrings, "installed_files", lambda: list(files))
        return Docstrings().fingerprint()

    here, moved = (python_file(folder, "a.py", "1") for folder in (tmp_path, tmp_path / "other"))
    before = of(here)
    assert of(moved) == before
    assert of((here[0], "b.py")) != before
    assert of(python_file(tmp_path, "a.py", "2")) != before  # of the same size
    version = SimpleNamespace(version_info=(3, 99, 0))
    for name, value in (("docstrings.FORMAT", docstrings.FORMAT + 1), ("docstrings.sys", version)):
        with monkeypatch.context() as other:
            other.setattr(f"electra_lab.corpora.{name}", value)
            assert of(moved) != before
    monkeypatch.setattr("pydoc_data.topics.topics", {"assert": LONG})
    assert of(moved) != before


def test_the_fingerprint_is_quick() -> None:
    """The fingerprint is taken at every start."""
    began = time.process_time()
    Docstrings().fingerprint()
    assert time.process_time() - began < 3  # 0.5 s on an idle core


def test_files_that_change_while_they_are_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = python_file(tmp_path, "python/a.py", f'"""{LONG}"""')
    monkeypatch.setattr(docstrings, "installed_files", lambda: [file])
    corpus = Docstrings()
    before = corpus.fingerprint()
    list(corpus)
    python_file(tmp_path, "python/a.py", f'"""{LONG}!"""')
    with pytest.raises(DataError, match=r"a\.py: changed while it was read\. Start again when the installation is"):
        list(corpus)
    assert corpus.fingerprint() != before
    list(corpus)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("python/argparse.py", "argparse"),
        ("python/email/mime/text.py", "email"),
        ("torch/distributed/_shard/api.py", "torch.distributed"),
        ("torch/_tensor_docs.py", "torch._tensor_docs"),
        ("torch/__init__.py", "torch.__init__"),
    ],
)
def test_the_key_is_the_module(name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = python_file(tmp_path, name, f'"""{LONG}"""')
    monkeypatch.setattr(docstrings, "installed_files", lambda: [file])
    monkeypatch.setattr("pydoc_data.topics.topics", {"assert": f"Topic. {LONG}"})
    topic = Document(f"Topic. {LONG}", docstrings.DRAW + "topics.assert")
    assert list(Docstrings()) == [topic, Document(LONG, docstrings.DRAW + key)]


EVERY = 20  # reading all of some 4,000 files takes half a minute
KNOWN = ("python/json/__init__.py", "torch/nn/modules/linear.py", "torch/_torch_docs.py")


def test_every_installation_has_enough_text_and_known_ones(
    installed: list[tuple[Path, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged by a sample of the files, in addition to the help topics."""

    def documents_of(files: list[tuple[Path, str]]) -> list[str]:
        monkeypatch.setattr(docstrings, "installed_files", lambda: files)
        return [document.text for document in Docstrings()]

    topics, documents = documents_of([]), documents_of(installed[::EVERY])
    assert sum(map(len, topics)) > 400_000
    assert EVERY * (len(documents) - len(topics)) > 5000
    assert EVERY * (sum(map(len, documents)) - sum(map(len, topics))) > 3_000_000
    assert len({*documents}) == len(documents)
    assert min(map(len, documents)) >= 80
    assert all(text == text.strip() for text in documents)
    # A docstring of the standard library, one of torch, one that torch assigns to a compiled function, a help topic.
    known = documents_of([document for document in installed if document[1] in KNOWN])
    for described in (json.dumps, torch.nn.Linear):
        assert inspect.cleandoc(described.__doc__ or "").strip() in known
    assert any("Computes the absolute value of each element" in text for text in known)
    assert any(text.startswith('The "assert" statement') for text in topics)
