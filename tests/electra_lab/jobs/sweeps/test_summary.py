"""The words of an ablation in the terminal: check, the dry run, and the last lines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.jobs.sweeps.plan import Checked, checked
from electra_lab.planning.forecast import Forecast
from electra_lab.presentation.sweep_page import write_report
from electra_lab.presentation.sweep_summary import closing, differences, forecast, overview
from tests.electra_lab.presentation.synthetic import write_folder
from tests.helpers import write_experiment

FILE = """\
name: sizes
base: tiny.yaml
vary: {vary}
seeds: [0, 1]
budget: {{steps: 8}}
measure: [{measure}]
"""
SMALL, LARGE = "generator.scale=0.5", "generator.scale=1.0"


def made(folder: Path, measure: str, vary: str = "{generator.scale: [0.5, 1.0]}", **sections: str) -> Checked:
    write_experiment(folder, **{"data": "{sequence_length: 16, held_out: 0.3, store: store}", **sections})
    (folder / "sizes.yaml").write_text(FILE.format(measure=measure, vary=vary), encoding="utf-8")
    return checked(load_ablation(folder / "sizes.yaml"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checked, dict[str, Forecast]]:
    """Two variants, two seeds, no reference."""
    found = made(tmp_path_factory.mktemp("plan"), "{type: pretraining}")
    return found, found.forecasts(torch.device("cpu"))


def left(
    plain: tuple[Checked, dict[str, Forecast]],
    missing: list[str],
    seconds: tuple[float | None, float | None],
    workers: int,
) -> str:
    """Return what is said to be left of cells that lack `missing`, one each."""
    found, forecasts = plain
    lacking = {cell.id: (what,) if what else () for cell, what in zip(found.pieces, missing, strict=True)}
    said = forecast(found, forecasts, lacking, dict(zip((SMALL, LARGE), seconds, strict=True)), Path("out"), workers)
    return next(line.strip() for line in said.splitlines() if "left to do" in line)


@pytest.mark.parametrize(
    ("seconds", "workers", "expected"),
    [
        ((120.0, 120.0), 1, "about 8 min of training, one at a time"),
        ((120.0, 120.0), 2, "about 4 min of training, 2 at a time"),
        ((120.0, 120.0), 64, "about 2 min of training, 4 at a time"),
        ((120.0, 120.0), 3, "about 3 min of training, 3 at a time"),  # at best 160 s
        ((6.0, 600.0), 3, "about 10 min of training, 3 at a time"),
        ((None, 120.0), 2, "time unknown, as a step is too large to be tried here"),
        ((14.0, 15.0), 1, "about 58 s of training, one at a time"),
        ((3600.0, 3600.0), 1, "about 4.0 h of training, one at a time"),
    ],
)
def test_no_number_of_workers_shortens_the_longest_run(
    plain: tuple[Checked, dict[str, Forecast]], seconds: tuple[float | None, float | None], workers: int, expected: str
) -> None:
    assert left(plain, ["training"] * 4, seconds, workers).endswith(f" FLOPs, {expected}.")


def test_what_only_needs_measures_costs_no_training(plain: tuple[Checked, dict[str, Forecast]]) -> None:
    found, forecasts = plain
    cost = {label: needs.flops.total(needs.steps) for label, needs in forecasts.items()}
    assert [cell.variant for cell in found.pieces] == [SMALL, LARGE, SMALL, LARGE]
    assert cost[SMALL] < cost[LARGE]
    times = (60.0, 600.0)
    whole = 2 * cost[SMALL] + 2 * cost[LARGE]
    assert left(plain, ["training"] * 4, times, 1) == (
        f"left to do: 4 runs, {whole:.3g} FLOPs, about 22 min of training, one at a time."
    )
    assert left(plain, ["training", "pretraining", "training", ""], times, 9) == (
        f"left to do: 2 to train, 1 to measure, {2 * cost[SMALL]:.3g} FLOPs, about 1 min of training, 2 at a time."
    )
    assert left(plain, ["", "pretraining", "", "pretraining"], (None, None), 1) == (
        "left to do: nothing to train, 2 to measure."
    )
    assert left(plain, [""] * 4, times, 1) == "left to do: nothing."


def test_the_rows_of_a_dry_run_are_those_of_their_variants(plain: tuple[Checked, dict[str, Forecast]]) -> None:
    found, forecasts = plain
    missing = {cell.id: ("training",) for cell in found.pieces}
    text = forecast(found, forecasts, missing, {SMALL: 30.0, LARGE: None}, Path("out"), 1)
    assert text.startswith("sizes: 2 variants x 2 seeds = 4 cells, 0 already done, in out\n")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith(f"  {SMALL[:9]}")}
    for label, time in ((SMALL, ["30", "s"]), (LARGE, ["unknown"])):
        needs = forecasts[label]
        peak = max(needs.working_bytes or 0, needs.evaluation_bytes or 0)
        assert rows[label] == [
            f"{needs.parameters['discriminator']:,}", f"{needs.parameters['generator']:,}", "8",
            f"{needs.flops.total(8):.3g}", f"{(needs.state_bytes + peak) / 1e9:.2f}", "GB", *time,
        ]  # fmt: skip
    unknown = {label: replace(needs, working_bytes=None) for label, needs in forecasts.items()}
    text = forecast(found, unknown, missing, {SMALL: 30.0, LARGE: 40.0}, Path("out"), 1)
    assert text.count("unknown") == 2
    giga = 10**9
    dear = {
        SMALL: replace(forecasts[SMALL], state_bytes=3 * giga, working_bytes=giga, evaluation_bytes=2 * giga),
        LARGE: replace(forecasts[LARGE], state_bytes=3 * giga, working_bytes=4 * giga, evaluation_bytes=giga),
    }
    text = forecast(found, dear, missing, {SMALL: 30.0, LARGE: 40.0}, Path("out"), 1)
    assert re.findall(r"([\d.]+) GB", text) == ["5.00", "7.00"]


def test_references_are_runs_too(tmp_path: Path) -> None:
    found = made(tmp_path, "{type: fixed_corruption, steps: 4}")
    forecasts = found.forecasts(torch.device("cpu"))
    references = found.references["fixed_corruption"]
    ids = [cell.id for cell in references.values()]
    missing = {cell.id: ("training",) if cell.id in ids else () for cell in found.pieces}
    seconds = {SMALL: 1.0, LARGE: 1.0} | dict(zip(ids, (30.0, 50.0), strict=True))
    said = forecast(found, forecasts, missing, seconds, tmp_path, 1)
    assert "2 variants x 2 seeds = 4 cells, 2 reference runs, 4 already done" in said
    cost = sum(forecasts[id].flops.total(forecasts[id].steps) for id in ids)
    assert f"left to do: 2 runs, {cost:.3g} FLOPs, about 1 min of training, one at a time." in said
    for name, cell in references.items():
        label = f"reference of fixed_corruption ({name})"
        row = next(line for line in said.splitlines() if line.startswith(f"  {label} "))
        assert row.split()[4:7] == [f"{forecasts[cell.id].parameters['discriminator']:,}", "-", "4"]
        assert f"  {label}  seed 20201  {cell.id}" in overview(found)


def test_differences_are_listed_in_check_and_in_the_dry_run(tmp_path: Path) -> None:
    """Also what follows from a change: another type of masking brings its own default."""
    masking = "{type: replace_prob, mask_prob: 0.3}"
    found = made(tmp_path, "{type: pretraining}", "{base: {}, words: {masking.type: whole_word}}", masking=masking)
    expected = [
        "  differences to the baseline, base:",
        "  words:  masking.type replace_prob -> whole_word; masking.mask_prob 0.3 -> 0.15 (not named)",
    ]
    assert list(differences(found)) == expected
    assert "\n".join(["", *expected, ""]) in overview(found)
    forecasts = found.forecasts(torch.device("cpu"))
    missing = {cell.id: () for cell in found.pieces}
    said = forecast(found, forecasts, missing, dict.fromkeys(forecasts), tmp_path, 1)
    assert "\n".join(["", *expected, ""]) in said
    assert found.plan().variants[1].differs == {
        "masking.type": ("replace_prob", "whole_word"), "masking.mask_prob": (0.3, 0.15)
    }  # fmt: skip


def test_options_that_only_one_of_two_types_has_are_listed_after_the_types(tmp_path: Path) -> None:
    """With the values that the variant has. Keys that both have are listed as ever, even if one is null."""
    vary = """
      base: {}
      span: {masking: {type: span, mask_prob: 0.3}, generator: {ff_mult: 2.0}}
      plain: {checkpoint: {minutes: 30}}
      stable: {schedules.learning_rate: {type: warmup_stable_decay, warmup_steps: 1}}
      alone: {objective.type: mlm, generator: null, sampler: null}
    """
    sections = {
        "masking": "{type: replace_prob, mask_prob: 0.3}",
        "schedules": "{learning_rate: {type: warmup_linear, warmup_share: 0.1}}",
    }
    _, span, plain, stable, alone = differences(made(tmp_path, "{type: pretraining}", vary, **sections))
    assert span == (
        "  span:  generator.ff_mult 4.0 -> 2.0; masking.type replace_prob -> span "
        "(with length geometric, longest 10, stop_prob 0.2)"
    )
    assert plain == "  plain:  checkpoint.minutes null -> 30.0"
    assert "; schedules.learning_rate.warmup_share 0.1 -> null" in stable
    assert re.search(r" generator\.type bert -> null \(without .*\bdim\b.*\); sampler\.type gumbel -> null \(", alone)
    _, base, span, *_ = differences(made(tmp_path, "{type: pretraining}", vary + "\nbaseline: alone", **sections))
    assert "objective.type mlm -> electra" in base
    assert re.search(
        r"; generator\.type null -> bert \(with .*\bdim \d.*\); sampler\.type null -> gumbel \(with ", base
    )
    assert "masking.type replace_prob -> span (with length" in span


# The last lines

HOSTILE = "Is ## this\n\n## a heading |\n\n## of its own?"


@pytest.mark.parametrize("question", ["Why?", HOSTILE, "## Why? |", "| Why?\n\n## |", ""])
def test_the_last_lines_are_the_verdict_and_the_leading_table_whatever_words_are_there(
    tmp_path: Path, question: str
) -> None:
    labels = {"a ## b": {}, "c\n\n## d |": {"x": 1}, "e |\n## f": {"x": 2}}
    folder = write_folder(tmp_path / "out", labels, question=question)
    write_report(folder)
    said = closing(folder)
    assert "With 3 seeds this is exploratory." in said
    rows = said.removesuffix(f"\n\nreport {folder / 'report.html'}").splitlines()[-3:]
    for row, label in zip(rows, ("a ## b", "c ## d |", "e | ## f"), strict=True):
        assert row.startswith(f"| {label} ")
        assert row.endswith(" |")
    assert said.count(" is better") == 1  # the first table alone


def test_where_nothing_is_measured_the_last_lines_say_so(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", {"a": {}}, (0,), state={"v0-s0": "missing"})
    write_report(folder)
    assert closing(folder).startswith(
        "\n# generator_size\n\nHow large should the generator be?\n\nNothing can be said yet"
    )
