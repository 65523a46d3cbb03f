"""Detectors fitted to frozen states, tested on states of known content."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from electra_lab.heads.replaced import ReplacedHead
from electra_lab.measures import detection_probe
from electra_lab.measures._corruption import some
from electra_lab.measures.detection_probe import PENALTY, DetectionProbe
from electra_lab.testing import CLS, SEP
from electra_lab.testing.common import as_batch
from registry import Batch
from tests.electra_lab.measures.readers import Reads, knows, noise, run, sentence

TRAIN, TEST = sentence(300), sentence(200)
METRICS = ["probe_auc", "head_auc"]


def measured(network: Any, test: Batch = TEST, train: Batch = TRAIN, **options: Any) -> list[float]:
    found = DetectionProbe(**options)(run(network, test, train), Path())
    assert found.pop("probe_chance", 0.5) == 0.5
    assert list(found) in (METRICS, [])
    assert all(DetectionProbe.metrics[name].baselines == ("probe_chance",) for name in found)
    return list(found.values())


def encodes(strength: float) -> Any:
    """Noise, with the label along a direction that is not an axis."""
    other = noise(16)
    return lambda *given: other(*given) + strength * knows(*given) * torch.linspace(-1, 1, 16)


@pytest.mark.parametrize("strength", [0.0, 0.6])
def test_a_label_of_a_known_strength(strength: float) -> None:
    """Two Gaussians at a distance d along the best direction are separated with AUC Phi(d / sqrt(2))."""
    distance = strength * float(torch.linspace(-1, 1, 16).norm())
    expected = float(torch.special.ndtr(torch.tensor(distance / 2**0.5)))
    assert measured(Reads(encodes(strength))) == pytest.approx([expected] * 2, abs=0.06)


def test_the_head_finds_what_no_linear_detector_can() -> None:
    """A replaced token is where two features have the same sign."""

    def states(tokens: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        made = other(tokens, mask, segments)
        sign = (2 * knows(tokens, mask, segments) - 1)[..., 0]
        made[..., 0] = made[..., 0].abs().clamp(min=0.5) * made[..., 1].sign() * sign
        return made

    other = noise(6)
    linear, head = measured(Reads(states))
    assert head > 0.95
    assert linear < 0.6


def test_the_head_is_fitted_as_well_as_scipy_can() -> None:
    """On unseen states it ranks like a head that another optimizer fitted to convergence, and hardly worse than the
    rule that made the labels."""
    from scipy.optimize import minimize

    generator = np.random.default_rng(0)
    states = generator.normal(size=(14_000, 8)).astype(np.float32)
    rule = states[:, 0] * states[:, 1]
    replaced = rule + 0.5 * generator.normal(size=len(rule)) > 0.5
    fitted, unseen = slice(4000), slice(4000, None)
    ours = detection_probe._head(states[fitted], replaced[fitted], seed=2)(states[unseen])
    head = ReplacedHead(8, None, None).double()
    parts = list(head.parameters())
    known, truth = torch.from_numpy(states).double()[None], torch.from_numpy(replaced[fitted]).double()[None]

    def loss(numbers: Any) -> Any:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(numbers), parts)
        size = head.dense.weight.square().sum() + head.out.weight.square().sum()
        value = F.binary_cross_entropy_with_logits(head(known[:, fitted]), truth) + PENALTY / 2 * size
        gradients = torch.autograd.grad(value, parts)
        return value.item(), torch.cat([gradient.flatten() for gradient in gradients]).numpy()

    start = 0.3 * generator.normal(size=sum(part.numel() for part in parts))
    loss(minimize(loss, start, jac=True, method="L-BFGS-B").x)  # leaves the best weights in the head
    theirs = head(known[:, unseen])[0].detach().numpy()
    reached, best = (roc_auc_score(replaced[unseen], scores) for scores in (theirs, rule[unseen]))
    assert roc_auc_score(replaced[unseen], ours) == pytest.approx(reached, abs=0.01)
    assert roc_auc_score(replaced[unseen], ours) > best - 0.015
    assert ours.std() == pytest.approx(theirs.std(), rel=0.05)  # with another penalty, scores have another size


def test_states_are_read_in_half_precision_and_the_models_own_head_is_not() -> None:
    class Turned(Reads):
        def replaced_logits(self, hidden: torch.Tensor) -> torch.Tensor:
            raise AssertionError("the model's own head was used")

    known = encodes(10.0)
    assert min(measured(Turned(lambda *given: known(*given).bfloat16()))) > 0.99


def test_is_fitted_on_training_text_and_judged_on_test_text() -> None:
    """States that give the label away have the opposite sign in test text, whose segment is 1: all is ranked
    wrongly. Judged on the text it was fitted on, the detector would rank all correctly."""
    train, test = (replace(t, segments=torch.full_like(t.segments, n)) for n, t in enumerate((TRAIN, TEST)))
    other = noise(16)

    def states(tokens: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        sign = 1 - 2 * segments.unsqueeze(-1)
        return other(tokens, mask, segments) + 10 * sign * knows(tokens, mask, segments)

    assert max(measured(Reads(states), test, train)) < 0.001


def test_the_network_is_told_the_documents() -> None:
    network = Reads(noise(4))
    train, test = (replace(text, attention_document_ids=text.segments + n) for n, text in ((1000, TRAIN), (2000, TEST)))
    DetectionProbe(rows=20, seed=3, batch_size=200)(run(network, test, train), Path())
    expected = [[1000 + row for row in some(20, 300, 3)], list(range(2000, 2200))]
    assert [None if d is None else d[:, 0].tolist() for d in network.documents] == expected


def test_positions_give_nothing_away() -> None:
    tokens = torch.full((8, 200), 7)
    states = torch.eye(200)
    network = Reads(lambda tokens, *_: states.expand(len(tokens), -1, -1))
    found = measured(network, as_batch(tokens), as_batch(tokens), mask_prob=0.3)
    assert found == pytest.approx([0.5] * 2, abs=0.1)


def test_all_networks_are_shown_the_same() -> None:
    networks = [Reads(noise(3)), Reads(noise(5, seed=1)), Reads(noise(3))]
    for network, detects, size in zip(networks, (True, False, True), (32, 32, 7), strict=True):
        DetectionProbe(batch_size=size, rows=40)(run(network, TEST, TRAIN, detects=detects), Path())
    assert networks[0].shown == networks[1].shown == networks[2].shown
    texts = [(TRAIN, some(40, 300, DetectionProbe().seed)), (TEST, range(200))]
    originals = [text.tokens[row][text.attention_mask[row]].tolist() for text, rows in texts for row in rows]
    assert [len(row) for row in networks[0].shown] == [len(row) for row in originals]
    changed = [np.mean(np.array(a) != b) for a, b in zip(networks[0].shown, originals, strict=True) if len(b) > 8]
    assert 0.1 < np.mean(changed) < 0.2


def test_width_and_offset_of_features_do_not_matter() -> None:
    plain, scaled = Reads(encodes(0.6)), Reads(encodes(0.6))
    other = scaled.states
    scaled.states = lambda *given: other(*given) * torch.logspace(-4, 4, 16) + 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measured(plain) == pytest.approx(measured(scaled), abs=0.01)


def test_text_with_one_class_gives_no_number() -> None:
    nothing = as_batch(torch.tensor([[CLS, SEP]] * 3))
    for texts in ((nothing, TRAIN), (TEST, nothing), (nothing, nothing)):
        assert measured(Reads(noise(4)), *texts) == []


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["train", "test"])
def test_lost_states_give_no_number(lost: float, where: str) -> None:
    network = Reads(lambda tokens, *_: torch.full((*tokens.shape, 4), lost if mine(tokens) else 1.0))
    mine = {"train": lambda tokens: len(tokens) != 200, "test": lambda tokens: len(tokens) == 200}[where]
    assert measured(network, batch_size=200, rows=100) == []


def test_the_head_is_a_function_of_states_and_seed_alone() -> None:
    """Not of global generators or the run's precision; another seed starts elsewhere."""
    states = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    replaced = states[:, 0] + states[:, 1] ** 2 > 1
    plain = detection_probe._head(states, replaced, 1)(states)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        again = detection_probe._head(states, replaced, 1)(states)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(plain, again)
    assert not np.array_equal(plain, detection_probe._head(states, replaced, 2)(states))
