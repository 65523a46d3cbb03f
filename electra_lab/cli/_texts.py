"""Options and output of the verbs that apply a pre-trained model to texts."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from electra_lab.cli._streams import answer, is_utf8, stdout
from electra_lab.cli.run import Device
from registry.errors import ConfigError, DataError

LEGENDS = {  # of a page of results
    "detect": "The redder a token, the more probable that it was replaced. Rest the pointer on it to see the number.",
    "corrupt": "Struck out: a token that the generator replaced by the next one. The redder a token, the more probable "
    "it seems that it was replaced. Rest the pointer on it to see the number and the candidates.",
    "fill": "The redder a token, the more probable it is in this place. Rest the pointer on it to see the others.",
}

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from electra_lab.sources.files import BadInput


OnError = Literal["stop", "skip"]
LONGEST = 1 << 21  # bytes of a line, whose tokens and result take half a gigabyte

Model = Annotated[
    str,
    typer.Argument(
        help="A run directory, an export, or a model in Hugging Face format (a folder or a name on the hub)."
    ),
]
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; - reads standard input.")]
PLAIN = "plain or compressed (.gz, .xz, .bz2, .zst)"
File = Annotated[Path | None, typer.Option(metavar="FILE", help=f"Read this file, a text on each line, {PLAIN}.")]
Records = Annotated[
    Path | None, typer.Option(metavar="FILE", help=f"Read texts, one a line, or records from this file, {PLAIN}.")
]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object per text.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a coloured page to this file instead.")]
Wrong = Annotated[
    OnError, typer.Option("--on-error", help="For input that is not UTF-8 or has no text: stop, or skip it.")
]
Batch = Annotated[int, typer.Option(min=1, help="Number of windows per batch.")]
Step = Annotated[int | None, typer.Option(min=0, help="Checkpoint of a run directory to use. Default: the newest.")]
Best = Annotated[bool, typer.Option("--best", help="Use the best checkpoint; see checkpoint.best.")]
Top = Annotated[int, typer.Option(min=1, help="Candidates to return for each masked token.")]


def texts_of(texts: list[str] | None, file: Path | None, on_error: OnError) -> Iterator[str]:
    """Yield the texts of a command, or those of a file, one per line. Raises ConfigError, DataError."""
    return _decoded(lines_of(texts, file), on_error)


def lines_of(texts: list[str] | None, file: Path | None) -> Iterator[tuple[str, bytes]]:
    """Yield the places and the bytes of the texts of a command, or those of a file, one per line.

    Raises ConfigError, DataError.
    """
    if (file is None) == (not texts):
        raise ConfigError("give either texts or --file FILE with a text on each line; - reads standard input.")
    if texts and texts != ["-"]:
        encoded = (text.encode("utf-8", "surrogateescape") for text in texts)  # bytes that are not text are surrogates
        return ((f"TEXT {number}", text) for number, text in enumerate(encoded, start=1))
    if file and str(file) != "-":
        from electra_lab.sources.files import Files, uncompressed

        if uncompressed(file) != file:
            return _lines(_split(Files([file], [""], {}).blocks(file)), str(file))
        try:
            return _lines(_of_stream(file.open("rb")), str(file))
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror}).") from None
    if sys.stdin is None:
        raise DataError("standard input: is closed, so no text can be read.")
    return _lines(_of_stream(sys.stdin.buffer), "standard input")


def _of_stream(stream: BinaryIO) -> Iterator[bytes]:
    """Yield lines with their line feeds, each as soon as it arrives; only the beginning of a line that is too long."""
    return iter(partial(stream.readline, LONGEST + 1), b"")


def _split(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a compressed file from its blocks, as `_of_stream` does."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > LONGEST:
            break
    if rest:
        yield rest


def _lines(lines: Iterable[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the place of each line and its bytes, without its end. A lone carriage return does not end a line."""
    from electra_lab.sources.files import BYTE_ORDER_MARK

    try:
        for number, line in enumerate(lines, start=1):
            if len(line) > LONGEST:
                raise DataError(f"{name}:{number}: the line has more than {LONGEST >> 20} MiB. Divide it.")
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            yield f"{name}:{number}", text.removesuffix(b"\r\n").removesuffix(b"\n")
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror}).") from None


