"""Files with a word and its tag on each line, as in the shared tasks of CoNLL."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from electra_lab.datasets._files import CURE, FileSplits, columns, text_lines
from electra_lab.datasets._schemes import SCHEMES, TAG, misfit, to_iob2
from electra_lab.datasets._splits import HeldOut
from electra_lab.sources.files import BadInput, Files
from registry import WordsExample, datasets

SPACES = re.compile("[ \t]+")  # others may be in words
BREAK = "-DOCSTART-"  # between documents


@datasets.register("conll", yields=WordsExample)
class Conll(FileSplits[WordsExample]):
    """Words with tags in columns, one word on a line, plain or compressed (.gz, .xz, .zst).

    Spaces or tabs separate columns, and blank lines sentences; lines that begin with -DOCSTART- are left out. Tags of
    entities are read as IOB2, whatever their scheme is. Files of a single column are words whose tags are not known.

    train, validation, test  a file, a pattern such as `eng.train*`, or a folder; relative to the fine-tuning file
    word_column              counted from 0; -1 is the last one
    tag_column               the same
    scheme                   of the tags: auto finds out which one all tags of a split fit; plain takes tags as they
                             are, such as parts of speech
    held_out                 without a file for validation, the share of train that it gets, by a hash of the words
    """

    def __init__(
        self,
        /,
        *,
        train: Path | None = None,
        validation: Path | None = None,
        test: Path | None = None,
        word_column: Annotated[int, Field(ge=-100, le=100)] = 0,
        tag_column: Annotated[int, Field(ge=-100, le=100)] = -1,
        scheme: Literal["auto", "IOB1", "IOB2", "BIOES", "plain"] = "auto",
        held_out: HeldOut = 0.1,
    ) -> None:
        self._word, self._tag, self._scheme = word_column, tag_column, scheme
        paths = {"train": train, "validation": validation, "test": test}
        options = {"word_column": word_column, "tag_column": tag_column, "scheme": scheme}
        super().__init__(paths, [""], options, held_out)

    def _examples(self, source: str) -> Iterator[tuple[str, WordsExample]]:
        found = list(super()._examples(source))
        scheme = self._scheme if self._scheme == "plain" else self._checked([example for _, example in found])
        for key, example in found:
            if example.tags is not None and scheme != "plain":
                example = replace(example, tags=to_iob2(example.tags, scheme))
            yield key, example

    def _checked(self, examples: Sequence[WordsExample]) -> str:
        """Return the scheme that all tags fit. Raises BadInput for the first one that does not."""
        for example in examples:
            for number, tag in enumerate(example.tags or ()):
                if not TAG.fullmatch(tag):
                    reason = f"the tag '{tag}' is neither O nor B-, I-, E- or S- with a type"
                    raise BadInput(_line(example, number), reason, "For tags of other kinds set scheme: plain.")
        misfits = {}
        for scheme in SCHEMES if self._scheme == "auto" else [self._scheme]:
            places = ((n, misfit(example.tags or (), scheme)) for n, example in enumerate(examples))
            first = next(((n, word) for n, word in places if word is not None), None)
            if first is None:
                return scheme
            misfits[first] = scheme
        number, word = last = max(misfits)  # of the scheme that holds longest
        example = examples[number]
        reason = f"the tag '{(example.tags or ())[word]}' does not fit {misfits[last]}"
        if self._scheme == "auto":
            reason += ", and the other schemes fit even less"
        raise BadInput(_line(example, word), reason, f"{CURE} To take tags as they are set scheme: plain.")

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[tuple[str, WordsExample]]:
        rows: list[list[str]] = []
        begin, number = "", 0
        for place, line in chain(text_lines(files, file), [("", "")]):
            row = [column for column in SPACES.split(line) if column]
            if row and not line.startswith(BREAK):
                number = number or self._number(row, place)
                if len(row) != number:
                    raise BadInput(place, f"has {columns(len(row))}, not {number} as the lines before it", CURE)
                begin = begin or place
                rows.append(row)
            elif rows:
                words = tuple(row[self._word] for row in rows)
                tags = tuple(row[self._tag] for row in rows) if number > 1 else None
                yield " ".join(words), WordsExample(words, tags, place=begin)
                rows, begin = [], ""

    def _number(self, row: Sequence[str], place: str) -> int:
        """Return the number of columns. Raises BadInput if the words' or the tags' is not among them."""
        wanted = {"word_column": self._word} | ({"tag_column": self._tag} if len(row) > 1 else {})
        for name, column in wanted.items():
            if not -len(row) <= column < len(row):
                raise BadInput(place, f"has {columns(len(row))}, but {name} is {column}", "They are counted from 0.")
        if len(row) > 1 and self._word % len(row) == self._tag % len(row):
            raise BadInput(place, "word_column and tag_column are the same column", "Change one of them.")
        return len(row)

    def submission(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """Return the input of the script conlleval: on each line a word, its tag if it is known, the predicted tag."""
        text = ""
        for example, found in zip(self.read(split), predictions, strict=True):
            read = [example.words, example.tags] if example.tags else [example.words]
            text += "".join(" ".join(row) + "\n" for row in zip(*read, found["prediction"], strict=True)) + "\n"
        return f"{split}.txt", text


def _line(example: WordsExample, word: int) -> str:
    """Return the place of a word of an example."""
    file, _, first = example.place.rpartition(":")
    return f"{file}:{int(first) + word}"
