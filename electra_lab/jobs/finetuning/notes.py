"""Properties of examples that make results doubtful without being errors, for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

from electra_lab.jobs.finetuning.experiment import TRAIN
from registry.contracts.dataset import AnyExample, is_labelled

NAMES = ("id", "place", "paradigm", "field")  # fields that are not read by a model
LABELS = ("label", "tags", "answers")
SHARE = 0.9  # of the training examples with one label, from which on it is worth a note


def notes(examples: Mapping[str, Sequence[AnyExample]]) -> Iterator[str]:
    """Yield notes on duplicates between training and held-out data, empty texts, and rare or dominant labels.

    Examples are equal if their texts are, but for case and white space.
    """
    if not all(isinstance(of_split[0], get_args(AnyExample)) for of_split in examples.values() if of_split):
        return  # of a plug-in's own type
    training = {_content(example): _label(example) for example in examples.get(TRAIN, ())}
    # Examples that are in training data too, and those that training data have with two labels.
    for split, of_split in examples.items():
        seen = [example for example in of_split if _content(example) in training] if split != TRAIN else []
        if seen:
            other = sum(_label(example) not in (None, training[_content(example)]) for example in seen)
            with_another = f", {other:,} of them with another label" if other else ""
            share = f"{len(seen):,} of {len(of_split):,} examples of {split} are in train too"
            yield f"{share}{with_another} ({_first(seen)}). Results on them are too good. Remove them from train."
    differing = [each for each in examples.get(TRAIN, ()) if _label(each) != training[_content(each)]]
    if differing:
        yield f"{len(differing):,} examples of train have a copy with another label ({_first(differing)})."
    # Texts without content.
    for split, of_split in examples.items():
        empty = [example for example in of_split if "" in _texts(example)]
        if empty:
            yield f"{len(empty):,} of {len(of_split):,} examples of {split} have an empty text ({_first(empty)})."
    # Labels of a single example, and a label that most examples have.
    words = [label for example in examples.get(TRAIN, ()) if isinstance(label := _label(example), str)]
    counts = Counter(words).most_common()
    if rare := [label for label, number in counts if number == 1]:
        yield f"labels of a single training example: {', '.join(sorted(rare)[:10])}{', ...' * (len(rare) > 10)}."
    if counts and counts[0][1] >= SHARE * len(words):
        share = f"{counts[0][1] / len(words):.0%} of the training examples have the label '{counts[0][0]}'"
        yield f"{share}. Compare accuracy with this share, or set another evaluate.metric."


def _first(found: Sequence[AnyExample]) -> str:
    return f"the first is {found[0].place or found[0].id}"


def _texts(example: AnyExample) -> list[str]:
    """Return the texts of an example, in lower case, with single spaces."""
    values = [getattr(example, field.name) for field in fields(example) if field.name not in (*LABELS, *NAMES)]
    texts = [" ".join(value) if isinstance(value, tuple) else value for value in values]
    return [" ".join(text.lower().split()) for text in texts if isinstance(text, str)]


def _content(example: AnyExample) -> int:
    """Return a hash of the texts, so that no copy of them is held."""
    return hash(tuple(_texts(example)))


def _label(example: AnyExample) -> Any:
    """Return the label, the tags or the answers of an example; None if they are unknown."""
    known = next((getattr(example, name) for name in LABELS if hasattr(example, name)), None)
    return known if is_labelled(example) else None
