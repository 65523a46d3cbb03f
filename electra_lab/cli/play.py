"""electra-lab play MODEL"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from electra_lab.cli import _texts as options
from electra_lab.cli._items import Reading
from electra_lab.cli._streams import answer
from electra_lab.cli.run import OnDevice
from electra_lab.cli.score import NORMAL, reference_of
from registry.errors import ConfigError, LabError

if TYPE_CHECKING:
    from electra_lab.inference.pair import Pair
    from electra_lab.inference.results import Result
    from electra_lab.presentation.text import Table

PORT, LONGEST = 8765, 10_000  # characters of a text
TOP = 5  # candidates of the generator
NAMES = {"text": "Text", "pair": "Second text", "words": "Text", "question": "Question", "context": "Context"}


def play(
    model: options.Model,
    normal: Annotated[str | None, typer.Option(metavar="FILE|validation", help=NORMAL)] = None,
    step: options.Step = None,
    best: options.Best = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 is any that is free.")] = PORT,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    device: OnDevice = "auto",
) -> None:
    """Open a page on this machine, where you type a text and see what a model makes of it.

    Of a pre-trained pair: the tokens that the detector suspects, what the generator would write, and the score of the
    text. Of a fine-tuned model: its predictions. Other machines cannot reach the page. Ctrl-C ends it (exit code 130).
    """
    import webbrowser

    from electra_lab.cli._server import Server
    from electra_lab.inference.opening import load

    pair = load(model, device=device, step=options.step_of(step, best))
    page = _Page(pair)
    if normal is not None:
        scored = partial(options.answered, pair, "score", argument_of=itemgetter("text"))
        page.reference = reference_of(normal, model, Reading("stop", None, ()), scored)
    with Server(port, page) as server:
        answer(server.address)
        # Without a desktop, a browser for terminals would open here.
        if browser and (sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(server.address)
        server.serve_forever()


class _Page:
    """The page of a model. Called with the fields of its form, it answers them.

    reference  sorted scores of normal texts
    """

    def __init__(self, pair: "Pair") -> None:
        from electra_lab.inference.finetuned import FineTuned

        self.pair, self.reference = pair, list[float]()
        self.mask = str(pair.tokenizer.id_to_token(pair.vocabulary.mask_id))
        self.tuned = pair if isinstance(pair, FineTuned) else None
        self.writes = not self.tuned and pair.writes
        if not (self.tuned or pair.detects or pair.has_energies or pair.writes):
            raise ConfigError(f"{pair.name}: has no generator, and no head that the lab reads, to play with.")

    def __call__(self, fields: Mapping[str, str]) -> str:
        from electra_lab.presentation.pages import render

        texts = {name: fields.get(name, "").replace("\r\n", "\n") for name in ("text", "second")}
        sections, problem = list[dict[str, Any]](), ""
        if fields:
            try:
                sections = self._sections(fields, **texts)
            except LabError as error:
                problem = str(error)
        names = [NAMES[name] for name in (self.tuned.job.names if self.tuned else ("text",))]
        return render(
            "play.html.j2", title=self.pair.name, fields=fields, **texts, names=names, longest=LONGEST,
            mask=self.mask, writes=self.writes, sections=sections, problem=problem,
        )  # fmt: skip

    def _sections(self, fields: Mapping[str, str], text: str, second: str) -> list[dict[str, Any]]:
        """Return what the model makes of a text. Raises ConfigError, DataError."""
        for name, value in (("The text", text), ("The second text", second)):
            if len(value) > LONGEST:
                raise ConfigError(f"{name} has {len(value):,} characters; at most {LONGEST:,} are read.")
        if not text.strip():
            raise ConfigError("There is no text.")
        if self.tuned:
            if len(self.tuned.job.needs) > 1 and not second.strip():
                raise ConfigError(f"There is no {self.tuned.job.needs[1]}.")
            item: Any = (text, second) if second else text
            answer = self.tuned.predict([item])[0]
            chance = "" if answer.probability is None else f"Its probability is {answer.probability:.3f}."
            return [_section("The prediction", chance, answer)]
        sections, note = [], ""
        # The generator, which fills masks or replaces some tokens.
        if self.writes:
            if self.mask in text:
                written: Any = self.pair.fill(text, top=TOP)
                legend, text = "Each mask has the generator's first choice.", written.filled
                note = " Here, the masks are filled with the generator's first choices."
            else:
                share, seed = _number(fields, "share", 0.15, float), _number(fields, "seed", 0, int)
                written = self.pair.corrupt(text, mask_prob=share, seed=seed % (1 << 31), top=TOP)
                legend = "Struck out is what it replaced. The colour shows what the detector suspects in the new text."
            sections.append(_section("What the generator would write", legend, written))
        if self.pair.detects:
            legend = f"The stronger the colour, the more probable it is that the token was replaced.{note}"
            sections.insert(0, _section("What the detector suspects", legend, self.pair.detect(text)))
        scored = self.pair.score(text)
        number = "-" if scored.score is None else f"{scored.score:.3f}"
        legend = f"Score {number}. The higher it is, the more unusual is the text. Colours show the reason.{note}"
        if self.reference and scored.score is not None:
            from electra_lab.inference.scoring import percentile

            scored = replace(scored, percentile=percentile(scored.score, self.reference), reference=len(self.reference))
            legend += f" {scored.percentile:.1f} % of {len(self.reference):,} normal texts have a lower one."
        return [*sections, _section("How unusual the text is", legend, scored)]


def _section(title: str, legend: str, result: "Result") -> dict[str, Any]:
    if result.unknown > 0.1:
        legend += f" {result.unknown:.0%} of the text is unknown to the tokenizer, so this means little."
    from electra_lab.inference.results import Predicted, Scored

    spans = [*result.spans()]
    if isinstance(result, Scored):
        spans = spans[1:]  # without its numbers, which the legend has
    elif isinstance(result, Predicted) and "words" not in result.given:
        spans = spans[:1]  # without the text, which the form has
    return {"title": title, "legend": legend, "spans": spans, "table": _table(title, result)}


def _table(title: str, result: Any) -> "Table":
    """Return the numbers of a result, for those who do not see colours."""
    from electra_lab.inference.results import Corrupted, Detected, Filled, Predicted, Scored, listed
    from electra_lab.presentation.text import Table

    chances: Any
    columns: dict[str, Sequence[Any]] = {}
    match result:
        case Detected():
            columns = {"token": result.tokens, "probability of replaced": result.probabilities}
        case Scored():
            columns = {"token": result.tokens, "log-odds" if result.detects else "surprise in nats": result.values}
        case Filled():
            columns = {"mask": range(1, len(result.masks) + 1), "choices": [*map(listed, result.candidates)]}
        case Corrupted():
            tokens = [result.tokens[place] for place in result.candidates]
            columns = {"token": tokens, "choices": [*map(listed, result.candidates.values())]}
        case Predicted(prediction=list() as tags):
            chances = result.probabilities or [None] * len(tags)
            columns = {"word": result.given["words"], "tag": tags, "probability": chances}
        case Predicted():
            chances = result.probabilities or {result.prediction: result.probability}
            columns = {"answer": [*chances], "probability": [*chances.values()]}
    rows = [[*map(_cell, row)] for row in zip(*columns.values(), strict=True)]
    return Table(title, [*columns], rows, prose=["choices", "tag"])


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _number(fields: Mapping[str, str], name: str, default: float, kind: Any) -> Any:
    """Return a number of the form. Raises ConfigError."""
    try:
        return kind(fields.get(name) or default)
    except ValueError:
        raise ConfigError(f"{name}: {fields[name]!r:.60} is not a number of its kind.") from None
