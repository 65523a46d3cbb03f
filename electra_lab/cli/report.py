"""electra-lab report DIR..."""

from pathlib import Path
from typing import Annotated

import typer

from registry.errors import ConfigError


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of ablations, fine-tunings or runs.")
    ],
) -> None:
    """Write report.html again from the files of each folder, and print its place."""
    from electra_lab.reports import ablation_page, finetuning_page, run_page
    from electra_lab.storage.ablation_folder import is_ablation_folder
    from electra_lab.storage.finetuning_folder import FinetuningFolder, is_finetuning
    from electra_lab.storage.run_directory import RunDirectory, is_run

    for folder in folders:  # check all of them before the first one is written
        if not (is_ablation_folder(folder) or is_finetuning(folder) or is_run(folder)):
            raise ConfigError(
                f"{folder}: is neither the folder of an ablation (it has no plan.json), nor of a fine-tuning (it has "
                "no finetuning.yaml), nor a run directory (it has no config.yaml and provenance.json)."
            )
    for folder in folders:
        if is_ablation_folder(folder):
            print(ablation_page.write_report(folder))
        elif is_finetuning(folder):
            print(finetuning_page.write_report(FinetuningFolder(folder)))
        else:
            print(run_page.write_report(RunDirectory(folder)))
