"""One number for a text: how unusual its tokens are to a pair."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import torch

from electra_lab.data.texts import Tokenized, Window, batches, windows
from electra_lab.model.scores import energies, replaced_log_odds, token_log_probabilities
from registry.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from electra_lab.inference.pair import Pair
    from registry import Network

By = Literal["detection", "energy", "likelihood"]
Reduce = Literal["mean", "max", "sum"]
COMBINED: Mapping[Reduce, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "max": max,
    "sum": math.fsum,
}
PART = 128  # positions of a row whose vocabulary logits are in memory at once


def refuse_unknown(by: str | None, reduce: str, mask_prob: float | None) -> None:
    """Raise ConfigError for invalid arguments of `Pair.score`."""
    for name, value, choices in (("by", by, (*get_args(By), None)), ("reduce", reduce, get_args(Reduce))):
        if value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, choices))}, is {value!r:.60}.")
    if mask_prob is not None and not 0 < mask_prob <= 1:
        raise ConfigError(f"mask_prob must be above 0 and at most 1, or None, is {mask_prob}.")


def log_odds(pair: Pair, texts: Sequence[Tokenized], batch_size: int) -> list[list[float]]:
    """Return the discriminator's log-odds of "replaced" for every token of every text."""
    return _in_one_pass(pair, pair.detector, replaced_log_odds, texts, batch_size)


def energies_of(pair: Pair, texts: Sequence[Tokenized], batch_size: int) -> list[list[float]]:
    """Return the discriminator's energy of every token of every text, in nats. Raises ConfigError if it has none."""
    if pair.discriminator is None or not pair.has_energies:
        raise ConfigError(f"{pair.name}: has no head for energies, which the objective electric trains.")
    return _in_one_pass(pair, pair.discriminator, energies, texts, batch_size)


@torch.no_grad()
def _in_one_pass(
    pair: Pair, network: Network, read: Callable[..., Tensor], texts: Sequence[Tokenized], batch_size: int
) -> list[list[float]]:
    numbers = [[0.0] * len(text.ids) for text in texts]
    for chosen, batch in batches(texts, windows(texts, pair.length), batch_size, pair.vocabulary, pair.device):
        states = network.hidden(batch.tokens, batch.attention_mask, batch.segments)
        for window, row in zip(chosen, read(network, states).cpu(), strict=True):
            numbers[window.text][window.keep.start : window.keep.stop] = pair.finite(row[window.inside]).tolist()
    return numbers


@torch.no_grad()
def surprisals(pair: Pair, texts: Sequence[Tokenized], mask_prob: float | None, batch_size: int) -> list[list[float]]:
    """Return, for every token of every text, the negative log-probability when it is masked, in nats.

    A token is masked in one of ceil(1 / mask_prob) passes, together with every token that is as many places from it;
    if mask_prob is None, each token is masked alone (Salazar et al. 2020, Masked Language Model Scoring). A network
    that does not see the token reads the text itself, in one pass.
    """
    network, vocabulary = pair.writer, pair.vocabulary
    surprisal = [[0.0] * len(text.ids) for text in texts]
    whole = windows(texts, pair.length)
    passes = max((len(window.keep) for window in whole), default=0)
    if pair.cloze:
        mask_prob = 1.0
    if mask_prob is not None:
        passes = min(passes, math.ceil(1 / mask_prob))
    for number in range(passes):
        # Make a separate text of each window that has a token to mask in this pass.
        asked, places = list[Tokenized](), list[tuple[Window, range]]()
        for window in whole:
            if masked := window.keep[number::passes]:
                ids = texts[window.text].ids[window.first : window.first + window.length]
                new = dict.fromkeys((place - window.first for place in masked), vocabulary.mask_id)
                asked.append(Tokenized("", ids, [], []).replaced({} if pair.cloze else new))
                places.append((window, masked))
        rows = [Window(row, 0, len(text.ids), range(len(text.ids))) for row, text in enumerate(asked)]
        # Their log-probabilities.
        for chosen, batch in batches(asked, rows, batch_size, vocabulary, pair.device):
            states = network.hidden(batch.tokens, batch.attention_mask, batch.segments)
            here = [places[row.text] for row in chosen]
            positions = torch.zeros(len(here), max(len(masked) for _, masked in here), dtype=torch.long)
            tokens = torch.zeros_like(positions)
            for row, (window, masked) in enumerate(here):
                positions[row, : len(masked)] = torch.tensor(masked) - window.first + 1  # after [CLS]
                tokens[row, : len(masked)] = torch.tensor([texts[window.text].ids[place] for place in masked])
            parts = zip(*(torch.split(ids.to(pair.device), PART, 1) for ids in (positions, tokens)), strict=True)
            logs = torch.cat([token_log_probabilities(network, states, *part) for part in parts], 1).cpu()
            for (window, masked), row_logs in zip(here, logs, strict=True):
                for place, value in zip(masked, pair.finite(-row_logs[: len(masked)]).tolist(), strict=True):
                    surprisal[window.text][place] = value
    return surprisal


def percentile(score: float, reference: Sequence[float]) -> float:
    """Return the share of sorted scores below one, in percent; an equal one, but for rounding, counts half."""
    rounding = 1e-5 * max(1.0, abs(score))  # the same text has another last digit in another batch
    return 50 * (bisect_left(reference, score - rounding) + bisect_right(reference, score + rounding)) / len(reference)
