"""electra-lab finetune FILE"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.run import OUT, OnDevice, Set, Trial
from registry.errors import ConfigError


def finetune(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The fine-tuning, a YAML file.")],
    set_: Set = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The pre-trained model instead of the file's: a run directory, an exported folder, or an ELECTRA, "
            "BERT, ModernBERT or DeBERTa in Hugging Face's format.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=OUT)] = None,
    best: Annotated[bool, typer.Option("--best", help="Start from the run's best checkpoint (step: best).")] = False,
    device: OnDevice = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show settings and time without training.")] = False,
    trial: Trial = True,
) -> None:
    """Fine-tune a pre-trained model on a task, once per seed, or evaluate it without training.

    To continue a stopped fine-tuning: electra-lab resume DIR. For several models or tasks: electra-lab ablate FILE
    """
    import json

    from electra_lab.jobs.finetuning import facts, run

    overrides = list(set_ or [])
    if best and any(override.partition("=")[0].strip() == "step" for override in overrides):
        raise ConfigError("give either --best or --set step=N.")
    if model:
        overrides.append(f"model={json.dumps(model)}")
    if best:
        overrides.append("step=best")
    arguments = file, overrides, out, device
    result = facts.dry_run(*arguments, tries=trial) if dry_run else run.finetune(*arguments)
    answer(result)
