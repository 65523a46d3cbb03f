"""Runs over text that repeats one sentence, so that a network can know every original by its position."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from electra_lab.testing import CLS, PAD, SEP, vocabulary
from electra_lab.testing.measures import picker, reader
from registry import Batch, Trained

SIZE = 40
LENGTH = 14


def sentence(rows: int, length: int = LENGTH, size: int = SIZE) -> Batch:
    """[CLS], 0 to length - 2 of the ordinary tokens 5, 6, 7, ..., [SEP], padding; a row's number is its segment."""
    places = torch.arange(length)
    ends = 1 + torch.arange(rows).unsqueeze(1) * 5 % (length - 1)
    tokens = original(places, size).expand(rows, -1).masked_fill(places == 0, CLS)
    tokens = tokens.masked_fill(places == ends, SEP).masked_fill(places > ends, PAD)
    examples = torch.arange(rows)
    return Batch(tokens, places <= ends, examples.unsqueeze(1).expand(-1, length).contiguous(), examples)


def original(places: Tensor, size: int = SIZE) -> Tensor:
    return 5 + places % (size - 5)


class Reads:
    """A network whose states are a function of (tokens, mask, segments), and whose scores are their first feature.
    It keeps the real tokens of its inputs."""

    def __init__(self, states: Callable[[Tensor, Tensor, Tensor], Tensor], guesses: Tensor | None = None) -> None:
        self.states, self.guesses = states, guesses
        self.shown: list[list[int]] = []
        self.documents: list[Tensor | None] = []

    def hidden(self, tokens: Tensor, mask: Tensor, segments: Tensor, documents: Tensor | None = None) -> Tensor:
        self.shown += [row[real].tolist() for row, real in zip(tokens, mask, strict=True)]
        self.documents.append(documents)
        return self.states(tokens, mask, segments)

    def replaced_logits(self, hidden: Tensor) -> Tensor:
        return hidden[..., 0]

    def token_logits(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return the row of `guesses` whose index is the first feature of a position."""
        return self.guesses[hidden[..., 0].long().gather(1, positions)]


def knows(tokens: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
    """States that tell whether a token differs from the original."""
    return (tokens != original(torch.arange(tokens.shape[1]))).float().unsqueeze(-1)


def noise(dim: int, seed: int = 0) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """States without information."""
    numbers = torch.Generator().manual_seed(seed)
    return lambda tokens, mask, segments: torch.randn(*tokens.shape, dim, generator=numbers)


def unread(number: int, rows: Sequence[int] = ()) -> Iterator[Batch]:
    """Stands for a text that must not be read."""
    raise AssertionError("this text was read")


def run(network: Any, test: Batch | None, train: Batch | None = None, **changes: Any) -> Trained:
    """Return a run with these texts; a text that is None must not be read."""
    known: dict[str, Any] = {"detects": True, "vocabulary": vocabulary(SIZE), "metrics": {}, "finetune": unread}
    known |= {"test": unread if test is None else reader(test)}
    known |= {"train": unread if train is None else picker(train), "train_rows": 0 if train is None else len(train)}
    return Trained(model=network, **(known | changes))
