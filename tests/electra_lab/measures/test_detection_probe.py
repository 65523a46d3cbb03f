"""The linear reader of frozen states, over states whose content is known."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from electra_lab.measures.detection_probe import DetectionProbe
from electra_lab.testing import CLS, SEP
from electra_lab.testing.common import as_batch
from tests.electra_lab.measures.readers import Reads, knows, noise, run, sentence

TRAIN, TEST = sentence(300), sentence(200)


def auc(network: Any, **options: Any) -> float:
    return DetectionProbe(**options)(run(network, TEST, TRAIN), Path())["probe_auc"]


def encodes(strength: float) -> Any:
    """Noise, with the label along a direction that is no axis."""
    other = noise(16)
    return lambda *given: other(*given) + strength * knows(*given) * torch.linspace(-1, 1, 16)


def test_finds_a_label_that_states_encode() -> None:
    assert auc(Reads(encodes(10.0))) > 0.999


def test_a_label_of_a_known_strength() -> None:
    """Two Gaussians at a distance d along the best direction are told apart with AUC Phi(d / sqrt(2))."""
    distance = 0.6 * float(torch.linspace(-1, 1, 16).norm())
    expected = float(torch.special.ndtr(torch.tensor(distance / 2**0.5)))
    assert auc(Reads(encodes(0.6))) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("dim", [4, 600])
def test_finds_nothing_in_noise(dim: int) -> None:
    """Wide enough to learn by heart what it was fitted on: only text that it was not fitted on is judged."""
    assert auc(Reads(noise(dim))) == pytest.approx(0.5, abs=0.12)


def test_is_fitted_on_training_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out states carry a mark that no fit sees."""
    fitted: list[Any] = []
    fit = LogisticRegression.fit

    def spy(self: Any, states: Any, labels: Any) -> Any:
        fitted.append(len(states))
        return fit(self, states, labels)

    monkeypatch.setattr(LogisticRegression, "fit", spy)
    auc(Reads(noise(4)), rows=50)
    words = run(None, TRAIN).vocabulary
    assert fitted == [int((~words.is_special[TRAIN.tokens[:50]] & TRAIN.attention_mask[:50]).sum())]


def test_is_fitted_on_training_text_and_judged_on_test_text() -> None:
    """States that give the label away have the opposite sign in test text, whose segment is 1: all is ranked
    wrongly. Judged on the text that it was fitted on, whichever that is, the probe would rank all correctly."""
    train, test = (replace(t, segments=torch.full_like(t.segments, n)) for n, t in enumerate((TRAIN, TEST)))
    other = noise(16)

    def states(tokens: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        sign = 1 - 2 * segments.unsqueeze(-1)
        return other(tokens, mask, segments) + 10 * sign * knows(tokens, mask, segments)

    assert DetectionProbe()(run(Reads(states), test, train), Path())["probe_auc"] < 0.001


def test_the_network_is_told_the_documents() -> None:
    network = Reads(noise(4))
    train, test = (replace(text, documents=text.segments + n) for n, text in ((100, TRAIN), (200, TEST)))
    DetectionProbe(rows=20, batch_size=20)(run(network, test, train), Path())
    assert [None if d is None else d[:, 0].tolist() for d in network.documents] == [
        list(range(100, 120)),
        list(range(200, 220)),
    ]


def test_positions_give_nothing_away() -> None:
    """Few rows: by chance some positions are replaced more often, but others in training text than in test text."""
    tokens = torch.full((8, 200), 7)
    states = torch.eye(200)
    network = Reads(lambda tokens, *_: states.expand(len(tokens), -1, -1))
    probe = DetectionProbe(mask_prob=0.3)(run(network, as_batch(tokens), as_batch(tokens)), Path())
    assert probe["probe_auc"] == pytest.approx(0.5, abs=0.1)


def test_all_networks_are_shown_the_same() -> None:
    """Whatever their width, what they predict, and how many rows they read at a time."""
    networks = [Reads(noise(3)), Reads(noise(5, seed=1)), Reads(noise(3))]
    for network, detects, size in zip(networks, (True, False, True), (32, 32, 7), strict=True):
        DetectionProbe(batch_size=size, rows=40)(run(network, TEST, TRAIN, detects=detects), Path())
    assert networks[0].shown == networks[1].shown == networks[2].shown
    assert len(networks[0].shown) == 80, "40 rows of each text"
    rows = [row for text in (TRAIN, TEST) for row in zip(text.tokens[:40], text.attention_mask[:40], strict=True)]
    originals = [tokens[real].tolist() for tokens, real in rows]
    changed = [np.mean(np.array(a) != b) for a, b in zip(networks[0].shown, originals, strict=True) if len(b) > 8]
    assert 0.1 < np.mean(changed) < 0.2


def test_width_and_offset_of_features_do_not_matter() -> None:
    """States of any scale are read alike, and quickly."""
    plain, scaled = Reads(encodes(0.6)), Reads(encodes(0.6))
    other = scaled.states
    scaled.states = lambda *given: other(*given) * torch.logspace(-4, 4, 16) + 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert auc(plain) == pytest.approx(auc(scaled), abs=0.01)


def test_text_with_one_class_gives_no_number() -> None:
    nothing = as_batch(torch.tensor([[CLS, SEP]] * 3))
    for texts in ((nothing, TRAIN), (TEST, nothing), (nothing, nothing)):
        assert DetectionProbe()(run(Reads(noise(4)), *texts), Path()) == {}


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_lost_states_give_no_number(lost: float) -> None:
    network = Reads(lambda tokens, *_: torch.full((*tokens.shape, 4), lost))
    assert DetectionProbe()(run(network, TEST, TRAIN), Path()) == {}


def test_states_in_half_precision_are_read() -> None:
    network = Reads(encodes(10.0))
    other = network.states
    network.states = lambda *given: other(*given).bfloat16()
    assert auc(network) > 0.99


def test_stops_reading_where_it_has_enough() -> None:
    """Training text may be long."""

    def endless(number: int) -> Any:
        while True:
            yield TRAIN[:number]

    trained = replace(run(Reads(encodes(10.0)), TEST), train=endless)
    assert DetectionProbe(rows=64)(trained, Path())["probe_auc"] > 0.99
