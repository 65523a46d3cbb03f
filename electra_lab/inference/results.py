"""The answers of a pair about texts. Each shows itself in colour in a notebook and on a terminal."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from registry.errors import ConfigError, shown

if TYPE_CHECKING:
    from rich.text import Text

R = TypeVar("R", bound="Result")
RED = (208, 52, 44)
UNEXPECTED = 10.0  # nats of a token that has the full colour


@dataclass(frozen=True)
class Candidate:
    """A token that a generator would put at a position."""

    token: str
    probability: float
    written: str  # as after another word: with a space before it if it begins a word

    @property
    def name(self) -> str:
        """The token as people read it: without the marks of bytes, but with that of a continued word."""
        return self.token if self.token.startswith("##") else _visible(self.written)


@dataclass(frozen=True)
class Span:
    """A piece of text to be shown: its colour is as strong as `strength`, from 0 to 1."""

    text: str
    strength: float = 0.0
    note: str = ""  # shown when the pointer rests on it
    instead_of: str = ""  # the original of a replacement
    shown: bool = False  # print the strength as a number, where no pointer can ask for it


@dataclass(frozen=True)
class Result(ABC):
    """An answer about a text."""

    text: str  # as it was given
    unknown: float = field(default=0.0, kw_only=True)  # share of its characters, without white space

    @abstractmethod
    def spans(self) -> Iterator[Span]:
        """Yield the pieces to be shown, in order."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return f'<p style="line-height: 1.9; overflow-wrap: anywhere">{"".join(map(_html, self.spans()))}</p>'

    def _spaced(self) -> Iterator[Span]:
        """Yield the pieces with a space between the figures of one and a piece that would touch them."""
        figures = False
        for span in self.spans():
            if figures and span.text and not span.text[0].isspace():
                yield Span(" ")
            yield span
            figures = span.shown or (figures and not span.text)

    def __rich__(self) -> Text:
        from rich.text import Text

        text = Text()
        for span in self._spaced():
            if span.instead_of:
                text.append(shown(span.instead_of), "strike dim")
                text.append(" ")
            text.append(shown(span.text), f"black on rgb({_mixed(span.strength)})" if span.strength >= 0.1 else "")
            if span.shown:
                text.append(f" {span.strength:.2f}", "dim")
        return text

    def __str__(self) -> str:
        """The same without colour."""
        words = []
        for span in self._spaced():
            word = f"{span.text} {span.strength:.2f}" if span.shown else span.text
            words.append(f"[{span.instead_of} > {word}]" if span.instead_of else word)
        return "".join(words)


@dataclass(frozen=True)
class Detected(Result):
    """The verdict of a discriminator on every token of a text."""

    tokens: list[str]
    offsets: list[tuple[int, int]]  # of each token in the text, in characters
    probabilities: list[float]  # of having been replaced

    def spans(self) -> Iterator[Span]:
        notes = [f"{token}: {p:.3f}" for token, p in zip(self.tokens, self.probabilities, strict=True)]
        yield from _of_tokens(self.text, self.offsets, self.probabilities, notes, shown=True)


@dataclass(frozen=True)
class Scored(Result):
    """How unusual a text is.

    score       score of the text; None if it has no tokens
    values      numbers of its tokens: the log-odds of having been replaced, or the negative log-probability or its
                estimate, the energy, in nats
    detects     True if the values are log-odds
    percentile  share of the reference texts with a lower score, in percent; None without a reference
    reference   number of the reference texts
    """

    score: float | None
    tokens: list[str]
    offsets: list[tuple[int, int]]
    values: list[float]
    detects: bool
    percentile: float | None = None
    reference: int = 0

    @property
    def answer(self) -> dict[str, Any]:
        """The score and, with a reference, its percentile."""
        fields = {"score": self.score}
        return fields if self.percentile is None else {**fields, "percentile": self.percentile}

    def spans(self) -> Iterator[Span]:
        decimals = {"score": 3, "percentile": max(len(str(self.reference)) - 2, 0)}  # as many as it tells
        numbers = [f"{value:.{decimals[name]}f}" for name, value in self.answer.items() if value is not None]
        yield Span(f"{' '.join(numbers) or '-'}  ")
        strengths = [(1 + math.tanh(value / 2)) / 2 if self.detects else value / UNEXPECTED for value in self.values]
        notes = [f"{token}: {value:.3f}" for token, value in zip(self.tokens, self.values, strict=True)]
        yield from _of_tokens(self.text, self.offsets, strengths, notes)


