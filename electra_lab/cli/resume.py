"""electra-lab resume RUN_DIR"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.run import Device, OnDevice
from registry.errors import ConfigError


def resume(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run, a fine-tuning or a suite that stopped.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="A.B=C", help="Change a value that may change, such as train.steps; may be repeated."
        ),
    ] = None,
    device: OnDevice = Device.auto,
) -> None:
    """Continue a run from its newest valid checkpoint, as if it had never stopped."""
    from electra_lab.jobs.finetuning.run import resume as resume_finetuning
    from electra_lab.jobs.finetuning.suite import resume_suite
    from electra_lab.jobs.pretraining.execute import resume as resume_run
    from electra_lab.parallel.session import is_first
    from electra_lab.storage.finetuning_folder import is_finetuning, is_suite

    if is_suite(run_dir) and set_:
        file = run_dir / "suite.yaml"
        raise ConfigError(
            f"{run_dir}: --set is for runs and fine-tunings. For a suite, write the change under `set` in {file}."
        )
    if is_suite(run_dir):
        resume_suite(run_dir, device.value)
    elif is_finetuning(run_dir):
        resume_finetuning(run_dir, device.value, set_ or [])
    else:
        resume_run(run_dir, device.value, set_ or [])
    if is_first():
        answer(run_dir)
