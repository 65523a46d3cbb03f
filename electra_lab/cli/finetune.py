"""electra-lab finetune FILE"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.run import Device, OnDevice, Set
from registry.errors import ConfigError


def finetune(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The fine-tuning or the suite, a YAML file.")],
    set_: Set = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The pre-trained model instead of the file's: a run directory, an exported folder, or an ELECTRA or "
            "BERT in Hugging Face's format.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Its folder, absent or empty. Default: runs/<name>/<time>."),
    ] = None,
    device: OnDevice = Device.auto,
) -> None:
    """Fine-tune a pre-trained model for a task, once per seed, or judge it as it is; report the results.

    A suite does so for several models and tasks. To continue what stopped: electra-lab resume DIR
    """
    import json

    from electra_lab.config.load import kind_of_file
    from electra_lab.jobs.finetuning.run import finetune
    from electra_lab.jobs.finetuning.suite import run_suite

    overrides = [*(set_ or []), *([f"model={json.dumps(model)}"] if model else [])]
    if kind_of_file(file) == "suite":
        if overrides:
            raise ConfigError("a suite takes neither --set nor --model: write them in the file.")
        folder = run_suite(file, out, device.value)
    else:
        folder = finetune(file, overrides, out, device.value)
    answer(folder)
