"""Every built-in corpus obeys the laws of corpora."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from electra_lab.corpora import docstrings
from electra_lab.testing import CorpusContract
from registry import LONGEST, corpora
from tests.helpers import ROOT

TEXTS = ["one", "two\nlines", "grüße 你好 🙂", "long " * (LONGEST // 4)]


def json_lines(file: Path) -> None:
    file.write_text("".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(TEXTS)))


class TestDocstrings(CorpusContract):
    name = "docstrings"

    @pytest.fixture(autouse=True)
    def sample(self, monkeypatch: pytest.MonkeyPatch) -> None:
        files = docstrings.installed_files()[::200]  # all of them take half a minute
        monkeypatch.setattr(docstrings, "installed_files", lambda: files)


class TestTextFiles(CorpusContract):
    name = "text_files"
    more: Mapping[str, Any] = {"documents": "files", "join_lines": True, "on_error": "skip"}

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        (folder / "a.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
        (folder / "b.txt.gz").write_bytes(gzip.compress(b"three\n\nfour", mtime=0))
        (folder / "c.txt").write_bytes(b"five\n\n\xff")
        return {"paths": [str(folder)], **self.more}


class TestTextFilesPatterns(TestTextFiles):
    more = {"documents": "lines", "remove": "o", "group": "t.*", "on_error": "skip"}  # noqa: RUF012


class TestFasta(CorpusContract):
    name = "fasta"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        (folder / "a.fa").write_text(">one\nACGT\nAC\n>two\nACQ\n>three\n\n>four\nACGTN\n")
        return {"paths": [str(folder)], "window": 4, "reverse_complement": True, "on_error": "skip"}


class TestIds(CorpusContract):
    name = "ids"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        (folder / "a.jsonl").write_text('{"ids": [1, 2]}\n{"ids": []}\n{"ids": [-1]}\n{"ids": [3]}\n')
        return {"paths": [str(folder)], "vocab_size": 9, "on_error": "skip"}


class TestJsonLines(CorpusContract):
    name = "json_lines"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        json_lines(folder / "a.jsonl")
        (folder / "b.jsonl").write_text("broken\n")
        return {"paths": [str(folder)], "key": "id", "on_error": "skip"}


class TestParquet(CorpusContract):
    name = "parquet"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": [*TEXTS, None]}), folder / "a.parquet")
        return {"paths": [str(folder)], "on_error": "skip"}


class TestMds(CorpusContract):
    name = "mds"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        return {"paths": [str(ROOT / "tests" / "data" / "mds" / "plain")], "key": "book"}


class TestHuggingFace(CorpusContract):
    name = "hugging_face"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        pytest.importorskip("datasets")
        for split in ("train", "validation", "test"):
            json_lines(folder / f"{split}.jsonl")
        return {"path": str(folder), "splits": {}, "key": "id"}


class TestMixture(CorpusContract):
    name = "mixture"

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        json_lines(folder / "a.jsonl")
        (folder / "a.txt").write_text("three")
        return {
            "parts": [
                {"corpus": {"type": "json_lines", "paths": [str(folder / "a.jsonl")], "key": "id"}, "repeats": 2},
                {"corpus": {"type": "text_files", "paths": [str(folder / "a.txt")]}},
            ]
        }


def test_every_corpus_has_its_suite() -> None:
    suites = [value for value in globals().values() if isinstance(value, type) and issubclass(value, CorpusContract)]
    assert set(corpora.names()) == {suite.name for suite in suites if suite is not CorpusContract}
