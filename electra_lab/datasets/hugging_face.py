"""Datasets of the Hugging Face hub, and folders in its formats."""

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Annotated, Any

from pydantic import Field

from electra_lab.datasets._splits import TEST, Entry, HeldOut, OnError, Splits, attempted
from electra_lab.datasets._texts import LabelType, Name, TextFields
from electra_lab.sources.files import BadInput
from electra_lab.sources.hugging_face import HuggingFaceSource
from electra_lab.sources.records import value_of
from registry import TextExample, datasets
from registry.signature import FolderOrName

FILES = "For files there are json_lines and table."


@datasets.register("hugging_face", yields=TextExample)
class HuggingFace(Splits[TextExample]):
    """A dataset of the Hugging Face hub, or a local folder; each row is one example. Needs `electra-lab[data]`.

    A field `a.b` is the field b of the object in field a. White space around texts and labels is removed. Labels are
    read by their names if they have names. A label that is null, empty or, with names, -1 is unknown, and the test may
    lack the field. The values of CSV files in a folder are read as text; for files on the hub, the library turns some
    into numbers or dates.

    path        a name such as `nyu-mll/glue`, which is downloaded once, or a folder: one that `save_to_disk` wrote, or
                one of JSON, CSV, Parquet or text files; relative to the fine-tuning file
    name        the dataset's configuration, such as `cola`
    text        the field with the text
    pair        the field with the second text, for pairs
    label       the field with the label
    label_type  word, for classification, or number, for regression
    id          the field with the example's id; by default examples are numbered
    splits      the dataset's names of the splits, by the names to give them, such as
                `{train: train, validation: validation_matched}`; by default all splits are read
    on_error    treatment of a row that cannot be an example, such as one without a label: `stop`, or `skip`
    held_out    share of train for validation if there is no such split, chosen by a hash of the texts
    revision    a branch, tag or commit of the dataset on the hub
    """

    fields = staticmethod(TextFields.fields)

    def __init__(
        self,
        /,
        *,
        path: FolderOrName,
        name: str | None = None,
        text: Name = "text",
        pair: Name | None = None,
        label: Name = "label",
        label_type: LabelType = "word",
        id: Name | None = None,
        splits: Annotated[dict[str, str], Field(min_length=1)] | None = None,
        on_error: OnError = "stop",
        held_out: HeldOut = 0.1,
        revision: str | None = None,
    ) -> None:
        super().__init__(held_out, on_error)
        self._fields = TextFields(text=text, pair=pair, label=label, label_type=label_type, id=id)
        self._chosen = splits
        options = {"name": name, **self._fields._options(), "splits": splits, "held_out": held_out}
        options |= {"on_error": on_error} if on_error == "skip" else {}
        self._source = HuggingFaceSource(path, name, revision, options, FILES)

    @cached_property
    def _theirs(self) -> dict[str, str]:
        """The names of the splits in the dataset, by ours. Raises DataError."""
        return self._chosen or {name: name for name in self._source.splits()}

    def _sources(self) -> list[str]:
        return [*self._theirs]

    def _place(self, source: str) -> str:
        return f"{self._source.path}: {self._theirs[source]}"

    def _examples(self, source: str) -> Iterator[Entry[TextExample]]:
        split, label = self._theirs[source], self._fields.label
        dataset = self._source.chosen([split])[split]
        fields, columns = self._fields.names(), dataset.column_names or [label]
        labelled = label in columns or label.partition(".")[0] in columns or source != TEST
        words = _names_of(dataset.features, label) if self._fields.label_type == "word" else None
        self.labels = words or ()
        rows = self._source.rows(split, dataset, fields if labelled else fields[:-1])
        for number, row in enumerate(rows, start=1):
            place = f"{self._place(source)}: row {number}"
            yield attempted(self._fields.example, partial(self._value, row, place, words, labelled), place)
        self._source.check()

    def _value(self, row: dict[str, Any], place: str, words: list[str] | None, labelled: bool, field: str) -> Any:
        """Return the value of a field; of a label that has a name, its name. Raises BadInput."""
        if field != self._fields.label:
            return value_of(row, place, field)
        value = value_of(row, place, field) if labelled else None
        if words and isinstance(value, int) and 0 <= value < len(words):
            return words[value]
        return None if words and value == -1 else value

    def fingerprint(self) -> str:
        """Return a hash of the folder's files, or of the identity of the downloaded data."""
        return self._source.fingerprint([*self._theirs.values()])


def _names_of(features: Any, field: str) -> list[str] | None:
    """Return the names of a field's labels if the dataset has them."""
    try:
        return getattr(value_of(features, "", field), "names", None)
    except BadInput:
        return None
