"""The core: the files that compute a training, as CONTRIBUTING.md lists them in reading order."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble
from electra_lab.config.load import load
from electra_lab.training.loop import advance
from tests.helpers import ROOT
from tests.test_architecture import imports, name_of

LISTED = re.findall(r"^\d+\. `(.+?)`(\*?): ", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
CORE = [path for path, _ in LISTED]
# They may shrink. More is a reason to look for what does not belong there.
MOST_FILES, MOST_LINES = 34, 6_950


def module_level_imports(path: Path) -> set[str]:
    """Return the files of both packages that an import of this one executes."""
    files = set()
    for module, typing_only, inside in imports(path):
        if typing_only or inside:
            continue
        place = Path(*module.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if module.startswith(("electra_lab.", "registry")) and (ROOT / file).is_file():
                files.add(str(file))
    return files


def test_the_core_imports_nothing_else() -> None:
    for file in CORE:
        assert module_level_imports(ROOT / file) <= {*CORE}, file


def test_the_core_stays_small() -> None:
    assert len({*CORE}) == len(CORE) <= MOST_FILES
    assert sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in CORE) <= MOST_LINES


@pytest.mark.filterwarnings("ignore::registry.errors.UnknownText")
def test_a_step_runs_through_the_starred_files(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(
        "".join(f"the {number} words of document {number}\n\n" for number in range(400)), encoding="utf-8"
    )
    small = {
        "corpus": f"{{type: text_files, paths: ['{corpus}'], documents: paragraphs}}",
        "data.store": str(tmp_path / "store"),
        "tokenizer": "{type: wordpiece, vocab_size: 200}", "data.sequence_length": "16", "train.batch_size": "2",
        "train.steps": "4", "schedules.learning_rate.warmup_steps": "1",
        "discriminator": "{type: bert, dim: 16, depth: 1, heads: 2}",
    }  # fmt: skip
    loaded = load(ROOT / "experiments/bert_small.yaml", [f"{key}={value}" for key, value in small.items()])
    built = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))

    executed: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<"):
            executed.add(code.co_filename)

    built.run.begin(built.settings, torch.device("cpu"))
    advance(built.run, built.settings, built.train, torch.device("cpu"))
    sys.setprofile(note)
    try:
        for _ in range(3):
            advance(built.run, built.settings, built.train, torch.device("cpu"))
    finally:
        sys.setprofile(None)
    packages = (str(ROOT / "electra_lab"), str(ROOT / "registry"))
    ours = {str(Path(name).relative_to(ROOT)) for name in executed if name.startswith(packages)}
    assert ours == {path for path, star in LISTED if star}
    assert name_of(ROOT / CORE[0]) == "electra_lab.objectives.electra"