def _decoded(lines: Iterable[tuple[str, bytes]], on_error: OnError) -> Iterator[str]:
    """Yield the texts of lines."""
    from electra_lab.sources.files import BadInput
    from electra_lab.sources.records import decoded

    for place, line in lines:
        try:
            yield decoded(line, place)
        except BadInput as error:
            stop_or_skip(error, on_error)


def stop_or_skip(error: "BadInput", on_error: OnError) -> None:
    """Raise DataError for a bad line, or note that it is left out."""
    from electra_lab.presentation.console import Console

    if on_error == "stop":
        raise DataError(f"{error} To leave it out, use --on-error skip.") from None
    Console().say(f"note: {error.skipped.place}: {error.skipped.reason}. It is left out.")


def step_of(step: int | None, best: bool) -> int | Literal["best"] | None:
    """Return the checkpoint that `--step` or `--best` chooses. Raises ConfigError."""
    if best and step is not None:
        raise ConfigError("give either --step or --best.")
    return "best" if best else step


@contextmanager
def file_of(option: str, path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[Any]:
    """Yield the file that an option names. Its content appears at once, when the block is left without an error.

    Links are followed. A file is replaced; a device or a FIFO is written to, so a reader is never left waiting. Raises
    ConfigError if it cannot be written, before the block.
    """
    from electra_lab.storage.files import new_file

    target, encoding = Path(os.path.realpath(path)), "utf-8" if mode == "w" else None
    if target.is_dir() or target.is_symlink() or not target.parent.is_dir():  # a link is left where links form a circle
        raise ConfigError(f"{option} {path}: is a folder or a circle of links, or its folder does not exist.")
    if target.is_file() or not path.exists():
        with new_file(target, mode) as stream:
            yield stream
        return
    with path.open(mode, encoding=encoding) as device, TemporaryFile(f"{mode}+", encoding=encoding) as stream:
        yield stream
        stream.seek(0)
        shutil.copyfileobj(stream, device)


def show(
    verb: Literal["detect", "corrupt", "fill"],
    model: str,
    step: int | Literal["best"] | None,
    device: Device,
    texts: Iterator[str],
    json_: bool,
    html: Path | None,
    **options: Any,
) -> None:
    """Print each result as soon as it is known, or write all to a page."""
    import json

    from electra_lab.inference.opening import load
    from electra_lab.inference.results import Filled
    from electra_lab.presentation.console import Console
    from electra_lab.presentation.pages import render

    if json_ and html:
        raise ConfigError("give either --json or --html.")
    terminal, console = colours(), Console()
    number = unfilled = 0
    with ExitStack() as stack:
        page = stack.enter_context(file_of("--html", html)) if html else None
        pair = load(model, device=device, step=step)
        if page:
            title = f"{verb}: {pair.name}"
            page.write(
                render("page.html.j2", title=title).partition("</h1>")[0]
                + f'</h1>\n<p class="note">{LEGENDS[verb]}</p>\n'
            )
        if html or not terminal.is_terminal:
            stack.enter_context(console.progress(0, None, verb, "texts"))
        for number, result in enumerate(pair.stream(verb, texts, **options), start=1):
            console.advance(number)
            if isinstance(result, Filled) and not result.masks:
                unfilled += 1
            if page:
                page.write(result._repr_html_() + "\n")
            elif json_:
                answer(json.dumps(result.as_dict(), ensure_ascii=not is_utf8()))
            else:
                answer_in_colour(terminal, result)
    if html:
        answer(html)
    if unfilled:
        console.say(f"note: texts without a mask to fill: {unfilled:,} of {number:,}.")


def colours() -> "RichConsole":
    """Return standard output as a terminal that may have colours."""
    from rich.console import Console as RichConsole

    system: Any = None if os.environ.get("NO_COLOR") else "auto"  # without it, nothing is dimmed either
    return RichConsole(file=stdout(), highlight=False, soft_wrap=True, emoji=False, color_system=system)


def answer_in_colour(terminal: "RichConsole", result: object) -> None:
    if not terminal.is_terminal:
        answer(result)
        return
    with terminal.capture() as coloured:
        terminal.print(result)
    print(coloured.get(), end="", flush=True, file=stdout())
