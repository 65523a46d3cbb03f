"""The outputs of several models of one task as those of one model: an ensemble averages probabilities."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def mean_logits(logits: Sequence[Float[Tensor, "*shape L"]]) -> Float[Tensor, "*shape L"]:
    """Return the logarithms of the mean probabilities of several models, by their logits over the last axis."""
    return torch.stack([of_model.log_softmax(-1) for of_model in logits]).logsumexp(0) - math.log(len(logits))


def mean_binary_logits(logits: Sequence[Float[Tensor, " B"]]) -> Float[Tensor, " B"]:
    """Return the logit of the mean probability of several models, each with one logit."""
    pairs = [torch.stack([torch.zeros_like(of_model), of_model], -1) for of_model in logits]  # [B 2] each
    no, yes = mean_logits(pairs).unbind(-1)
    return yes - no
