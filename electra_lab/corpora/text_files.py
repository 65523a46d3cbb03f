"""Text files of your own."""

import glob
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from registry import corpora
from registry.errors import DataError

BLOCK = 1 << 20


@corpora.register("text_files")
class TextFiles:
    """UTF-8 text files, given by paths or patterns such as `books/*.txt` (relative to the experiment file).

    documents  what one document is: `paragraphs` (blank lines separate them, as google-research/electra reads its
               corpora), `lines`, or `files` (each file whole)
    """

    def __init__(
        self,
        /,
        *,
        paths: Annotated[list[Path], Field(min_length=1)],
        documents: Literal["paragraphs", "lines", "files"] = "paragraphs",
    ) -> None:
        self.documents = documents
        self.files: list[Path] = []
        for path in paths:
            matches = [Path(match) for match in sorted(glob.glob(_pattern(path), recursive=True))]
            files = [match for match in matches if match.is_file()]
            if not files:
                what = "it is a folder; write a pattern such as its *.txt" if matches else "no file matches"
                raise DataError(f"{path}: {what}.")
            self.files += files

    def __iter__(self) -> Iterator[str]:
        for file in dict.fromkeys(self.files):
            yield from self._read(file)

    def _read(self, file: Path) -> Iterator[str]:
        read = 0
        paragraph: list[str] = []
        with _opened(file) as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{file}:{number}: byte {read + error.start} is not UTF-8. Convert it, for example by iconv."
                    ) from None
                if number == 1:
                    text = text.removeprefix("\ufeff")  # a byte order mark
                read += len(line)
                paragraph.append(text)
                if self.documents == "lines" or (self.documents == "paragraphs" and not text.strip()):
                    yield from _document(paragraph)
                    paragraph = []
        yield from _document(paragraph)

    def fingerprint(self) -> str:
        """A hash of the content, so that a moved file is the same corpus and a changed one is not."""
        state = hashlib.sha256(self.documents.encode())
        for file in dict.fromkeys(self.files):
            with _opened(file) as stream:
                while block := stream.read(BLOCK):
                    state.update(block)
            state.update(b"\0end of file\0")
        return state.hexdigest()


def _pattern(path: Path) -> str:
    """Take the part of a path that exists literally: a folder may be called `a[1]`. Only the rest is a pattern."""
    exists = next(part for part in (path, *path.parents) if os.path.exists(part))
    return str(Path(glob.escape(str(exists)), path.relative_to(exists)))


def _opened(file: Path):  # type: ignore[no-untyped-def]  # io.BufferedReader, which mypy's stubs make generic
    try:
        return file.open("rb")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}).") from None


def _document(lines: list[str]) -> Iterator[str]:
    text = "".join(lines).strip()
    if text:
        yield text
