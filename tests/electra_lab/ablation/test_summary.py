"""What a dry run and an ablation's last lines say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from electra_lab.ablation.plan import Plan, make_plan
from electra_lab.ablation.report import write_report
from electra_lab.ablation.summary import closing, forecast
from electra_lab.config.ablation import load_ablation
from tests.electra_lab.ablation.synthetic import write_folder
from tests.helpers import write_experiment

FILE = """\
name: sizes
base: tiny.yaml
vary: {{generator.scale: [0.5, 1.0]}}
seeds: [0, 1]
budget: {{steps: 8}}
measure: [{measure}]
"""
SMALL, LARGE = "generator.scale=0.5", "generator.scale=1.0"


def planned(folder: Path, measure: str) -> Plan:
    write_experiment(folder, data="{sequence_length: 16, held_out: 0.3, store: store}")
    (folder / "sizes.yaml").write_text(FILE.format(measure=measure), encoding="utf-8")
    return make_plan(load_ablation(folder / "sizes.yaml", []), torch.device("cpu"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Two variants, two seeds, no reference."""
    return planned(tmp_path_factory.mktemp("plan"), "{type: pretraining}")


def left(plan: Plan, missing: list[str], seconds: tuple[float | None, float | None], workers: int) -> str:
    """What is said to be left of cells that lack `missing`, one each."""
    lacking = {cell.id: [what] if what else [] for cell, what in zip(plan.pieces, missing, strict=True)}
    said = forecast(plan, lacking, dict(zip((SMALL, LARGE), seconds, strict=True)), Path("out"), workers)
    return next(line.strip() for line in said.splitlines() if "left to do" in line)


@pytest.mark.parametrize(
    ("seconds", "workers", "told"),
    [
        ((120.0, 120.0), 1, "about 8 min of training, one at a time"),
        ((120.0, 120.0), 2, "about 4 min of training, 2 at a time"),
        ((120.0, 120.0), 64, "about 2 min of training, 4 at a time"),
        ((120.0, 120.0), 3, "about 3 min of training, 3 at a time"),  # at best 160 s
        ((6.0, 600.0), 3, "about 10 min of training, 3 at a time"),
        ((None, 120.0), 2, "time unknown, as a step is too large to be tried out here"),
    ],
)
def test_no_number_of_workers_shortens_the_longest_run(
    plan: Plan, seconds: tuple[float | None, float | None], workers: int, told: str
) -> None:
    assert left(plan, ["training"] * 4, seconds, workers).endswith(f" FLOPs, {told}.")


def test_what_is_only_to_be_measured_costs_no_training(plan: Plan) -> None:
    cost = {label: told.flops.total(told.steps) for label, told in plan.forecasts.items()}
    assert [cell.variant for cell in plan.pieces] == [SMALL, LARGE, SMALL, LARGE]
    assert cost[SMALL] < cost[LARGE]
    times = (60.0, 600.0)
    whole = 2 * cost[SMALL] + 2 * cost[LARGE]
    assert left(plan, ["training"] * 4, times, 1) == (
        f"left to do: 4 runs, {whole:.3g} FLOPs, about 22 min of training, one at a time."
    )
    assert left(plan, ["training", "pretraining", "training", ""], times, 9) == (
        f"left to do: 2 to train, 1 to measure, {2 * cost[SMALL]:.3g} FLOPs, about 1 min of training, 2 at a time."
    )
    assert left(plan, ["", "pretraining", "", "pretraining"], (None, None), 1) == (
        "left to do: nothing to train, 2 to measure."
    )
    assert left(plan, [""] * 4, times, 1) == "left to do: nothing."


def test_a_reference_is_a_run_too(tmp_path: Path) -> None:
    plan = planned(tmp_path, "{type: fixed_corruption, steps: 4}")
    [reference] = plan.references.values()
    missing = {cell.id: ["training"] if cell.id == reference.id else [] for cell in plan.pieces}
    said = forecast(plan, missing, {SMALL: 1.0, LARGE: 1.0, reference.id: 30.0}, tmp_path, 2)
    assert "2 variants x 2 seeds = 4 cells, 1 reference run, 4 done already" in said
    told = plan.forecasts[reference.id]
    assert (
        f"left to do: 1 run, {told.flops.total(told.steps):.3g} FLOPs, about 30 s of training, one at a time." in said
    )


HOSTILE = "Is ## this\n\n## a heading |\n\n## of its own?"


@pytest.mark.parametrize("question", ["Why?", HOSTILE, "## Why? |", "| Why?\n\n## |", ""])
def test_the_last_lines_hold_the_verdict_and_the_leading_table_whatever_words_stand_there(
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
