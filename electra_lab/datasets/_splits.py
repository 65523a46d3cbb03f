"""Shared by the datasets: splits, validation held out from train, unique ids, files for each split."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from pydantic import Field

from electra_lab.sources.files import BadInput, Files
from registry import Dataset, Skipped
from registry.contracts.tasks import AnyExample, is_labelled
from registry.errors import DataError, did_you_mean, listed

E = TypeVar("E", bound=AnyExample)
R = TypeVar("R")

TRAIN, VALIDATION, TEST = "train", "validation", "test"
HeldOut = Annotated[float, Field(ge=0, lt=1)]
OnError = Literal["stop", "skip"]
Entry: TypeAlias = tuple[str, E] | BadInput  # an example with its key, or a bad row


def attempted(make: Callable[..., R], *arguments: Any) -> R | BadInput:
    """Call `make`, and return its error instead of raising it, so that a bad row does not hide those after it."""
    try:
        return make(*arguments)
    except BadInput as error:
        return error


def number_of(key: str) -> float:
    """Return a number from 0 to 1, evenly distributed over the keys and the same on every machine."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"validation").digest()
    return int.from_bytes(digest, "big") / 2**64


class Splits(Dataset, ABC, Generic[E]):
    """A dataset in splits; if it has none for validation, a share of train is held out.

    Whether an example is held out depends on its key alone. So it does not change with the order of the examples or
    with other examples, and examples with the same key stay together.

    held_out  this share
    on_error  treatment of bad rows: stop and name them, or skip them; None if the dataset has no such option
    skipped   rows that the last `read` left out, by split
    labels    names of the labels in the order of the source, once it was read, if it has one
    """

    def __init__(self, held_out: float = 0.0, on_error: OnError | None = None) -> None:
        self._share, self._on_error = held_out, on_error
        self.skipped: dict[str, list[Skipped]] = {}

    @abstractmethod
    def _sources(self) -> Sequence[str]:
        """Return the splits that the source has."""

    @abstractmethod
    def _examples(self, source: str) -> Iterator[Entry[E]]:
        """Yield the examples of a split of the source with their keys, and bad rows; those without an id are numbered.

        Raises DataError if the rest of the source cannot be read.
        """

    @abstractmethod
    def _place(self, source: str) -> str:
        """Return where a split of the source comes from, for errors."""

    @property
    def splits(self) -> list[str]:  # type: ignore[override]  # it is not set
        sources = list(self._sources())
        if self._holds_out(sources):
            sources.insert(sources.index(TRAIN) + 1, VALIDATION)
        return sources

    def _holds_out(self, sources: Sequence[str]) -> bool:
        return self._share > 0 and TRAIN in sources and VALIDATION not in sources

    def read(self, split: str) -> Iterator[E]:
        """Yield the examples of a split in the order of the source.

        Raises DataError that names all bad rows, unless they are skipped; also if there are no examples.
        """
        if split not in self.splits:
            raise DataError(f"there is no split '{split}'.{did_you_mean(split, self.splits)}")
        divided = split in (TRAIN, VALIDATION) and self._holds_out(self._sources())
        source = TRAIN if divided else split
        # Select the rows of the split.
        entries: list[E | BadInput] = []
        for entry_with_key in self._examples(source):
            if isinstance(entry_with_key, BadInput):
                if split == source or self._on_error != "skip":  # a skipped row counts once, for train
                    entries.append(entry_with_key)
                continue
            key, example = entry_with_key
            if not divided or (number_of(key) < self._share) == (split == VALIDATION):
                entries.append(example)
        # Check that ids are unique, and that all examples have labels or none.
        labelled = any(not isinstance(entry, BadInput) and is_labelled(entry) for entry in entries)
        good: dict[str, E] = {}
        bad: list[BadInput] = []
        for entry in entries:
            if isinstance(entry, BadInput):
                bad.append(entry)
                continue
            name = entry.id or str(len(good))
            if labelled and not is_labelled(entry) and (source != TEST or self._on_error == "skip"):
                bad.append(BadInput(entry.place, "has no label, but others of its split have one", "Add it."))
            elif name in good:
                bad.append(BadInput(entry.place, f"another example also has the id '{name}'", "Make ids unique."))
            else:
                good[name] = replace(entry, id=name)
        # Refuse or skip bad rows.
        if bad and self._on_error != "skip":
            cure = ["To leave such rows out, set on_error: skip."] if self._on_error else []
            raise DataError((" " if len(bad) == 1 else "\n").join([listed(bad), *cure]))
        self.skipped[split] = [error.skipped for error in bad]
        if not good:
            reason = f"{self._place(source)}: there are no examples for {split}"
            if divided:
                raise DataError(f"{reason}, as held_out is {self._share:g}. Change it, or name other files.")
            raise DataError(f"{reason}.")
        yield from good.values()


class FileSplits(Splits[E]):
    """A dataset in files.

    paths    file, pattern or folder of each split
    options  all other options that determine the examples

    Raises ValueError if no path is given, DataError if a path matches nothing or a file is in two splits.
    """

    extensions: ClassVar[Sequence[str]] = ("",)  # of the files to read in a folder, plain or compressed

    def __init__(
        self,
        paths: Mapping[str, Path | None],
        options: Mapping[str, Any],
        held_out: float = 0.0,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(held_out, on_error)
        self._identity = {**options, "held_out": held_out}
        if on_error == "skip":
            self._identity["on_error"] = on_error
        self._files = {split: Files([path], self.extensions, {}) for split, path in paths.items() if path}
        if not self._files:
            raise ValueError(f"no file is named. Set {' or '.join(paths)}.")
        owners: dict[Path, str] = {}
        for split, files in self._files.items():
            for file in files.files:
                other = owners.setdefault(file.resolve(), split)
                if other != split:
                    raise DataError(f"{file}: is read for {other} and for {split}. A file belongs to one split.")

    def _sources(self) -> list[str]:
        return [*self._files]

    def _place(self, source: str) -> str:
        first, *others = self._files[source].files
        return f"{first} and {len(others)} more" if others else str(first)

    def _examples(self, source: str) -> Iterator[Entry[E]]:
        for file in self._files[source].files:
            yield from self._in_file(self._files[source], file, source)

    @abstractmethod
    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Entry[E]]:
        """Yield the examples of a file with their keys, and bad rows. Raises DataError, at file:line."""

    def fingerprint(self) -> str:
        """Return a hash of the options and the content of each split's files, wherever they are."""
        content = {split: files.fingerprint() for split, files in self._files.items()}
        return hashlib.sha256(json.dumps([self._identity, content], sort_keys=True).encode()).hexdigest()


@dataclass(kw_only=True, eq=False)
class NamedFiles(FileSplits[E]):
    """A dataset whose options name the files of each split; a subclass is a dataclass with further options."""

    train: Path | None = None
    validation: Path | None = None
    test: Path | None = None
    on_error: OnError = "stop"
    held_out: HeldOut = 0.1

    def __post_init__(self) -> None:
        paths = {TRAIN: self.train, VALIDATION: self.validation, TEST: self.test}
        FileSplits.__init__(self, paths, self._options(), self.held_out, self.on_error)

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Return the further options."""
