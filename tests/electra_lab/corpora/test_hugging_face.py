"""Hugging Face datasets: real local folders, and the hub as far as possible without a network."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from electra_lab.corpora.hugging_face import HuggingFace, Splits
from registry import Document, Skipped, corpora
from registry.errors import DataError
from registry.signature import FolderOrName, validate
from tests.helpers import datasets_offline

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    datasets_offline(monkeypatch, tmp_path_factory.mktemp("cache"))


def corpus(path: Path | str, **options: Any) -> HuggingFace:
    return HuggingFace(path=FolderOrName(str(path)), **options)


def json_folder(folder: Path, **splits: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, records in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


SPLITS = "train", "validation", "test"


def of_split(split: str) -> list[dict[str, Any]]:
    return [{"text": f"{split} {n}", "meta": {"book": n}} for n in range(2)]


THREE = {split: of_split(split) for split in SPLITS}


def test_folders(tmp_path: Path) -> None:
    """Of `save_to_disk`, with one split or several, and of files in every format."""
    datasets.Dataset.from_dict({"text": ["one", "", " two "], "id": [1, 2, 3]}).save_to_disk(tmp_path / "one")
    assert list(corpus(tmp_path / "one", key="id")) == [Document("one", "1"), Document("two", "3")]
    train, test = (datasets.Dataset.from_dict({"text": [text]}) for text in ("one", "two"))
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "dict")
    assert list(corpus(tmp_path / "dict")) == ["one"]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("one\ntwo\n")
    assert list(corpus(tmp_path / "text")) == ["one", "two"]
    (tmp_path / "parquet").mkdir()
    train.to_parquet(tmp_path / "parquet" / "a.parquet")
    assert list(corpus(tmp_path / "parquet")) == ["one"]


def test_named_splits_are_ours(tmp_path: Path) -> None:
    theirs = {"train": "train", "validation": "dev", "test": "test"}
    rows = {theirs[split]: datasets.Dataset.from_list(records) for split, records in THREE.items()}
    datasets.DatasetDict(rows).save_to_disk(folder := tmp_path / "saved")
    found = list(corpus(folder, splits=Splits(validation="dev"), key="meta.book"))
    assert found == [Document(f"{split} {n}", str(n), split) for split in theirs for n in range(2)]  # type: ignore[arg-type]
    without_key = list(corpus(json_folder(tmp_path / "json", **THREE), splits=Splits()))
    assert without_key[2] == Document("validation 0", None, "validation")


def test_two_of_our_splits_cannot_be_one_of_theirs() -> None:
    schema = corpora.get("hugging_face").schema
    with pytest.raises(ValidationError, match="must name three different splits, not train, test, test"):
        validate(schema, {"path": "a", "splits": {"validation": "test"}})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"splits": Splits(validation="dev")}, r"'dev'\. Known: test, train, validation\. Set `splits`\."),
        ({"name": "other"}, r": the dataset cannot be loaded \(BuilderConfig 'other' not found.*\)\. Check `name` and"),
        ({"field": "txet"}, r": train: has no field 'txet'\. Did you mean 'text'\? Known: meta, text\."),
        ({"key": "id"}, r": train: has no field 'id'\."),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, options: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        list(corpus(json_folder(tmp_path / "a", **THREE), **options))


def test_nulls_are_named_or_skipped(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["one", None]}).save_to_disk(tmp_path / "a")
    place, reason = f"{tmp_path / 'a'}: train: row 2", "the field 'text' is null, not text"
    with pytest.raises(DataError, match=f"^{re.escape(place)}: .* set on_error: skip"):
        list(corpus(tmp_path / "a"))
    assert list(corpus(tmp_path / "a", on_error="skip")) == ["one", Skipped(place, reason)]


def test_a_broken_file_and_folders_that_are_none(tmp_path: Path) -> None:
    folder = json_folder(tmp_path / "a", train=[{"text": "one"}])
    (folder / "train.jsonl").write_text('{"text": "one"}\n{"text": \n')
    with pytest.raises(DataError, match=r"a: train: cannot be read \(.*train\.jsonl:2: "):
        list(corpus(folder))
    for path in (tmp_path / "nothing", folder / "train.jsonl", tmp_path / ("n" * 300)):
        with pytest.raises(DataError, match=r": is not a folder\. For files there are json_lines, parquet and text_fi"):
            corpus(path)


def test_a_folder_that_changes_while_it_is_read(tmp_path: Path) -> None:
    made = corpus(json_folder(tmp_path / "a", train=[{"text": "one"}]))
    made.fingerprint()
    json_folder(tmp_path / "a", train=[{"text": "two"}])
    with pytest.raises(DataError, match=r"train\.jsonl: changed while it was read\."):
        list(made)


def test_the_fingerprint_of_a_folder_is_of_its_files(tmp_path: Path) -> None:
    """Also of their names, which tell train from test."""
    same = [corpus(json_folder(tmp_path / name, **THREE)).fingerprint() for name in "ab"]
    assert same[0] == same[1]
    swapped = {**THREE, "train": THREE["test"], "test": THREE["train"]}
    renamed = {{"validation": "val"}.get(name, name): records for name, records in THREE.items()}
    others = [corpus(json_folder(tmp_path / str(n), **splits)) for n, splits in enumerate((swapped, renamed))]
    others += [corpus(tmp_path / "a", field="meta"), corpus(tmp_path / "a", key="meta.book")]
    assert len({same[0], *(read.fingerprint() for read in others)}) == 5


def test_the_hub_without_a_network_is_a_sentence() -> None:
    made = corpus("nobody/nothing")
    for use in (made.fingerprint, lambda: list(made)):
        with pytest.raises(DataError, match=r"^nobody/nothing: the dataset cannot be loaded \(.*\)\. Check `path`, `n"):
            use()


def test_the_hub_is_asked_once_for_what_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is replaced by a dataset in memory."""
    brought = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["one"]})})
    asked = Mock(return_value=brought)
    monkeypatch.setattr("datasets.load_dataset", asked)
    made = corpus("someone/something", name="part", revision="abc")
    before = made.fingerprint()
    assert list(made) == ["one"]
    assert made.fingerprint() == before
    asked.assert_called_once_with("someone/something", "part", revision="abc", streaming=False)
    assert before != corpus("someone/something", field="other").fingerprint()


