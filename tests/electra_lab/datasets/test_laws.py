"""Every built-in dataset obeys the laws of datasets."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from electra_lab.datasets import docstring_origin
from electra_lab.testing import DatasetContract
from registry import datasets
from tests.electra_lab.datasets.written import answer, article, articles, json_lines, question, write

TEXTS = [f"text {n}, grüße 你好 🙂" for n in range(30)]


class TestGlue(DatasetContract):
    name = "glue"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        for split in ("train", "dev"):
            write(folder / f"{split}.tsv", "sentence\tlabel\n" + "".join(f"{text} \t1\n" for text in TEXTS))
        write(folder / "test.tsv", "index\tsentence\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)))
        return {"name": "SST-2", "folder": str(folder)}

    def change(self, folder: Path) -> None:
        write(folder / "dev.tsv", "sentence\tlabel\n" + "".join(f"{text} \t0\n" for text in TEXTS))


class TestTable(DatasetContract):
    name = "table"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        write(folder / "train.csv", "text,label\n" + "".join(f'"{text}",a\n' for text in TEXTS))
        write(folder / "test" / "a.tsv.gz", gzip.compress(b"text\none\ntwo\n"))
        write(folder / "test" / "b.tsv", "label\ttext\nb\tone\n")
        return {"train": str(folder / "train.csv"), "test": str(folder / "test")}

    def change(self, folder: Path) -> None:
        write(folder / "test" / "b.tsv", "label\ttext\na\tone\n")


class TestJsonLines(DatasetContract):
    name = "json_lines"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        write(folder / "a.jsonl", json_lines(*({"text": text, "label": n % 2} for n, text in enumerate(TEXTS))))
        write(folder / "b.jsonl", json_lines({"text": "one"}))
        return {"train": str(folder / "a.jsonl"), "test": str(folder / "b.jsonl")}

    def change(self, folder: Path) -> None:
        write(folder / "b.jsonl", json_lines({"text": "one", "label": True}))


class TestConll(DatasetContract):
    name = "conll"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        write(folder / "a", "".join(f"{text.replace(' ', '-')} X B-A\nB Y I-A\n\n" for text in TEXTS))
        write(folder / "b", "one\ntwo\n\nthree\n")
        return {"train": str(folder / "a"), "test": str(folder / "b")}

    def change(self, folder: Path) -> None:
        write(folder / "b", "one\ntwo\n\nthree\nfour\n")


class TestSquad(DatasetContract):
    name = "squad"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        known = (article(question(text, answers=[answer("Ada"), answer("London")]), title=text) for text in TEXTS)
        write(folder / "train.json", articles(*known))
        none = [question("a"), question("b", is_impossible=True, answers=[])]
        write(folder / "test.json", articles(article(*none)))
        return {"train": str(folder / "train.json"), "test": str(folder / "test.json")}

    def change(self, folder: Path) -> None:
        write(folder / "test.json", articles(article(question("a"))))


class TestBlimp(DatasetContract):
    name = "blimp"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        for paradigm in "ab":
            pairs = ({"sentence_good": text, "sentence_bad": "x", "field": "syntax"} for text in TEXTS)
            write(folder / f"{paradigm}.jsonl", json_lines(*pairs))
        return {"folder": str(folder)}

    def change(self, folder: Path) -> None:
        write(folder / "b.jsonl", json_lines({"sentence_good": "a", "sentence_bad": "b", "UID": "other"}))


class TestHuggingFace(DatasetContract):
    name = "hugging_face"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        pytest.importorskip("datasets")
        for split in ("train", "test"):
            write(folder / f"{split}.jsonl", json_lines(*({"text": text, "label": "a"} for text in TEXTS)))
        return {"path": str(folder)}

    def change(self, folder: Path) -> None:
        write(folder / "test.jsonl", json_lines({"text": "one", "label": "b"}))


class TestDocstringOrigin(DatasetContract):
    name = "docstring_origin"

    @pytest.fixture(autouse=True)
    def sources(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Two packages in the folder of the test: reading real ones takes seconds."""
        for number, name in enumerate(f"{package}/m{n}.py" for package in ("one", "two") for n in range(9)):
            text = f"What the module number {number} does, in more than forty characters."
            write(tmp_path / name, f'"""{text}"""\ndef f():\n    """{text.upper()}"""\n')
        files = [(file, f"python/{file.relative_to(tmp_path).as_posix()}") for file in sorted(tmp_path.rglob("*.py"))]
        monkeypatch.setattr(docstring_origin, "installed_files", lambda: files)

    options: Mapping[str, Any] = {"packages": ["one", "two"], "held_out": 0.2}

    def change(self, folder: Path) -> None:
        write(folder / "one/m3.py", f'"""{json.dumps("Another text")} that has more than forty characters."""\n')


def test_every_dataset_has_its_suite() -> None:
    suites = [value for value in globals().values() if isinstance(value, type) and issubclass(value, DatasetContract)]
    assert set(datasets.names()) == {suite.name for suite in suites if suite is not DatasetContract}
