"""Which package a docstring comes from: a task that every installation of the lab has."""

import hashlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from electra_lab.datasets._splits import TEST, TRAIN, VALIDATION, Splits, number_of
from electra_lab.sources.docstrings import Sources, documentation, installed_files
from registry import TextExample, datasets
from registry.errors import DataError

FORMAT = 1  # raise it when the same files would give other examples
PACKAGES = ["asyncio", "email", "importlib", "xml", "torch.distributed", "torch.fx", "torch.nn", "torch.utils"]
ANY_NAME = "package"

Package = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]


@datasets.register("docstring_origin", yields=TextExample)
class DocstringOrigin(Splits[TextExample]):
    """Which package a docstring of the standard library or of torch comes from; no download.

    By default about 3,000 docstrings of eight packages; the number depends on the installed versions. All docstrings of
    a module are in one split. In the order of a hash of their names, the modules of a package go to validation while
    its share has room for them, otherwise to the test on the same terms, otherwise to train. A text that occurs in
    several modules belongs to the first. The corpus `docstrings` has these texts too, without labels, and with other
    splits: it holds out packages as a whole, so pre-training on it has read most of validation and test.

    packages       the labels; if one contains another, the longer name counts
    most           largest number of examples of a package; those whose texts have the smallest hashes are kept
    min_characters shorter docstrings are left out
    max_characters longer ones are cut at white space
    hide_names     write `package` for the packages' names and their parts in all texts: `torch.nn` and PyTorch, but not
                   NNModule
    held_out       share of each package for validation, and the same for the test
    """

    def __init__(
        self,
        /,
        *,
        packages: Annotated[list[Package], Field(min_length=2)] = PACKAGES,
        most: Annotated[int, Field(ge=10, le=10**9)] = 500,
        min_characters: Annotated[int, Field(ge=1, le=10**9)] = 40,
        max_characters: Annotated[int, Field(ge=1, le=10**9)] = 500,
        hide_names: bool = True,
        held_out: Annotated[float, Field(gt=0, le=0.4)] = 0.1,
    ) -> None:
        if twice := [name for name, times in Counter(packages).items() if times > 1]:
            raise ValueError(f"packages: {twice[0]} is listed twice.")
        super().__init__(held_out)
        self._packages, self._most = packages, most
        self._shortest, self._longest = min_characters, max_characters
        self._options = [packages, most, min_characters, max_characters, hide_names, held_out]
        self._names = _pattern(packages) if hide_names else None
        self._read = Sources()
        self._found: dict[str, list[TextExample]] | None = None

    def _sources(self) -> list[str]:
        return [TRAIN, VALIDATION, TEST]

    def _place(self, source: str) -> str:
        return "docstring_origin"

    def _holds_out(self, sources: Sequence[str]) -> bool:
        return False

    def _examples(self, source: str) -> Iterator[tuple[str, TextExample]]:
        self._found = self._found or self._all()
        for example in self._found[source]:
            yield "", example

    def _all(self) -> dict[str, list[TextExample]]:
        """Return the examples of all splits. Raises DataError."""
        # Each text belongs to the first module that has it.
        origins: dict[str, tuple[Path, str, str]] = {}
        for origin in self._files():
            for text in documentation(self._read.read(origin[0])):
                if cleaned := self._cleaned(text):
                    origins.setdefault(cleaned, origin)
        # The modules of each package are divided among the splits.
        by_split: dict[str, list[TextExample]] = {split: [] for split in self._sources()}
        for package in self._packages:
            texts = [text for text, (_, _, name) in origins.items() if name == package]
            chosen = {*sorted(texts, key=number_of)[: self._most]}
            splits = _splits(Counter(origins[text][1] for text in chosen), self._share)
            if missing := {VALIDATION, TEST} - {*splits.values()}:
                reason = f"the package '{package}' has too few modules with docstrings for a split {max(missing)}"
                raise DataError(f"{reason}. Choose another one, or raise held_out.")
            for text in texts:
                if text in chosen:
                    file, module, _ = origins[text]
                    by_split[splits[module]].append(TextExample(text, label=package, place=str(file)))
        return by_split

    def _cleaned(self, text: str) -> str:
        """Return a docstring as the text of an example, "" if it is too short."""
        text = inspect.cleandoc(text).strip()
        if len(text) < self._shortest:
            return ""
        if self._names:
            text = self._names.sub(ANY_NAME, text)
        beginning, rest = text[: self._longest], text[self._longest :]
        if rest and not rest[0].isspace():  # the cut is within a word
            beginning = beginning.rsplit(None, 1)[0]
        return beginning.rstrip()

    def _files(self) -> Iterator[tuple[Path, str, str]]:
        """Yield the files of the packages, with the module of each and its package."""
        for file, name in installed_files():
            module = name.removesuffix(".py").removesuffix("/__init__").removeprefix("python/").replace("/", ".")
            if inside := [package for package in self._packages if f"{module}.".startswith(f"{package}.")]:
                yield file, module, max(inside, key=len)

    def fingerprint(self) -> str:
        """Return a hash of the options, the files, their names, and the version of Python."""
        self._found = None
        options = [FORMAT, sys.version_info[:3], self._options]
        state = hashlib.sha256(json.dumps(options).encode())
        for file, module, _ in self._files():
            state.update(module.encode() + hashlib.sha256(self._read.read(file, again=True)).digest())
        return state.hexdigest()


def _pattern(packages: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern of the parts of the packages' names, alone or joined by dots, also after "py" as in PyTorch."""
    parts = sorted({*".".join(packages).split(".")}, key=len, reverse=True)
    names = f"(?:py)?(?:{'|'.join(map(re.escape, parts))})"
    return re.compile(rf"(?<![^\W_]){names}(?:\.{names})*(?![^\W_])", re.IGNORECASE)


def _splits(sizes: Counter[str], share: float) -> dict[str, str]:
    """Return the split of each module of a package, by the number of its examples."""
    room = dict.fromkeys((VALIDATION, TEST), share * sizes.total())
    splits = {}
    for module in sorted(sizes, key=number_of):
        split = next((split for split, left in room.items() if sizes[module] <= left), TRAIN)
        if split in room:
            room[split] -= sizes[module]
        splits[module] = split
    return splits