def test_a_dataset_of_the_hub_is_streamed_at_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is replaced by a stream of rows, which the library does not keep."""
    stream = datasets.Dataset.from_dict({"text": ["one", "two"], "n": [1, 2]}).to_iterable_dataset()
    asked, commits = Mock(return_value={"train": stream}), ["abc", "abd"]
    monkeypatch.setattr("datasets.load_dataset", asked)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: Mock(sha=commits[0]))
    made = corpus("someone/something", stream=True, revision="main", field="text")
    before = made.fingerprint()
    assert list(made) == ["one", "two"]
    asked.assert_called_once_with("someone/something", None, revision="abc", streaming=True)
    assert made.fingerprint() == before == corpus("someone/something", stream=True).fingerprint()
    commits.pop(0)
    assert corpus("someone/something", stream=True).fingerprint() != before


def test_a_missing_library_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(DataError, match=r"datasets is needed to read a Hugging Face dataset\. Install it: pip install"):
        corpus(tmp_path)


def test_values_of_csv_files_stay_as_they_are_written(tmp_path: Path) -> None:
    """The library would read 01 as 1, True as a boolean and NA as missing."""
    values = ["01", "True", "NA", "null", "1e5", "1.0", "nan", "-0", "None", "2020-01-01", "0x1F", "007 ", "é"]
    for ending, delimiter in {"csv": ",", "tsv": "\t"}.items():
        (tmp_path / ending).mkdir()
        rows = "".join(f"{value}{delimiter}{value}\n" for value in values)
        (tmp_path / ending / f"train.{ending}").write_text(f"id{delimiter}text\n{rows}")
        # Only numbers, with different columns: each file has its own types.
        (tmp_path / ending / f"test.{ending}").write_text(f"text{delimiter}n\n010{delimiter}2\n020{delimiter}3\n")
        expected = [Document(value.strip(), value) for value in values]
        assert list(corpus(tmp_path / ending, key="id")) == expected
        made = corpus(tmp_path / ending)
        made._ours = {"test": None}
        assert list(made) == ["010", "020"]
    (tmp_path / "csv" / "train.csv").write_text('text,n\n"two\nlines, ""quoted""",1\n\n,2\n')
    assert list(corpus(tmp_path / "csv")) == ['two\nlines, "quoted"']
    # In rows with more columns than the header, the library takes the first for an index and shifts the others.
    (tmp_path / "csv" / "train.csv").write_text("text,label\nhello, world,1\n")
    with pytest.raises(DataError, match=r": train: cannot be read \(.*columns"):
        list(corpus(tmp_path / "csv"))


def test_the_files_that_are_read(tmp_path: Path) -> None:
    """The library reads only files of one format, and the requested splits."""
    folder = json_folder(tmp_path / "a", **THREE)
    (folder / "notes.txt").write_text("one")
    for options, count in (({}, 1), ({"splits": Splits()}, 3)):
        read, ignored = corpus(folder, **options).files()
        assert (len(read), len(ignored)) == (count, 4 - count)
        assert {*read, *ignored} == {*folder.iterdir()}
    datasets.Dataset.from_dict({"text": ["one"]}).save_to_disk(tmp_path / "saved")
    assert {file.suffix for file in corpus(tmp_path / "saved").files()[0]} == {".arrow", ".json"}
    assert corpus("someone/something").files() == ([], [])
