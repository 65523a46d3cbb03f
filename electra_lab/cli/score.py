"""electra-lab score MODEL"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from electra_lab.cli import _texts as options
from electra_lab.cli._inputs import Incoming
from electra_lab.cli._items import (
    FIELDLESS,
    AsFormat,
    Entry,
    Reading,
    Record,
    Table,
    json_line,
    line_at,
    read,
    refuse_overwriting,
)
from electra_lab.cli._streams import answer
from electra_lab.cli.run import OnDevice
from registry.errors import ConfigError, DataError

if TYPE_CHECKING:
    from electra_lab.inference.results import Scored

BY = """detection: log-odds that a token was replaced. energy: negative log-probability of a token in nats, estimated by
electric in one pass. likelihood: the same, by masking. Default: the first one possible."""
NORMAL = """Normal texts, one a line. Adds the percentile of each score among their scores. If FILE is validation, the
documents that the run held out are used."""
REMOVE = """Regular expression of text that is not scored, such as time stamps. The answer has the whole text, and the
number of its line."""
ALARMS = "Print only scores that at most N of 1,000 new normal texts will have, as estimated by those of --normal."
BEGINS = "For texts of several lines, such as stack traces: regular expression of the first line of each."


def score(
    model: options.Model,
    texts: options.Texts = None,
    file: options.Records = None,
    format: AsFormat = None,
    field: options.Field = None,
    by: Annotated[Literal["detection", "energy", "likelihood"] | None, typer.Option(help=BY)] = None,
    reduce: Annotated[Literal["mean", "max", "sum"], typer.Option(help="How to combine a text's tokens.")] = "mean",
    mask_prob: Annotated[float, typer.Option(min=0, max=1, help="Share that likelihood masks at once.")] = 0.15,
    exact: Annotated[bool, typer.Option("--exact", help="Mask one token at a time: one pass per token.")] = False,
    top: Annotated[int | None, typer.Option(min=1, help="Print only the highest scores, the highest first.")] = None,
    above: Annotated[float | None, typer.Option(metavar="LIMIT", help="Print only scores above LIMIT.")] = None,
    alarms: Annotated[float | None, typer.Option(min=1e-6, max=999, metavar="N", help=ALARMS)] = None,
    normal: Annotated[str | None, typer.Option(metavar="FILE", help=NORMAL)] = None,
    remove: Annotated[str | None, typer.Option(metavar="PATTERN", help=REMOVE)] = None,
    begins: Annotated[str | None, typer.Option("--first-line", metavar="PATTERN", help=BEGINS)] = None,
    json_: options.Json = False,
    csv_: options.Csv = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    on_error: options.Wrong = "stop",
    step: options.Step = None,
    best: options.Best = False,
    batch_size: options.Batch = 32,
    device: OnDevice = "auto",
) -> None:
    """Score how unusual each text is, to find anomalies and to filter or rank texts."""
    from electra_lab.inference.opening import load
    from electra_lab.inference.scoring import percentile
    from electra_lab.presentation.console import Console

    if json_ and csv_:
        raise ConfigError("give either --json or --csv.")
    if alarms is not None and normal is None:
        raise ConfigError("--alarms: is a number of normal texts. Give a file of some: --normal FILE")
    if normal == "-" and ("-" in (texts or ()) or Path("-") in (file or ())):
        raise ConfigError("--normal -: standard input has the texts. Name a file of normal texts.")
    removed = _compiled("--remove", remove)
    reading = Reading(on_error, format, field or (), begins=_compiled("--first-line", begins))
    incoming = read(texts, file, reading)
    added = ["score", "percentile"] if normal else ["score"]
    numbered = any(option is not None for option in (remove, begins, above, alarms))
    if numbered and incoming.format == "text":  # records have their fields
        added.insert(0, "line")
    new_fields = [*added, "unknown"] if json_ else added if csv_ else ()
    pair = load(model, device=device, step=options.step_of(step, best))
    console, terminal, table = Console(), options.colours(), Table()

    def scored(incoming: Incoming[Entry]) -> Iterator[tuple[Entry, "Scored"]]:
        how = {"by": by, "reduce": reduce, "mask_prob": None if exact else mask_prob, "batch_size": batch_size}
        return options.answered(pair, "score", incoming, partial(_without, removed), **how)

    reference = [] if normal is None else reference_of(normal, model, reading, scored)
    least = -1.0 if alarms is None else _least(alarms, len(reference))  # only higher percentiles are printed

    def show(place: str, record: Record, result: "Scored") -> None:
        line = line_at(place, incoming)
        values = {"line": line, "score": result.score, "percentile": result.percentile}
        row = record | {name: values[name] for name in added}
        if csv_:
            answer(table.line(row, place))
        elif json_:
            answer(json_line(row | {"unknown": result.unknown}))
        else:
            options.answer_in_colour(terminal, result, f"{line} " if numbered else "")

    def answers() -> Iterator[tuple[str, Record, "Scored"]]:
        for number, ((place, record, item), result) in enumerate(scored(incoming), start=1):
            console.advance(number)
            refuse_overwriting(place, record, new_fields)
            if removed:
                result = _in_whole(result, item["text"], removed)
            if reference and result.score is not None:
                place_among = percentile(result.score, reference)
                result = replace(result, percentile=place_among, reference=len(reference))
            is_high = above is None or (result.score is not None and result.score > above)
            if is_high and (result.percentile or 0) > least:
                yield place, record, result

    highest: list[tuple[str, Record, Scored]] = []
    hidden = quiet or (terminal.is_terminal and top is None)
    with nullcontext() if hidden else console.progress(0, None, "score", "texts"):
        if top is None:
            for place, record, result in answers():
                show(place, record, result)
        else:  # of equal scores, the first ones
            ranked = (answer for answer in answers() if answer[-1].score is not None)
            highest = nlargest(top, ranked, key=lambda answer: answer[-1].score or 0.0)
    for place, record, result in highest:
        show(place, record, result)
    if csv_ and not table.columns:
        answer(table.row(dict.fromkeys([*(incoming.columns or field or ["text"]), *added])))
    incoming.end()


def _compiled(option: str, pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{option}: is not a regular expression ({error}).") from None


def _least(alarms: float, normal: int) -> float:
    """Return the percentile that `alarms` of 1,000 new normal texts exceed. Raises DataError for too few texts."""
    # A new text is one of the n highest, among N others, with a probability of n / (N + 1).
    rank = int(alarms * (normal + 1) / 1000)
    if rank == 0:
        needed = math.ceil(1000 / alarms) - 1
        raise DataError(f"--alarms {alarms:g}: needs {needed:,} normal texts; there are {normal:,}.")
    return 100 - 100 * rank / normal + 1e-9


def _without(removed: re.Pattern[str] | None, item: Record) -> str:
    """Return a text without the matches of a pattern, as in a corpus."""
    text: str = item["text"]
    return removed.sub("", text).strip() if removed else text


def _in_whole(result: "Scored", whole: str, removed: re.Pattern[str]) -> "Scored":
    """Return the scores of `_without(whole)` at the places of their tokens in the whole text."""
    places, at = list[int](), 0
    for match in removed.finditer(whole):
        places += range(at, match.start())
        at = match.end()
    places += range(at, len(whole) + 1)
    first = next(number for number, at in enumerate(places) if not whole[at : at + 1].isspace())
    del places[:first]
    offsets = [(places[start], places[max(start, end - 1)] + (end > start)) for start, end in result.offsets]
    return replace(result, text=whole, offsets=offsets)


def reference_of(normal: str, model: str, reading: Reading, scored: Callable[..., Any]) -> list[float]:
    """Return the sorted scores of the texts that `--normal` names. Raises DataError if there are none."""
    from electra_lab.api import held_out
    from electra_lab.presentation.console import Console
    from electra_lab.presentation.text import counted

    if normal == "validation":
        incoming: Incoming[Entry] = Incoming(("", {}, {"text": text}) for text in held_out(model))
    else:
        format = replace(reading, format=None).format_of(Path(normal))
        fields = () if format in FIELDLESS else reading.fields
        incoming = read(None, [Path(normal)], replace(reading, format=format, fields=fields))
    scores = [result.score for _, result in scored(incoming) if result.score is not None]
    incoming.end()
    if not scores:
        raise DataError(f"--normal {normal}: has no text with a token.")
    few = ", which are too few to tell the most unusual 1 %: 100 means above all of them" if len(scores) < 100 else ""
    Console().say(f"note: percentiles are among {counted(len(scores), 'normal text')}{few}.")
    return sorted(scores)
