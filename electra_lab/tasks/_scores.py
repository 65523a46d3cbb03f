"""Log-probabilities of the tokens of sentences, by either head."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from electra_lab.tasks._judging import states
from registry import Encoded, Network, Pretrained

Scores = NDArray[np.float64]


def detection(network: Network, model: Pretrained, sentences: Sequence[Encoded]) -> list[Scores]:
    """Return, for each sentence, the log-probability of every token that it is original, Float64[T]."""
    found = [np.zeros(len(sentence.ids)) for sentence in sentences]
    sizes = [len(each) for each in found]
    for numbers, hidden in states(network, model, sizes, lambda number: sentences[number].ids):
        rows = F.logsigmoid(-network.replaced_logits(hidden).float()).double().cpu().numpy()
        for number, row in zip(numbers, rows, strict=True):
            found[number][:] = row[1 : sizes[number] + 1]
    return found


def pseudo_likelihood(
    network: Network,
    model: Pretrained,
    sentences: Sequence[Encoded],
    places: Sequence[Collection[int]],
    *,
    rest_of_word: bool,
) -> list[Scores]:
    """Return, for each sentence, the log-probabilities of its tokens, Float64[T]: each where it is masked.

    Salazar et al. (2020), Masked Language Model Scoring: the other tokens are read as they are. They are normalised
    over the whole table of tokens.

    places        the tokens of each sentence that are asked for; the others have 0
    rest_of_word  also mask what follows in the word: the l2r variant of Kauf and Ivanova (2023), A Better Way to Do
                  Masked Language Model Scoring
    """
    mask = model.encoder.vocabulary.mask_id
    asked = [(number, place) for number, each in enumerate(places) for place in sorted(each)]

    def masked(row: int) -> list[int]:
        number, place = asked[row]
        tokens, words = list(sentences[number].ids), sentences[number].words
        end = place + 1
        while rest_of_word and end < len(words) and words[end] == words[place]:
            end += 1
        return tokens[:place] + [mask] * (end - place) + tokens[end:]

    found = [np.zeros(len(sentence.ids)) for sentence in sentences]
    for rows, hidden in states(network, model, [len(found[number]) for number, _ in asked], masked):
        here = [asked[row] for row in rows]
        positions = torch.tensor([[place + 1] for _, place in here], device=hidden.device)  # after [CLS]
        tokens = torch.tensor([[sentences[number].ids[place]] for number, place in here], device=hidden.device)
        logs = network.token_logits(hidden, positions).squeeze(1).float().log_softmax(-1).gather(1, tokens)
        for (number, place), value in zip(here, logs.squeeze(1).tolist(), strict=True):
            found[number][place] = value
    return found
