"""Hugging Face datasets: fields, names of labels, splits; real local folders, the hub without a network."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from electra_lab.datasets.hugging_face import HuggingFace
from registry import TextExample
from registry.errors import DataError
from registry.signature import FolderOrName
from tests.electra_lab.datasets.written import json_lines, write
from tests.helpers import datasets_offline

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    datasets_offline(monkeypatch, tmp_path_factory.mktemp("cache"))


def dataset(path: Path | str, **options: Any) -> HuggingFace:
    return HuggingFace(path=FolderOrName(str(path)), **options)


def saved(folder: Path, **splits: Any) -> Path:
    tables = {name: datasets.Dataset.from_dict(columns) for name, columns in splits.items()}
    datasets.DatasetDict(tables).save_to_disk(folder)
    return folder


def with_names(values: list[int | None]) -> Any:
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    rows = {"text": [f"text {n}" for n in range(len(values))], "label": values}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def test_fields_and_splits(tmp_path: Path) -> None:
    rows = {"a": [{"one": " x ", "n": 5}], "two": ["y"], "class": ["good"]}
    made = dataset(saved(tmp_path / "a", train=rows, test=rows), text="a.one", pair="two", label="class", id="a.n",
                   held_out=0)  # fmt: skip
    assert made.splits == ["train", "test"]
    for split in made.splits:
        assert list(made.read(split)) == [TextExample("x", "y", "good", "5", f"{tmp_path / 'a'}: {split}: row 1")]


def test_labels_with_names(tmp_path: Path) -> None:
    datasets.DatasetDict({"test": with_names([1, 0, -1, None])}).save_to_disk(tmp_path / "a")
    made = dataset(tmp_path / "a", held_out=0)
    assert [example.label for example in made.read("test")] == ["good", "bad", None, None]
    numbers = dataset(tmp_path / "a", held_out=0, label_type="number")
    assert [example.label for example in numbers.read("test")] == [1.0, 0.0, -1.0, None]
    with_names([1, 0]).to_parquet(write(tmp_path / "b" / "train.parquet", b""))
    in_order = dataset(tmp_path / "b", held_out=0)
    assert [example.label for example in in_order.read("train")] == ["good", "bad"]
    assert in_order.labels == ["bad", "good"]


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", json_lines({"text": "b", "label": 1})), ("b.csv", "text,label\nb,1\n")]
)
def test_labels_without_names_and_files_in_other_formats(tmp_path: Path, name: str, content: str) -> None:
    write(tmp_path / name, content)
    (found,) = dataset(tmp_path, held_out=0).read("train")
    assert (found.text, found.label) == ("b", "1")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson.gz"])
def test_text_that_looks_like_a_date_stays_text(tmp_path: Path, name: str) -> None:
    """In all rows or in some, in nested fields and in labels; the library would read dates, or add times."""
    dates = ["2020-01-01", "2020-01-01T10:00:00Z", "2021-02-03 04:05:06", "2021-02-03 04"]
    found = [{"text": date, "label": date[:10], "a": {"b": date, "id": n}} for n, date in enumerate(dates)]
    content = (json.dumps(found) if name.endswith("json") else json_lines(*found)).encode()
    write(tmp_path / "train" / name, gzip.compress(content) if name.endswith("gz") else content)
    write(tmp_path / "test" / "a.jsonl", json_lines({"text": "a cat", "label": None, "a": {"b": "x", "id": 1}}))
    write(tmp_path / "test" / "b.jsonl", json_lines({"text": "2020-01-01", "label": None, "a": {"b": "x", "id": 2}}))
    made = dataset(tmp_path, pair="a.b", id="a.id", held_out=0)
    read = [(example.text, example.pair, example.label, example.id) for example in made.read("train")]
    assert read == [(row["text"], row["text"], row["label"], str(n)) for n, row in enumerate(found)]
    assert [(example.text, example.label) for example in made.read("test")] == [("a cat", None), ("2020-01-01", None)]


def test_json_that_is_not_rows_is_refused_by_line(tmp_path: Path) -> None:
    """A field that a row lacks is null."""
    write(tmp_path / "test.json", json_lines({"text": "a", "label": "x"}, {"text": "b"}))
    assert [example.label for example in dataset(tmp_path).read("test")] == ["x", None]
    for content, place in ((b'{"text": "a"}\n[1]\n', 2), (b'{"text": "a"}\n{"text"\n', 2)):
        write(tmp_path / "test.json", content)
        with pytest.raises(DataError, match=rf"test\.json:{place}: "):
            list(dataset(tmp_path).read("test"))


def test_only_the_test_may_lack_labels(tmp_path: Path) -> None:
    unlabelled, labelled = {"text": ["a"]}, {"text": ["a"], "label": ["x"]}
    made = dataset(saved(tmp_path / "a", train=labelled, test=unlabelled), held_out=0)
    assert [example.label for example in made.read("test")] == [None]
    with pytest.raises(DataError, match=r"c: train: has no field 'label'\. Known: text\."):
        list(dataset(saved(tmp_path / "c", train=unlabelled), held_out=0).read("train"))


def test_splits_by_other_names(tmp_path: Path) -> None:
    rows = {name: {"text": [name], "label": ["x"]} for name in ("train", "dev_matched", "dev_mismatched")}
    folder = saved(tmp_path / "a", **rows)
    assert dataset(folder).splits == ["train", "validation", "dev_matched", "dev_mismatched"]
    made = dataset(folder, splits={"train": "train", "validation": "dev_matched"})
    assert made.splits == ["train", "validation"]
    assert [example.text for example in made.read("validation")] == ["dev_matched"]
    assert made.fingerprint() != dataset(folder).fingerprint()
    with pytest.raises(DataError, match=r"a: has no split 'dev_match'\. Did you mean 'dev_matched'\? .* Set `splits`"):
        list(dataset(folder, splits={"test": "dev_match"}).read("test"))


def test_wrong_values_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", test={"text": ["a", None], "label": ["x", "y"]})
    with pytest.raises(DataError, match=f"^{folder}: test: row 2: the field 'text' is null, not text"):
        list(dataset(folder).read("test"))
    with pytest.raises(DataError, match=r"a: test: has no field 'txt'\. Did you mean 'text'\?"):
        list(dataset(folder, text="txt").read("test"))
    train = saved(tmp_path / "c", train={"text": ["a"], "label": ["x"]})
    with pytest.raises(DataError, match=r"c: train: there are no examples for train, as held_out is 0\.999\."):
        list(dataset(train, held_out=0.999).read("train"))
    with pytest.raises(DataError, match=r"nothing/there: is not a folder\. For files there are json_lines and table\."):
        dataset(tmp_path / "nothing/there")


def test_a_folder_that_changes_while_it_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a" / "test.jsonl", json_lines({"text": "one"}))
    made = dataset(tmp_path / "a")
    made.fingerprint()
    write(tmp_path / "a" / "test.jsonl", json_lines({"text": "two"}))
    with pytest.raises(DataError, match=r"test\.jsonl: changed while it was read\."):
        list(made.read("test"))
