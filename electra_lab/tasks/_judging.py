"""What the tasks without training share: texts as rows in batches, and the states of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from registry import Network, Pretrained
from registry.errors import DivergedError

Which = Literal["auto", "discriminator", "generator"]


def candidates(which: Which) -> Sequence[str]:
    """Return the names of the networks to try, the first one first."""
    return ("discriminator", "generator") if which == "auto" else (which,)


def states(
    network: Network, model: Pretrained, sizes: Sequence[int], row: Callable[[int], Sequence[int]]
) -> Iterator[tuple[list[int], Float[Tensor, "B T D"]]]:
    """Yield the numbers of some rows and their states, in float32, the longest rows first; little is padded then.

    sizes  of each row in tokens, without special ones
    row    returns the tokens of a row by its number; [CLS] and [SEP] are put around them
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
    """Raise DivergedError for numbers that no comparison can be made of."""
    if not np.isfinite(numbers).all():
        raise DivergedError("the network's outputs are not finite, so it cannot be judged. Use another checkpoint.")
