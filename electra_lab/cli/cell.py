"""electra-lab cell DIR ID"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli.run import OnDevice


def cell(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of an ablation.")],
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of a cell, as in plan.json.")],
    device: OnDevice = "auto",
) -> None:
    """Train and measure one cell of an ablation, as `ablate` does for all of them."""
    from electra_lab.jobs.endings import ending
    from electra_lab.jobs.sweeps.cells import work

    with ending(lambda: "Run the same command again."):
        work(folder, id, device)
