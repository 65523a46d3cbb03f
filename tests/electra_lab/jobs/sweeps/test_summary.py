"""The terminal output of an ablation: check, the dry run, and the last lines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from electra_lab.jobs.sweeps import run
from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.jobs.sweeps.plan import checked, plan_of
from electra_lab.presentation.sweep_page import write_report
from electra_lab.presentation.sweep_summary import Need, closing, differences, forecast
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.plan import Plan
from tests.electra_lab.presentation.synthetic import write_folder
from tests.helpers import write_experiment

NEEDS = {
    "small": Need("small", {"discriminator": 5000, "generator": 1000}, 8, 3e9, 5e9, 120.0),
    "large": Need("large", {"discriminator": 5000}, 8, 7e9, None, None),
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Two variants, two seeds, no reference."""
    folder = write_folder(tmp_path_factory.mktemp("plan"), {"small": {}, "large": {"x": 1}}, (0, 1))
    return AblationFolder(folder).plan


ALL = ["training"] * 4


@pytest.mark.parametrize(
    ("missing", "seconds", "workers", "expected"),
    [
        # No number of workers shortens the longest run.
        (ALL, (120.0, 120.0), 1, " 2e+10 FLOPs, about 8 min of training, one at a time."),
        (ALL, (120.0, 120.0), 2, " 2e+10 FLOPs, about 4 min of training, 2 at a time."),
        (ALL, (120.0, 120.0), 64, " 2e+10 FLOPs, about 2 min of training, 4 at a time."),
        (ALL, (120.0, 120.0), 3, " 2e+10 FLOPs, about 2.7 min of training, 3 at a time."),  # at best 160 s
        (ALL, (6.0, 600.0), 3, " 2e+10 FLOPs, about 10 min of training, 3 at a time."),
        (ALL, (None, 120.0), 2, " 2e+10 FLOPs, time unknown, as no step was tried."),
        (ALL, (14.0, 15.0), 1, " 2e+10 FLOPs, about 58 s of training, one at a time."),
        (ALL, (3600.0, 3600.0), 1, " 2e+10 FLOPs, about 4 h of training, one at a time."),
        # Cells that only need measures cost no training.
        (["training", "one", "training", ""], (60.0, 600.0), 9,
         ": 2 to train, 1 to measure, 6e+09 FLOPs, about 1 min of training, 2 at a time."),
        (["", "one", "", "one"], (None, None), 1, ": nothing to train, 2 to measure."),
        (["", "", "", ""], (60.0, 600.0), 1, ": nothing."),
    ],
)  # fmt: skip
def test_what_is_left_to_do(plan: Plan, missing: list[str], seconds: Any, workers: int, expected: str) -> None:
    """The cells small, large, small, large lack one element of `missing` each."""
    needs = {label: replace(NEEDS[label], seconds=time) for label, time in zip(NEEDS, seconds, strict=True)}
    ids = ["v0-s0", "v1-s0", "v0-s1", "v1-s1"]
    lacking = {id: (what,) if what else () for id, what in zip(ids, missing, strict=True)}
    said = forecast(plan, needs, lacking, Path("out"), workers)
    [left] = [line for line in said.splitlines() if "left to do" in line]
    assert left.endswith(expected)


def test_the_rows_of_a_dry_run_are_those_of_their_variants(plan: Plan) -> None:
    text = forecast(plan, NEEDS, {cell.id: ("training",) for cell in plan.cells}, Path("out"), 1)
    assert text.startswith("generator_size: 2 variants x 2 seeds = 4 cells, 0 already done, in out\n")
    rows = [line.split() for line in text.splitlines()[3:5]]
    assert rows == [
        ["small", "5,000", "1,000", "8", "3e+09", "5.00", "GB", "2", "min"],
        ["large", "5,000", "-", "8", "7e+09", "unknown", "unknown"],
    ]


def write(folder: Path, measure: str, vary: str = "{generator.scale: [0.5, 1.0]}", **sections: str) -> Path:
    write_experiment(folder, **{"data": "{sequence_length: 16, held_out: 0.3, store: store}", **sections})
    file = folder / "sizes.yaml"
    text = f"name: sizes\nbase: tiny.yaml\nvary: {vary}\nseeds: [0, 1]\nbudget: {{steps: 8}}\nmeasure: [{measure}]\n"
    file.write_text(text, encoding="utf-8")
    return file


