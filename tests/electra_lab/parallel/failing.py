"""A plug-in for tests: ELECTRA that makes one of several processes fail."""

import os
import time
from typing import Literal

import torch

from electra_lab.objectives.electra import Electra
from registry import objectives


@objectives.register("trouble")
class Trouble(Electra):
    """ELECTRA that disturbs the process of one rank, or of all for -1, before a step after the first."""

    def __init__(
        self, generator, discriminator, masking, sampler, vocabulary, /, *, step: int = -1, rank: int = 0,
        deed: Literal["kill", "signal", "interrupts", "memory", "diverge", "fail", "exit"] = "signal",
    ) -> None:  # fmt: skip
        super().__init__(generator, discriminator, masking, sampler, vocabulary)
        self.step, self.rank, self.deed = step, rank, deed

    def at_step(self, seed, step):
        self.spoiled = False
        if step != self.step or step == 0 or self.rank not in (-1, int(os.environ.get("RANK", "0"))):
            return
        if self.deed == "interrupts":  # Ctrl-C, sent to each process by the terminal and then by the launcher
            os.kill(os.getpid(), 2)
            time.sleep(0.7)
            os.kill(os.getpid(), 2)
        if self.deed in ("kill", "signal"):
            os.kill(os.getpid(), {"kill": 9, "signal": 15}[self.deed])
        if self.deed == "memory":
            torch.empty(1 << 60)
        if self.deed == "fail":
            raise KeyError("unforeseen")
        if self.deed == "exit":
            raise SystemExit(0)
        self.spoiled = self.deed == "diverge"

    def forward(self, batch, rng):
        losses = super().forward(batch, rng)
        if self.spoiled:
            losses.terms["generator"].sum.mul_(float("nan"))
        return losses
