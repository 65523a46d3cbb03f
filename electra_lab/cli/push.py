"""electra-lab push MODEL USER/NAME"""

import json
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli._texts import Best, Step, step_of
from electra_lab.cli.export import License


def push(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run directory, a fine-tuning, or an export.")],
    repository: Annotated[str, typer.Argument(metavar="USER/NAME", help="The repository on the hub.")],
    step: Step = None,
    best: Best = False,
    milestones: Annotated[bool, typer.Option("--milestones", help="Also push kept milestones as branches.")] = False,
    public: Annotated[bool, typer.Option("--public", help="Make the repository public. Default: private.")] = False,
    license_: License = None,
    language: Annotated[list[str] | None, typer.Option(metavar="CODE", help="Such as en; repeatable.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Dataset of the hub; repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List files and sizes, and send nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per branch.")] = False,
) -> None:
    """Upload a model to the Hugging Face hub, with a model card.

    The access token comes from `hf auth login` or HF_TOKEN. If the connection is lost, run the same command again.
    """
    from electra_lab.cli.export import judge
    from electra_lab.export.push import push
    from electra_lab.presentation.console import Console

    metadata = {"license": license_, "language": language, "datasets": dataset}
    branches = push(
        model, repository, step=step_of(step, best), public=public, milestones=milestones, metadata=metadata,
        judge=judge, dry_run=dry_run, say=Console().say,
    )  # fmt: skip
    for pushed in branches:
        if as_json:
            answer(json.dumps({"repository": repository, "sent": not dry_run, **vars(pushed)}))
            continue
        of_step = "" if pushed.step is None else f" (step {pushed.step:,})"
        verb = "would go to" if dry_run else "are in"
        answer(f"{len(pushed.files)} files, {sum(pushed.files.values()):,} bytes {verb} {pushed.url or repository}"
               f"{'' if pushed.url else f', branch {pushed.branch}'}{of_step}")  # fmt: skip
        for name, size in pushed.files.items() if dry_run else ():
            answer(f"{size:>14,}  {name}")
