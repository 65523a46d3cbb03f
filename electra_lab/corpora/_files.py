"""What the corpora in files share: the files, and the hash of their content."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_lab.sources.files import BadInput, Files
from registry import Document, Skipped


class FileCorpus(ABC):
    """A corpus in files.

    paths       files, patterns, or folders, of which all files with the given extensions are read
    extensions  also with the ending of a compressed file after them
    options     everything else that decides the documents

    Raises DataError for a path that stands for nothing.
    """

    def __init__(self, paths: Sequence[Path], extensions: Sequence[str], options: Mapping[str, Any]) -> None:
        self.skips = options["on_error"] != "stop"
        self._files = Files(paths, extensions, options)

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        for file in self._files.files:
            try:
                yield from self._in_file(file)
            except BadInput as error:
                self._files.check(file)  # one that is being written to is damaged, too
                yield self.left_out(error)

    @abstractmethod
    def _in_file(self, file: Path) -> Iterator[str | Document | Skipped]:
        """Yield the documents of a file, and what is left out of it. Raises BadInput where no more can be read."""

    def files(self) -> tuple[list[Path], list[Path]]:
        """Return the files that are read, and those that are passed over."""
        return self._files.files, self._files.ignored

    def left_out(self, damage: BadInput) -> Skipped:
        """Return the part that is left out, if the user chose to skip. Raises BadInput otherwise."""
        if not self.skips:
            raise damage from None
        return damage.skipped

    def fingerprint(self) -> str:
        """A hash of the content, so that a moved file is the same corpus and a changed one is not."""
        return self._files.fingerprint()
