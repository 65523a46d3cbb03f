"""electra-lab score MODEL"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from heapq import heappush, heappushpop
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from electra_lab.cli import _texts as given
from electra_lab.cli._items import AsFormat, Record, Table, format_of, items_of, json_line, refuse_overwriting
from electra_lab.cli._streams import answer
from electra_lab.cli.run import OnDevice
from registry.errors import ConfigError, Stopped

if TYPE_CHECKING:
    from electra_lab.inference.pair import Pair
    from electra_lab.inference.results import Scored


def score(
    model: given.Model,
    texts: given.Texts = None,
    file: given.Records = None,
    format: AsFormat = None,
    field: given.Field = "text",
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
    above: Annotated[float | None, typer.Option(metavar="LIMIT", help="Print only scores above this limit.")] = None,
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
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Regular expression (Python's) of text that is not scored, such as time stamps. The answer has the "
            "whole text, and with --json or --csv the number of its line.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
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
    try:
        pattern = re.compile(remove) if remove else None
    except re.error as error:
        raise ConfigError(f"--remove: is not a regular expression ({error}).") from None
    lines = given.lines_of(texts, file)
    input_format = format_of(format, texts, file)
    fields = () if input_format == "text" else (field,)
    added = ("score", "percentile") if normal else ("score",)
    if pattern:
        added = ("line", *added)
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
    reference = _reference(pair, model, normal, on_error, pattern, options)

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
    stopped: Stopped | None = None
    hidden = quiet or (terminal.is_terminal and top is None)
    with nullcontext() if hidden else console.progress(0, None, "score", "texts"):
        scored = _scored(pair, items, {**options, "more": lines.more}, reference, taken, pattern)
        try:
            for number, (record, result) in enumerate(scored, start=1):
                console.advance(number)
                if above is not None and (result.score is None or result.score <= above):
                    continue
                if top is None:
                    show(record, result)
                elif result.score is not None:
                    add = heappush if len(highest) < top else heappushpop
                    add(highest, (result.score, -number, record, result))
        except Stopped as error:
            stopped = error
    for _, _, record, result in sorted(highest, key=lambda entry: entry[:2], reverse=True):
        show(record, result)
    if csv_ and table.is_empty:
        answer(table.row(dict.fromkeys([*(columns or [field]), *added])))
    if stopped:
        raise stopped


def _scored(
    pair: "Pair",
    items: Iterator[tuple[str, Record, Record]],
    options: dict[str, Any],
    reference: Sequence[float],
    taken: Sequence[str],
    pattern: re.Pattern[str] | None,
) -> Iterator[tuple[Record, "Scored"]]:
    """Yield each record with its score and its percentile. Raises DataError if a record has one of the taken names."""
    from electra_lab.inference.scoring import percentile

    waiting: deque[tuple[Record, str]] = deque()  # the records and whole texts of the texts that are not scored yet

    def texts() -> Iterator[str]:
        for place, record, item in items:
            refuse_overwriting(place, record, taken)
            if pattern:
                record = {"line": int(re.split("[: ]", place)[-1]), **record}
            waiting.append((record, item["text"]))
            yield pattern.sub("", item["text"]) if pattern else item["text"]

    for result in pair.stream("score", texts(), **options):
        if reference and result.score is not None:
            result = replace(result, percentile=percentile(result.score, reference))
        record, text = waiting.popleft()
        yield record, _in_whole(text, pattern, result) if pattern else result


def _in_whole(text: str, pattern: re.Pattern[str], result: "Scored") -> "Scored":
    """Return the scores of a text from which a pattern was removed, at the places in the whole text."""
    places, at = list[int](), 0
    for match in pattern.finditer(text):
        places += range(at, match.start())
        at = match.end()
    places += range(at, len(text) + 1)
    offsets = [(places[start], places[end - 1] + 1 if end > start else places[start]) for start, end in result.offsets]
    return replace(result, text=text, offsets=offsets)


def _reference(
    pair: "Pair",
    model: str,
    normal: str | None,
    on_error: given.OnError,
    pattern: re.Pattern[str] | None,
    options: dict[str, Any],
) -> list[float]:
    """Return the sorted scores of the texts that `--normal` names. Raises DataError if there are none."""
    from electra_lab.api import held_out
    from registry.errors import DataError

    if normal is None:
        return []
    texts = iter(held_out(model)) if normal == "validation" else given.texts_of(None, Path(normal), on_error)
    if pattern and normal != "validation":  # the corpus has its pattern
        texts = (pattern.sub("", text) for text in texts)
    scores = [result.score for result in pair.stream("score", texts, **options) if result.score is not None]
    if not scores:
        raise DataError(f"--normal {normal}: has no text with a token.")
    return sorted(scores)