@dataclass(frozen=True)
class Corrupted(Result):
    """A text in which a generator replaced tokens, and the discriminator's verdict, if there is one."""

    tokens: list[str]  # the original ones
    offsets: list[tuple[int, int]]
    inputs: list[str]  # the tokens that the discriminator saw
    masked: list[bool]  # the tokens that the generator was asked for; it may have drawn the original
    written: dict[int, str]  # the new tokens at the replaced ones, as after another word
    candidates: dict[int, list[Candidate]]  # at each masked token, the generator's best
    probabilities: list[float] | None  # of having been replaced; None without a detector

    @property
    def replaced(self) -> list[bool]:
        """True for each token that differs from the original."""
        return [token != original for original, token in zip(self.tokens, self.inputs, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "replaced": self.replaced}

    def spans(self) -> Iterator[Span]:
        at = 0
        for i, ((start, end), new) in enumerate(zip(self.offsets, self.inputs, strict=True)):
            if start < at or (start == end and i not in self.written):
                continue
            p = self.probabilities[i] if self.probabilities else 0.0
            note = f"{new}: {p:.3f}" if self.probabilities else new
            if i in self.candidates:
                note += f"; {listed(self.candidates[i])}"
            yield Span(self.text[at:start])
            original = self.text[start:end]
            if i in self.written:
                yield Span(_visible(self.written[i]), p, note, original, shown=self.probabilities is not None)
            else:
                yield Span(original, p, note, shown=p > 0.5)
            at = end
        yield Span(self.text[at:])


@dataclass(frozen=True)
class Filled(Result):
    """A text with masks, and the best tokens for each of them."""

    masks: list[tuple[int, int]]  # offsets of the masks in the text
    candidates: list[list[Candidate]]  # for each mask, best first
    spaces_stay: bool = False  # tokens do not include the space before a word

    @property
    def filled(self) -> str:
        """The text with the best token in the place of each mask."""
        return "".join(span.text for span in self.spans())

    def as_dict(self) -> dict[str, Any]:
        fields = {**asdict(self), "filled": self.filled}
        del fields["spaces_stay"]
        return fields

    def __str__(self) -> str:
        """The filled text, and a line with the candidates of each mask."""
        return "\n".join([self.filled, *(f"    {listed(of_mask)}" for of_mask in self.candidates)])

    def __rich__(self) -> Text:
        text = super().__rich__()
        for of_mask in self.candidates:
            text.append(shown(f"\n    {listed(of_mask)}"), "dim")
        return text

    def spans(self) -> Iterator[Span]:
        at, last = 0, ""
        for (start, end), best in zip(self.masks, self.candidates, strict=True):
            before, new = self.text[at:start], best[0].written
            if not self.spaces_stay and not new.startswith(" "):
                before = before.removesuffix(" ")
            elif not self.spaces_stay and not (before or last)[-1:].isalnum():
                new = new[1:]
            yield Span(before)
            yield Span(new, best[0].probability, listed(best))
            at, last = end, new
        yield Span(self.text[at:])


@dataclass(frozen=True)
class Predicted(Result):
    """The prediction of a fine-tuned model for an item.

    text           the text, the first text of a pair, the question, or the words with spaces between them
    prediction     a label, a number, a tag for each word, or an answer, which is "" if there is none
    probability    probability of the label or the answer; None if there is none
    probabilities  probabilities by label; for tags, the probability of each word's tag, None for a word without tokens
    given          fields of the item; of plain text that was tagged, also its words
    offsets        places of the words in such a text, in characters
    more           further fields of the answer: its `start` and `end` in the context, in characters; `entities`
    """

    prediction: Any
    given: dict[str, Any]
    probability: float | None = None
    probabilities: dict[str, float] | list[float | None] | None = None
    offsets: list[tuple[int, int]] | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, fields: dict[str, Any], prediction: Any, offsets: list[tuple[int, int]] | None, more: dict[str, Any]
    ) -> Predicted:
        """Make a result of the fields of an item and the answer of a task."""
        words = fields.get("words")
        text = fields.get("text", fields.get("question", " ".join(words or [])))
        probabilities = {name: more.pop(name) for name in ("probability", "probabilities") if name in more}
        if words is not None and "entities" in more:
            more["entities"] = [_entity(entity, words, text, offsets) for entity in more["entities"]]
        return cls(text, prediction, fields, offsets=offsets, more=more, **probabilities)

    def as_dict(self) -> dict[str, Any]:
        return {**self.given, **self.answer}

    @property
    def answer(self) -> dict[str, Any]:
        """Everything but the item itself."""
        fields = {"prediction": self.prediction, "probability": self.probability, "probabilities": self.probabilities}
        present = {name: value for name, value in fields.items() if value is not None}
        words = {"words": self.given["words"], "offsets": self.offsets} if self.offsets is not None else {}
        return {**words, **present, **self.more}

    def spans(self) -> Iterator[Span]:
        words = self.given.get("words")
        if words is None:
            written = self.prediction if isinstance(self.prediction, str) else f"{self.prediction:.4g}"
            yield Span(written or "(no answer)", self.probability or 0.0, shown=self.probability is not None)
            second = self.given.get("pair")
            context = "" if second is None else f" | {' '.join(second.split())}"
            yield Span(f"  {' '.join(self.text.split())}{context}")
            return
        chances = self.probabilities if isinstance(self.probabilities, list) else [None] * len(words)
        for place, (word, tag, chance) in enumerate(zip(words, self.prediction, chances, strict=True)):
            touches = self.offsets is not None and self.offsets[place][0] <= self.offsets[place - 1][1]
            if place:
                yield Span("" if touches else " ")
            tagged = tag != "O"
            yield Span(f"{word}/{tag}" if tagged else word, (chance or 0.0) if tagged else 0.0, f"{tag}: {chance}")


