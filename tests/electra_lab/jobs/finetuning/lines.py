"""A plug-in for tests: a dataset of lines, `label<tab>text`, in a folder with a file per split."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from registry import Dataset, PairExample, TextExample, datasets
from registry.errors import DataError


@datasets.register("lines", yields=TextExample)
class Lines(Dataset):
    """Lines with a label and a text."""

    def __init__(self, /, *, folder: Path) -> None:
        self.files = sorted(folder.glob("*.txt"))
        if not self.files:
            raise DataError(f"{folder}: has no .txt files.")
        self.splits = [file.stem for file in self.files]

    def read(self, split: str) -> Iterator[TextExample]:
        file = next(file for file in self.files if file.stem == split)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            label, text = line.split("\t")
            yield TextExample(text, label=label or None, id=str(number), place=f"{file}:{number}")

    def fingerprint(self) -> str:
        return hashlib.sha256(b"".join(file.read_bytes() for file in self.files)).hexdigest()

    def submission(self, split: str, predictions: list[dict[str, str]]) -> tuple[str, str] | None:
        return ("answers.txt", "".join(f"{row['prediction']}\n" for row in predictions)) if split == "test" else None


@datasets.register("line_pairs", yields=PairExample)
class LinePairs(Dataset):
    """Pairs of lines."""

    splits = ("test",)

    def __init__(self, /, *, folder: Path) -> None:
        self.folder = folder

    def read(self, split: str) -> Iterator[PairExample]:
        for number in range(20):
            yield PairExample(f"the cat sat {number}", f"the sat cat {number}", "order", "syntax", str(number), "x:1")

    def fingerprint(self) -> str:
        return "pairs"
