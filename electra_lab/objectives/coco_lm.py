"""COCO-LM: detection, correction, and the contrast of whole rows."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from electra_lab.objectives._shared import Weight, states, term, widened
from electra_lab.objectives.electra_correct import ElectraCorrect
from registry import Batch, Flops, Losses, Needs, Price, Random, Setup, Streams, count, objectives


@objectives.register("coco_lm")
class CocoLm(ElectraCorrect):
    """The terms of `electra_correct`, and a contrast of rows by their [CLS] (Meng et al. 2021, COCO-LM).

    The discriminator also reads a crop of each row's original text. The head `contrast` turns [CLS] of the row with
    replacements, and of the crop, into two vectors. Among all vectors of a group of rows but itself, each must have its
    partner as the most similar one: cross-entropy over cosines / contrast_temperature, averaged over both directions
    and over the rows that are not padding.

    The authors take as negatives all rows of a worker's batch. Here they are those of a group: the batch is cut into
    groups of that many consecutive rows, so that neither micro-batches nor processes change the loss. All these must be
    multiples of the group. How the authors cut a crop is not published; here it is a span at a uniformly random place,
    between [CLS] and the last token of the row, and has `crop` of the row's tokens.

    correction  loss of a correction, see `electra_correct`; the default is the criterion that the authors posted
    group       rows that are contrasted with each other
    crop        share of a row's tokens that its crop has
    """

    needs = Needs(heads=("replaced", "tokens", "contrast"))

    correction: Literal["plain", "weighted", "copy"] = "weighted"
    contrast_weight: Weight = 1.0
    contrast_temperature: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    group: Annotated[int, Field(ge=2, le=1 << 20)] = 32
    crop: Annotated[float, Field(gt=0, le=1)] = 0.9

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        # 1) Detect and correct, as in `electra_correct`.
        losses, hidden = self.learn(batch, rng)

        # 2) Read a crop of the original text, and project [CLS] of both views.
        cropped = self.cropped(batch, rng("crop"))
        views = hidden, states(self.discriminator, cropped.tokens, cropped)
        vectors = torch.stack([self.discriminator.predict("contrast", view) for view in views])  # [2 B D]

        # 3) Contrast the rows of each group. Rows of padding are left out.
        real = batch.attention_mask.any(1)  # [B]
        contrasted = self.contrasted(vectors, real)
        terms = {**losses.terms, "contrast": term(contrasted, real, self.contrast_weight)}
        return Losses(terms, losses.predictions, losses.detection, metrics=losses.metrics)

    def cropped(self, batch: Batch, rng: Random) -> Batch:
        """Return [CLS], a random span of each row's text and its last token, padded to `crop` of the batch's length."""
        rows, length = batch.tokens.shape
        share: float | Tensor = self.crop  # a tensor if it follows a schedule, which must not change shapes
        width = length if isinstance(share, Tensor) else max(count(share, length), min(2, length))
        real = batch.attention_mask.sum(1)  # [B]
        size = count(share, real).maximum(real.clamp(max=2))
        start = (rng.uniform(rows) * (real - size + 1)).long()
        # From places of the crop to places of the row.
        places = torch.arange(width, device=real.device).expand(rows, -1)
        real, size, start = real.unsqueeze(1), size.unsqueeze(1), start.unsqueeze(1)  # [B 1]
        source = (places + start).where(places > 0, 0).where(places != size - 1, real - 1)  # [B crop * T]
        source = source.clamp(0, length - 1)
        tokens, segments = batch.tokens.gather(1, source), batch.segments.gather(1, source)
        return Batch(tokens, places < size, segments, batch.example_ids)

    def contrasted(self, vectors: Float[Tensor, "2 B D"], real: Bool[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the mean loss of both vectors of each row. In float32 with autocast off, as for other losses."""
        rows = len(real)
        with torch.autocast(vectors.device.type, enabled=False):
            unit = F.normalize(widened(vectors.flatten(0, 1)), dim=-1)  # [2B D]
            similar = unit @ unit.T / self.contrast_temperature  # [2B 2B]
        # Candidates are the real rows of the same group, in both views, without the vector itself.
        number = torch.arange(2 * rows, device=real.device)
        partner, group = (number + rows) % (2 * rows), number % rows // self.group
        candidates = (group.unsqueeze(1) == group) & real.repeat(2) & (number.unsqueeze(1) != number)
        candidates = candidates | (partner.unsqueeze(1) == number)  # a row of padding has no other
        losses = F.cross_entropy(similar.masked_fill(~candidates, float("-inf")), partner, reduction="none")
        return losses.view(2, rows).mean(0)

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the counts of `electra_correct`, and the number of rows that are not padding."""
        return {**super().counts(batch, rng), "contrast": batch.attention_mask.any(1).sum()}

    def flops(self, price: Price) -> Flops:
        """The second pass reads a shorter row, and predicts no tokens."""
        second = price("discriminator", share=self.crop, heads=("contrast",))
        return Flops(price("generator") + price("discriminator") + second)

    @classmethod
    def conflicts(cls, setup: Setup, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if setup.separates:
            reason = "coco_lm compares whole rows by [CLS], but here [CLS] sees only one document."
            yield "packing.attention", f"{reason} Use attention: full, or packing: {{type: documents}}."
