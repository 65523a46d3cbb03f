"""electra-lab open FILE.zip"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer


def open_(
    file: Annotated[Path, typer.Argument(metavar="FILE.zip", help="A bundle, written by `electra-lab bundle`.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to unpack to, which must not exist. Default: FILE.")
    ] = None,
) -> None:
    """Unpack a bundle, and list the plug-ins in it. It runs no code: the first command on it does."""
    from electra_lab.config.load import VERBS
    from electra_lab.jobs import bundling
    from electra_lab.presentation.text import counted
    from registry.errors import ConfigError, command

    folder = out or Path(file.stem)
    if folder.absolute() == file.absolute():
        raise ConfigError(f"{file}: has no ending, so name the folder to unpack to: --out DIR")
    described, code = bundling.unpack(file, folder)
    main = folder / described.main
    answer(main)
    shell = bundling.shell_lines(folder)
    if code or shell:
        answer("plug-ins and shell lines, which run as soon as you use it; read them first:")
        for places in code:
            copies = f" (in {counted(len(places) - 1, 'more place')})" if len(places) > 1 else ""
            answer(f"  {folder / places[-1]}{copies}")
        for path in shell:
            answer(f"  shell lines in {path}")
    if (versions := folder / bundling.VERSIONS).is_file():
        answer(f"versions: {versions}")
    if not (described.folder or described.tokens):
        or_store = "" if described.kind == "fine-tuning" else ", or name a token store: --set data.store=FOLDER/KEY"
        answer(f"It has neither text nor examples. Change their paths{or_store}.")
    store = ("--set", f"data.store={folder / described.tokens}") if described.tokens else ()
    commands = [command("report", main)]
    if described.kind == "ablation" and described.folder:
        commands = [
            command("check", main / "ablation.yaml"),
            command("ablate", main / "ablation.yaml", *store),
            *commands,
        ]
    elif described.folder:
        commands = [*commands, command("resume", main)]
    else:
        commands = [command("check", main), command(VERBS[described.kind], main, *store)]
    answer("\n".join(["next:", *(f"  {words}" for words in commands)]))
