"""electra-lab finetune FILE"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.run import Device, OnDevice, Set


def finetune(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The fine-tuning, a YAML file.")],
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
    best: Annotated[
        bool, typer.Option("--best", help="Start from the run directory's best checkpoint, as with --set step=best.")
    ] = False,
    device: OnDevice = Device.auto,
) -> None:
    """Fine-tune a pre-trained model on a task, once per seed, or evaluate it without training.

    To continue what stopped: electra-lab resume DIR. For several models or tasks: electra-lab ablate FILE
    """
    import json

    from electra_lab.jobs.kinds import FINETUNING

    overrides = [*(set_ or []), *([f"model={json.dumps(model)}"] if model else [])]
    overrides += ["step=best"] * best
    answer(FINETUNING.do("run", file, overrides, out, device.value))
