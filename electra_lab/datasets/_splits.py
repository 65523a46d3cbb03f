"""What datasets share: splits, a part of train that is held out for validation, ids that are unique."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Generic, TypeVar

from pydantic import Field

from registry.contracts.dataset import AnyExample
from registry.errors import DataError, did_you_mean

E = TypeVar("E", bound=AnyExample)

TRAIN, VALIDATION, TEST = "train", "validation", "test"
HeldOut = Annotated[float, Field(ge=0, lt=1)]


def number_of(key: str) -> float:
    """Return a number from 0 to 1, evenly spread over the keys and the same everywhere."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"validation").digest()
    return int.from_bytes(digest, "big") / 2**64


class Splits(ABC, Generic[E]):
    """A dataset in splits; without one for validation, a share of train is held out for it.

    What is held out depends on an example's key alone, so that it does not change with the order of the examples or
    with other examples, and those of one key stay together.

    held_out  this share
    """

    def __init__(self, held_out: float = 0.0) -> None:
        self._share = held_out

    @abstractmethod
    def _sources(self) -> Sequence[str]:
        """Return the splits that the source has."""

    @abstractmethod
    def _examples(self, source: str) -> Iterator[tuple[str, E]]:
        """Yield the examples of a split of the source with their keys; those without an id are numbered."""

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
        """Yield the examples of a split in the order of the source. Raises DataError, also if there are none."""
        if split not in self.splits:
            raise DataError(f"there is no split '{split}'.{did_you_mean(split, self.splits)}")
        divided = split in (TRAIN, VALIDATION) and self._holds_out(self._sources())
        source = TRAIN if divided else split
        ids: set[str] = set()
        for key, example in self._examples(source):
            if divided and self._is_held_out(key) != (split == VALIDATION):
                continue
            name = example.id or str(len(ids))
            if name in ids:
                raise DataError(f"{example.place}: another example has the id '{name}' too. Give each its own.")
            ids.add(name)
            yield replace(example, id=name)
        if not ids:
            where = f"{self._place(source)}: there are no examples"
            if divided and self._share:
                raise DataError(f"{where} for {split}, as held_out is {self._share:g}. Change it, or name other files.")
            raise DataError(f"{where} for {split}.")
