"""Datasets of the Hugging Face hub, and folders in its formats."""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from electra_lab.sources.files import Files, below, needed
from registry.errors import DataError, did_you_mean
from registry.folder_or_name import FolderOrName

SAVED = ("dataset_dict.json", "state.json")  # of save_to_disk
BATCH = 100  # rows that are in memory at a time


class HuggingFaceSource:
    """A dataset of the hub, or a local folder, which is read as it is. Needs `electra-lab[data]`.

    options  everything else that decides what is made of the rows
    instead  a sentence about what reads a path that is not a folder

    Raises DataError.
    """

    def __init__(
        self, path: str, name: str | None, revision: str | None, options: dict[str, Any], instead: str
    ) -> None:
        self.path, self.name, self.revision = FolderOrName(path), name, revision
        self._options = options
        self._datasets = needed("datasets", "to read a Hugging Face dataset")
        self._files: Files | None = None
        self._downloaded: dict[str, Any] | None = None
        if os.path.isdir(path):
            names = [file.relative_to(path).as_posix() for file in below(Path(path))]  # they say what is in which split
            self._files = Files([Path(path)], [""], self._options | {"names": names})
        elif not self.path.is_name(Path.cwd()):
            raise DataError(f"{path}: is not a folder. {instead}")

    def splits(self) -> dict[str, Any]:
        """Return the datasets of all splits, by their names. Raises DataError."""
        if self._files is None and self._downloaded is not None:
            return self._downloaded
        self._downloaded = self._load()
        return self._downloaded

    def chosen(self, names: Collection[str]) -> dict[str, Any]:
        """Return the datasets of the splits with the given names. Raises DataError."""
        found = self.splits()
        for name in names:
            if name not in found:
                raise DataError(f"{self.path}: has no split '{name}'.{did_you_mean(name, found)} Set `splits`.")
        return {name: found[name] for name in names}

    def _load(self) -> dict[str, Any]:
        """Open the dataset. A folder is read as it is, without the copy that the library would make of it."""
        try:
            if self._files and any(Path(self.path, name).is_file() for name in SAVED):
                found = self._datasets.load_from_disk(self.path)
            else:
                local = self._files is not None
                found = self._datasets.load_dataset(self.path, self.name, revision=self.revision, streaming=local)
        except MemoryError:
            raise
        except Exception as error:  # the library raises errors of many kinds, also those of HTTP libraries
            files = "Check `name` and the files in it."
            cure = files if self._files else "Check `path`, `name`, `revision` and the network."
            raise DataError(f"{self.path}: the dataset cannot be loaded ({_reason(error)}). {cure}") from None
        return dict(found) if isinstance(found, dict) else {"train": found}

    def rows(self, split: str, dataset: Any, fields: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of a split with the given fields; `a.b` is in field a. Raises DataError."""
        if names := dataset.column_names:
            wanted = []
            for field in fields:
                wanted.append(field if field in names else field.partition(".")[0])
                if wanted[-1] not in names:
                    raise DataError(f"{self.path}: {split}: has no field '{field}'.{did_you_mean(wanted[-1], names)}")
            dataset = dataset.select_columns(list(dict.fromkeys(wanted)))
        try:
            for batch in dataset.iter(BATCH):
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
        """Hash the folder's files, or what identifies the downloaded splits that are named. Raises DataError."""
        if self._files:
            return self._files.fingerprint()
        downloaded = {name: dataset._fingerprint for name, dataset in self.chosen(names).items()}
        return hashlib.sha256(json.dumps([self._options, downloaded], sort_keys=True).encode()).hexdigest()


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
