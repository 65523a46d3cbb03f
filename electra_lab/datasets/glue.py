"""GLUE, the General Language Understanding Evaluation."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal

from electra_lab.datasets._splits import TEST, TRAIN, VALIDATION, Entry, FileSplits, attempted
from electra_lab.datasets._texts import key_of, label_of
from electra_lab.sources.delimited import columns
from electra_lab.sources.files import COMPRESSED, BadInput, Files
from electra_lab.sources.records import check_utf8, text_lines
from registry import TextExample, datasets
from registry.errors import DataError, did_you_mean

Name = Literal["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "AX"]

MISMATCHED, TEST_MISMATCHED, DIAGNOSTICS = "validation_mismatched", "test_mismatched", "diagnostics"
HIDDEN = (TEST, TEST_MISMATCHED, DIAGNOSTICS)  # their labels
COLA = ["source", "label", "mark", "sentence"]  # the columns of the files without a header
FILES = {TRAIN: ["train.tsv"], VALIDATION: ["dev.tsv"], TEST: ["test.tsv"]}
AX = ["diagnostics.tsv", "diagnostic.tsv", "AX.tsv", "diagnostic-full.tsv"]
BEST_SCORE = 5.0  # of STS-B


@dataclass(frozen=True)
class Format:
    """The files of a task, the first of each list that is there; the names of their columns; and the labels.

    texts  names of the columns of the text, and of the second text of pairs
    """

    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]  # none for numbers
    files: Mapping[str, Sequence[str]]


BINARY, NLI = ("0", "1"), ("contradiction", "entailment", "neutral")
SENTENCES, ENTAILED = ("sentence1", "sentence2"), ("entailment", "not_entailment")
FORMATS = {
    "CoLA": Format(("sentence",), "label", BINARY, FILES),
    "SST-2": Format(("sentence",), "label", BINARY, FILES),
    "MRPC": Format(("#1 String", "#2 String"), "Quality", BINARY, FILES),
    "STS-B": Format(SENTENCES, "score", (), FILES),
    "QQP": Format(("question1", "question2"), "is_duplicate", BINARY, FILES),
    "MNLI": Format(
        SENTENCES, "gold_label", NLI,
        {
            TRAIN: ["train.tsv"],
            VALIDATION: ["dev_matched.tsv"],
            MISMATCHED: ["dev_mismatched.tsv"],
            TEST: ["test_matched.tsv"],
            TEST_MISMATCHED: ["test_mismatched.tsv"],
            DIAGNOSTICS: [*AX, *(f"../AX/{name}" for name in AX), *(f"../diagnostic/{name}" for name in AX)],
        },
    ),
    "QNLI": Format(("question", "sentence"), "label", ENTAILED, FILES),
    "RTE": Format(SENTENCES, "label", ENTAILED, FILES),
    "WNLI": Format(SENTENCES, "label", BINARY, FILES),
    "AX": Format(SENTENCES, "label", NLI, {TEST: AX}),
}  # fmt: skip
FULL = {"sentence1": "Premise", "sentence2": "Hypothesis", "label": "Label"}  # the columns of diagnostic-full.tsv
UNORDERED = ("MRPC", "STS-B")  # that google-research/electra doubles


@datasets.register("glue", yields=TextExample)
class Glue(FileSplits[TextExample]):
    """GLUE's nine tasks and its diagnostics, in the files of its download, plain or compressed.

    There is a split for each file: train, validation, test; of MNLI also validation_mismatched, test_mismatched and, if
    diagnostics.tsv is in its folder or in AX or diagnostic next to it, diagnostics. Labels are those of GLUE's
    submissions: 0 and 1, entailment and so on; scores from 0 to 5 for STS-B. Quotes are ordinary characters, and white
    space around texts is removed. Lines of QQP's train and dev with missing columns (questions broken over several
    lines) are left out, as in google-research/electra.

    name              name of the task; AX is the diagnostics alone
    folder            the task's folder, relative to the fine-tuning file
    double_unordered  train on both orders of the pairs, for MRPC and STS-B, as google-research/electra does
    """

    def __init__(self, /, *, name: Name, folder: Path, double_unordered: bool = False) -> None:
        if double_unordered and name not in UNORDERED:
            raise ValueError(f"double_unordered is for {' and '.join(UNORDERED)} only.")
        self.name, self.format, self._doubles = name, FORMATS[name], double_unordered
        paths = {split: _first(folder, names) for split, names in self.format.files.items()}
        if not any(paths.values()):
            here = [file for file in chain.from_iterable(self.format.files.values()) if not file.startswith("..")]
            inside = f" Did you mean {folder / name}?" if os.path.isdir(folder / name) else ""
            raise DataError(f"{folder}: has no file of {name}. Looked for {', '.join(here)}.{inside}")
        super().__init__(paths, {"name": name, "double_unordered": double_unordered})

    @staticmethod
    def fields(options: Mapping[str, Any]) -> list[str]:
        return [*FORMATS[options["name"]].texts]

    def read(self, split: str) -> Iterator[TextExample]:
        yield from super().read(split)
        if self._doubles and split == TRAIN:
            for example in super().read(split):
                yield replace(example, text=example.pair or "", pair=example.text, id=f"{example.id} swapped")

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Entry[TextExample]]:
        rows = ((place, line.split("\t")) for place, line in text_lines(files, file) if line)
        # The header, which two files do not have.
        if self.name == "CoLA" and source != TEST:
            at, header = str(file), COLA
        else:
            at, header = next(rows, (str(file), []))
        if not header:
            return
        places = self._columns(header, at, source)
        # The rows.
        for place, row in rows:
            if len(row) < len(header) and self.name == "QQP" and source != TEST:
                continue
            if len(row) != len(header):
                yield BadInput(place, f"has {columns(len(row))}, not {len(header)}")
                continue
            values = {name: row[column] for name, column in places.items()}
            yield attempted(self._example, values, place)

    def _columns(self, header: list[str], place: str, source: str) -> dict[str, int]:
        """Return the places of the columns in the header, by our names. Raises BadInput."""
        names = dict(zip(("text", "pair"), self.format.texts, strict=False)) | {"label": self.format.label}
        if source in HIDDEN and FULL["sentence1"] in header:
            names = {field: FULL[column] for field, column in names.items()}
        places = {field: header.index(column) for field, column in names.items() if column in header}
        for field, column in names.items():
            if field not in places and not (field == "label" and source in HIDDEN):
                hint = did_you_mean(column, header).strip()
                raise BadInput(place, f"there is no column '{column}'", f"{hint} Is it a file of {self.name}?")
        if source in HIDDEN and header[0] in ("index", "id"):
            places["id"] = 0
        return places

    def _example(self, row: Mapping[str, str], place: str) -> tuple[str, TextExample]:
        check_utf8(row.values(), place)
        text, pair = row["text"].strip(), row["pair"].strip() if "pair" in row else None
        example = TextExample(text, pair, self._label(row.get("label"), place), row.get("id", ""), place)
        return key_of(text, pair), example

    def _label(self, value: str | None, place: str) -> str | float | None:
        if value is None:
            return None
        labels = self.format.labels
        if labels and value not in labels:
            raise BadInput(place, f"the label '{value}' is not {' or '.join(labels)}")
        if labels:
            return value
        score = label_of(value, self.format.label, "number", place)
        if not isinstance(score, float) or not 0 <= score <= BEST_SCORE:
            raise BadInput(place, f"the score '{value}' is not a number from 0 to {BEST_SCORE:g}")
        return score

    def submission(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
        """Return the file that GLUE accepts for a test: its name and its content."""
        names: dict[str, str] = {TEST: self.name}
        if self.name == "MNLI":
            names = {TEST: "MNLI-m", TEST_MISMATCHED: "MNLI-mm", DIAGNOSTICS: "AX"}
        if split not in names:
            return None
        lines = [f"{answer['id']}\t{self._written(answer['prediction'])}\n" for answer in predictions]
        return f"{names[split]}.tsv", "index\tprediction\n" + "".join(lines)

    def _written(self, prediction: Any) -> str:
        if self.format.labels:
            return str(prediction)
        return f"{min(max(prediction, 0.0), BEST_SCORE):.3f}"


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first of the files that exists, plain or compressed."""
    for name, ending in product(names, ("", *COMPRESSED)):
        if os.path.isfile(path := os.path.normpath(folder / f"{name}{ending}")):
            return Path(path)
    return None
