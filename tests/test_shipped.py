"""The script that writes experiments/LOG.md."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, write_experiment

SCRIPT = ROOT / "benchmarks" / "shipped.py"
LOG = """# Log

Words.

| experiment | on test text | training | minutes | when |
|---|---|---|---|---|
{}

After.
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "LOG.md"
    file.write_text(LOG.format("| `a` | 1 | 2 | 3 | 4 |\n| `plugins/z` | 1 | 2 | 3 | 4 |"), encoding="utf-8")
    return file


def test_a_row_takes_its_place(log: Path) -> None:
    note = runpy.run_path(str(SCRIPT))["note"]
    note("| `objectives/m` `--set b=c` | new | 2 | 3 | 4 |", log)
    note("| `a` | newer | 2 | 3 | 4 |", log)
    note("| `plugins/z` `--set b=c` | changed | 2 | 3 | 4 |", log)
    rows = ("`a` | newer", "`objectives/m` `--set b=c` | new", "`plugins/z` | 1", "`plugins/z` `--set b=c` | changed")
    assert log.read_text(encoding="utf-8") == LOG.format("\n".join(f"| {row} | 2 | 3 | 4 |" for row in rows))


@pytest.mark.slow
def test_an_experiment_is_run_and_noted(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments that fail are named; their earlier results stay."""
    write_experiment(tmp_path / "there")
    changes = [word for change in ("train.steps=2",) for word in ("--set", change)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "tiny", "a", "--log", str(log), *changes])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    module = runpy.run_path(str(SCRIPT))
    module["main"].__globals__["FOLDER"] = tmp_path / "there"
    with pytest.raises(SystemExit, match=r"^these failed: a$"):
        module["main"]()
    first, _, row, last = log.read_text(encoding="utf-8").splitlines()[6:10]
    assert (first, last) == ("| `a` | 1 | 2 | 3 | 4 |", "")
    assert re.fullmatch(
        r"\| `tiny` `--set train\.steps=2` \| .* AUC \d\.\d{3} against .* \| 2 steps, 0\.0 M tokens \| \d\.\d"
        r" \| \d{4}-\d\d-\d\d, \w+, \d+ threads? \|",
        row,
    ), row


def test_what_needs_a_gpu_is_left_out_and_what_others_start_from_comes_first() -> None:
    names = runpy.run_path(str(SCRIPT))["shipped"]()
    assert not {"electra_base", "modernbert_base", "deberta_v3_small", "domain_deberta", "ettin_17m"} & set(names)
    assert {"reformer_small", "plugins/eta", "objectives/frozen_generator"} <= set(names)
    assert names.index("objectives/mlm") < names.index("objectives/frozen_generator")