def test_references_are_runs_too(tmp_path: Path) -> None:
    file = write(tmp_path, "{type: fixed_corruption, steps: 4}")
    ablation = checked(load_ablation(file))
    said, (listed, _) = run.dry_run(file, [], tmp_path / "out", "cpu", None, None), run.check(file, [])
    assert "2 variants x 2 seeds = 4 cells, 2 reference runs, 0 already done" in said
    assert "left to do: 6 runs, " in said
    for name, cell in ablation.references["fixed_corruption"].items():
        label = f"reference of fixed_corruption ({name})"
        row = next(line for line in said.splitlines() if line.startswith(f"  {label} "))
        size = sum(p.numel() for p in ablation.sketches[cell.id].networks["discriminator"].parameters())
        assert row.split()[4:7] == [f"{size:,}", "-", "4"]
        assert f"  {label}  seed -      {cell.id}" in listed


def test_differences_are_listed_in_check_and_in_the_dry_run(tmp_path: Path) -> None:
    """Also consequences of a change: another type of masking has its own default."""
    vary = "{base: {}, words: {masking.type: whole_word}}"
    file = write(tmp_path, "{type: pretraining}", vary, masking="{type: replace_prob, mask_prob: 0.3}")
    expected = [
        "  differences to the baseline, base:",
        "  words:  masking.type replace_prob -> whole_word; masking.mask_prob 0.3 -> 0.15 (not named)",
    ]
    for said in (run.check(file, [])[0], run.dry_run(file, [], tmp_path / "out", "cpu", None, None)):
        assert "\n".join(["", *expected, ""]) in said


def test_options_that_only_one_of_two_types_has_are_not_listed(tmp_path: Path) -> None:
    """The page has them. Keys that are null count as absent."""
    vary = """
      base: {}
      span: {masking: {type: span, mask_prob: 0.3}, generator: {ff_mult: 2.0}}
      plain: {checkpoint: {minutes: 30}}
      stable: {schedules.learning_rate: {type: warmup_stable_decay, warmup_steps: 1}}
      alone: {objective.type: mlm, generator: null, sampler: null}
    """
    rate = "{learning_rate: {type: warmup_linear, warmup_share: 0.1}}"
    sections = {"masking": "{type: replace_prob, mask_prob: 0.3}", "schedules": rate}

    def listed(vary: str) -> list[str]:
        return differences(plan_of(checked(load_ablation(write(tmp_path, "{type: pretraining}", vary, **sections)))))

    _, span, plain, stable, alone = listed(vary)
    assert span == "  span:  generator.ff_mult 4.0 -> 2.0; masking.type replace_prob -> span"
    assert plain == "  plain:  checkpoint.minutes null -> 30.0"
    assert stable.count(" -> ") == 2  # the type, and the number of steps that both have
    assert re.search(r" generator\.type bert -> null; sampler\.type gumbel -> null", alone)
    _, base, *_ = listed(vary + "\nbaseline: alone")
    assert "objective.type mlm -> electra" in base
    assert "; generator.type null -> bert; sampler.type null -> gumbel" in base


HOSTILE = "Is ## this\n\n## a heading |\n\n## of its own?"


@pytest.mark.parametrize("question", ["Why?", HOSTILE, "## Why? |", "| Why?\n\n## |", ""])
def test_the_last_lines_are_the_verdict_and_the_leading_table_whatever_words_are_there(tmp_path, question) -> None:
    labels = {"a ## b": {}, "c\n\n## d |": {"x": 1}, "e |\n## f": {"x": 2}}
    folder = write_folder(tmp_path / "out", labels, question=question)
    write_report(folder)
    said = closing(folder)
    assert "With 3 seeds this is exploratory:" in said
    rows = said.removesuffix(f"\n\nreport {folder / 'report.html'}").splitlines()[-3:]
    for row, label in zip(rows, ("a ## b", "c ## d |", "e | ## f"), strict=True):
        assert row.startswith(f"| {label} ")
        assert row.endswith(" |")
    assert said.count(" is better") == 1  # the first table alone
