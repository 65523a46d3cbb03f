"""electra-lab check FILE"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.run import Set
from registry.errors import ConfigError


def check(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The experiment, the ablation, the fine-tuning or the suite, a YAML file."),
    ],
    set_: Set = None,
) -> None:
    """Find all errors of an experiment without running it; print it complete, with the origin of each value.

    For an ablation, every cell is checked and listed; for a suite, every model on every task is checked.
    """
    from electra_lab.assembly.experiment import check as check_experiment
    from electra_lab.config.load import kind_of_file, load, load_finetuning, load_suite
    from electra_lab.config.origins import dump_with_origins
    from electra_lab.jobs.finetuning.experiment import check as check_finetuning
    from electra_lab.jobs.finetuning.suite import pairs_of
    from electra_lab.jobs.sweeps.file import load_ablation
    from electra_lab.jobs.sweeps.plan import checked
    from electra_lab.presentation.console import Console
    from electra_lab.presentation.sweep_summary import overview

    kind = kind_of_file(file)
    if kind == "ablation":
        ablation = checked(load_ablation(file, set_ or []))
        text, absent = overview(ablation), ablation.absent
    elif kind == "suite":
        if set_:
            raise ConfigError("a suite takes no --set: write the changes in the file.")
        suite = load_suite(file)
        found = [check_finetuning(pair.loaded) for pair in list(pairs_of(suite))]
        absent = next(filter(None, found), None)
        text = dump_with_origins(suite)
    elif kind == "fine-tuning":
        finetuning = load_finetuning(file, set_ or [])
        absent = check_finetuning(finetuning)
        text = dump_with_origins(finetuning)
    else:
        loaded = load(file, set_ or [])
        absent = check_experiment(loaded)
        text = dump_with_origins(loaded)
    if absent:
        Console().say(f"note: {absent} A run would stop there.")
    answer(text.rstrip())
