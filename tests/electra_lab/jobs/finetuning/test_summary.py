"""The terminal output of a fine-tuning: its parts at the start, its numbers at the end."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

import registry
from electra_lab.config.load import load_finetuning
from electra_lab.jobs.finetuning.experiment import assemble
from electra_lab.jobs.finetuning.facts import opening
from electra_lab.presentation.finetuning_page import closing, write_report
from electra_lab.storage.finetuning_folder import FinetuningFolder
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.presentation.finetuned import METRICS, Splits, scores, write_finetuned, write_seed
from tests.pages import Page

MEANING = METRICS["accuracy"]["summary"]


def said(folder: Path, seconds: float = 1234.5) -> list[str]:
    return closing(FinetuningFolder(folder), folder / "report.html", seconds).splitlines()


def test_one_seed_has_its_number_and_its_meaning(tmp_path: Path) -> None:
    folder = write_finetuned(tmp_path, {3: {"validation": {"accuracy": 0.875, "matthews": -0.5}, "test": {}}})
    assert said(folder) == [
        "",
        "on validation, 1 seed",
        "  metric                seed 3  meaning",
        f"  accuracy               0.875  {MEANING}",
        f"  Matthews correlation  -0.500  {METRICS['matthews']['summary']}",
        "on test: no labels",
        "",
        f"trained in 1,234 s; report {folder / 'report.html'}",
    ]


def test_several_seeds_have_the_table_of_the_page(tmp_path: Path) -> None:
    folder = write_finetuned(tmp_path, scores("accuracy", 0.81, 0.86, None, 0.9))
    page = Page(write_report(FinetuningFolder(folder)))
    lines = said(folder)
    assert lines[1] == "on validation, 4 seeds"
    table = [re.split(r"\s{2,}", line.strip()) for line in lines[2:4]]
    assert table == page.table("Results on validation")


def test_truncation_follows_the_results(tmp_path: Path) -> None:
    lost = {"cut_examples": {"train": 0.25, "test": 0.0}}
    seeds: dict[int, Splits] = {4: {"validation": {"accuracy": 0.5}}}
    folder = write_finetuned(tmp_path, seeds, lost=lost, config={"seeds": [4, 7]})
    write_seed(folder, 0, None)
    assert said(folder)[1] == "on validation, 1 seed"
    assert said(folder)[4:6] == ["cut examples: train 25.0%, test 0.0%", ""]


def test_the_splits_are_in_their_order(tmp_path: Path) -> None:
    seeds = {0: {"validation": {"accuracy": 0.1}, "test": {"accuracy": 0.2}}}
    lines = said(write_finetuned(tmp_path, seeds))
    assert [line.split()[1] for line in lines[1:7]] == ["validation,", "seed", "0.100", "test,", "seed", "0.200"]


def test_the_opening_names_every_part(tmp_path: Path, model: Path) -> None:
    loaded = load_finetuning(write_finetuning(tmp_path, model), ["train.frozen=true", "data.max_length=12"])
    built = assemble(loaded, 5, torch.device("cpu"))
    lengths = [len(row.tokens) for each in built.splits["train"].rows for row in each]
    parameters = sum(p.numel() for p in built.model.network.parameters())
    parameters += sum(p.numel() for p in built.model.head.parameters())
    step = max(int(path.name.removeprefix("step-")) for path in (model / "checkpoints").glob("step-*"))
    lines = opening(loaded, built, 5, tmp_path / "out").splitlines()
    assert lines == [
        f"animals, seed 5: 12 steps of 6 rows on cpu, fp32, into {tmp_path / 'out'}",
        f"  model         discriminator of {model} at step {step}, weights pretrained, frozen; "
        f"{parameters:,} parameters",
        f"  weights       discriminator: loaded from {model}",
        "                head: initialized by the lab",
        f"  task          text_classification  {registry.tasks.get('text_classification').place}",
        f"  dataset       lines         {registry.datasets.get('lines').place}",
        "  examples      24 to train; validation 12, test 6",
        f"  rows          24 of at most 12 tokens, {np.mean(lengths):.0f} on average",
        "  export        none: transformers has no class with these layers; it has those of task: {head: "
        "transformers}. `electra-lab predict` works without it",
    ]
    assert max(lengths) <= 12
