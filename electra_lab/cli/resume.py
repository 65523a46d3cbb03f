"""electra-lab resume RUN_DIR"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli.run import Device, OnDevice


def resume(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run that stopped.")],
    device: OnDevice = Device.auto,
) -> None:
    """Continue a run from its newest valid checkpoint, as if it had never stopped."""
    from electra_lab.runs import execute

    print(execute.resume(run_dir, device.value))
