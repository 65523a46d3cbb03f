"""The facts of a fine-tuning that begins, for the terminal."""

from pathlib import Path

from electra_lab.assembly.budget import size_of
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded
from electra_lab.jobs.finetuning.experiment import TRAIN, Finetuning
from electra_lab.jobs.pretraining.facts import weights
from electra_lab.presentation.text import fact_lines
from registry import datasets, tasks


def opening(loaded: Loaded[FinetuningConfig], built: Finetuning, seed: int, path: Path) -> str:
    """Describe the training that begins, with the file behind each name."""
    config, settings, rows = loaded.config, built.settings, built.splits[TRAIN].batches
    size = size_of(built.model)
    held_out = ", ".join(f"{name} {len(built.splits[name].examples):,}" for name in built.held_out)
    frozen = ", frozen" if config.train.frozen else ""
    facts = [
        ("model", f"{config.network} of {config.model}, weights {config.init}{frozen}; {size:,} parameters"),
        *weights(built.weights),
        ("task", f"{config.task.type + '  ':<14}{tasks.get(config.task.type).place}"),
        ("dataset", f"{config.dataset.type + '  ':<14}{datasets.get(config.dataset.type).place}"),
        ("examples", f"{len(built.splits[TRAIN].examples):,} to train; {held_out}"),
        ("rows", f"{len(rows):,} of at most {built.length} tokens, {rows.tokens / len(rows):.0f} on average"),
    ]
    for split, skipped in getattr(built.dataset, "skipped", {}).items():
        if skipped:
            text = f"{len(skipped):,} of {split}, the first {skipped[0].place}: {skipped[0].reason}"
            facts.append(("left out", text))
    for split, share in built.lost().get("unseen_labels", {}).items():
        facts.append(("note", f"{share:.1%} of the labels of {split} are in no training example: errors"))
    rows_of = f"{settings.steps:,} steps of {settings.batch_size} rows"
    title = f"{config.name}, seed {seed}: {rows_of} on {built.device}, {settings.precision}, into {path}"
    return fact_lines(title, facts)
