"""Sequences of DNA, RNA or protein in FASTA files."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from electra_lab.corpora._common import FileCorpus, Paths
from electra_lab.sources.files import BYTE_ORDER_MARK, BadInput
from registry import LONGEST, Document, Skipped, corpora
from registry.contracts.data import LONGER

EXTENSIONS = (".fa", ".fasta", ".fna", ".ffn", ".faa", ".frn")
Kind = Literal["dna", "rna", "protein"]
LETTERS: dict[Kind, str] = {  # with IUPAC's codes for letters that are not certain
    "dna": "ACGTNRYSWKMBDHV",
    "rna": "ACGUNRYSWKMBDHVT",
    "protein": "ACDEFGHIKLMNPQRSTVWYBJOUXZ*-",
}
COMPLEMENT = str.maketrans("ACGTURYKMBDHVacgturykmbdhv", "TGCAAYRMKVHDBtgcaayrmkvhdb")
TO_RNA = str.maketrans("Tt", "Uu")
Line = tuple[int, bool, bytes]  # its number; whether it begins here; the line, or a part of it


class _WrongLetter(BadInput):
    """A letter that is not of the kind; the letters before it are sound."""


@corpora.register("fasta")
class Fasta(FileCorpus):
    """Records of FASTA files, plain or compressed (.gz, .xz, .bz2, .zst), in windows; each window is a document.

    The windows of a record are in the same split, and so are those of records with the same name, the first word of
    their header.

    paths               files, patterns such as `genome/*.fa.gz`, or folders, of which all .fa, .fasta, .fna, .ffn, .faa
                        and .frn files are read; relative to the experiment file
    letters             kind of the records: `dna`, `rna`, in which T is read as U, or `protein`. Others are an error
    window              letters of a window; the last one of a record may have fewer
    overlap             letters that a window shares with the one before
    longest_gap         a run of more N than this ends a window, and is left out; null keeps all. Not for proteins
    lower_case          letters in lower case, which mark repeats: `raise` makes them upper-case, `keep` keeps them, and
                        `drop` leaves them out, like a gap
    reverse_complement  true to add the other strand of each window
    kmers               write the window as overlapping k-mers of this length, with spaces; for the tokenizer `kmers`
    on_error            treatment of a letter that is not one of the kind, a record without letters, or text before the
                        first header: `stop`, or `skip` the rest of the record
    """

    def __init__(
        self,
        /,
        *,
        paths: Paths,
        letters: Kind = "dna",
        window: Annotated[int, Field(ge=1, le=LONGEST)] = 10_000,
        overlap: Annotated[int, Field(ge=0, lt=LONGEST)] = 0,
        longest_gap: Annotated[int, Field(ge=0, lt=LONGEST)] | None = 10,
        lower_case: Literal["raise", "keep", "drop"] = "raise",
        reverse_complement: bool = False,
        kmers: Annotated[int, Field(ge=2, le=16)] | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        if overlap >= window:
            raise ValueError(f"overlap {overlap} must be below window {window}.")
        if kmers and window * (kmers + 1) > LONGEST:
            raise ValueError(f"window {window} with kmers {kmers} is longer than {LONGEST:,} characters as text.")
        if reverse_complement and letters == "protein":
            raise ValueError("reverse_complement is for dna and rna; a protein has no other strand.")
        self.letters, self.window, self.overlap, self.kmers = letters, window, overlap, kmers
        self.lower_case, self.reverse_complement = lower_case, reverse_complement
        self._wrong = re.compile(f"[^{re.escape(LETTERS[letters])}]", re.IGNORECASE)
        # Ends of windows: a long run of N, and letters in lower case, n too, if they are left out.
        self._most = None if letters == "protein" else longest_gap
        self._unknown = "N" if lower_case == "drop" else "Nn"
        gaps = [] if self._most is None else [f"[{self._unknown}]{{{self._most + 1},}}"]
        if lower_case == "drop":
            gaps.append("[a-z]+")
        self._gap = re.compile("|".join(gaps)) if gaps else None
        options = {
            "letters": letters, "window": window, "overlap": overlap, "longest_gap": longest_gap, "kmers": kmers,
            "lower_case": lower_case, "reverse_complement": reverse_complement, "on_error": on_error,
        }  # fmt: skip
        super().__init__(paths, EXTENSIONS, options)

    def changes(self) -> Mapping[str, str]:
        """Return the replacements that change text in use as this corpus changes letters; gaps stay."""
        changes = {LONGER.format(self.kmers + 1): "?"} if self.kmers else {r"\s+": ""}
        if self.letters == "rna":
            changes |= {"T": "U", "t": "u"}
        letters = filter(str.isalpha, LETTERS[self.letters]) if self.lower_case == "raise" else ()
        return changes | {letter.lower(): letter for letter in letters if letter.lower() not in changes}

    def _in_file(self, file: Path) -> Iterator[Document | Skipped]:
        for number, (name, header, lines) in enumerate(_records(self._lines(file)), start=1):
            place = f"{file}:{header}"
            if name is None:
                if any(line.strip() and not line.startswith(b";") for _, _, line in lines):
                    reason = "there is text before the first header, which begins with >"
                    yield self.left_out(BadInput(place, reason, "Is it a FASTA file?"))
                continue
            words = name.decode("utf-8", "replace").split(None, 1)
            key = words[0] if words else f"record {number}"
            empty = BadInput(place, f"the record '{key}' has no letters", "Remove it.")
            try:
                for part, text in enumerate(self._windows(file, lines, empty)):
                    yield Document(text, key, begins=part == 0)
            except BadInput as error:
                yield self.left_out(error)

    def _lines(self, file: Path) -> Iterator[Line]:
        """Yield lines; a sequence may be one line of any length, and comes in parts.

        If the first block has carriage returns and no line feed, carriage returns end the lines.
        """
        number, begins, end = 1, True, b""
        for block in self._files.blocks(file):
            block = block if end else block.removeprefix(BYTE_ORDER_MARK)
            end = end or (b"\r" if b"\r" in block and b"\n" not in block else b"\n")
            *lines, last = block.split(end)
            for line in lines:
                yield number, begins, line
                number, begins = number + 1, True
            if last:
                yield number, begins, last
                begins = False

    def _windows(self, file: Path, lines: Iterator[Line], empty: BadInput) -> Iterator[str]:
        """Yield the windows of a record as text. Raises BadInput; `empty` for a record without letters.

        Before the error of a wrong letter comes the window that it cuts short.
        """
        waiting = ""  # of the window that has begun; its first `old` letters were in the one before
        old, is_empty = 0, True
        try:
            for segment, ended in self._segments(self._letters(file, lines)):
                is_empty = False
                waiting, at = waiting + segment, 0
                while len(waiting) - at >= self.window:
                    yield from self._written(waiting[at : at + self.window])
                    at, old = at + self.window - self.overlap, self.overlap
                waiting = waiting[at:]
                if ended:
                    yield from self._written(waiting[: len(waiting) if len(waiting) > old else 0])
                    waiting, old = "", 0
        except _WrongLetter:
            if len(waiting) > old:
                yield from self._written(waiting)
            raise
        if is_empty:
            raise empty

    def _letters(self, file: Path, lines: Iterator[Line]) -> Iterator[str]:
        """Yield the letters of each line that has some. Raises BadInput at one that is not of the kind."""
        for number, begins, line in lines:
            if begins and line.startswith(b";"):
                continue
            part = line.translate(None, b" \t\r").decode("latin-1")
            if wrong := self._wrong.search(part):
                kinds = [kind for kind, letters in LETTERS.items() if wrong[0].upper() in letters]
                cure = f"Correct it, or set letters: {kinds[0]}." if kinds else "Correct it."
                raise _WrongLetter(f"{file}:{number}", f"{wrong[0]!r} is not a letter of {self.letters}", cure)
            if part:
                part = part.upper() if self.lower_case == "raise" else part
                yield part.translate(TO_RNA) if self.letters == "rna" else part

    def _segments(self, parts: Iterator[str]) -> Iterator[tuple[str, bool]]:
        """Yield the letters between gaps, in pieces, and True if a gap or the end of the record ends the piece.

        N at the end of a part may belong to a gap that goes on in the next one, so they wait for it; of a gap, as many
        as make it one.
        """
        waiting, is_empty = "", True
        for part in parts:
            is_empty = False
            text = waiting + part
            body = text if self._most is None else text.rstrip(self._unknown)
            waiting = text[len(body) :]
            *before, last = self._gap.split(body) if self._gap else [body]
            yield from ((segment, True) for segment in before)
            is_gap = self._most is not None and len(waiting) > self._most
            yield last, is_gap
            waiting = waiting[: (self._most or 0) + 1]
        if not is_empty:
            yield "" if self._gap and self._gap.fullmatch(waiting) else waiting, True

    def _written(self, window: str) -> Iterator[str]:
        """Yield a window as text, and the other strand if it is asked for."""
        strands = [window] if window else []
        if window and self.reverse_complement:
            other = window.translate(COMPLEMENT)[::-1]
            strands.append(other.translate(TO_RNA) if self.letters == "rna" else other)
        for strand in strands:
            if self.kmers is None or len(strand) < self.kmers:
                yield strand
            else:
                yield " ".join(strand[at : at + self.kmers] for at in range(len(strand) - self.kmers + 1))


def _records(lines: Iterator[Line]) -> Iterator[tuple[bytes | None, int, Iterator[Line]]]:
    """Yield the header, without its mark, its line and the other lines of each record.

    The lines before the first header come with None. Records must be read in turn, as in itertools.groupby.
    """
    pushed: list[Line] = []  # a line that was read too far

    def following() -> Line | None:
        return pushed.pop() if pushed else next(lines, None)

    def body() -> Iterator[Line]:
        while (line := following()) is not None:
            _, begins, text = line
            if begins and text.startswith(b">"):
                pushed.append(line)
                return
            yield line

    number, header = 1, None
    while True:
        rest = body()
        yield header, number, rest
        # Skip lines that the consumer has not read, to the next header.
        for _ in rest:
            pass
        line = following()
        if line is None:
            return
        number, header = line[0], line[2][1:]
        # A long header may come in parts, too.
        while (line := following()) is not None:
            _, begins, text = line
            if begins:
                pushed.append(line)
                break
            header += text
