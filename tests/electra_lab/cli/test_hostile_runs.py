"""report and resume on a run directory from an untrusted source."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_lab.storage.provenance import FORMAT
from electra_lab.storage.run_directory import RunDirectory

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "run"))


def text(name: str, content: str | bytes) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def place(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda run: [(run / name).unlink(), make(run / name)]


def row(token: str, probability: str) -> str:
    """Return the content of examples.json with one token."""
    return f'[[{{"token": "{token}", "original": "x", "replaced": true, "probability": {probability}}}]]'


STYLE = '"0;background:url(javascript:1)"'
CASES: dict[str, tuple[Callable[[Path], object], int]] = {
    "examples are numbers": (text("examples.json", "[1, 2]"), 4),
    "examples are nested": (text("examples.json", "[" * 100_000), 4),
    "a token lacks the rest": (text("examples.json", '[[{"token": "a"}]]'), 4),
    "a probability is text": (text("examples.json", row("a", STYLE)), 4),
    "a step is text": (text("metrics.jsonl", '{"step": "3", "split": "test"}\n{}\n'), 4),
    "a step is huge": (text("metrics.jsonl", f'{{"step": {"9" * 400}, "split": "test"}}\n{{}}\n'), 4),
    "a number is infinite": (text("metrics.jsonl", '{"step": 3, "split": "test", "loss": 9e999}\n{}\n'), 4),
    "a record is empty": (text("metrics.jsonl", "{}\n{}\n"), 4),
    "metrics are a FIFO": (place("metrics.jsonl", os.mkfifo), 4),
    "metrics are a folder": (place("metrics.jsonl", Path.mkdir), 4),
    "the config is nested": (text("config.yaml", "a: " + "[" * 5000), 4),
    "the config is not UTF-8": (text("config.yaml", b"name: \xff\n"), 4),
    "the name is a mapping": (text("config.yaml", f"name: {{a: {SCRIPT}}}\n"), 4),
    "the config has tags": (text("config.yaml", "name: !!python/object/apply:os.system ['touch PWNED']\n"), 4),
    "the config is a list": (text("config.yaml", "- 1\n"), 4),
    "the config is a word": (text("config.yaml", "text"), 4),
    "the config is cut": (text("config.yaml", "a: [1"), 4),
    "the config is a FIFO": (place("config.yaml", os.mkfifo), 2),
    "provenance is nested": (text("provenance.json", "[" * 100_000), 4),
    "provenance is a number": (text("provenance.json", "1"), 4),
    "provenance is a folder": (place("provenance.json", Path.mkdir), 2),
    "provenance leads nowhere": (place("provenance.json", lambda path: path.symlink_to("nowhere")), 2),
    "provenance is huge": (lambda run: os.truncate(run / "provenance.json", 1 << 31), 4),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_a_report_is_a_sentence(lab: Any, copy: Path, case: str) -> None:
    change, code = CASES[case]
    change(copy)
    err = lab.fails(code, "report", copy)
    assert err.startswith(str(copy)) or code == 2
    assert (str(copy) in err, len(err) < 500, err.count("\n")) == (True, True, 1)
    assert not (Path() / "PWNED").exists()
    assert not (copy / "report.html").exists()


def test_a_folder_of_another_format_is_left_as_it_is(lab: Any, copy: Path) -> None:
    file, other = copy / "provenance.json", FORMAT + 1
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": other, "electra_lab": "0.5"}))
    err = lab.fails(4, "resume", copy)
    assert err.startswith(f"{copy}: was written by electra_lab 0.5 in format {other}; this version reads format ")
    (copy / "report.html").write_text("as it was")
    assert lab.fails(4, "report", copy) == err
    assert (copy / "report.html").read_text() == "as it was"


def test_a_run_that_is_in_use_is_left_alone(lab: Any, copy: Path) -> None:
    with RunDirectory(copy).locked():
        assert lab.fails(2, "resume", copy) == f"{copy}: is in use by process {os.getpid()}.\n"
    assert lab("resume", copy)[0] == 0
    err = lab.fails(2, "resume", copy.parent)
    assert err.startswith(f"{copy.parent}: is not the folder of a job")
    assert "config.yaml and provenance.json" in err
