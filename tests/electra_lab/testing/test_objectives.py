"""The laws of objectives apply to terms of any name, and still find a discriminator that trains the generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from electra_lab.objectives.electra import Electra
from electra_lab.testing import ObjectiveContract
from registry import Batch, Losses, Streams, objectives


class Renamed(Electra):
    """ELECTRA with terms of other names."""

    leak = 0.0  # the weight of the generator's states in the detection

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        losses = super().forward(batch, rng)
        if self.leak and losses.detection is not None:
            states = self.generator.hidden(batch.tokens, batch.attention_mask, batch.segments)
            seen = replace(losses.detection, logits=losses.detection.logits + self.leak * states.square().sum(-1))
            losses = replace(losses, detection=seen)
        return replace(losses, terms={f"{name}_of_mine": term for name, term in losses.terms.items()})

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Tensor]:
        return {f"{name}_of_mine": number for name, number in super().counts(batch, rng).items()}


@pytest.fixture
def _renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = objectives.get("electra")
    monkeypatch.setitem(objectives._entries, "renamed", replace(entry, name="renamed", component=Renamed))


@pytest.mark.usefixtures("_renamed")
class TestRenamed(ObjectiveContract):
    name = "renamed"
    test_metrics_are_those_of_the_rows = None  # they have no terms

    def test_a_discriminator_that_trains_the_generator_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Renamed, "leak", 0.1)
        with pytest.raises(AssertionError):
            self.test_only_declared_terms_train_the_generator()


def test_labels_other_than_the_declared_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels of `electric` are the masked tokens, which include draws that equal the original."""
    electric = objectives.get("electric").component
    suite = type("Suite", (ObjectiveContract,), {"name": "electric", "generator": "two_towers"})()
    monkeypatch.setattr(suite, "judged", lambda batch, _: suite.built.maskable(batch), raising=False)
    suite.test_labels_are_consistent()
    monkeypatch.setattr(electric, "detection_labels", "replaced")
    with pytest.raises(AssertionError):
        suite.test_labels_are_consistent()
