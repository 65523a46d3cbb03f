"""electra-lab resume RUN_DIR"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.run import OnDevice


def resume(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run or a fine-tuning that stopped.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Change a value, such as train.steps; can be repeated."),
    ] = None,
    device: OnDevice = "auto",
) -> None:
    """Continue a run from its newest valid checkpoint."""
    from electra_lab.jobs.kinds import of_folder
    from electra_lab.parallel.session import is_first

    of_folder(run_dir).do("resume", run_dir, device, set_ or [])
    if is_first():
        answer(run_dir)
