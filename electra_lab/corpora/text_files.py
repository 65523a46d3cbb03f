"""Text files of your own."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from electra_lab.corpora._common import FileCorpus, Paths
from electra_lab.sources.files import BadInput
from registry import LONGEST, Skipped, corpora
from registry.documents import cut, pieces

EXTENSIONS = (".txt", ".text", ".md")
BLANK_LINES = re.compile(r"\n\s*\n")
SEPARATORS = {"paragraphs": BLANK_LINES, "lines": re.compile("\n"), "files": None}
PART = 1 << 18  # bytes of a line that are decoded at once


@corpora.register("text_files")
class TextFiles(FileCorpus):
    """UTF-8 text files, plain or compressed (.gz, .xz, .zst).

    All line ends are read as a line feed, and a byte order mark is dropped. A document above 1,000,000 characters
    becomes several, cut at white space.

    paths       files, patterns such as `books/*.txt`, or folders, of which all .txt, .text and .md files are read;
                relative to the experiment file
    documents   the unit of text: `paragraphs` (separated by blank lines, as in google-research/electra), `lines`, or
                whole `files`
    join_lines  join the lines of a paragraph by spaces, for text with hard line breaks
    on_error    at bytes that are not UTF-8: `stop`, `skip_line`, which leaves out the line, or `skip`, which leaves out
                this line and the rest of the file. Of a damaged file both keep all lines before the damage
    """

    skip = "skip_line"

    def __init__(
        self,
        /,
        *,
        paths: Paths,
        documents: Literal["paragraphs", "lines", "files"] = "paragraphs",
        join_lines: bool = False,
        on_error: Literal["stop", "skip", "skip_line"] = "stop",
    ) -> None:
        self.separator, self.skips_line = SEPARATORS[documents], on_error == "skip_line"
        self._finish = joined if join_lines and documents != "lines" else str
        options = {"documents": documents, "join_lines": join_lines, "on_error": on_error}
        super().__init__(paths, EXTENSIONS, options)

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
        parts = _parts(self._files.blocks(file))
        try:
            for part in parts:
                end = at + len(part)
                # A part that is not UTF-8 is decoded line by line, so that only bad lines are lost.
                for piece in [part] if _is_utf8(part) else part.splitlines(keepends=True):
                    try:
                        text = piece.decode().replace("\r\n", "\n").replace("\r", "\n")
                        yield text if at else text.removeprefix("\ufeff")
                    except UnicodeDecodeError as error:
                        place, reason = f"{file}:{line}", f"byte {at + error.start} is not UTF-8"
                        cure = "Convert it, for example with iconv."
                        skipped = self.left_out(BadInput(place, reason, cure, unit="lines"))
                        if not self.skips_line:
                            yield from _rest_left_out(skipped, end - at, parts)
                            return
                        yield skipped
                    at += len(piece)
                    line += piece.count(b"\n") + piece.count(b"\r") - piece.count(b"\r\n")
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


def _rest_left_out(skipped: Skipped, lost: int, parts: Iterator[bytes]) -> Iterator[Skipped]:
    """Yield that a file is left out from a line on, and also that it is truncated if it is."""
    try:
        for part in parts:
            lost += len(part)
    except BadInput as error:
        yield error.skipped
    reason = f"{skipped.reason}; {lost:,} bytes from this line on are left out"
    yield Skipped(skipped.place, reason, lost, "bytes")


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
