"""Text files of your own."""

import codecs
import io
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from electra_lab.sources.files import BadInput, Files
from registry import LONGEST, Skipped, corpora
from registry.documents import cut, pieces

EXTENSIONS = (".txt", ".text", ".md")
BLANK_LINES = re.compile(r"\n\s*\n")
LINE_END = re.compile("\r\n|\r|\n")
SEPARATORS = {"paragraphs": BLANK_LINES, "lines": re.compile("\n"), "files": None}


@corpora.register("text_files")
class TextFiles:
    """UTF-8 text files, plain or compressed (.gz, .xz, .zst).

    All line ends are read as a line feed, and a byte order mark is dropped. A document above 1,000,000 characters
    becomes several, cut at white space.

    paths       files, patterns such as `books/*.txt`, or folders, of which all .txt, .text and .md files are read;
                relative to the experiment file
    documents   what one document is: `paragraphs` (blank lines separate them, as google-research/electra reads its
                corpora), `lines`, or `files` (each file whole)
    join_lines  join the lines of a paragraph by spaces, for text with hard line breaks
    on_error    at bytes that are not UTF-8 or a damaged file: `stop`, or `skip` the rest of that file
    """

    def __init__(
        self,
        /,
        *,
        paths: Annotated[list[Path], Field(min_length=1)],
        documents: Literal["paragraphs", "lines", "files"] = "paragraphs",
        join_lines: bool = False,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self.separator, self.skips = SEPARATORS[documents], on_error == "skip"
        self.join_lines = join_lines and documents != "lines"
        options = {"documents": documents, "join_lines": join_lines, "on_error": on_error}
        self._files = Files(paths, EXTENSIONS, options)

    def __iter__(self) -> Iterator[str | Skipped]:
        for file in self._files.files:
            try:
                for texts in self._batches(file):
                    yield from map(joined, texts) if self.join_lines else texts
            except BadInput as error:
                if not self.skips:
                    raise
                self._files.check(file)
                yield error.skipped

    def _batches(self, file: Path) -> Iterator[list[str]]:
        """Yield the documents of a file, those that end in one block together."""
        rest = ""
        for block in self._text(file):
            whole, rest = [], rest + block
            if self.separator:
                *whole, rest = self.separator.split(rest)
            stripped = filter(None, map(str.strip, whole))
            texts = [piece for text in stripped for piece in (pieces(text) if len(text) > LONGEST else (text,))]
            begun, rest = cut(rest)
            yield texts + begun
        yield pieces(rest)

    def _text(self, file: Path) -> Iterator[str]:
        """Yield the text of a file in blocks. Raises BadInput."""
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
        line, read = 1, 0
        for block in chain(self._files.blocks(file), [b""]):
            read += len(block)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                held_back = "\r" * (decoder.getstate()[1] & 1)  # at the end of the block before
                before = held_back + error.object[: error.start].decode()
                line += len(LINE_END.findall(before))
                byte = read - len(error.object) + error.start
                cure = "Convert it, for example by iconv, or set on_error: skip."
                raise BadInput(f"{file}:{line}", f"byte {byte} is not UTF-8", cure) from None
            line += text.count("\n")
            yield text

    def fingerprint(self) -> str:
        """A hash of the content, so that a moved file is the same corpus and a changed one is not."""
        return self._files.fingerprint()


def joined(text: str) -> str:
    """Join the lines of each paragraph by spaces."""
    return "\n\n".join([" ".join(map(str.strip, each.split("\n"))) for each in BLANK_LINES.split(text)])
