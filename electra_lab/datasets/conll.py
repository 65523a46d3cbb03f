"""Files with a word and its tag on each line, as in the shared tasks of CoNLL."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from electra_lab.datasets._files import CURE, FileSplits, columns, text_lines
from electra_lab.datasets._schemes import OUTSIDE, SCHEMES, TAG, misfit, to_iob2
from electra_lab.datasets._splits import Found, HeldOut, OnError, attempted
from electra_lab.sources.files import BadInput, Files
from registry import WordsExample, datasets

TABS, SPACES = re.compile("\t+"), re.compile("[ \t]+")  # other spaces may be in words
BREAK = "-DOCSTART-"  # between documents
COMMENT = re.compile(r"#\s*(\S+\s+=\s|newdoc\b|newpar\b)")  # of CoNLL-U
MARK = re.compile(r"#(\s|#|$|\w+=|(begin|end) document)")  # where a comment may begin, and a hashtag does not
NO_WORD = re.compile(r"\d+[-.]\d+")  # 1-2 is a word that consists of two others, 1.1 one that is not written
SEVERAL = re.compile(r"[|,;]| +")  # between the tags of one column
UPOS, CONLL_U = 3, 10  # its column of CoNLL-U's ten
Column = Annotated[int, Field(ge=-100, le=100)]
Sentence = list[tuple[str, list[str]]]  # the places and the columns of its lines


@datasets.register("conll", yields=WordsExample)
class Conll(FileSplits[WordsExample]):
    """Words with tags in columns, one word on a line, plain or compressed (.gz, .xz, .zst).

    Blank lines separate sentences. Where most lines of a file have a tab, tabs alone separate columns, and words may
    have spaces in them; in other files spaces do, too. Lines that begin with -DOCSTART- are left out, and so are
    comments: lines before a sentence that begin with # and have another number of columns than most lines, or the form
    `# key = value`, or no tag of an entity in its column. Where the first of three or more columns counts the words of
    each sentence, as in CoNLL-U, lines with a number such as 1-2 or 1.1 are left out. Tags of entities are read as
    IOB2, whatever their scheme is. Files of a single column are words whose tags are not known.

    train, validation, test  a file, a pattern such as `eng.train*`, or a folder; relative to the fine-tuning file
    word_column              counted from 0; -1 is the last one. By default the first, or the one after the numbers
    tag_column               the same. By default the last, or of CoNLL-U's ten the part of speech, UPOS
    layer                    of several tags in one column, such as B-ORG|B-LOC, the one to read, counted from 0; words
                             that have fewer are outside
    scheme                   of the tags: auto finds out which one all tags of a split fit, BILOU and BMES are BIOES in
                             other letters; plain takes tags as they are, such as parts of speech
    on_error                 at a sentence with a line or a tag that does not fit: `stop`, or `skip` it
    held_out                 without a file for validation, the share of train that it gets, by a hash of the words
    """

    def __init__(
        self,
        /,
        *,
        train: Path | None = None,
        validation: Path | None = None,
        test: Path | None = None,
        word_column: Column | None = None,
        tag_column: Column | None = None,
        layer: Annotated[int, Field(ge=0, le=100)] | None = None,
        scheme: Literal["auto", "IOB1", "IOB2", "BIOES", "BILOU", "BMES", "plain"] = "auto",
        on_error: OnError = "stop",
        held_out: HeldOut = 0.1,
    ) -> None:
        self._word, self._tag, self._layer = word_column, tag_column, layer
        self._scheme = "BIOES" if scheme in ("BILOU", "BMES") else scheme
        paths = {"train": train, "validation": validation, "test": test}
        options = {"word_column": word_column, "tag_column": tag_column, "scheme": scheme}
        options |= {} if layer is None else {"layer": layer}
        super().__init__(paths, [""], options, held_out, on_error)

    def _examples(self, source: str) -> Iterator[Found[WordsExample]]:
        found = list(super()._examples(source))
        sentences = [entry[1].tags or () for entry in found if not isinstance(entry, BadInput)]
        wrong = {name: sum(misfit(tags, name) is not None for tags in sentences) for name in SCHEMES}
        scheme = min(wrong, key=wrong.__getitem__) if self._scheme == "auto" else self._scheme
        for entry in found:
            yield entry if isinstance(entry, BadInput) else attempted(self._in_iob2, *entry, scheme)

    def _in_iob2(self, places: str, example: WordsExample, scheme: str) -> tuple[str, WordsExample]:
        """Return a sentence with its key. Raises BadInput for tags that do not fit the scheme."""
        if example.tags is not None and scheme != "plain":
            word = misfit(example.tags, scheme)
            if word is not None:
                reason = f"the tag '{example.tags[word]}' does not fit {scheme}"
                reason += ", and the other schemes fit even less" * (self._scheme == "auto")
                cure = f"{CURE} To take tags as they are set scheme: plain."
                raise BadInput(places.split("\n")[word], reason, cure)
            example = replace(example, tags=to_iob2(example.tags, scheme))
        return " ".join(example.words), example

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Found[WordsExample]]:
        """Yield the sentences; the key of one is the places of its words, one on each line."""
        # The columns are those of most lines.
        lines = [(place, "" if line.startswith(BREAK) else line) for place, line in text_lines(files, file)]
        written = [(place, line) for place, line in lines if line.strip(" \t")]
        written = [(place, line) for place, line in written if not line.startswith("#")] or written
        if not written:
            return
        tabs = 2 * sum("\t" in line for _, line in written) > len(written)
        number = Counter(len(_columns(line, tabs)) for _, line in written).most_common(1)[0][0]
        self._refuse_columns(number, written[0][0])
        # Sentences, without the comments before them.
        sentences: list[Sentence] = [[]]
        for place, line in lines:
            row = _columns(line, tabs)
            if line.startswith("  ") and len(row) == number - 1:
                row = [" ", *row]
            if not row:
                sentences.append([])
            elif sentences[-1] or not self._is_comment(line, row, number):
                sentences[-1].append((place, row))
        # The columns of words and tags.
        whole = [sentence for sentence in sentences if sentence and all(len(row) == number for _, row in sentence)]
        numbered = number > 2 and max(map(len, whole), default=0) > 1 and all(map(_is_numbered, whole))
        word = int(numbered) if self._word is None else self._word
        tag = (UPOS if numbered and number == CONLL_U else -1) if self._tag is None else self._tag
        for sentence in sentences:
            words = [(place, row) for place, row in sentence if not (numbered and NO_WORD.fullmatch(row[0]))]
            if words:
                yield attempted(self._sentence, words, number, word, tag)

    def _refuse_columns(self, number: int, place: str) -> None:
        """Raise BadInput if the words' or the tags' is not among the columns."""
        word, tag = self._word or 0, -1 if self._tag is None else self._tag
        wanted = {"word_column": word} | ({"tag_column": tag} if number > 1 else {})
        for name, column in wanted.items():
            if not -number <= column < number:
                raise BadInput(place, f"has {columns(number)}, but {name} is {column}", "They are counted from 0.")
        if number > 1 and word % number == tag % number:
            raise BadInput(place, "word_column and tag_column are the same column", "Change one of them.")

    def _is_comment(self, line: str, row: Sequence[str], number: int) -> bool:
        """Return whether a line before a sentence is a comment: `#` may be a word, too."""
        if COMMENT.match(line):
            return True
        if not MARK.match(line) or len(row) != number:
            return MARK.match(line) is not None
        tags = _parts(row[-1 if self._tag is None else self._tag])
        return number > 1 and self._scheme != "plain" and not all(map(TAG.fullmatch, tags))

    def _sentence(self, lines: Sentence, number: int, word: int, tag: int) -> tuple[str, WordsExample]:
        """Return a sentence with the places of its words. Raises BadInput."""
        tags = []
        for place, row in lines:
            if len(row) != number:
                raise BadInput(place, f"has {columns(len(row))}, not {number} as most lines", CURE)
            tags.append(self._tag_in(row[tag], place) if number > 1 else "")
        places, rows = zip(*lines, strict=True)
        words = tuple(row[word] for row in rows)
        return "\n".join(places), WordsExample(words, tuple(tags) if number > 1 else None, place=places[0])

    def _tag_in(self, column: str, place: str) -> str:
        """Return the tag in a column. Raises BadInput."""
        if self._scheme == "plain":
            return column
        tags = _parts(column)
        if len(tags) > 1 and self._layer is None:
            raise BadInput(place, f"there are several tags in one column, '{column}'", "Set `layer` to one of them.")
        layer = self._layer or 0
        tag = tags[layer] if layer < len(tags) else OUTSIDE
        if not TAG.fullmatch(tag):
            reason = f"the tag '{tag}' is neither O nor B-, I-, E- or S- with a type"
            raise BadInput(place, reason, "For tags of other kinds set scheme: plain.")
        return tag

    def submission(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """Return the input of the script conlleval: on each line a word, its tag if it is known, the predicted tag.

        Spaces in words become underscores, as they separate the columns.
        """
        text = ""
        for example, found in zip(self.read(split), predictions, strict=True):
            words = [word.replace(" ", "_") for word in example.words]
            read = [words, example.tags] if example.tags else [words]
            text += "".join(" ".join(row) + "\n" for row in zip(*read, found["prediction"], strict=True)) + "\n"
        return f"{split}.txt", text


def _columns(line: str, tabs: bool) -> list[str]:
    """Return the columns of a line; between tabs, a word may be a space."""
    if not line.strip(" \t"):
        return []
    found = [column for column in (TABS if tabs else SPACES).split(line) if column]
    return [column.strip(" ") or " " for column in found]


def _is_numbered(sentence: Sentence) -> bool:
    """Return whether the first column counts the words."""
    numbers = [row[0] for _, row in sentence if not NO_WORD.fullmatch(row[0])]
    return numbers == [str(number) for number in range(1, len(numbers) + 1)]


def _parts(column: str) -> list[str]:
    """Return the tags in a column, if it has several of entities; otherwise the column."""
    parts = SEVERAL.split(column)
    return parts if all(part == OUTSIDE or (TAG.fullmatch(part) and "-" in part) for part in parts) else [column]
