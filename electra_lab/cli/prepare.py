"""electra-lab prepare FILE"""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.run import File, Set

WHERE = "local, slurm, ray, or a mapping such as '{type: slurm, partition: cpu}'"


def prepare(
    file: File,
    set_: Set = None,
    inspect: Annotated[bool, typer.Option("--inspect", help="Also write a page with numbers and sample rows.")] = False,
    launcher: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Where shards are tokenized: {WHERE}. Default: all cores of this machine."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="With --launcher: shards at the same time.")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Rebuild an existing token store.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Read and tokenize the corpus of an experiment without training, and print statistics."""
    from electra_lab.jobs.pretraining import prepare as prepared

    store = prepared.prepare(file, set_ or [], launcher, workers, rebuild=rebuild, inspect=inspect)
    answer(json.dumps(asdict(store)) if json_ else prepared.described(store))
