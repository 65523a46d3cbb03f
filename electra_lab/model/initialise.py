"""Initial weights, of google-research/electra or plainly normal; biases are zero."""

from collections.abc import Callable, Set
from typing import Literal

import torch
from torch import Generator, Size, nn

from electra_lab.model.embeddings import Shifted

STANDARD_DEVIATION = 0.02
Distribution = Literal["official", "normal"]
Source = Callable[[str, Size], Generator | None]  # the random numbers of the weight of a name and shape


@torch.no_grad()
def initialise(
    module: nn.Module,
    source: Source = lambda *_: None,
    distribution: Distribution = "official",
    keep: Set[nn.Parameter] = frozenset(),
) -> None:
    """Set the weights of every nn.Linear and nn.Embedding, once each, but for the parameters to keep.

    source        by default torch's global generator. One that depends on the name alone gives equal weights to equal
                  parts of different models; a part that has several names goes by the first
    distribution  official  normal of deviation 0.02, truncated at two deviations; where google-research/electra names
                            no initializer, which are the projection of the embeddings and the last layer of the
                            detection head, TensorFlow's default, Glorot's uniform (Glorot and Bengio 2010)
                  normal    normal of deviation 0.02

    Gains, gates and zero weights of a library are left alone: a zero output projection is a deliberate choice, and
    x-transformers stores LayerNorm gains as offsets.
    """
    glorot, names = glorot_layers(module), dict[nn.Module, str]()
    for name, part in module.named_modules():
        if isinstance(part, Shifted):
            names[part.table] = name  # where the table would be without a difference
        if isinstance(part, nn.Linear | nn.Embedding) and part.weight not in keep and part.weight.count_nonzero():
            generator = source(names.get(part, name), part.weight.shape)
            if distribution == "normal":
                nn.init.normal_(part.weight, std=STANDARD_DEVIATION, generator=generator)
            elif part in glorot:
                nn.init.xavier_uniform_(part.weight, generator=generator)
            else:
                truncated_normal_(part.weight, generator)
            if isinstance(part, nn.Linear) and part.bias is not None and part.bias not in keep:
                nn.init.zeros_(part.bias)


def truncated_normal_(weight: torch.Tensor, generator: Generator | None = None, *, scale: float = 1.0) -> torch.Tensor:
    """Draw normal numbers of deviation 0.02 * scale, truncated at two deviations, which leaves 0.0176 * scale."""
    deviation = STANDARD_DEVIATION * scale
    return nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)


def glorot_layers(module: nn.Module) -> set[nn.Module]:
    """Return the layers of networks and heads that the official code draws from Glorot's uniform distribution."""
    found: set[nn.Module] = set()
    for part in module.modules():
        found.update(getattr(part, "glorot_layers", ()))
    return found
