"""The terminal output of a fine-tuning: its parts at the start, its numbers at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy import stats

import registry
from electra_lab.config.load import load_finetuning
from electra_lab.jobs.finetuning.experiment import assemble
from electra_lab.presentation.finetuning_summary import closing, opening
from electra_lab.storage.finetuning_folder import FinetuningFolder
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.presentation.finetuned import METRICS, Splits, scores, write_finetuned, write_seed

MEANING = METRICS["accuracy"]["summary"]


def said(folder: Path, seconds: float = 1234.5) -> list[str]:
    return closing(FinetuningFolder(folder), folder / "report.html", seconds).splitlines()


def test_one_seed_has_its_number_and_what_it_means(tmp_path: Path) -> None:
    folder = write_finetuned(tmp_path, {3: {"validation": {"accuracy": 0.875, "matthews": -0.5}, "test": {}}})
    assert said(folder) == [
        "",
        "on validation",
        f"  {'accuracy':<28}   0.875  {MEANING}",
        f"  {'Matthews correlation':<28}  -0.500  {METRICS['matthews']['summary']}",
        "on test: no labels",
        "",
        f"trained in 1,234 s; report {folder / 'report.html'}",
    ]


def test_several_seeds_have_their_statistics(tmp_path: Path) -> None:
    values = [0.81, 0.86, 0.79, 0.9, 0.83]
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    lines = said(write_finetuned(tmp_path, scores("accuracy", *values)))
    assert lines[1:3] == [
        "on validation, 5 seeds",
        f"  {'accuracy':<28}   0.830  median; mean {np.mean(values):.3f}, 95% interval {low:.3f} to {high:.3f}, "
        f"SD {np.std(values, ddof=1):.3f}",
    ]


def test_equal_numbers_have_no_interval(tmp_path: Path) -> None:
    lines = said(write_finetuned(tmp_path, scores("accuracy", 0.5, 0.5)))
    assert lines[2].endswith("  median; mean 0.500, SD 0.000")


def test_a_number_that_is_missing_is_said(tmp_path: Path) -> None:
    """Of some seeds, and of all: the examples have labels, so nothing says that they have none."""
    lines = said(write_finetuned(tmp_path / "a", scores("accuracy", 0.5, None, 0.75)))
    assert lines[1] == "on validation, 3 seeds"
    assert lines[2].startswith(f"  {'accuracy':<28}   0.625  median; mean 0.625, 95% interval ")
    assert lines[2].endswith("; over 2 of 3 seeds")
    lines = said(write_finetuned(tmp_path / "b", scores("accuracy", 0.5, None)))
    assert lines[2] == f"  {'accuracy':<28}   0.500  median; mean 0.500; over 1 of 2 seeds"
    lines = said(write_finetuned(tmp_path / "c", scores("accuracy", None, None)))
    assert lines[1:3] == ["on validation, 2 seeds", f"  {'accuracy':<28}       -  {MEANING}"]


def test_what_rows_lack_follows_the_results(tmp_path: Path) -> None:
    lost = {"cut_examples": {"train": 0.25, "test": 0.0}}
    seeds: dict[int, Splits] = {4: {"validation": {"accuracy": 0.5}}}
    folder = write_finetuned(tmp_path, seeds, lost=lost, config={"seeds": [4, 7]})
    write_seed(folder, 0, None)
    assert said(folder)[3:5] == ["cut examples: train 25.0%, test 0.0%", ""]
    assert said(folder)[1] == "on validation"


def test_the_splits_are_in_their_order(tmp_path: Path) -> None:
    seeds = {0: {"validation": {"accuracy": 0.1}, "test": {"accuracy": 0.2}}}
    lines = said(write_finetuned(tmp_path, seeds))
    assert [line.split()[1] for line in lines[1:5]] == ["validation", "0.100", "test", "0.200"]


def test_the_opening_names_every_part(tmp_path: Path, model: Path) -> None:
    loaded = load_finetuning(write_finetuning(tmp_path, model), ["train.frozen=true", "data.max_length=12"])
    built = assemble(loaded, 5, torch.device("cpu"))
    lengths = [len(row.tokens) for each in built.splits["train"].rows for row in each]
    parameters = sum(p.numel() for p in built.model.network.parameters())
    parameters += sum(p.numel() for p in built.model.head.parameters())
    lines = opening(loaded, built, 5, tmp_path / "out").splitlines()
    assert lines == [
        f"animals, seed 5: 12 steps of 6 rows on cpu, fp32, into {tmp_path / 'out'}",
        f"  model         discriminator of {model}, weights pretrained, frozen; {parameters:,} parameters",
        f"  weights       discriminator: loaded from {model}",
        "                head: initialized by the lab",
        f"  task          text_classification  {registry.tasks.get('text_classification').place}",
        f"  dataset       lines         {registry.datasets.get('lines').place}",
        "  examples      24 to train; validation 12, test 6",
        f"  rows          24 of at most 12 tokens, {np.mean(lengths):.0f} on average",
    ]
    assert max(lengths) <= 12
