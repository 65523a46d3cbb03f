"""Files with a JSON object on each line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra_lab.datasets._files import CURE, FileSplits
from electra_lab.datasets._splits import TEST, Found, HeldOut, OnError, attempted
from electra_lab.datasets._texts import Fields, LabelType, Name
from electra_lab.sources.files import BadInput, Files
from electra_lab.sources.records import EXTENSIONS, record_in, records, value_of
from registry import TextExample, datasets


@datasets.register("json_lines", yields=TextExample)
class JsonLines(FileSplits[TextExample]):
    """Files with a JSON object on each line, plain or compressed (.gz, .xz, .zst); each is one example.

    A file may also be one array of objects. A field `a.b` is the field b of the object in field a. White space around
    texts and labels is removed. A label that is null or empty is not known, and objects of the test may be without one.

    train, validation, test  a file, a pattern such as `*.jsonl.gz`, or a folder, of which all .jsonl, .ndjson and .json
                             files are read; relative to the fine-tuning file
    text                     the field with the text
    pair                     the field with the second text, for pairs
    label                    the field with the label
    label_type               word, for classification, also of 0 and 1, true and false; or number, for regression
    id                       the field with the example's id; without it examples are numbered
    on_error                 at a line that cannot be an example, such as one without a label: `stop`, or `skip` it
    held_out                 without a file for validation, the share of train that it gets, by a hash of the texts
    """

    def __init__(
        self,
        /,
        *,
        train: Path | None = None,
        validation: Path | None = None,
        test: Path | None = None,
        text: Name = "text",
        pair: Name | None = None,
        label: Name = "label",
        label_type: LabelType = "word",
        id: Name | None = None,
        on_error: OnError = "stop",
        held_out: HeldOut = 0.1,
    ) -> None:
        self._fields = Fields(text, pair, label, id, label_type)
        paths = {"train": train, "validation": validation, "test": test}
        super().__init__(paths, EXTENSIONS, {"fields": [text, pair, label, label_type, id]}, held_out, on_error)

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Found[TextExample]]:
        for place, line in records(files, file):
            yield attempted(self._example, line, place, source)

    def _example(self, line: bytes, place: str, source: str) -> tuple[str, TextExample]:
        record = record_in(line, place, CURE)

        def value(field: str) -> Any:
            try:
                return value_of(record, place, field, CURE)
            except BadInput:
                if field == self._fields.label and source == TEST:
                    return None
                raise

        return self._fields.example(value, place)
