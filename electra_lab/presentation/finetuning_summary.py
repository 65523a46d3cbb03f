"""Terminal output of a fine-tuning: its parts at the start of each seed, its results at the end."""

from pathlib import Path

from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded
from electra_lab.jobs.finetuning.experiment import TRAIN, Finetuning
from electra_lab.presentation.finetuning_page import Row, lost, results_table
from electra_lab.presentation.run_summary import weights
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry import datasets, tasks


def opening(loaded: Loaded[FinetuningConfig], built: Finetuning, seed: int, path: Path) -> str:
    """Describe the training that begins, with the file behind each name."""
    config, settings, rows = loaded.config, built.settings, built.splits[TRAIN].batches
    start, size = config.init, sum(p.numel() for p in built.model.parameters())
    held_out = ", ".join(f"{name} {len(built.splits[name].examples):,}" for name in built.held_out)
    frozen = ", frozen" if config.train.frozen else ""
    lines = [
        f"{config.name}, seed {seed}: {settings.steps:,} steps of {settings.batch_size} rows on {built.device}, "
        f"{settings.precision}, into {path}",
        f"  model         {config.network} of {config.model}, weights {start}{frozen}; {size:,} parameters",
        *weights(built.weights),
        f"  task          {config.task.type + '  ':<14}{tasks.get(config.task.type).place}",
        f"  dataset       {config.dataset.type + '  ':<14}{datasets.get(config.dataset.type).place}",
        f"  examples      {len(built.splits[TRAIN].examples):,} to train; {held_out}",
        f"  rows          {len(rows):,} of at most {built.length} tokens, {rows.tokens / len(rows):.0f} on average",
    ]
    for split, rows in getattr(built.dataset, "skipped", {}).items():
        if rows:
            lines.append(f"  left out      {len(rows):,} of {split}, the first {rows[0].place}: {rows[0].reason}")
    for split, share in built.lost().get("unseen_labels", {}).items():
        lines.append(f"  note          {share:.1%} of the labels of {split} are in no training example: errors")
    return "\n".join(lines)


def closing(folder: FinetuningFolder, report: Path, seconds: float) -> str:
    """Summarize the results over the seeds, which trained for `seconds` in all."""
    lines, done = [""], [seed for seed in folder.seeds() if folder.results(seed)]
    seeds = f", {len(done)} seeds" if len(done) > 1 else ""
    for split, rows in results_table(folder).items():
        lines.append(f"on {split}{seeds}" if rows else f"on {split}: no labels")
        lines += [f"  {_line(row, len(done))}" for row in rows]
    if done:
        lines += [f"{title}: {shares}" for title, shares in lost(folder, done[0])]
    return "\n".join([*lines, "", f"{f'trained in {seconds:,.0f} s; ' if seconds else ''}report {report}"])


def _line(row: Row, seeds: int) -> str:
    if row.median is None:
        return f"{row.title:<28}{'-':>8}  {row.meaning}"
    if seeds == 1:
        return f"{row.title:<28}{row.median:>8.3f}  {row.meaning}"
    shown = f"{row.title:<28}{row.median:>8.3f}  median; mean {row.mean:.3f}"
    if row.low is not None and row.high is not None:
        shown += f", 95% interval {row.low:.3f} to {row.high:.3f}"
    if row.deviation is not None:
        shown += f", SD {row.deviation:.3f}"
    return shown if row.seeds == seeds else f"{shown}; over {row.seeds} of {seeds} seeds"
