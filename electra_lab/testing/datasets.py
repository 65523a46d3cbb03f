"""Laws of datasets."""

import math
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from electra_lab.testing.common import ReaderContract
from registry import Answer, Dataset, PairExample, QuestionExample, TextExample, WordsExample, datasets
from registry.errors import LabError

TYPES = (TextExample, WordsExample, QuestionExample, PairExample)


class DatasetContract(ReaderContract):
    """Laws of datasets. Override `options_in` and `change` for one that reads files: the test must write them."""

    registry = datasets

    def change(self, folder: Path) -> None:
        """Change an example in the files that `options_in` wrote."""
        pytest.skip("the test does not say how the content is changed: override `change`")

    def dataset(self, folder: Path) -> Dataset:
        dataset: Dataset = self.opened(self.options_in(folder))
        return dataset

    def content(self, reader: Any) -> list[Any]:
        return [(split, list(reader.read(split))) for split in reader.splits]

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
        declared = self.declared("yields")
        assert declared in TYPES, "register(name, yields=...) must declare the type of the examples"
        labels = set()
        for example in _all(self.dataset(tmp_path)):
            assert type(example) is declared, f"{type(example)} is not {declared}"
            _refuse_wrong(example)
            if isinstance(example, TextExample) and example.label is not None:
                labels.add(isinstance(example.label, str))
        assert len(labels) < 2, "some labels are words and some are numbers"

    def test_ids_are_unique_in_a_split_and_places_are_known(self, tmp_path: Path) -> None:
        dataset = self.dataset(tmp_path)
        for split in dataset.splits:
            examples = list(dataset.read(split))
            ids = [example.id for example in examples]
            assert all(isinstance(id, str) and id for id in ids), "an example has no id"
            assert len({*ids}) == len(ids), f"two examples of {split} have the same id"
            assert all(example.place for example in examples), "an example does not say where it is from"

    def test_examples_are_the_same_each_time(self, tmp_path: Path) -> None:
        self.assert_same_content(tmp_path)

    def test_the_fingerprint_changes_with_the_examples(self, tmp_path: Path) -> None:
        options = self.options_in(tmp_path)
        dataset = self.opened(options)
        before, examples = dataset.fingerprint(), _all(dataset)
        self.change(tmp_path)
        changed = self.opened(options)
        assert _all(changed) != examples, "`change` changed no example"
        assert changed.fingerprint() != before, "the examples have changed, but the fingerprint has not"
        assert dataset.fingerprint() == changed.fingerprint(), "a dataset's own fingerprint is not taken again"

    def test_submissions_are_files_of_their_own(self, tmp_path: Path) -> None:
        dataset: Any = self.dataset(tmp_path)
        names = []
        labels = (getattr(example, "label", None) for example in _all(dataset))
        label = next((label for label in labels if label is not None), "label")
        for split in dataset.splits:
            examples = list(dataset.read(split))
            predictions = [{"id": example.id, "prediction": _prediction(example, label)} for example in examples]
            submission = dataset.submission(split, predictions)
            if submission is not None:
                name, text = submission
                assert Path(name).name == name, f"{name} is not the name of a file"
                assert isinstance(text, str)
                assert text, "the file is empty"
                names.append(name)
        assert len({*names}) == len(names), f"two splits have one file: {names}"


def _all(dataset: Dataset) -> list[Any]:
    return [*chain.from_iterable(map(dataset.read, dataset.splits))]


def _refuse_wrong(example: Any) -> None:
    """Raise AssertionError for an example whose fields do not fit together."""
    match example:
        case TextExample():
            assert isinstance(example.text, str)
            assert isinstance(example.pair, str | None)
            assert isinstance(example.label, str | int | float | None)
            assert not isinstance(example.label, float) or math.isfinite(example.label), "a label is not finite"
            assert example.label != "", "a label is empty; None means that it is not known"
        case WordsExample():
            assert example.words, "a sentence has no words"
            assert all(isinstance(word, str) and word for word in example.words)
            assert example.tags is None or len(example.tags) == len(example.words), "there is not a tag for each word"
        case QuestionExample():
            assert example.labelled or not example.answers, "the answers are not known, but there are some"
            for answer in example.answers:
                assert isinstance(answer, Answer)
                excerpt = example.context[answer.start : answer.start + len(answer.text)]
                assert answer.text == excerpt, f"the answer '{answer.text}' is not in the context"
        case PairExample():
            assert example.good, "a sentence is empty"
            assert example.bad, "a sentence is empty"


def _prediction(example: Any, label: Any) -> Any:
    """Return a possible prediction of a task for an example; `label` for a text."""
    match example:
        case TextExample():
            return label
        case WordsExample():
            return list(example.tags or ["O"] * len(example.words))
        case QuestionExample():
            return example.answers[0].text if example.answers else ""
        case _:
            return "good"
