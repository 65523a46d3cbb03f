"""Datasets of the Hugging Face hub, and folders in its formats."""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from electra_lab.sources.files import BadInput, Files, below, needed, refuse_missing, uncompressed
from electra_lab.sources.records import EXTENSIONS, kind_of, record_in, records
from registry.errors import DataError, did_you_mean
from registry.signature import FolderOrName

SAVED = ("dataset_dict.json", "state.json")  # of save_to_disk
INDEX = "__index_level_0__"  # pandas' name for the first column if rows have more columns than the header
PURPOSE = "to read a Hugging Face dataset"
BATCH = 100  # rows that are in memory at a time


class HuggingFaceSource:
    """A dataset of the hub, or a local folder, which is read in place. Needs `electra-lab[data]`.

    options  everything else that determines how rows are used
    instead  a sentence that names the components for paths that are not folders
    stream   True to read a dataset of the hub without a copy, at the commit that it has now

    Raises DataError.
    """

    def __init__(
        self,
        path: str,
        name: str | None,
        revision: str | None,
        options: dict[str, Any],
        instead: str,
        stream: bool = False,
    ) -> None:
        self._stream = stream
        self.path, self.name, self.revision = FolderOrName(path), name, revision
        self._options = options
        refuse_missing("datasets", PURPOSE)
        self._files: Files | None = None
        if os.path.isdir(path):
            # The names determine the splits.
            names = [file.relative_to(path).as_posix() for file in below(Path(path))[0]]
            options = self._options | {"names": names}
            if any(".csv" in name or ".tsv" in name for name in names):
                options["csv"] = "text"
            self._files = Files([Path(path)], [""], options)
        elif not self.path.is_name(Path.cwd()):
            raise DataError(f"{path}: is not a folder. {instead}")

    @property
    def _datasets(self) -> Any:
        return needed("datasets", PURPOSE)

    @cached_property
    def _builder(self) -> Any:
        return self._datasets.load_dataset_builder(self.path, self.name, revision=self.revision)

    def files(self, splits: Collection[str]) -> tuple[list[Path], list[Path]]:
        """Return the files of a folder that are read for the given splits, and the others."""
        files = self._files.files if self._files else []
        if not files or self._is_saved():
            return files, []
        data = self._builder.config.data_files
        named = chain.from_iterable(data.get(split, ()) for split in splits)
        chosen = set(map(os.path.abspath, named))
        read = [file for file in files if os.path.abspath(file) in chosen]
        return read, [file for file in files if file not in read]

    def _is_saved(self) -> bool:
        return self._files is not None and any(Path(self.path, name).is_file() for name in SAVED)

    def splits(self) -> dict[str, Any]:
        """Return the datasets of all splits, by their names. Raises DataError."""
        return self._load() if self._files else self._downloaded

    @cached_property
    def _downloaded(self) -> dict[str, Any]:
        return self._load()

    @cached_property
    def _commit(self) -> str:
        hub = needed("huggingface_hub", PURPOSE)
        commit: str = hub.HfApi().dataset_info(self.path, revision=self.revision).sha
        return commit

    def chosen(self, names: Collection[str]) -> dict[str, Any]:
        """Return the datasets of the splits with the given names. Raises DataError."""
        splits = self.splits()
        for name in names:
            if name not in splits:
                raise DataError(f"{self.path}: has no split '{name}'.{did_you_mean(name, splits)} Set `splits`.")
        return {name: splits[name] for name in names}

    def _load(self) -> dict[str, Any]:
        """Open the dataset. A folder is streamed, without the copy that the library would make of it."""
        try:
            if self._is_saved():
                opened = self._datasets.load_from_disk(self.path)
            else:
                local = {"streaming": True, **self._csv_as_text()} if self._files else {"streaming": self._stream}
                revision = self._commit if self._stream and not self._files else self.revision
                opened = self._datasets.load_dataset(self.path, self.name, revision=revision, **local)
        except MemoryError:
            raise
        except Exception as error:  # the library raises errors of many kinds, also those of HTTP libraries
            parts = "`name` and the files in it" if self._files else "`path`, `name`, `revision` and the network"
            raise DataError(f"{self.path}: the dataset cannot be loaded ({_reason(error)}). Check {parts}.") from None
        splits = dict(opened) if isinstance(opened, dict) else {"train": opened}
        return {name: self._json_as_text(name, dataset) for name, dataset in splits.items()}

    def _json_as_text(self, split: str, dataset: Any) -> Any:
        """Return the rows of JSON files in a folder as the lab reads them, any other dataset unchanged."""
        paths = [] if not self._files or self._is_saved() else self._builder.config.data_files[split]
        if not paths or any(uncompressed(Path(path)).suffix.lower() not in EXTENSIONS for path in paths):
            return dataset
        return JsonRows(self._files, paths, dataset.features, dataset.column_names)

    def _csv_as_text(self) -> dict[str, Any]:
        """Return the options that keep the values of CSV files as text; none for other files."""
        builder = self._builder
        if builder.info.features or not hasattr(builder.config, "pd_read_csv_kwargs"):
            return {}
        read_csv, options = needed("pandas", "to read CSV files").read_csv, builder.config.pd_read_csv_kwargs
        names: set[str] = set()
        for file in chain.from_iterable(builder.config.data_files.values()):
            names.update(read_csv(file, **options | {"nrows": 0, "chunksize": None}).columns)
        return {"converters": dict.fromkeys(names, str), "na_filter": False}

    def rows(self, split: str, dataset: Any, fields: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of a split with the given fields; `a.b` is in field a. Raises DataError."""
        if names := dataset.column_names:
            columns = []
            for field in fields:
                columns.append(field if field in names else field.partition(".")[0])
                if columns[-1] not in names:
                    raise DataError(f"{self.path}: {split}: has no field '{field}'.{did_you_mean(columns[-1], names)}")
            dataset = dataset.select_columns(list(dict.fromkeys(columns)))
        try:
            for batch in dataset.iter(BATCH):
                if INDEX in batch:
                    raise ValueError("a row has more columns than the header")
                yield from (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
        except MemoryError:
            raise
        except Exception as error:
            raise DataError(f"{self.path}: {split}: cannot be read ({_reason(error)}).") from None

    def check(self) -> None:
        """Raise DataError if a file of the folder has changed since it was hashed or read first."""
        if self._files:
            for file in self._files.files:
                self._files.check(file)

    def fingerprint(self, names: Collection[str]) -> str:
        """Hash the folder's files, or the fingerprints of the named splits of a download. Raises DataError."""
        if self._files:
            return self._files.fingerprint()
        chosen = self.chosen(names)
        if self._stream:
            downloaded = dict.fromkeys(chosen, f"{self.path} {self.name} {self._commit}")
        else:
            downloaded = {name: dataset._fingerprint for name, dataset in chosen.items()}
        return hashlib.sha256(json.dumps([self._options, downloaded], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class JsonRows:
    """The part of a dataset's interface that is used here. The library would read text such as 2020-01-01 as dates."""

    files: Any
    paths: Sequence[str]
    features: Any
    column_names: Sequence[str] | None  # None if the library does not know them

    def select_columns(self, names: Sequence[str]) -> "JsonRows":
        return replace(self, column_names=names)

    def iter(self, size: int) -> Iterator[dict[str, list[Any]]]:
        for place, line in chain.from_iterable(records(self.files, Path(path)) for path in self.paths):
            row = record_in(line, place)
            if not isinstance(row, dict):
                raise BadInput(place, f"is {kind_of(row)}, not an object with fields")
            yield {name: [row.get(name)] for name in self.column_names or row}


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
