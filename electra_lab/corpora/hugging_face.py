"""Datasets of the Hugging Face hub, and folders in its formats."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from electra_lab.corpora._records import documents_in
from electra_lab.sources import BadInput, Files, below, needed
from registry import Document, Skipped, Split, corpora
from registry.errors import DataError, did_you_mean
from registry.folder_or_name import FolderOrName
from registry.signature import Strict, problem

SAVED = ("dataset_dict.json", "state.json")  # of save_to_disk
BATCH = 100  # rows that are in memory at a time


class Splits(Strict):
    """The names of the dataset's splits that are ours."""

    train: str = "train"
    validation: str = "validation"
    test: str = "test"

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if len(names := [self.train, self.validation, self.test]) != len({*names}):
            raise problem((), f"must name three different splits, names {', '.join(names)}.")
        return self


@corpora.register("hugging_face")
class HuggingFace:
    """A dataset of the Hugging Face hub, or a local folder; each row is one document. Needs `electra-lab[data]`.

    Empty texts are no documents. One above 1,000,000 characters becomes several, cut at white space.

    path      a name such as `wikimedia/wikipedia`, which is downloaded once, or a folder: one that `save_to_disk`
              wrote, or one of JSON, Parquet or text files; relative to the experiment file
    name      the dataset's configuration, such as `20231101.simple`
    field     the field with the text; `a.b` is the field b of the object in field a
    splits    the dataset's splits that are train, validation and test, such as `{validation: dev}`; without it the
              split `train` is read, and the lab splits it
    key       without `splits`, the field that decides the split: documents of one value stay together; without it
              the text decides
    revision  a branch, tag or commit of the dataset on the hub
    on_error  at a row whose text or key is null: `stop`, or `skip` it
    """

    def __init__(
        self,
        /,
        *,
        path: FolderOrName,
        name: str | None = None,
        field: Annotated[str, Field(min_length=1)] = "text",
        splits: Splits | None = None,
        key: Annotated[str, Field(min_length=1)] | None = None,
        revision: str | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self.path, self.name, self.revision = FolderOrName(path), name, revision
        self.field, self.key, self.skips, self.splits = field, key, on_error == "skip", splits
        ours = splits.model_dump() if splits else None
        self._options = {"name": name, "field": field, "key": key, "splits": ours, "on_error": on_error}
        self._datasets = needed("datasets", "to read a Hugging Face dataset")
        self._files: Files | None = None
        self._downloaded: dict[str, Any] | None = None
        if os.path.isdir(path):
            names = [file.relative_to(path).as_posix() for file in below(Path(path))]  # they say what is in which split
            self._files = Files([Path(path)], [""], self._options | {"names": names})
        elif not self.path.is_name(Path.cwd()):
            raise DataError(f"{path}: is not a folder. For files there are json_lines, parquet and text_files.")

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        for theirs, dataset in self._opened().items():
            ours = self._ours(theirs)
            for number, row in enumerate(self._rows(theirs, dataset), start=1):
                try:
                    for each in documents_in(row, f"{self.path}: {theirs}: row {number}", self.field, self.key):
                        document = each if isinstance(each, Document) else Document(each)
                        yield each if ours is None else Document(document.text, document.key, ours)
                except BadInput as error:
                    if not self.skips:
                        raise
                    yield error.skipped
        if self._files:
            for file in self._files.files:
                self._files.check(file)

    def fingerprint(self) -> str:
        """A hash of the folder's files, or of what identifies the downloaded data."""
        if self._files:
            return self._files.fingerprint()
        downloaded = {name: dataset._fingerprint for name, dataset in self._opened().items()}
        return hashlib.sha256(json.dumps([self._options, downloaded], sort_keys=True).encode()).hexdigest()

    def _opened(self) -> dict[str, Any]:
        """Return the splits to read, by their names in the dataset. Raises DataError."""
        if self._files is None and self._downloaded is not None:
            return self._downloaded
        found = self._load()
        wanted = self.splits.model_dump().values() if self.splits else ["train"]
        for name in wanted:
            if name not in found:
                known = did_you_mean(name, map(str, found))
                raise DataError(f"{self.path}: has no split '{name}'.{known} Set corpus.splits.")
        self._downloaded = {name: found[name] for name in wanted}
        return self._downloaded

    def _load(self) -> dict[str, Any]:
        """Open the dataset. A folder is read as it is, without the copy that the library would make of it."""
        try:
            if self._files and any(Path(self.path, name).is_file() for name in SAVED):
                found = self._datasets.load_from_disk(self.path)
            else:
                local = self._files is not None
                found = self._datasets.load_dataset(self.path, self.name, revision=self.revision, streaming=local)
        except Exception as error:  # the library raises errors of many kinds, also those of HTTP libraries
            files = "Check `name` and the files in it."
            cure = files if self._files else "Check `path`, `name`, `revision` and the network."
            raise DataError(f"{self.path}: the dataset cannot be loaded ({_reason(error)}). {cure}") from None
        return dict(found) if isinstance(found, dict) else {"train": found}

    def _ours(self, theirs: str) -> Split | None:
        if self.splits is None:
            return None
        return next(split for split in get_args(Split) if getattr(self.splits, split) == theirs)

    def _rows(self, split: str, dataset: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows of a split with the fields that are asked for. Raises DataError."""
        if names := dataset.column_names:
            wanted = []
            for field in filter(None, (self.field, self.key)):
                wanted.append(field if field in names else field.partition(".")[0])
                if wanted[-1] not in names:
                    raise DataError(f"{self.path}: {split}: has no field '{field}'.{did_you_mean(wanted[-1], names)}")
            dataset = dataset.select_columns(list(dict.fromkeys(wanted)))
        try:
            for batch in dataset.iter(BATCH):
                yield from (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
        except Exception as error:
            raise DataError(f"{self.path}: {split}: cannot be read ({_reason(error)}).") from None


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
