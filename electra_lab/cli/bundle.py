"""electra-lab bundle FOLDER|FILE OUT.zip"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer


def bundle(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="The folder of a job, or the YAML file of one that has not begun.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.zip", help="The zip file to write, which must not exist.")],
    checkpoints: Annotated[
        bool,
        typer.Option("--checkpoints", help="Include checkpoints, fine-tuned models, and models that they start from."),
    ] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Include the token stores.")] = False,
) -> None:
    """Pack the folder or the YAML file of a run, fine-tuning or ablation for a colleague.

    The bundle has the files that it extends, its plug-ins, its tokenizer, the versions that it ran with, and its
    results, which show some of the text: examples, and texts with their predictions. Open it with `electra-lab open`.
    """
    from electra_lab.jobs import bundling
    from electra_lab.presentation.console import Console
    from registry.errors import command

    places = bundling.bundle(source, out, checkpoints=checkpoints, tokens=tokens)
    Console().say(f"{len(places):,} files, {out.stat().st_size / 1e6:,.1f} MB. To open it: {command('open', out.name)}")
    answer(out)
