"""One network that reads its draws at the last visit of the same row."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from electra_lab.objectives._shared import Base, MaskedPrediction, Weight, detect, draw, predict_masked, term, widened
from registry import Batch, Flops, Losses, Masked, Needs, Price, Streams, objectives

EMPTY, UNVISITED = -1, -2  # in the memory, the position of a slot without a replacement, and of one never written


@objectives.register("sas")
class SelfAugmentation(Base):
    """Replaced token detection and MLM by one network, on its earlier draws (SAS, Xu et al. 2021).

    The network finds the replaced tokens of a row, predicts their originals, and draws replacements for its next visit
    of the row, an epoch later. A draw that equals the original replaces nothing. The first visit reads tokens drawn by
    frequency at the masked positions, and predicts all of them. The loss is mlm_weight * MLM over the predicted tokens
    + discriminator_weight * RTD over all. An evaluation visits each row twice, and the second visit counts.

    remask            positions of the next visit's replacements: `never` those of this visit, as in the released code,
                      `every_visit` new masked positions. The paper does not give its rule
    noise_power       power in (1 + count)^noise_power, the weights of the first visit's draws; 0.5 in the released code
    disallow_correct  True if a draw never equals the original (a negative temperature in the released code)
    """

    needs = Needs(generator=False, heads=("replaced", "tokens"))

    mlm_weight: Weight = 1.0
    discriminator_weight: Weight = 50.0
    remask: Literal["never", "every_visit"] = "never"
    noise_power: Annotated[float, Field(ge=0, le=1)] = 1.0
    disallow_correct: bool = False

    def __post_init__(self) -> None:
        self.row_memory: dict[str, Tensor] = {}

    def allocate(self, rows: int, length: int, slots: int, device: torch.device) -> None:
        """Create the memory, of the smallest integers that hold positions and tokens."""
        for name, most in {"positions": length, "tokens": self.vocabulary.size}.items():
            dtype = torch.int16 if most <= 2**15 else torch.int32
            self.row_memory[name] = torch.full((rows, slots), UNVISITED, dtype=dtype, device=device)

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        # 1) Replace tokens. In eval mode, the first of two visits only makes the draws.
        visit = self.visit(batch, rng)
        if not self.training:
            visit = self.next_visit(predict_masked(self.discriminator, visit, batch), batch, rng)

        # 2) Predict the originals, and find the replaced tokens, from the same states.
        guess = predict_masked(self.discriminator, visit, batch)
        detection, losses = detect(self.discriminator, visit.inputs, batch, hidden=guess.hidden)
        detected = term(losses, batch.attention_mask, self.discriminator_weight)
        terms = {"mlm": guess.term(self.mlm_weight), "discriminator": detected}
        if not self.training:
            return Losses(terms, {"discriminator": guess.prediction(self.vocabulary)}, detection)

        # 3) Draw the replacements of the next visit.
        return Losses(terms, memory=self.updates(self.next_visit(guess, batch, rng)))

    def visit(self, batch: Batch, rng: Streams) -> Masked:
        """Return the text with the remembered draws, or with noise in rows that have not been visited."""
        # Noise at masked positions, for every row, as shapes are fixed.
        masked = self.mask(batch, rng)
        positions, valid = masked.positions, masked.valid
        weights = (self.vocabulary.counts + 1).double() ** self.noise_power
        below = weights.masked_fill(self.vocabulary.is_special, 0.0).cumsum(0)  # [V]
        chosen = rng("noise").uniform(*positions.shape).double() * below[-1]  # [B K]
        tokens = torch.searchsorted(below, chosen, right=True)

        # The memory, with as many slots as these rows have; the slots that count come first.
        if self.training and self.row_memory and batch.row_ids is not None:
            stored = {name: values[batch.row_ids, : positions.shape[1]] for name, values in self.row_memory.items()}
            visited = stored["positions"][:, :1] != UNVISITED  # [B 1]
            positions = torch.where(visited, stored["positions"].long().clamp(min=0), positions)
            tokens = torch.where(visited, stored["tokens"].long(), tokens)
            valid = torch.where(visited, stored["positions"] >= 0, valid)
        return put(batch, positions, tokens, valid)

    @torch.no_grad()
    def next_visit(self, guess: MaskedPrediction, batch: Batch, rng: Streams) -> Masked:
        """Return the text with draws from the network's predictions."""
        masked, originals, logits = guess.masked, guess.originals, guess.logits.detach()
        if self.remask == "every_visit":
            masked = self.mask(batch, rng, "remasking")
            originals = batch.tokens.gather(1, masked.positions)
            logits = widened(self.discriminator.token_logits(guess.hidden, masked.positions))
        if self.disallow_correct:
            logits = logits.scatter(-1, originals.unsqueeze(-1), float("-inf"))
        drawn = draw(self.sampler, logits, self.vocabulary, rng("sampling"))
        return put(batch, masked.positions, drawn, masked.valid & (drawn != originals))

    def updates(self, visit: Masked) -> Mapping[str, Int[Tensor, "B S"]]:
        """Return the replacements of a visit for the memory, which may have more slots than these rows."""
        spare = self.row_memory["positions"].shape[1] - visit.positions.shape[1] if self.row_memory else 0
        slots = {"positions": visit.positions, "tokens": visit.inputs.gather(1, visit.positions)}
        empty = ~visit.valid
        return {name: F.pad(ids.masked_fill(empty, EMPTY), (0, spare), value=EMPTY) for name, ids in slots.items()}

    def flops(self, price: Price) -> Flops:
        if self.remask == "never":
            return Flops(price("discriminator"))
        again = price("discriminator", learns=False) - price("discriminator", learns=False, heads=("replaced",))
        return Flops(price("discriminator") + again)

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of predicted tokens, and of tokens that are not padding."""
        return {"mlm": self.visit(batch, rng).valid.sum(), "discriminator": batch.attention_mask.sum()}


def put(batch: Batch, positions: Int[Tensor, "B K"], tokens: Int[Tensor, "B K"], valid: Bool[Tensor, "B K"]) -> Masked:
    """Put tokens into the text at valid positions. The others go to a column behind it, which is cut."""
    behind = batch.tokens.shape[1]
    longer = F.pad(batch.tokens, (0, 1)).scatter(1, positions.masked_fill(~valid, behind), tokens)
    return Masked(longer[:, :behind], positions, valid)
