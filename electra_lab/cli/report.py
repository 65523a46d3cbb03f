"""electra-lab report DIR..."""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from registry.errors import ConfigError


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of ablations, fine-tunings, suites or runs.")
    ],
) -> None:
    """Write report.html again from the files of each folder, and print its place."""
    from electra_lab.config.load import kind_of_file
    from electra_lab.presentation import finetuning_page, run_page, suite_page
    from electra_lab.presentation import sweep_page as ablation_page
    from electra_lab.storage.ablation_folder import is_ablation_folder
    from electra_lab.storage.finetuning_folder import FinetuningFolder, SuiteFolder, is_finetuning, is_suite
    from electra_lab.storage.run_directory import RunDirectory, is_run

    for folder in folders:  # check all of them before the first one is written
        if not (is_suite(folder) or is_ablation_folder(folder) or is_finetuning(folder) or is_run(folder)):
            raise ConfigError(
                f"{folder}: is neither the folder of an ablation (it has no plan.json), nor of a fine-tuning (it has "
                "no finetuning.yaml) or a suite (suite.yaml), nor a run directory (it has no config.yaml and "
                "provenance.json)."
            )
        if is_run(folder) and kind_of_file(folder / "config.yaml") == "fine-tuning":
            raise ConfigError(f"{folder}: is a seed of a fine-tuning, not a pre-training run. Give its folder.")
    for folder in folders:
        if is_suite(folder):
            answer(suite_page.write_report(SuiteFolder(folder)))
        elif is_ablation_folder(folder):
            answer(ablation_page.write_report(folder))
        elif is_finetuning(folder):
            answer(finetuning_page.write_report(FinetuningFolder(folder)))
        else:
            answer(run_page.write_report(RunDirectory(folder)))
