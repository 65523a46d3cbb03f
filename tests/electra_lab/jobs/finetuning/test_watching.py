"""A fine-tuning that is watched: its page grows seed by seed, and the bar names the seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from electra_lab.jobs.finetuning.run import finetune
from electra_lab.presentation.console import Console
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.presentation.finetuned import leave_out_curve
from tests.pages import Page


def test_the_page_shows_each_seed_as_it_finishes(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_curve(monkeypatch)
    seen, out = dict[str, list[str]](), tmp_path / "out"

    def advance(console: Console, done: int) -> None:
        page = out / "report.html"
        seen.setdefault(console.title, []).append(Page(page).text if page.exists() else "")

    monkeypatch.setattr(Console, "advance", advance)
    finetune(write_finetuning(tmp_path, model, seeds=[3, 5]), [], out, "cpu")
    first, second = seen["seed 3 (1/2)"], seen["seed 5 (2/2)"]
    assert first[0] == ""
    assert "Running" in first[6]
    assert "No seed has finished yet" in first[6]
    assert "not finished" in second[6]  # seed 5, in the facts
    assert "Results on validation" in second[6]

    assert "Running" not in Page(out / "report.html").text
