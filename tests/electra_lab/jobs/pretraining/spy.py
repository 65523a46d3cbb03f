"""A plug-in for tests: ELECTRA that records every pass, and can fail on purpose."""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch

from electra_lab.objectives.electra import Electra
from registry import Losses, Term, objectives


@objectives.register("spy")
class Spy(Electra):
    """ELECTRA that records every pass in `seen`.

    poison         the step whose gradient is not finite
    poisons        the same for every step that reads one of these batches, by the first tokens of each
    spoils_loss    its loss is not finite either
    strike         the step at which the process gets a signal, and its number
    greed          the step that asks for more memory than there is
    """

    seen: list[SimpleNamespace] = []  # noqa: RUF012

    def __init__(
        self,
        generator,
        discriminator,
        masking,
        sampler,
        vocabulary,
        /,
        *,
        discriminator_weight: float = 50.0,
        poison: int = -1,
        poisons: list[list[int]] = [],  # noqa: B006
        spoils_loss: bool = False,
        strike: int = -1,
        signal: int = 15,
        greed: int = -1,
    ) -> None:
        super().__init__(generator, discriminator, masking, sampler, vocabulary)
        self.discriminator_weight = discriminator_weight
        self.guards = {"masking": masking, "sampler": sampler}
        self.masking, self.sampler = self._masked, self._drawn
        self.poison, self.spoils_loss, self.strike, self.signal, self.greed = poison, spoils_loss, strike, signal, greed
        self.poisons = poisons
        self.step, self.calls = -1, 0

    def _masked(self, *arguments):
        self.masks = self.guards["masking"](*arguments)
        return self.masks

    def _drawn(self, *arguments):
        self.drawn = self.guards["sampler"](*arguments)
        return self.drawn

    def at_step(self, seed, step):
        self.step = step
        self.calls += 1
        if self.calls == 1:  # the rehearsal is step 0, too
            return
        if step == self.strike:
            os.kill(os.getpid(), self.signal)
        if step == self.greed:
            torch.empty(1 << 60)

    def forward(self, batch, rng):
        probe = torch.arange(5, 5 + batch.tokens.shape[1]).unsqueeze(0) % self.vocabulary.size
        with torch.no_grad():  # its output depends only on weights and torch's global generator
            hidden = self.discriminator.hidden(probe, torch.ones_like(probe, dtype=torch.bool), probe * 0)
        losses = super().forward(batch, rng)
        terms = dict(losses.terms)
        poisoned = self.step == self.poison or any(batch.tokens.flatten()[: len(p)].tolist() == p for p in self.poisons)
        if self.training and poisoned and self.calls > 1:
            weight = next(self.discriminator.parameters())
            spoiled = (weight - weight.detach()).abs().sqrt().sum()  # the value is 0, the slope infinite
            if self.spoils_loss:
                spoiled = spoiled + float("nan")
            term = terms["discriminator"]
            terms["discriminator"] = Term(term.sum + spoiled, term.count, term.weight)
        options = {name: guard.options for name, guard in self.guards.items()}
        self.seen.append(
            SimpleNamespace(
                step=self.step,
                rehearsal=self.calls < 2,
                training=all(module.training for module in self.modules()),
                evaluating=not any(module.training for module in self.modules()),
                gradients=torch.is_grad_enabled(),
                autocast=torch.is_autocast_enabled("cpu"),
                tokens=batch.tokens.clone(),
                real=batch.attention_mask.clone(),
                examples=batch.example_ids.tolist(),
                inputs=self.masks.inputs.clone(),
                drawn=self.drawn.clone(),
                hidden=hidden,
                terms={name: (float(t.sum.detach()), int(t.count), float(t.weight)) for name, t in terms.items()},
                temperature=float(options["sampler"]["temperature"]),
                mask_prob=float(options["masking"]["mask_prob"]),
            )
        )
        return Losses(terms, losses.predictions, losses.detection)
