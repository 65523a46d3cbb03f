"""Options and output of the verbs that apply a pre-trained model to texts."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from electra_lab.cli._inputs import Incoming
from electra_lab.cli._items import Entry, OnError, Record, Table, line_at
from electra_lab.cli._streams import answer, is_utf8, stdout
from electra_lab.cli.run import Device
from registry.errors import ConfigError, Stopped, shown

LEGENDS = {  # of a page of results
    "detect": "The redder a token, the more probable that it was replaced. Rest the pointer on it to see the number.",
    "corrupt": "Struck out: a token that the generator replaced by the next one. The redder a token, the more probable "
    "it seems that it was replaced. Rest the pointer on it to see the number and the candidates.",
    "fill": "The redder a token, the more probable it is in this place. Rest the pointer on it to see the others.",
}

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from electra_lab.inference.pair import Pair, Verb


Model = Annotated[
    str,
    typer.Argument(
        help="A run directory, an export, or a model in Hugging Face format (a folder or a name on the hub)."
    ),
]
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; - reads standard input.")]
PLAIN = "plain or compressed (.gz, .xz, .bz2, .zst)"
Records = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help=f"Read texts, one a line, or records from this file, {PLAIN}, or from all that a "
                 "pattern in quotes matches. Repeat the option for several."),
]  # fmt: skip
Field = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Field or column with the text. Default: text. Repeat the option to join "
                 "several. Columns of a table without a header have numbers."),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object per text.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print a table with the columns of the input.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a coloured page to this file instead.")]
Wrong = Annotated[
    OnError, typer.Option("--on-error", help="For input that is not UTF-8 or has no text: stop, or skip it.")
]
Batch = Annotated[int, typer.Option(min=1, help="Number of windows per batch.")]
Step = Annotated[int | None, typer.Option(min=0, help="Checkpoint of a run directory to use. Default: the newest.")]
Best = Annotated[bool, typer.Option("--best", help="Use the best checkpoint; see checkpoint.best.")]
Top = Annotated[int, typer.Option(min=1, help="Candidates to return for each masked token.")]


def answered(
    pair: "Pair", verb: "Verb", incoming: Incoming[Entry], argument_of: Callable[[Record], Any], **options: Any
) -> Iterator[tuple[Entry, Any]]:
    """Yield each item that a command reads and its answer, as soon as there is one.

    argument_of  function from an item to the argument of the verb

    A signal ends them early; `incoming.end` raises its error once the command has written everything.
    """
    unanswered: deque[Entry] = deque()  # items without an answer

    def items() -> Iterator[Any]:
        for entry in incoming:
            unanswered.append(entry)
            yield argument_of(entry[-1])

    try:
        for result in pair.stream(verb, items(), more=incoming.more, **options):
            yield unanswered.popleft(), result
    except Stopped as error:
        incoming.stopped = error


def step_of(step: int | None, best: bool) -> int | Literal["best"] | None:
    """Return the checkpoint that `--step` or `--best` chooses. Raises ConfigError."""
    if best and step is not None:
        raise ConfigError("give either --step or --best.")
    return "best" if best else step


@contextmanager
def file_of(option: str, path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[Any]:
    """Yield the file that an option names. Its content appears at once, when the block is left without an error.

    Links are followed. Raises ConfigError if it cannot be written, before the block.
    """
    from electra_lab.storage.files import new_file

    target = Path(os.path.realpath(path))  # is a link where links form a circle
    if target.is_symlink() or (path.exists() and not target.is_file()) or not target.parent.is_dir():
        raise ConfigError(f"{option} {path}: is a folder, a device or a circle of links, or its folder does not exist.")
    with new_file(target, mode) as stream:
        yield stream


def show(
    verb: Literal["detect", "corrupt", "fill"],
    model: str,
    step: int | Literal["best"] | None,
    device: Device,
    incoming: Incoming[Entry],
    json_: bool,
    html: Path | None,
    csv_: bool = False,
    **options: Any,
) -> None:
    """Print each result as soon as it is known, or write all to a page."""
    import json

    from electra_lab.inference.opening import load
    from electra_lab.inference.results import Filled
    from electra_lab.presentation.console import Console
    from electra_lab.presentation.pages import render

    if json_ + csv_ + bool(html) > 1:
        raise ConfigError("give either --json or --html or --csv.")
    terminal, console, table = colours(), Console(), Table()
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
        results = answered(pair, verb, incoming, itemgetter("text"), **options)
        for number, ((place, record, _), result) in enumerate(results, start=1):
            console.advance(number)
            if isinstance(result, Filled) and not result.masks:
                unfilled += 1
            if page:
                page.write(result._repr_html_() + "\n")
            elif json_:
                answer(json.dumps(result.as_dict(), ensure_ascii=not is_utf8()))
            elif csv_:
                name = record.get("name", line_at(place, incoming))
                for token, (start, _), p in zip(result.tokens, result.offsets, result.probabilities, strict=True):
                    row = {"name": name, "position": start + 1, "token": token, "probability": p}
                    answer(table.line(row, place))
            else:
                answer_in_colour(terminal, result)
        if csv_ and not table.columns:
            answer("name,position,token,probability")
    if html:
        answer(html)
    if unfilled:
        console.say(f"note: texts without a mask to fill: {unfilled:,} of {number:,}.")
    incoming.end()


def colours() -> "RichConsole":
    """Return standard output as a terminal that may have colours."""
    from rich.console import Console as RichConsole

    system: Any = None if os.environ.get("NO_COLOR") else "auto"  # without it, nothing is dimmed either
    return RichConsole(file=stdout(), highlight=False, soft_wrap=True, emoji=False, color_system=system)


def answer_in_colour(terminal: "RichConsole", result: object, before: str = "") -> None:
    if not terminal.is_terminal:
        answer(f"{before}{result}")
        return
    with terminal.capture() as coloured:
        terminal.print(result)
    print(shown(before) + coloured.get(), end="", flush=True, file=stdout())
