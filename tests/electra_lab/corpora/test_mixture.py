"""Mixtures: parts of any kind, repeats, and their options in an experiment file."""

import json
from pathlib import Path
from typing import Any

import pytest

from electra_lab.config.load import dump, load
from electra_lab.corpora.mixture import Mixture
from registry import Corpus, Document, Skipped, corpora
from registry.errors import ConfigError
from registry.signature import validate
from tests.helpers import experiment_text


def mixture(*parts: dict[str, Any]) -> Corpus:
    return Mixture(**dict(validate(corpora.get("mixture").schema, {"parts": list(parts)})))


def text_files(folder: Path, name: str, content: str | bytes, **options: Any) -> dict[str, Any]:
    (folder / f"{name}.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    return {"type": "text_files", "paths": [str(folder / f"{name}.txt")], **options}


def json_lines(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    (folder / f"{name}.jsonl").write_text(json.dumps({"text": "three", "id": 3}))
    return {"type": "json_lines", "paths": [str(folder / f"{name}.jsonl")], "key": "id", **options}


def test_parts_one_after_the_other_and_again(tmp_path: Path) -> None:
    texts, lines = text_files(tmp_path, "a", "one\n\ntwo"), json_lines(tmp_path, "b")
    found = list(mixture({"corpus": texts, "repeats": 2}, {"corpus": lines, "repeats": 3}))
    again = Document("three", "3", again=True)
    assert found[:4] == ["one", "two", Document("one", again=True), Document("two", again=True)]
    assert found[4:] == [Document("three", "3"), again, again]
    inner = {"type": "mixture", "parts": [{"corpus": text_files(tmp_path, "c", "one"), "repeats": 2}]}
    assert list(mixture({"corpus": inner, "repeats": 2})) == ["one", *[Document("one", again=True)] * 3]


def test_splits_and_what_was_skipped_stay(tmp_path: Path) -> None:
    """A part with splits next to one without; skipped documents are counted once."""
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        (tmp_path / "data" / f"{split}.jsonl").write_text(json.dumps({"text": split}))
    found = mixture(
        {"corpus": {"type": "hugging_face", "path": str(tmp_path / "data"), "splits": {}}},
        {"corpus": text_files(tmp_path, "a", b"\xff", on_error="skip"), "repeats": 5},
        {"corpus": text_files(tmp_path, "b", "one")},
    )
    splits = [item.split if isinstance(item, Document) else type(item) for item in found]
    assert splits == ["train", "validation", "test", Skipped, str]


def test_the_fingerprint_is_of_the_parts_and_their_repeats(tmp_path: Path) -> None:
    a, b = ({"corpus": text_files(tmp_path, name, name)} for name in "ab")
    mixtures = [a, b], [b, a], [a], [a, a], [{**a, "repeats": 2}, b], [a, {**b, "repeats": 2}]
    fingerprints = [mixture(*parts).fingerprint() for parts in mixtures]
    assert len({*fingerprints}) == 6
    assert mixture(a, b).fingerprint() == fingerprints[0]
    text_files(tmp_path, "b", "c")
    assert mixture(a, b).fingerprint() != fingerprints[0]


EXPERIMENT = "".join(line for line in experiment_text().splitlines(keepends=True) if not line.startswith("corpus:"))
FIRST = EXPERIMENT.count("\n") + 4  # the line of the first part


def experiment(folder: Path, parts: str) -> Path:
    (folder / "a.yaml").write_text(f"{EXPERIMENT}corpus:\n  type: mixture\n  parts:\n{parts}")
    return folder / "a.yaml"


def test_paths_are_relative_to_the_file_that_wrote_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    text_files(tmp_path / "data", "a", "one")
    parts = "    - corpus: {type: text_files, paths: [data/a.txt]}\n      repeats: 2\n"
    parts += "    - corpus: {type: mixture, parts: [{corpus: {type: text_files, paths: ['data/*.txt']}}]}\n"
    file = experiment(tmp_path, parts)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yaml").write_text("extends: ../a.yaml\n")
    for path in (file, tmp_path / "sub" / "b.yaml"):
        corpus = load(path).config.corpus
        first, second = corpus.keywords()["parts"]
        assert first.corpus.keywords()["paths"] == [tmp_path / "data" / "a.txt"]
        assert second.corpus.keywords()["parts"][0].corpus.keywords()["paths"] == [tmp_path / "data" / "*.txt"]
        assert corpus.dump()["parts"][0] == {
            "corpus": {
                "type": "text_files", "paths": [str(tmp_path / "data" / "a.txt")], "documents": "paragraphs",
                "join_lines": False, "remove": None, "group": None, "on_error": "stop",
            },
            "repeats": 2,
        }  # fmt: skip
        assert list(Mixture(**corpus.keywords())) == ["one", Document("one", again=True), "one"]
        (complete := tmp_path / "complete.yaml").write_text(dump(load(path).config))
        assert load(complete).config.corpus == corpus
    with pytest.raises(ConfigError, match=r"--set corpus\.parts=.+: corpus\.parts\.0\.repeats: .+"):
        load(file, ["corpus.parts=[{corpus: {type: docstrings}, repeats: 0}]"])


@pytest.mark.parametrize(
    ("part", "line", "problem"),
    [
        ("    - corpus:\n        type: text_files\n        paths: [a.txt]\n        document: lines\n", 3,
         ".0.corpus.document: unknown parameter. Did you mean 'documents'? "),
        ("    - corpus: {type: docstrings}\n    - corpus: {type: docstring}\n", 1,
         ".1.corpus.type: no corpus is called 'docstring'. Did you mean 'docstrings'? "),
        ("    - corpus: {type: docstrings}\n      repeat: 2\n", 1,
         ".0.repeat: unknown parameter. Did you mean 'repeats'? Known: corpus, repeats."),
        ("    - corpus: {type: docstrings}\n      repeats: 0.5\n", 1, ".0.repeats: must be an integer"),
        ("    - repeats: 2\n", 0, ".0.corpus: is required."),
        ("    - corpus: docstrings\n", 0, ".0.corpus: must be a mapping such as {type: docstrings}."),
        ("    - corpus: {type: text_files}\n", 0, ".0.corpus.paths: is required."),
        ("    - {type: docstrings}\n", 0, ".0.type: unknown parameter."),
        ("    []\n", -1, ": must have at least 1 item"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_part_is_named_by_its_line(tmp_path: Path, part: str, line: int, problem: str) -> None:
    file = experiment(tmp_path, part)
    with pytest.raises(ConfigError) as refused:
        load(file)
    lines = str(refused.value).splitlines()
    assert any(said.startswith(f"{file}:{FIRST + line}: corpus.parts{problem}") for said in lines), lines


def test_damage_is_counted_once_and_the_files_of_all_parts_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\nth\xffree\n\ntwo")
    (tmp_path / "b.jsonl").write_text('{"text": "four"}\nfive\n')
    part = {
        "text": {"type": "text_files", "paths": [str(tmp_path)], "on_error": "skip"},
        "json": {"type": "json_lines", "paths": [str(tmp_path / "*.jsonl")], "on_error": "skip"},
        "docs": {"type": "docstrings"},
    }
    made = mixture({"corpus": part["text"], "repeats": 3}, {"corpus": part["json"]})
    found = list(made)
    assert [item.unit for item in found if isinstance(item, Skipped)] == ["lines", "records"]
    texts = [item.text if isinstance(item, Document) else item for item in found if not isinstance(item, Skipped)]
    assert texts == ["one", "two"] * 3 + ["four"]
    with_docstrings = mixture({"corpus": part["text"]}, {"corpus": part["json"]}, {"corpus": part["docs"]})
    read, ignored = with_docstrings.files()  # type: ignore[attr-defined]
    assert ([file.name for file in read], [file.name for file in ignored]) == (["a.txt", "b.jsonl"], [])
