"""Files with a JSON object on each line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra_lab.datasets._splits import TEST, Entry, NamedFiles, attempted
from electra_lab.datasets._texts import TextFields
from electra_lab.sources.files import BadInput, Files
from electra_lab.sources.records import EXTENSIONS, record_in, records, value_of
from registry import TextExample, datasets


@datasets.register("json_lines", yields=TextExample)
@dataclass(kw_only=True, eq=False)
class JsonLines(TextFields, NamedFiles[TextExample]):
    """Files with a JSON object on each line, plain or compressed (.gz, .xz, .bz2, .zst); each is one example.

    A file may also be one array of objects. A field `a.b` is the field b of the object in field a. White space around
    texts and labels is removed. A null or empty label is unknown, and objects of the test may have none.

    train, validation, test  a file, a pattern such as `*.jsonl.gz`, or a folder (all its .jsonl, .ndjson and .json
                             files); relative to the fine-tuning file
    text                     the field with the text
    pair                     the field with the second text, for pairs
    label                    the field with the label
    label_type               word, for classification, also of 0 and 1, true and false; or number, for regression
    id                       the field with the example's id; by default examples are numbered
    on_error                 treatment of a line that cannot be an example, such as one without a label: `stop`, or
                             `skip`
    held_out                 share of train for validation if it has no file, chosen by a hash of the texts
    """

    extensions = EXTENSIONS

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Entry[TextExample]]:
        for place, line in records(files, file):
            yield attempted(self._example, line, place, source)

    def _example(self, line: bytes, place: str, source: str) -> tuple[str, TextExample]:
        record = record_in(line, place)

        def value(field: str) -> Any:
            try:
                return value_of(record, place, field)
            except BadInput:
                if field == self.label and source == TEST:
                    return None
                raise

        return self.example(value, place)
