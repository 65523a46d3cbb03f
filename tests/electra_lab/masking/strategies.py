"""Strategies by name, and a plain implementation of finding words."""

import torch

from electra_lab.testing import vocabulary
from electra_lab.training.random import Streams
from registry import Masked, Vocabulary, masking_strategies


def masked(
    name: str, tokens: torch.Tensor, maskable: torch.Tensor, words: Vocabulary, step: int = 0, **options
) -> Masked:
    random = Streams.of(0, step, torch.arange(len(tokens)))("masking")
    return masking_strategies.get(name).component(tokens, maskable, words, random, **options)


def words_of(row: list[int], maskable: list[bool], words: Vocabulary) -> list[list[int]]:
    found: list[list[int]] = []
    for place, token in enumerate(row):
        if not maskable[place]:
            continue
        if words.word_start[token] or place == 0 or not maskable[place - 1]:
            found.append([])
        found[-1].append(place)
    return found


class Numbers:
    """Returns given numbers instead of random ones: the first list at the first call, and so on."""

    def __init__(self, *calls: list[float]) -> None:
        self.calls = [torch.tensor(call) for call in calls]

    def uniform(self, rows: int, *shape: int) -> torch.Tensor:
        return self.calls.pop(0).view(rows, *shape)


def small() -> Vocabulary:
    return vocabulary(12)
