"""Text files of your own."""

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from electra_lab.corpora._common import FileCorpus, Paths
from electra_lab.sources.files import BadInput
from registry import LONGEST, Document, Skipped, corpora
from registry.contracts.data import cut, pieces
from registry.errors import DataError

EXTENSIONS = (".txt", ".text", ".md")
BLANK_LINES = re.compile(r"\n\s*\n")
SEPARATORS = {"paragraphs": BLANK_LINES, "lines": re.compile("\n"), "files": None}
PART = 1 << 18  # bytes of a line that are decoded at once


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_compiles)]


@corpora.register("text_files")
class TextFiles(FileCorpus):
    """UTF-8 text files, plain or compressed (.gz, .xz, .bz2, .zst).

    All line ends are read as a line feed, and a byte order mark is dropped. A document above 1,000,000 characters
    becomes several, cut at white space.

    paths       files, patterns such as `books/*.txt`, or folders (all their .txt, .text and .md files); relative to
                the experiment file
    documents   the unit of text: `paragraphs` (separated by blank lines, as in google-research/electra), `lines`, or
                whole `files`
    join_lines  join the lines of a paragraph by spaces, for text with hard line breaks
    remove      regular expression (Python's) of text to remove from each document, such as the time stamps of a log:
                `^[0-9-]+ [0-9:]+ `. It should match nothing else, so that lines without a time stamp stay whole
    group       regular expression of the key that determines the split, such as a host or a session: documents in which
                it finds the same text (its first group, if it has one) stay together. The default key is the document
    on_error    treatment of bytes that are not UTF-8: `stop`, or `skip` their line; of a damaged file all lines before
                the damage are kept
    """

    def __init__(
        self,
        /,
        *,
        paths: Paths,
        documents: Literal["paragraphs", "lines", "files"] = "paragraphs",
        join_lines: bool = False,
        remove: Pattern | None = None,
        group: Pattern | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self._remove, self._group = (re.compile(pattern) if pattern else None for pattern in (remove, group))
        self.separator = SEPARATORS[documents]
        self._finish = joined if join_lines and documents != "lines" else str
        options: dict[str, Any] = {"documents": documents, "join_lines": join_lines, "on_error": on_error}
        options |= {name: pattern for name, pattern in (("remove", remove), ("group", group)) if pattern}
        super().__init__(paths, EXTENSIONS, options)

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        if not (self._remove or self._group):
            yield from super().__iter__()
            return
        number, matches = 0, Counter[str]()
        for item in super().__iter__():
            if not isinstance(item, str):
                yield item
                continue
            number += 1
            text, times, key = item, 0, None
            match = self._group.search(item) if self._group else None
            if match:
                key = match[1] if match.re.groups and match[1] is not None else match[0]
                key = key or None  # no text is no key, as in `host=`
                matches["group"] += key is not None
            if self._remove:
                text, times = self._remove.subn("", item)
                matches["remove"] += times
            if text := text.strip():
                yield Document(text, key, removed=times > 0)
        for name, pattern in (("remove", self._remove), ("group", self._group)):
            if pattern and number and not matches[name]:
                reason = f"corpus.{name} {pattern.pattern!r} finds nothing in {number:,} documents"
                raise DataError(f"{reason}. Correct the pattern, or remove this key.")

    def _in_file(self, file: Path) -> Iterator[str | Skipped]:
        rest = ""
        for part in self._text(file):
            if isinstance(part, Skipped):
                yield part
                continue
            texts: list[str] = []
            whole, rest = [], rest + part
            if self.separator:
                *whole, rest = self.separator.split(rest)
            for text in filter(None, map(str.strip, whole)):
                texts += [text] if len(text) <= LONGEST else pieces(text)
            begun, rest = cut(rest)
            yield from map(self._finish, texts + begun)
        yield from map(self._finish, pieces(rest))

    def _text(self, file: Path) -> Iterator[str | Skipped]:
        """Yield the text of a file in parts, and its skipped pieces. Raises BadInput."""
        line, at = 1, 0  # of the next piece: its line and its first byte
        try:
            for part in _parts(self._files.blocks(file)):
                # A part that is not UTF-8 is decoded line by line, so that only bad lines are lost.
                good: list[str] = []
                for piece in [part] if _is_utf8(part) else part.splitlines(keepends=True):
                    try:
                        text = piece.decode().replace("\r\n", "\n").replace("\r", "\n")
                        good.append(text if at else text.removeprefix("\ufeff"))
                    except UnicodeDecodeError as error:
                        if good:
                            yield "".join(good)
                            good.clear()
                        place, reason = f"{file}:{line}", f"byte {at + error.start} is not UTF-8"
                        cure = "Convert it, for example with iconv."
                        yield self.left_out(BadInput(place, reason, cure, unit="lines"))
                    at += len(piece)
                    line += piece.count(b"\n") + piece.count(b"\r") - piece.count(b"\r\n")
                yield "".join(good)
        except BadInput as error:
            yield self.left_out(error)


def _parts(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks cut at line ends, so that a line is in one part unless it has more than PART bytes."""
    rest = b""
    for block in blocks:
        rest += block
        # A carriage return at the end of the block may be half of a line end.
        end = 1 + max(rest.rfind(b"\n"), rest.rfind(b"\r", 0, -1))
        if not end and len(rest) > PART and not rest.endswith(b"\r"):
            _, end = codecs.utf_8_decode(rest, "replace", False)  # without an incomplete character
        yield rest[:end]
        rest = rest[end:]
    yield rest


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def joined(text: str) -> str:
    """Join the lines of each paragraph by spaces."""
    paragraphs = [paragraph.split("\n") for paragraph in BLANK_LINES.split(text)]
    return "\n\n".join([" ".join(map(str.strip, lines)) for lines in paragraphs])
