"""What a fine-tuning would do, and how long it takes here."""

from collections.abc import Sequence
from pathlib import Path

from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import load_finetuning
from electra_lab.jobs.finetuning.experiment import TRAIN, VALIDATION, Finetuning, assemble, declared
from electra_lab.jobs.finetuning.facts import opening
from electra_lab.jobs.lifecycle import enough_memory
from electra_lab.planning.forecast import Duration, duration
from electra_lab.storage.run_directory import refuse_used
from electra_lab.training.device import choose_device
from registry.errors import ConfigError


def dry_run(file: Path, overrides: Sequence[str], out: Path | None, device: str, *, tries: bool = True) -> str:
    """Describe the training of the first seed, and the time that it takes here. Writes nothing. Raises LabError.

    tries  say how long it would take, from some of its steps
    """
    refuse_used(out)
    loaded, target = load_finetuning(file, overrides), choose_device(device)
    config = loaded.config
    declared(loaded)
    if not config.trains:
        raise ConfigError(f"{file}: {config.task.type} trains nothing, so there is nothing to describe.")
    seed = config.seeds[0]
    with enough_memory():
        built = assemble(loaded, seed, target)
        return opening(loaded, built, seed, None, _trial(config, built) if tries else "not tried (--no-trial)")


def _trial(config: FinetuningConfig, built: Finetuning) -> Duration:
    settings, validation = built.settings, built.splits[VALIDATION].batches
    rounds = settings.steps // config.evaluate.every if config.evaluate.every else 0
    rows = rounds * len(validation) + sum(len(built.splits[split].batches) for split in built.held_out)
    size = sum(parameter.nbytes for parameter in built.model.parameters())
    checkpoints = -(-settings.steps // config.checkpoint.every)
    return duration(
        built.run, settings, built.splits[TRAIN].batches, [(validation, rows)],
        lambda _: built.accumulate(VALIDATION), built.device, saved=3.0 * size * checkpoints,
    )  # fmt: skip