def _entity(
    entity: dict[str, Any], words: Sequence[str], text: str, offsets: list[tuple[int, int]] | None
) -> dict[str, Any]:
    """Return an entity with its text and, in plain text, its characters."""
    first, last = entity["first"], entity["last"]
    if offsets is None:
        return {**entity, "text": " ".join(words[first : last + 1])}
    start, end = offsets[first][0], offsets[last][1]
    return {**entity, "text": text[start:end], "start": start, "end": end}


class Results(list[R], Generic[R]):
    """The results of several texts; a list that shows itself in a notebook."""

    def _repr_html_(self) -> str:
        return "".join(result._repr_html_() for result in self)


def several(texts: Any) -> list[str]:
    """Return a text, or several, as a list. Raises ConfigError for everything else."""
    alone = isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable)
    listed: list[str] = [texts] if alone else list(texts)
    for number, text in enumerate(listed, start=1):
        if not isinstance(text, str):
            raise ConfigError(f"text {number}: must be a string, is {text!r:.60}.")
    return listed


def one_or_all(texts: str | list[str], results: list[R]) -> R | Results[R]:
    """Return one result for one text."""
    return results[0] if isinstance(texts, str) else Results(results)


def _of_tokens(
    text: str,
    offsets: Sequence[tuple[int, int]],
    strengths: Sequence[float],
    notes: Sequence[str],
    *,
    shown: bool = False,
) -> Iterator[Span]:
    """Yield a text with its tokens in colour."""
    at = 0
    for (start, end), strength, note in zip(offsets, strengths, notes, strict=True):
        # Several tokens of one character, such as the bytes of an emoji; a space that is not in the text.
        if start < at or start == end:
            continue
        yield Span(text[at:start])
        yield Span(text[start:end], strength, note, shown=shown)
        at = end
    yield Span(text[at:])


def _visible(written: str) -> str:
    return written.strip() or repr(written)


def listed(candidates: Sequence[Candidate]) -> str:
    return ", ".join(f"{candidate.name} {candidate.probability:.2f}" for candidate in candidates)


def _mixed(strength: float) -> str:
    """Return a colour between white and red, for a terminal of any background."""
    return ",".join(str(round(255 + (channel - 255) * min(strength, 1.0))) for channel in RED)


def _html(span: Span) -> str:
    text = escape(span.text).replace("\n", "<br>")
    if span.instead_of:
        text = f'<s style="opacity: 0.6">{escape(span.instead_of)}</s>&nbsp;{text}'
    if not span.note:
        return text
    colour = f"background: rgba({RED[0]}, {RED[1]}, {RED[2]}, {span.strength * 0.75:.2f}); border-radius: 3px"
    return f'<span title="{escape(span.note)}" style="{colour}">{text}</span>'
