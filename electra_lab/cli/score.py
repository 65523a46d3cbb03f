"""electra-lab score MODEL"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from heapq import heappush, heappushpop
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from electra_lab.cli import _texts as given
from electra_lab.cli._items import Format, Record, Table, format_of, items_of, json_line, refuse_overwriting
from electra_lab.cli._streams import answer
from electra_lab.cli.run import OnDevice
from registry.errors import ConfigError

if TYPE_CHECKING:
    from electra_lab.inference.pair import Pair
    from electra_lab.inference.results import Scored


def score(
    model: given.Model,
    texts: given.Texts = None,
    file: given.Records = None,
    format: Annotated[
        Format | None,
        typer.Option(help="Format of the input. Default: by the file's ending, otherwise a text per line."),
    ] = None,
    field: Annotated[str, typer.Option(metavar="NAME", help="Field or column with the text.")] = "text",
    by: Annotated[
        Literal["detection", "energy", "likelihood"] | None,
        typer.Option(
            help="detection: log-odds that a token was replaced. energy: negative log-probability of a token in nats, "
            "estimated by electric in one pass. likelihood: the same, by masking. Default: the first one possible."
        ),
    ] = None,
    reduce: Annotated[
        Literal["mean", "max", "sum"], typer.Option(help="How to combine the numbers of a text's tokens.")
    ] = "mean",
    mask_prob: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the tokens that likelihood masks at once.")
    ] = 0.15,
    exact: Annotated[bool, typer.Option("--exact", help="Mask one token at a time: one pass per token.")] = False,
    top: Annotated[int | None, typer.Option(min=1, help="Print only the highest scores, the highest first.")] = None,
    normal: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Normal texts, one a line. Adds the percentile of each score among their scores. If FILE is "
            "validation, the documents that the run held out are used.",
        ),
    ] = None,
    json_: given.Json = False,
    csv_: Annotated[bool, typer.Option("--csv", help="Print a table with the columns of the input.")] = False,
    on_error: given.Wrong = "stop",
    step: given.Step = None,
    best: given.Best = False,
    batch_size: given.Batch = 32,
    device: OnDevice = "auto",
) -> None:
    """Score how unusual each text is, to find anomalies and to filter or rank texts."""
    from electra_lab.inference.opening import load
    from electra_lab.presentation.console import Console

    if json_ and csv_:
        raise ConfigError("give either --json or --csv.")
    lines = given.lines_of(texts, file)
    input_format = format_of(format, texts, file)
    fields = () if input_format == "text" else (field,)
    added = ("score", "percentile") if normal else ("score",)
    taken = added if json_ or csv_ else ()
    columns, items = items_of(lines, input_format, ("text",), ("text",), fields, None, on_error)
    pair = load(model, device=device, step=given.step_of(step, best))
    console, terminal, table = Console(), given.colours(), Table()
    options = {
        "by": by,
        "reduce": reduce,
        "mask_prob": None if exact else mask_prob,
        "batch_size": batch_size,
    }
    reference = _reference(pair, model, normal, on_error, options)

    def show(record: Record, result: "Scored") -> None:
        row = record | result.answer
        if normal:
            row["percentile"] = result.percentile  # None for a text without tokens, which has the same fields
        if csv_:
            answer(table.line(row))
        elif json_:
            answer(json_line(row))
        else:
            given.answer_in_colour(terminal, result)

    # A heap of the highest scores; of equal ones, the first texts are kept.
    highest: list[tuple[float, int, Record, Scored]] = []
    quiet = terminal.is_terminal and top is None
    with nullcontext() if quiet else console.progress(0, None, "score", "texts"):
        for number, (record, result) in enumerate(_scored(pair, items, options, reference, taken), start=1):
            console.advance(number)
            if top is None:
                show(record, result)
            elif result.score is not None:
                add = heappush if len(highest) < top else heappushpop
                add(highest, (result.score, -number, record, result))
    for _, _, record, result in sorted(highest, key=lambda entry: entry[:2], reverse=True):
        show(record, result)
    if csv_ and table.is_empty:
        answer(table.row(dict.fromkeys([*(columns or [field]), *added])))


def _scored(
    pair: "Pair",
    items: Iterator[tuple[str, Record, Record]],
    options: dict[str, Any],
    reference: Sequence[float],
    taken: Sequence[str],
) -> Iterator[tuple[Record, "Scored"]]:
    """Yield each record with its score and its percentile. Raises DataError if a record has one of the taken names."""
    from electra_lab.inference.scoring import percentile

    waiting: deque[Record] = deque()  # the records of the texts that are not scored yet

    def texts() -> Iterator[str]:
        for place, record, item in items:
            refuse_overwriting(place, record, taken)
            waiting.append(record)
            yield item["text"]

    for result in pair.stream("score", texts(), **options):
        if reference and result.score is not None:
            result = replace(result, percentile=percentile(result.score, reference), reference=len(reference))
        yield waiting.popleft(), result


def _reference(
    pair: "Pair", model: str, normal: str | None, on_error: given.OnError, options: dict[str, Any]
) -> list[float]:
    """Return the sorted scores of the texts that `--normal` names. Raises DataError if there are none."""
    from electra_lab.api import held_out
    from electra_lab.presentation.console import Console
    from electra_lab.presentation.text import counted
    from registry.errors import DataError

    if normal is None:
        return []
    texts = iter(held_out(model)) if normal == "validation" else given.texts_of(None, Path(normal), on_error)
    scores = [result.score for result in pair.stream("score", texts, **options) if result.score is not None]
    if not scores:
        raise DataError(f"--normal {normal}: has no text with a token.")
    few = ", which are too few to tell the most unusual 1 %: 100 means above all of them" if len(scores) < 100 else ""
    Console().say(f"note: percentiles are among {counted(len(scores), 'normal text')}{few}.")
    return sorted(scores)
