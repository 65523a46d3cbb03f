"""The options and the output of verbs that a pre-trained pair does to texts."""

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from electra_lab.cli.run import Device
from registry.errors import ConfigError, DataError

Model = Annotated[
    str,
    typer.Argument(
        help="A run directory, an exported folder, or an ELECTRA or BERT in Hugging Face's format: a folder, or a name "
        "on the hub."
    ),
]
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; - reads standard input.")]
File = Annotated[Path | None, typer.Option(metavar="FILE", help="Read the texts from this file, one a line.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object per text.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page in colour to this file instead.")]
Batch = Annotated[int, typer.Option(min=1, help="Windows that the networks read at once.")]
Step = Annotated[int | None, typer.Option(min=0, help="Checkpoint of a run directory to use. Default: the newest.")]
Top = Annotated[int, typer.Option(min=1, help="Candidates to return for each masked token.")]


def lines_of(texts: list[str] | None, file: Path | None) -> Iterator[str]:
    """Yield the texts that are given. Raises ConfigError, DataError."""
    if (file is None) == (not texts):
        raise ConfigError("give either texts or --file FILE with a text on each line; - reads standard input.")
    if texts and texts != ["-"]:
        return iter(texts)
    if file is None or str(file) == "-":
        return (line.rstrip("\r\n") for line in io.TextIOWrapper(sys.stdin.buffer, "utf-8", errors="replace"))
    try:
        stream = file.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}).") from None
    return (line.rstrip("\n") for line in stream)


def show(
    verb: Literal["detect", "corrupt", "fill"],
    model: str,
    step: int | None,
    device: Device,
    lines: Iterable[str],
    json_: bool,
    html: Path | None,
    **options: Any,
) -> None:
    """Print each result as soon as it is known, or write them to a page."""
    import json

    from rich.console import Console as RichConsole

    from electra_lab.inference.opening import load
    from electra_lab.inference.results import header
    from electra_lab.runs.console import Console
    from electra_lab.runs.streams import colours
    from electra_lab.storage.files import new_file

    if json_ and html:
        raise ConfigError("give either --json or --html.")
    if html and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise ConfigError(f"--html {html}: is a folder, or its folder does not exist.")
    with redirect_stdout(sys.stderr):  # output of plug-ins is not the answer
        pair = load(model, device=device.value, step=step)
    terminal, console = RichConsole(highlight=False, soft_wrap=True), Console()
    with ExitStack() as stack:
        if html:
            page = stack.enter_context(new_file(html))
            page.write(header(pair.name))
        if terminal.is_terminal:
            stack.enter_context(colours(sys.stdout))
        if html or not terminal.is_terminal:
            stack.enter_context(console.progress(0, None, verb, "texts"))
        for number, result in enumerate(pair.stream(verb, lines, **options), start=1):
            console.advance(number)
            if html:
                page.write(result._repr_html_() + "\n")
            elif json_:
                print(json.dumps(result.as_dict(), ensure_ascii=False))
            else:
                terminal.print(result if terminal.is_terminal else str(result), markup=False)
    if html:
        print(html)
