"""The outputs of networks for the tokens of a text, in float32: the numbers behind all scores of texts."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from registry import Generator, Network


def replaced_log_odds(network: Network, states: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
    """Return the logarithm of P(replaced) / P(original) of every token."""
    return network.replaced_logits(states).float()


def energies(network: Network, states: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
    """Return the energy of every token: an estimate of its negative log-probability given the others, in nats."""
    return network.predict("energy", states).float()


def token_log_probabilities(
    network: Generator, states: Float[Tensor, "B T D"], positions: Int[Tensor, "B K"], tokens: Int[Tensor, "B K"]
) -> Float[Tensor, "B K"]:
    """Return the log-probabilities of tokens at some positions, normalized over the whole vocabulary."""
    logits = network.token_logits(states, positions).float()
    return torch.log_softmax(logits, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
