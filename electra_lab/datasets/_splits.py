"""What datasets share: splits, a part of train that is held out for validation, ids that are unique."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import Field

from electra_lab.sources.files import BadInput
from registry import Skipped
from registry.contracts.dataset import AnyExample, is_labelled
from registry.errors import DataError, did_you_mean, listed

E = TypeVar("E", bound=AnyExample)
R = TypeVar("R")

TRAIN, VALIDATION, TEST = "train", "validation", "test"
HeldOut = Annotated[float, Field(ge=0, lt=1)]
OnError = Literal["stop", "skip"]
Found: TypeAlias = tuple[str, E] | BadInput  # an example with its key, or a row that cannot be one


def attempted(make: Callable[..., R], *given: Any) -> R | BadInput:
    """Call `make`, and return its error instead of raising it, so that one bad row does not hide those after it."""
    try:
        return make(*given)
    except BadInput as error:
        return error


def number_of(key: str) -> float:
    """Return a number from 0 to 1, evenly spread over the keys and the same everywhere."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"validation").digest()
    return int.from_bytes(digest, "big") / 2**64


class Splits(ABC, Generic[E]):
    """A dataset in splits; without one for validation, a share of train is held out for it.

    What is held out depends on an example's key alone, so that it does not change with the order of the examples or
    with other examples, and those of one key stay together.

    held_out  this share
    on_error  at bad rows: stop, and name them, or skip them; None if the dataset has no such option
    skipped   by split, the rows that the last `read` left out
    """

    def __init__(self, held_out: float = 0.0, on_error: OnError | None = None) -> None:
        self._share, self._on_error = held_out, on_error
        self.skipped: dict[str, list[Skipped]] = {}

    @abstractmethod
    def _sources(self) -> Sequence[str]:
        """Return the splits that the source has."""

    @abstractmethod
    def _examples(self, source: str) -> Iterator[Found[E]]:
        """Yield the examples of a split of the source with their keys, and bad rows; those without an id are numbered.

        Raises DataError for a source of which no more can be read.
        """

    @abstractmethod
    def _place(self, source: str) -> str:
        """Return where a split of the source comes from, for errors."""

    @property
    def splits(self) -> list[str]:
        sources = list(self._sources())
        if self._holds_out(sources):
            sources.insert(sources.index(TRAIN) + 1, VALIDATION)
        return sources

    def _holds_out(self, sources: Sequence[str]) -> bool:
        return self._share > 0 and TRAIN in sources and VALIDATION not in sources

    def _is_held_out(self, key: str) -> bool:
        return number_of(key) < self._share

    def read(self, split: str) -> Iterator[E]:
        """Yield the examples of a split in the order of the source.

        Raises DataError that names bad rows, unless they are skipped; also if there are no examples.
        """
        if split not in self.splits:
            raise DataError(f"there is no split '{split}'.{did_you_mean(split, self.splits)}")
        divided = split in (TRAIN, VALIDATION) and self._holds_out(self._sources())
        source = TRAIN if divided else split
        entries: list[E | BadInput] = []
        for found in self._examples(source):
            if isinstance(found, BadInput):
                if split == source or self._on_error != "skip":  # one that is skipped counts once, for train
                    entries.append(found)
            elif not divided or self._is_held_out(found[0]) == (split == VALIDATION):
                entries.append(found[1])
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
                bad.append(BadInput(entry.place, f"another example has the id '{name}' too", "Give each its own."))
            else:
                good[name] = replace(entry, id=name)
        if bad and self._on_error != "skip":
            cure = ["To leave such rows out, set on_error: skip."] if self._on_error else []
            raise DataError((" " if len(bad) == 1 else "\n").join([listed(bad), *cure]))
        self.skipped[split] = [error.skipped for error in bad]
        if not good:
            where = f"{self._place(source)}: there are no examples"
            if divided and self._share:
                raise DataError(f"{where} for {split}, as held_out is {self._share:g}. Change it, or name other files.")
            raise DataError(f"{where} for {split}.")
        yield from good.values()
