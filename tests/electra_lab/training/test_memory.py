"""Peak memory from shapes: against counts by hand, and against the same computation with numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from electra_lab.config.load import load
from electra_lab.forecast import forecast
from electra_lab.training.memory import peak_bytes, shapes_only
from tests.helpers import write_experiment

MEGA = 1_000_000


def test_by_hand() -> None:
    def computation() -> torch.Tensor:
        a = torch.ones(MEGA // 4)  # 1 MB
        b = a + 1  # 2
        del a  # 1
        c = b * 2  # 2
        c += 1
        view = c.view(-1)[5:]
        del b, c  # 1
        return view.double()  # 1 + 2

    assert peak_bytes(computation) == pytest.approx(3 * MEGA, rel=1e-4)
    with shapes_only():
        assert peak_bytes(computation) == pytest.approx(3 * MEGA, rel=1e-4)


def test_activations_are_held_for_the_backward_pass_and_gradients_are_made_by_it() -> None:
    """Five layers of sigmoid keep five outputs; without gradients one is alive beside its input."""
    layers = nn.Sequential(*(nn.Sigmoid() for _ in range(5)))
    x = torch.zeros(MEGA // 4, requires_grad=True)
    with torch.no_grad():
        assert peak_bytes(lambda: layers(x)) == pytest.approx(2 * MEGA, rel=1e-4)
    assert peak_bytes(lambda: layers(x)) == pytest.approx(5 * MEGA, rel=1e-4)
    # Outputs 5, the gradient that arrives (expanded from a scalar: nothing) and the one that leaves: 1.
    assert peak_bytes(lambda: layers(x).sum().backward()) == pytest.approx(6 * MEGA, rel=0.01)


def test_numbers_that_are_read_cannot_be_told_from_shapes() -> None:
    with shapes_only():
        assert peak_bytes(lambda: int(torch.ones(3).sum())) is None
        assert peak_bytes(lambda: torch.ones(3).nonzero()) is None


def test_shapes_take_no_memory() -> None:
    with shapes_only():
        assert torch.ones(1 << 50).nbytes == 1 << 52


def test_what_is_forecast_grows_as_it_must(tmp_path: Path) -> None:
    """Twice the rows: twice the working memory (but for gradients), the same state; bf16 takes less than fp32."""
    file = write_experiment(tmp_path, discriminator="{type: bert, dim: 64, depth: 3, heads: 2}")
    cpu = torch.device("cpu")

    def of(*overrides: str) -> tuple[int, int]:
        told = forecast(load(file, overrides), cpu)
        assert told.working_bytes is not None
        return told.state_bytes, told.working_bytes

    state, one = of("train.batch_size=64")
    same, two = of("train.batch_size=128")
    assert same == state
    assert 1.9 < two / one < 2.0
    # The second micro-batch finds the gradients of the first, four bytes a parameter; the state has twelve.
    split = of("train.batch_size=128", "train.micro_batch_size=64")
    assert split[0] == state
    assert one + 0.5 * state / 3 < split[1] < one + 1.5 * state / 3
    assert of("train.batch_size=128", "train.precision=bf16")[1] < 0.9 * two
