"""A dataset."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from registry import Dataset, TextExample, datasets
from registry.errors import DataError


@datasets.register("my_dataset", yields=TextExample)
class MyDataset(Dataset):
    """Files with a label, a tab and a text on each line; the file train.tsv is the split `train`.

    folder  of the files, relative to the fine-tuning file
    """

    def __init__(self, /, *, folder: Path) -> None:
        self.files = {file.stem: file for file in sorted(folder.glob("*.tsv"))}
        if not self.files:
            raise DataError(f"{folder}: has no .tsv file.")
        self.splits = list(self.files)

    def read(self, split: str) -> Iterator[TextExample]:
        if split not in self.files:
            raise DataError(f"there is no split '{split}'. Known: {', '.join(self.files)}.")
        file = self.files[split]
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            label, tab, text = line.partition("\t")
            if not (label and tab):
                raise DataError(f"{file}:{number}: is not a label, a tab and a text. Correct it.")
            yield TextExample(text, label=label, id=str(number), place=f"{file}:{number}")

    def fingerprint(self) -> str:
        """Return a hash of the content."""
        state = hashlib.sha256()
        for split, file in self.files.items():
            state.update(f"{split} {hashlib.sha256(file.read_bytes()).hexdigest()} ".encode())
        return state.hexdigest()
