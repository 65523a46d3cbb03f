"""electra-lab check FILE"""

import gc
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.run import Set


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An experiment, a fine-tuning or an ablation.")],
    set_: Set = None,
) -> None:
    """Report all errors of an experiment, or print its complete config with the origin of each value.

    For an ablation, every cell is checked and listed.
    """
    # Imports leave no garbage, and looking for it takes a sixth of the time of a check.
    gc.disable()
    try:
        from electra_lab.jobs.kinds import of_file

        text, absent = of_file(file).do("check", file, set_ or [])
        gc.freeze()
    finally:
        gc.enable()
    if absent:
        from electra_lab.presentation.console import Console

        Console().say(f"note: {absent} A run would stop there.")
    answer(text.rstrip())
