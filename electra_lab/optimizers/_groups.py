"""Parameter groups, and the options that several optimizers have."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from torch import nn

Beta = Annotated[float, Field(ge=0, lt=1)]


def decayed(parameters: Sequence[tuple[str, nn.Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups: no decay for parameters with fewer than two dimensions, which are biases and gains."""
    groups = [
        {"params": [p for _, p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for _, p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
