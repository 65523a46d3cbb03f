"""report and resume on a run directory that somebody else has written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_lab.jobs.pretraining import execute
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("sound")
    with for_a_module():
        train = "{steps: 4, batch_size: 2, precision: fp32, log_every: 2}"
        execute.run(experiment(here, train=train, evaluate="{every: 2, examples: 2}"), [], here / "run", "cpu")
    return here / "run"


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


def text(name: str, content: str | bytes) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def place(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def put(run: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return put


def row(token: str, probability: str) -> str:
    """Return the content of examples.json with one token."""
    return f'[[{{"token": "{token}", "original": "x", "replaced": true, "probability": {probability}}}]]'


HUGE = "9" * 400
CASES: dict[str, tuple[Callable[[Path], object], int]] = {
    "examples are numbers": (text("examples.json", "[1, 2]"), 4),
    "examples are nested": (text("examples.json", "[" * 100_000), 4),
    "a probability is text": (text("examples.json", row("a", '"0;background:url(javascript:1)"')), 4),
    "a step is text": (text("metrics.jsonl", '{"step": "3", "split": "test"}\n{}\n'), 4),
    "a step is huge": (text("metrics.jsonl", f'{{"step": {HUGE}, "split": "test"}}\n{{}}\n'), 4),
    "a number is infinite": (text("metrics.jsonl", '{"step": 3, "split": "test", "loss": 9e999}\n{}\n'), 4),
    "metrics are a FIFO": (place("metrics.jsonl", os.mkfifo), 4),
    "metrics are a folder": (place("metrics.jsonl", Path.mkdir), 4),
    "the config is nested": (text("config.yaml", "a: " + "[" * 5000), 4),
    "the config is not UTF-8": (text("config.yaml", b"name: \xff\n"), 4),
    "the name is a mapping": (text("config.yaml", f"name: {{a: {SCRIPT}}}\n"), 4),
    "the config has tags": (text("config.yaml", "name: !!python/object/apply:os.system ['touch PWNED']\n"), 4),
    "the config is a list": (text("config.yaml", "- 1\n"), 4),
    "the config is a FIFO": (place("config.yaml", os.mkfifo), 2),
    "provenance is nested": (text("provenance.json", "[" * 100_000), 4),
    "provenance is a list": (text("provenance.json", "[]"), 4),
    "provenance is a folder": (place("provenance.json", Path.mkdir), 2),
    "provenance leads nowhere": (place("provenance.json", lambda path: path.symlink_to("nowhere")), 2),
    "provenance is huge": (lambda run: os.truncate(run / "provenance.json", 1 << 31), 4),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_a_report_is_a_sentence(lab: Any, copy: Path, case: str) -> None:
    change, expected = CASES[case]
    change(copy)
    code, out, err = lab("report", copy)
    assert (code, out) == (expected, "")
    assert str(copy) in err
    assert len(err) < 500
    assert not (Path() / "PWNED").exists()
    assert not (copy / "report.html").exists()


def test_no_text_of_a_run_becomes_a_script_of_its_page(lab: Any, copy: Path) -> None:
    provenance = (copy / "provenance.json").read_text()
    (copy / "provenance.json").write_text(provenance.replace('"started": "', f'"started": "{SCRIPT}'))
    (copy / "examples.json").write_text(row(SCRIPT, "0.5"))
    (copy / "config.yaml").write_text((copy / "config.yaml").read_text().replace("name: tiny", f"name: '{SCRIPT}'"))
    code, out, err = lab("report", copy)
    assert (code, out, err) == (0, f"{copy}/report.html\n", "")
    assert SCRIPT not in (copy / "report.html").read_text()


@pytest.mark.parametrize("name", ["config.yaml", "provenance.json", "metrics.jsonl"])
def test_what_may_not_be_read_is_not_called_damaged(lab, copy: Path, monkeypatch, name: str) -> None:
    opened = os.open

    def refuse(path: Any, *rest: Any, **options: Any) -> int:
        if Path(path) == copy / name:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    code, _, err = lab("report", copy)
    assert (code, err) == (4, f"{copy / name}: cannot be read (Permission denied).\n")


def test_a_folder_that_may_not_be_entered_is_a_sentence(lab: Any, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    err = lab.fails(2, "report", copy)
    assert "cannot be read or written (Permission denied)." in err
