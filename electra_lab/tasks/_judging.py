"""Shared by the tasks without training: states and log-probabilities of a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import repeat
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from electra_lab.model.scores import energies, replaced_log_odds, token_log_probabilities
from registry import Encoded, Network, Pretrained
from registry.errors import DivergedError

Which = Literal["auto", "discriminator", "generator"]
Scores = NDArray[np.float64]


def candidates(which: Which) -> Sequence[str]:
    """Return the names of the networks to try, the first one first."""
    return ("discriminator", "generator") if which == "auto" else (which,)


def states(
    network: Network, model: Pretrained, sizes: Sequence[int], row: Callable[[int], Sequence[int]]
) -> Iterator[tuple[list[int], Float[Tensor, "B T D"]]]:
    """Yield the numbers of some rows and their states, in float32, the longest rows first, so that little is padded.

    sizes  number of tokens of each row, without special ones
    row    function from the number of a row to its tokens; [CLS] and [SEP] are added
    """
    vocabulary = model.encoder.vocabulary
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    for start in range(0, len(order), model.batch_size):
        chosen = order[start : start + model.batch_size]
        tokens = torch.full((len(chosen), sizes[chosen[0]] + 2), vocabulary.pad_id)
        real = torch.zeros_like(tokens, dtype=torch.bool)
        for place, number in enumerate(chosen):
            whole = torch.tensor([vocabulary.cls_id, *row(number), vocabulary.sep_id])
            tokens[place, : len(whole)], real[place, : len(whole)] = whole, True
        tokens, real = tokens.to(model.device), real.to(model.device)
        yield chosen, network.hidden(tokens, real, torch.zeros_like(tokens))


def refuse_infinite(numbers: NDArray[np.floating]) -> None:
    """Raise DivergedError for numbers that cannot be compared."""
    if not np.isfinite(numbers).all():
        raise DivergedError("the network's outputs are not finite, so it cannot be judged. Use another checkpoint.")


def detection(network: Network, model: Pretrained, sentences: Sequence[Encoded]) -> list[Scores]:
    """Return, for each sentence, the log-probability of every token that it is original, Float64[T]."""
    return _in_one_pass(network, model, sentences, lambda hidden: F.logsigmoid(-replaced_log_odds(network, hidden)))


def energy(network: Network, model: Pretrained, sentences: Sequence[Encoded]) -> list[Scores]:
    """Return, for each sentence, the log-probability of every token by its energy, Float64[T]."""
    return _in_one_pass(network, model, sentences, lambda hidden: -energies(network, hidden))


def _in_one_pass(
    network: Network, model: Pretrained, sentences: Sequence[Encoded], read: Callable[[Tensor], Tensor]
) -> list[Scores]:
    scores = [np.zeros(len(sentence.ids)) for sentence in sentences]
    sizes = [len(sentence.ids) for sentence in sentences]
    for numbers, hidden in states(network, model, sizes, lambda number: sentences[number].ids):
        rows = read(hidden).double().cpu().numpy()
        for number, row in zip(numbers, rows, strict=True):
            scores[number][:] = row[1 : sizes[number] + 1]
    return scores


def pseudo_likelihood(
    network: Network,
    model: Pretrained,
    sentences: Sequence[Encoded],
    places: Sequence[Collection[int]],
    *,
    rest_of_word: bool,
) -> list[Scores]:
    """Return, for each sentence, the log-probability of each token when it is masked, Float64[T].

    Salazar et al. (2020), Masked Language Model Scoring: the other tokens are unchanged. Probabilities are normalized
    over the whole vocabulary.

    places        tokens of each sentence to score; the others get 0
    rest_of_word  True to mask the tokens that follow in the word, too: the l2r variant of Kauf and Ivanova (2023), A
                  Better Way to Do Masked Language Model Scoring
    """
    mask = model.encoder.vocabulary.mask_id
    asked: list[tuple[int, int]] = []  # the sentence and the token that each row masks
    for number, of_sentence in enumerate(places):
        asked += zip(repeat(number), sorted(of_sentence))

    def masked(row: int) -> list[int]:
        number, place = asked[row]
        tokens, words = list(sentences[number].ids), sentences[number].words
        end = place + 1
        while rest_of_word and end < len(words) and words[end] == words[place]:
            end += 1
        return tokens[:place] + [mask] * (end - place) + tokens[end:]

    scores = [np.zeros(len(sentence.ids)) for sentence in sentences]
    for rows, hidden in states(network, model, [len(scores[number]) for number, _ in asked], masked):
        here = [asked[row] for row in rows]
        positions = torch.tensor([[place + 1] for _, place in here], device=hidden.device)  # after [CLS]
        tokens = torch.tensor([[sentences[number].ids[place]] for number, place in here], device=hidden.device)
        logs = token_log_probabilities(network, hidden, positions, tokens)
        for (number, place), value in zip(here, logs.squeeze(1).tolist(), strict=True):
            scores[number][place] = value
    return scores
