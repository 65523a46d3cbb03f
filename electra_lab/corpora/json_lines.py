"""Files with a JSON object on each line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from electra_lab.corpora._common import FieldName, FileCorpus, Paths, documents_in
from electra_lab.sources.files import BadInput
from electra_lab.sources.records import EXTENSIONS, record_in, records
from registry import Document, Skipped, corpora


@corpora.register("json_lines")
class JsonLines(FileCorpus):
    """Files with a JSON object on each line, plain or compressed (.gz, .xz, .bz2, .zst); each is one document.

    A file may also be one array of objects. Empty lines and empty texts are ignored. A text above 1,000,000 characters
    becomes several documents, cut at white space.

    paths     files, patterns such as `wiki/*.jsonl.gz`, or folders (all their .jsonl, .ndjson and .json files);
              relative to the experiment file
    field     the field with the text; `a.b` is the field b of the object in field a
    key       the field that determines the split, such as an article's number: documents with the same value stay
              together; by default the text
    on_error  treatment of a line that is not such an object: `stop`, or `skip`; of a damaged file all lines before the
              damage are kept
    """

    def __init__(
        self,
        /,
        *,
        paths: Paths,
        field: FieldName = "text",
        key: FieldName | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self.field, self.key = field, key
        super().__init__(paths, EXTENSIONS, {"field": field, "key": key, "on_error": on_error})

    def _in_file(self, file: Path) -> Iterator[str | Document | Skipped]:
        for place, line in records(self._files, file):
            try:
                yield from documents_in(record_in(line, place), place, self.field, self.key)
            except BadInput as error:
                yield self.left_out(error)
