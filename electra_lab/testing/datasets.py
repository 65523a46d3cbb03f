"""Laws of datasets."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from electra_lab.testing.common import Contract
from registry import Answer, Dataset, PairExample, QuestionExample, TextExample, WordsExample, datasets
from registry.errors import LabError
from registry.signature import validate

TYPES = (TextExample, WordsExample, QuestionExample, PairExample)


class DatasetContract(Contract):
    """Laws of datasets. Override `options_in` and `change` for one that reads files: the test must write them."""

    registry = datasets

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        """Return the options, as YAML has them; what they name may be written to an empty folder."""
        return self.options

    def change(self, folder: Path) -> None:
        """Change an example in the files that `options_in` wrote."""
        pytest.skip("the test does not say how the content is changed: override `change`")

    def dataset(self, folder: Path) -> Dataset:
        return self._opened(self.options_in(folder))

    def _opened(self, options: Mapping[str, Any]) -> Dataset:
        made: Dataset = self.kind(**dict(validate(self.registry.get(self.name).schema, options)))
        return made

    def test_splits_have_names_and_examples(self, tmp_path: Path) -> None:
        dataset = self.dataset(tmp_path)
        splits = list(dataset.splits)
        assert splits, "there are no splits"
        assert all(isinstance(split, str) and split for split in splits), f"{splits} are not names"
        assert len({*splits}) == len(splits), f"a split is there twice: {splits}"
        for split in splits:
            assert next(iter(dataset.read(split)), None) is not None, f"the split {split} has no examples"

    def test_a_split_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(LabError):
            list(self.dataset(tmp_path).read("no such split"))

    def test_examples_are_of_the_declared_type(self, tmp_path: Path) -> None:
        declared = self.registry.get(self.name).declared["yields"]
        assert declared in TYPES, "register(name, yields=...) must declare the type of the examples"
        labels = set()
        for each in _all(self.dataset(tmp_path)):
            assert type(each) is declared, f"{type(each)} is not {declared}"
            _refuse_wrong(each)
            if isinstance(each, TextExample) and each.label is not None:
                labels.add(isinstance(each.label, str))
        assert len(labels) < 2, "some labels are words and some are numbers"

    def test_ids_are_unique_in_a_split_and_places_are_known(self, tmp_path: Path) -> None:
        dataset = self.dataset(tmp_path)
        for split in dataset.splits:
            examples = list(dataset.read(split))
            ids = [each.id for each in examples]
            assert all(isinstance(id, str) and id for id in ids), "an example has no id"
            assert len({*ids}) == len(ids), f"two examples of {split} have the same id"
            assert all(each.place for each in examples), "an example does not say where it is from"

    def test_examples_are_the_same_each_time(self, tmp_path: Path) -> None:
        dataset, other = self.dataset(tmp_path), self.dataset(tmp_path)
        for split in dataset.splits:
            once = list(dataset.read(split))
            assert list(dataset.read(split)) == once, "the second reading differs from the first"
            assert list(other.read(split)) == once, "another dataset with the same options has other examples"
        assert list(other.splits) == list(dataset.splits)

    def test_the_fingerprint_is_the_same_each_time(self, tmp_path: Path) -> None:
        dataset = self.dataset(tmp_path)
        before = dataset.fingerprint()
        assert isinstance(before, str)
        assert before
        for _ in _all(dataset):
            pass
        assert dataset.fingerprint() == before, "reading the dataset changed its fingerprint"
        assert self.dataset(tmp_path).fingerprint() == before, "another dataset with the same options has another one"

    def test_the_fingerprint_changes_with_the_examples(self, tmp_path: Path) -> None:
        options = self.options_in(tmp_path)
        dataset = self._opened(options)
        before, examples = dataset.fingerprint(), _all(dataset)
        self.change(tmp_path)
        changed = self._opened(options)
        assert _all(changed) != examples, "`change` changed no example"
        assert changed.fingerprint() != before, "the examples have changed, but the fingerprint has not"
        assert dataset.fingerprint() == changed.fingerprint(), "a dataset's own fingerprint is not taken again"

    def test_submissions_are_files_of_their_own(self, tmp_path: Path) -> None:
        dataset: Any = self.dataset(tmp_path)
        names = []
        label = next((each.label for each in _all(dataset) if getattr(each, "label", None) is not None), "label")
        for split in dataset.splits if hasattr(dataset, "submission") else ():
            predictions = [{"id": each.id, "prediction": _prediction(each, label)} for each in dataset.read(split)]
            found = dataset.submission(split, predictions)
            if found is not None:
                name, text = found
                assert Path(name).name == name, f"{name} is not the name of a file"
                assert isinstance(text, str)
                assert text, "the file is empty"
                names.append(name)
        assert len({*names}) == len(names), f"two splits have one file: {names}"


def _all(dataset: Dataset) -> list[Any]:
    return [each for split in dataset.splits for each in dataset.read(split)]


def _refuse_wrong(each: Any) -> None:
    """Raise AssertionError for an example whose fields do not fit together."""
    match each:
        case TextExample():
            assert isinstance(each.text, str)
            assert isinstance(each.pair, str | None)
            assert isinstance(each.label, str | int | float | None)
            assert not isinstance(each.label, float) or math.isfinite(each.label), "a label is not finite"
            assert each.label != "", "a label is empty; None means that it is not known"
        case WordsExample():
            assert each.words, "a sentence has no words"
            assert all(isinstance(word, str) and word for word in each.words)
            assert each.tags is None or len(each.tags) == len(each.words), "there is not a tag for each word"
        case QuestionExample():
            assert each.labelled or not each.answers, "the answers are not known, but there are some"
            for answer in each.answers:
                assert isinstance(answer, Answer)
                found = each.context[answer.start : answer.start + len(answer.text)]
                assert answer.text == found, f"the answer '{answer.text}' is not in the context"
        case PairExample():
            assert each.good, "a sentence is empty"
            assert each.bad, "a sentence is empty"


def _prediction(each: Any, label: Any) -> Any:
    """Return what a task could predict for an example; `label` for a text."""
    match each:
        case TextExample():
            return label
        case WordsExample():
            return list(each.tags or ["O"] * len(each.words))
        case QuestionExample():
            return each.answers[0].text if each.answers else ""
        case _:
            return "good"
