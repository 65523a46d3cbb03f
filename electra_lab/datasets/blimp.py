"""Minimal pairs in the format of BLiMP, the Benchmark of Linguistic Minimal Pairs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from electra_lab.datasets._splits import TEST, Entry, FileSplits, attempted
from electra_lab.sources.files import BadInput, Files, uncompressed
from electra_lab.sources.records import record_in, records, value_of, whole_text
from registry import PairExample, datasets


@datasets.register("blimp", yields=PairExample)
class Blimp(FileSplits[PairExample]):
    """BLiMP (Warstadt et al., 2020) and others in its format: JSON lines, plain or compressed (.gz, .xz, .bz2, .zst).

    Each object has `sentence_good` and `sentence_bad`. The paradigm is its `UID`, or by default the name of the file.
    The only split is test, and an id is the paradigm with the number of the pair in it.

    folder    a folder with .jsonl files, a file, or a pattern; relative to the fine-tuning file
    group_by  the field by which results are grouped, if objects have it; BLiMP's `field` has four values and
              `linguistics_term` twelve
    """

    extensions = (".jsonl",)

    def __init__(self, /, *, folder: Path, group_by: Literal["field", "linguistics_term"] = "field") -> None:
        self._group_by = group_by
        super().__init__({TEST: folder}, {"group_by": group_by})

    def _examples(self, source: str) -> Iterator[Entry[PairExample]]:
        numbers: Counter[str] = Counter()
        for entry in super()._examples(source):
            if not isinstance(entry, BadInput):
                key, example = entry
                entry = key, replace(example, id=f"{example.paradigm}_{numbers[example.paradigm]}")
                numbers[example.paradigm] += 1
            yield entry

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Entry[PairExample]]:
        for place, line in records(files, file):
            yield attempted(self._example, line, place, file)

    def _example(self, line: bytes, place: str, file: Path) -> tuple[str, PairExample]:
        record = record_in(line, place)
        sides = ("sentence_good", "sentence_bad")
        good, bad = (whole_text(value_of(record, place, side), side, place) for side in sides)
        paradigm, field = (whole_text(record.get(name, ""), name, place) for name in ("UID", self._group_by))
        return "", PairExample(good, bad, paradigm or uncompressed(file).stem, field, place=place)
