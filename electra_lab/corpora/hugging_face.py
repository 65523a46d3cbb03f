"""Datasets of the Hugging Face hub, and folders in its formats."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self, get_args

from pydantic import model_validator

from electra_lab.corpora._common import FieldName, documents_in, left_out
from electra_lab.sources.files import BadInput
from electra_lab.sources.hugging_face import HuggingFaceSource
from registry import Document, Skipped, Split, corpora
from registry.signature import FolderOrName, Strict, problem

FILES = "For files there are json_lines, parquet and text_files."


class Splits(Strict):
    """The dataset's names for the lab's splits."""

    train: str = "train"
    validation: str = "validation"
    test: str = "test"

    @model_validator(mode="after")
    def _differ(self) -> Self:
        names = [self.train, self.validation, self.test]
        if len({*names}) < len(names):
            raise problem((), f"must name three different splits, not {', '.join(names)}.")
        return self


@corpora.register("hugging_face")
class HuggingFace:
    """A dataset of the Hugging Face hub, or a local folder; each row is one document. Needs `electra-lab[data]`.

    Empty texts are ignored. A text above 1,000,000 characters becomes several documents, cut at white space. The values
    of CSV files in a folder are read as text; for files on the hub, the library turns some into numbers or dates.

    path      a name such as `wikimedia/wikipedia`, which is downloaded once, or a folder: one that `save_to_disk`
              wrote, or one of JSON, CSV, Parquet or text files; relative to the experiment file
    name      the dataset's configuration, such as `20231101.simple`
    field     the field with the text; `a.b` is the field b of the object in field a
    splits    the dataset's splits to use as train, validation and test, such as `{validation: dev}`; by default the
              split `train` is read, and the lab splits it
    key       without `splits`, the field that determines the split: documents with the same value stay together; by
              default the text
    revision  a branch, tag or commit of the dataset on the hub
    stream    read a dataset of the hub without keeping a copy; its files are downloaded again for each token store
    on_error  treatment of a row whose text or key is null: `stop`, or `skip`
    """

    def __init__(
        self,
        /,
        *,
        path: FolderOrName,
        name: str | None = None,
        field: FieldName = "text",
        splits: Splits | None = None,
        key: FieldName | None = None,
        revision: str | None = None,
        stream: bool = False,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self.path, self.field, self.key = path, field, key
        self._on_error = on_error
        chosen = splits.model_dump() if splits else None
        options = {"name": name, "field": field, "key": key, "splits": chosen, "on_error": on_error}
        self._source = HuggingFaceSource(path, name, revision, options, FILES, stream)
        self._ours: dict[str, Split | None] = {"train": None}  # our splits, by the names of the dataset's
        if splits:
            self._ours = {getattr(splits, split): split for split in get_args(Split)}

    def files(self) -> tuple[list[Path], list[Path]]:
        """Return the files of the folder that are read, and those that are passed over."""
        return self._source.files(self._ours)

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        for name, dataset in self._source.chosen(self._ours).items():
            split = self._ours[name]
            rows = self._source.rows(name, dataset, filter(None, (self.field, self.key)))
            for number, row in enumerate(rows, start=1):
                try:
                    for document in documents_in(row, f"{self.path}: {name}: row {number}", self.field, self.key):
                        with_key = Document(document) if isinstance(document, str) else document
                        yield document if split is None else replace(with_key, split=split)
                except BadInput as error:
                    yield left_out(error, self._on_error)
        self._source.check()

    def fingerprint(self) -> str:
        """Return a hash of the folder's files, or of the fingerprints of the downloaded splits."""
        return self._source.fingerprint(self._ours)
