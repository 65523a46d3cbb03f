"""A plug-in for tests: a backbone that returns wrong numbers at a step, in one of its modules."""

from typing import Literal

import torch
from torch import nn

from registry import Backbone, backbones

STEP = 0
Wrong = Literal["forward", "backward", "never"]


class FeedForward(nn.Module):
    """Fails in its own code, between torch modules that do not fail."""

    def __init__(self, dim: int, wrong: str, at: int) -> None:
        super().__init__()
        self.wrong, self.at = wrong, at
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        x = self.first(x)
        if self.training and self.at == STEP:
            nothing = (x - x.detach()).abs().sum()
            x = x + (torch.log(nothing - 1) if self.wrong == "forward" else nothing.sqrt())
        return self.second(x.relu())


@backbones.register("fragile")
class Fragile(Backbone, nn.Module):
    def __init__(self, dim, depth, heads, max_length, /, *, wrong: Wrong = "never", at: int = -1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FeedForward(dim, wrong, at if layer == 1 else -1) for layer in range(depth))

    def at_step(self, seed, step):
        global STEP
        STEP = step

    def forward(self, x, attention_mask):
        for layer in self.layers:
            x = x + layer(x)
        return x * attention_mask.unsqueeze(-1)
