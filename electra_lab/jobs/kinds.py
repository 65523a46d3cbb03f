"""The table of job kinds: the functions of commands that take a file or folder of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from electra_lab.config.load import kind_of_file, load
from electra_lab.config.origins import dump_with_origins
from registry.errors import ConfigError, LabError, command


@dataclass(frozen=True)
class Kind:
    """A kind of job.

    marks      names of the files by which its folders are recognized
    functions  function of each verb, as `module:function`, imported when it is called:
               schema   the model of its files
               check    (file, overrides) -> its description, and an error that a run would raise on this machine
               resume   (folder, device, overrides)
               report   (folder) -> report.html, written again
    """

    name: str
    marks: tuple[str, ...]
    functions: Mapping[str, str]

    def holds(self, folder: Path) -> bool:
        """Return True if a folder is one of this kind."""
        return all((folder / name).is_file() for name in self.marks)

    @property
    def schema(self) -> Any:
        return resolve_name(self.functions["schema"])

    def do(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """Call the function of a verb. Raises LabError."""
        return resolve_name(self.functions[verb])(*arguments, **options)


def check_experiment(file: Path, overrides: Sequence[str]) -> tuple[str, LabError | None]:
    """Return the complete file with its origins, and the error that a run would raise here. Raises ConfigError."""
    from electra_lab.assembly.experiment import check  # only this: training need not be imported

    loaded = load(file, overrides)
    return dump_with_origins(loaded), check(loaded)


def refuse_to_resume(folder: Path, *_: Any) -> None:
    """Raise ConfigError: an ablation is continued by the command that began it."""
    again = command("ablate", "FILE", "--out", folder)
    raise ConfigError(f"{folder}: is the folder of an ablation. To continue it, run the same command again: {again}")


ABLATION = Kind(
    "ablation",
    ("plan.json",),
    {
        "schema": "electra_lab.config.ablation:AblationConfig",
        "check": "electra_lab.jobs.sweeps.run:check",
        "resume": "electra_lab.jobs.kinds:refuse_to_resume",
        "report": "electra_lab.presentation.sweep_page:write_report",
    },
)
FINETUNING = Kind(
    "fine-tuning",
    ("finetuning.yaml",),
    {
        "schema": "electra_lab.config.finetune:FinetuningConfig",
        "check": "electra_lab.jobs.finetuning.experiment:overview",
        "resume": "electra_lab.jobs.finetuning.run:resume",
        "report": "electra_lab.jobs.finetuning.run:report",
    },
)
EXPERIMENT = Kind(
    "experiment",
    ("config.yaml", "provenance.json"),
    {
        "schema": "electra_lab.config.schema:ExperimentConfig",
        "check": "electra_lab.jobs.kinds:check_experiment",
        "resume": "electra_lab.jobs.pretraining.execute:resume",
        "report": "electra_lab.jobs.pretraining.execute:report",
    },
)
KINDS = (ABLATION, FINETUNING, EXPERIMENT)


def of_file(file: Path) -> Kind:
    """Return the kind of a file. An unreadable file counts as an experiment; loading it reports the error."""
    name = kind_of_file(file)
    return next((kind for kind in KINDS if kind.name == name), EXPERIMENT)


def of_folder(folder: Path) -> Kind:
    """Return the kind of a folder. Raises ConfigError if it has none."""
    from electra_lab.storage.catalog import jobs_in  # here, as storage imports torch
    from electra_lab.storage.run_directory import RunDirectory

    for kind in KINDS:
        if kind.holds(folder):
            if kind is EXPERIMENT and kind_of_file(folder / "config.yaml") == "fine-tuning":
                raise ConfigError(f"{folder}: is a seed of a fine-tuning, not a pre-training run. Give its folder.")
            return kind
    if (folder / ".lock").is_file():  # of a run that was stopped before it had begun
        RunDirectory.open(folder)
    marks = ", ".join(f"{' and '.join(kind.marks)} ({kind.name})" for kind in KINDS)
    raise ConfigError(f"{folder}: is not the folder of a job: it has none of {marks}.{jobs_in(folder)}")
