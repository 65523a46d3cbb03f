"""Files with a word and its tag on each line, as in the shared tasks of CoNLL."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from electra_lab.datasets._schemes import OUTSIDE, SCHEMES, TAG, misfit, to_iob2
from electra_lab.datasets._splits import Entry, NamedFiles, attempted
from electra_lab.sources.delimited import columns
from electra_lab.sources.files import BadInput, Files, uncompressed
from electra_lab.sources.records import EXTENSIONS, check_utf8, record_in, records, text_lines, value_of, whole_text
from registry import WordsExample, datasets
from registry.errors import DataError

TABS, SPACES = re.compile("\t+"), re.compile("[ \t]+")  # other spaces may be in words
BREAK = "-DOCSTART-"  # between documents
COMMENT = re.compile(r"#\s*(\S+\s+=\s|newdoc\b|newpar\b)")  # of CoNLL-U
MARK = re.compile(r"#(\s|#|$|\w+=|(begin|end) document)")  # may begin a comment, but not a hashtag
NO_WORD = re.compile(r"\d+[-.]\d+")  # 1-2 is a word that consists of two others, 1.1 is not written
SEVERAL = re.compile(r"[|,;]| +")  # between the tags of one column
UPOS, CONLL_U = 3, 10  # the column of parts of speech in CoNLL-U, and its number of columns
Column = Annotated[int, Field(ge=-100, le=100)]
Sentence = list[tuple[str, list[str]]]  # the places and the columns of its lines


@datasets.register("conll", yields=WordsExample)
@dataclass(kw_only=True, eq=False)
class Conll(NamedFiles[WordsExample]):
    """Words with tags in columns, one word on a line, plain or compressed (.gz, .xz, .bz2, .zst).

    Blank lines separate sentences. If most lines of a file have a tab, only tabs separate columns, and words may
    contain spaces; otherwise spaces separate columns too. Lines that begin with -DOCSTART- are left out, and so are
    comments: lines before a sentence that begin with # and have another number of columns than most lines, or the form
    `# key = value`, or no entity tag in the tag column. If the first of three or more columns counts the words of each
    sentence, as in CoNLL-U, lines with a number such as 1-2 or 1.1 are left out. Entity tags of any scheme are read as
    IOB2. In files with a single column the tags are unknown. Files of JSON lines (.jsonl, .ndjson, .json) have a list
    of words and one of tags in each record.

    train, validation, test  a file, a pattern such as `eng.train*`, or a folder; relative to the fine-tuning file
    word_column              column of the words, counted from 0; -1 is the last one. By default the first, or the one
                             after the numbers
    tag_column               column of the tags. By default the last, or the part of speech, UPOS, if there are ten as
                             in CoNLL-U
    layer                    number of the tag to read if a column has several, such as B-ORG|B-LOC, counted from 0;
                             words with fewer are outside
    words, tags              fields of JSON lines; a record without tags is unknown
    scheme                   scheme of the tags: auto chooses the one that all tags of a split fit; BILOU and BMES are
                             BIOES with other letters; plain keeps tags unchanged, such as parts of speech
    on_error                 treatment of a sentence with a line or a tag that does not fit: `stop`, or `skip`
    held_out                 share of train for validation if it has no file, chosen by a hash of the words
    """

    word_column: Column | None = None
    tag_column: Column | None = None
    layer: Annotated[int, Field(ge=0, le=100)] | None = None
    words: str = "tokens"
    tags: str = "ner_tags"
    scheme: Literal["auto", "IOB1", "IOB2", "BIOES", "BILOU", "BMES", "plain"] = "auto"

    @staticmethod
    def fields(options: Mapping[str, Any]) -> list[str]:
        """Return the name of the field with the words, if it was chosen."""
        return [] if options["words"] == Conll.words else [options["words"]]

    def _options(self) -> dict[str, Any]:
        options = {"word_column": self.word_column, "tag_column": self.tag_column, "scheme": self.scheme}
        fields = [self.words, self.tags]
        named = {} if fields == ["tokens", "ner_tags"] else {"fields": fields}
        return {**options, **named} if self.layer is None else {**options, **named, "layer": self.layer}

    def _examples(self, source: str) -> Iterator[Entry[WordsExample]]:
        entries = list(super()._examples(source))
        scheme = self._best_scheme(entries) if self.scheme == "auto" else self.scheme
        if scheme in ("BILOU", "BMES"):
            scheme = "BIOES"
        for entry in entries:
            yield entry if isinstance(entry, BadInput) else attempted(self._in_iob2, *entry, scheme)

    @staticmethod
    def _best_scheme(entries: Sequence[Entry[WordsExample]]) -> str:
        """Return the scheme that the fewest sentences do not fit."""
        tagged = [entry[1].tags or () for entry in entries if not isinstance(entry, BadInput)]
        wrong = {}
        for scheme in SCHEMES:
            wrong[scheme] = sum(misfit(tags, scheme) is not None for tags in tagged)
        return min(wrong, key=wrong.__getitem__)

    def _in_iob2(self, places: str, example: WordsExample, scheme: str) -> tuple[str, WordsExample]:
        """Return a sentence with its key. Raises BadInput for tags that do not fit the scheme."""
        if example.tags is not None and scheme != "plain":
            word = misfit(example.tags, scheme)
            if word is not None:
                reason = f"the tag '{example.tags[word]}' does not fit {scheme}"
                if self.scheme == "auto":
                    reason += ", and the other schemes fit even less"
                cure = "Correct it. To keep tags unchanged, set scheme: plain."
                raise BadInput(places.split("\n")[word], reason, cure)
            example = replace(example, tags=to_iob2(example.tags, scheme))
        return " ".join(example.words), example

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Entry[WordsExample]]:
        """Yield the sentences; the key of a sentence is the places of its words, one on each line."""
        if uncompressed(file).suffix.lower() in EXTENSIONS:
            yield from (attempted(self._in_record, line, place) for place, line in records(files, file))
            return
        # The number of columns is that of most lines.
        lines = [(place, "" if line.startswith(BREAK) else line) for place, line in text_lines(files, file)]
        written = [(place, line) for place, line in lines if line.strip(" \t")]
        written = [(place, line) for place, line in written if not line.startswith("#")] or written
        if not written:
            return
        tabs = 2 * sum("\t" in line for _, line in written) > len(written)
        number = Counter(len(_columns(line, tabs)) for _, line in written).most_common(1)[0][0]
        self._refuse_columns(number, written[0][0])
        # Sentences are groups of lines, without the comments before them.
        sentences: list[Sentence] = [[]]
        for place, line in lines:
            row = _columns(line, tabs)
            if line.startswith("  ") and len(row) == number - 1:
                row = [" ", *row]
            if not row:
                sentences.append([])
            elif sentences[-1] or not self._is_comment(line, row, number):
                sentences[-1].append((place, row))
        # The columns of words and tags depend on whether the first one counts the words.
        whole = [sentence for sentence in sentences if _widths(sentence) == {number}]
        numbered = number > 2 and max(map(len, whole), default=0) > 1 and all(map(_is_numbered, whole))
        word = int(numbered) if self.word_column is None else self.word_column
        tag = UPOS if numbered and number == CONLL_U else -1
        if self.tag_column is not None:
            tag = self.tag_column
        for sentence in sentences:
            words = [(place, row) for place, row in sentence if not (numbered and NO_WORD.fullmatch(row[0]))]
            if words:
                yield attempted(self._sentence, words, number, word, tag)

    def _refuse_columns(self, number: int, place: str) -> None:
        """Raise DataError if the column of words or of tags does not exist."""
        word, tag = self.word_column or 0, -1 if self.tag_column is None else self.tag_column
        numbers = {"word_column": word}
        if number > 1:
            numbers["tag_column"] = tag
        for name, column in numbers.items():
            if not -number <= column < number:
                raise DataError(f"{place}: has {columns(number)}, but {name} is {column}. They are counted from 0.")
        if number > 1 and word % number == tag % number:
            raise DataError(f"{place}: word_column and tag_column are the same column. Change one of them.")

    def _is_comment(self, line: str, row: Sequence[str], number: int) -> bool:
        """Return whether a line before a sentence is a comment; `#` may also be a word."""
        if COMMENT.match(line):
            return True
        if not MARK.match(line):
            return False
        if len(row) != number:
            return True
        tags = _parts(row[-1 if self.tag_column is None else self.tag_column])
        return number > 1 and self.scheme != "plain" and not all(map(TAG.fullmatch, tags))

    def _sentence(self, lines: Sentence, number: int, word: int, tag: int) -> tuple[str, WordsExample]:
        """Return a sentence with the places of its words. Raises BadInput."""
        tags = []
        for place, row in lines:
            check_utf8(row, place)
            if len(row) != number:
                raise BadInput(place, f"has {columns(len(row))}, not {number} as most lines")
            tags.append(self._tag_in(row[tag], place) if number > 1 else "")
        places, rows = zip(*lines, strict=True)
        words = tuple(row[word] for row in rows)
        return "\n".join(places), WordsExample(words, tuple(tags) if number > 1 else None, place=places[0])

    def _in_record(self, line: bytes, place: str) -> tuple[str, WordsExample]:
        """Return the sentence in a line of JSON. Raises BadInput."""
        record = record_in(line, place)
        words, tags = value_of(record, place, self.words), record.get(self.tags)
        for values in (words, words if tags is None else tags):
            if not isinstance(values, list) or not values or len(values) != len(words):
                raise BadInput(place, f"'{self.words}' and '{self.tags}' are not lists of the same length")
        read = tags and tuple(self._tag_in(whole_text(tag, self.tags, place), place) for tag in tags)
        written = tuple(whole_text(word, self.words, place) for word in words)
        return "\n".join([place] * len(words)), WordsExample(written, read, place=place)

    def _tag_in(self, column: str, place: str) -> str:
        """Return the tag in a column. Raises BadInput."""
        if self.scheme == "plain":
            return column
        tags = _parts(column)
        if len(tags) > 1 and self.layer is None:
            raise BadInput(place, f"there are several tags in one column, '{column}'", "Set `layer` to one of them.")
        layer = self.layer or 0
        tag = tags[layer] if layer < len(tags) else OUTSIDE
        if not TAG.fullmatch(tag):
            reason = f"the tag '{tag}' is neither O nor B-, I-, E- or S- with a type"
            raise BadInput(place, reason, "For tags of other kinds set scheme: plain.")
        return tag

    def submission(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """Return the input of the script conlleval: on each line a word, its tag if it is known, the predicted tag.

        Spaces in words become underscores, as they separate the columns.
        """
        lines: list[str] = []
        for example, predicted in zip(self.read(split), predictions, strict=True):
            words = [word.replace(" ", "_") for word in example.words]
            columns = [words, example.tags] if example.tags else [words]
            lines += map(" ".join, zip(*columns, predicted["prediction"], strict=True))
            lines += [""]
        return f"{split}.txt", "".join(f"{line}\n" for line in lines)


def _columns(line: str, tabs: bool) -> list[str]:
    """Return the columns of a line. Between tabs, a word may be a space."""
    if not line.strip(" \t"):
        return []
    parts = [column for column in (TABS if tabs else SPACES).split(line) if column]
    return [column.strip(" ") or " " for column in parts]


def _widths(sentence: Sentence) -> set[int]:
    return {len(row) for _, row in sentence}


def _is_numbered(sentence: Sentence) -> bool:
    """Return whether the first column counts the words."""
    numbers = [row[0] for _, row in sentence if not NO_WORD.fullmatch(row[0])]
    return numbers == [str(number) for number in range(1, len(numbers) + 1)]


def _parts(column: str) -> list[str]:
    """Return the entity tags in a column that has several, otherwise the column."""
    parts = SEVERAL.split(column)
    are_tags = all(part == OUTSIDE or (TAG.fullmatch(part) and "-" in part) for part in parts)
    return parts if are_tags else [column]
