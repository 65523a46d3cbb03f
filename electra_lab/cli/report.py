"""electra-lab report DIR..."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from registry.errors import ConfigError


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of ablations or of runs.")],
) -> None:
    """Write report.html anew from what lies in each folder, and print where it is."""
    from electra_lab.ablation import report as ablation
    from electra_lab.runs import report as run
    from electra_lab.runs.directory import RunDirectory

    def is_ablation(folder: Path) -> bool:
        return (folder / "plan.json").is_file()

    for folder in folders:  # all are looked at before any is written to
        if not is_ablation(folder) and not all(
            (folder / name).is_file() for name in ("config.yaml", "provenance.json")
        ):
            raise ConfigError(
                f"{folder}: is neither an ablation's folder (it has no plan.json) nor a run directory (it has no "
                "config.yaml and provenance.json)."
            )
    for folder in folders:
        print(ablation.write_report(folder) if is_ablation(folder) else run.write_report(RunDirectory(folder)))
