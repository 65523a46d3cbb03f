"""Options that several backbones have: rotary positions, and heads that see their neighbours alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from registry import backbones

DIM, LENGTH = 32, 24
PLAIN: dict[str, dict[str, Any]] = {  # in which every position sees all others
    "performer": {"features": 8},
    "reformer": {"bucket_size": LENGTH // 2, "hashes": 1},
    "transformer": {},
}
LOCAL = {"performer": {"features": 8, "window": 4}, "transformer": {"window": 4}}
WINDOWS_OF_FOUR = {**LOCAL, "reformer": {"bucket_size": 2, "hashes": 1}}


def built(name: str, dim: int = DIM, **options: Any) -> Any:
    torch.manual_seed(0)
    component: Any = backbones.get(name).component
    return component(dim, 1, 2, 64, **{"dropout": 0.0, **options}).eval().requires_grad_(False)


def states() -> Tensor:
    return torch.randn(2, LENGTH, DIM, generator=torch.Generator().manual_seed(1))


MASK = torch.ones(2, LENGTH, dtype=torch.bool)


@pytest.mark.parametrize(("rotary", "positions"), [(True, "own"), (False, "lab")])
@pytest.mark.parametrize("name", PLAIN)
def test_without_rotary_positions_the_lab_gives_them(name: str, rotary: bool, positions: str) -> None:
    """Then the encoder itself does not know the order of its input; with them it does."""
    model, order = built(name, rotary=rotary, **PLAIN[name]), torch.randperm(LENGTH)
    assert model.positions == positions
    same = torch.allclose(model(states(), MASK)[:, order], model(states()[:, order], MASK), atol=1e-5)
    assert same == (positions == "lab")


@pytest.mark.parametrize("name", PLAIN)
def test_rotary_positions_refuse_an_odd_head_width(name: str) -> None:
    with pytest.raises(ValueError, match=r"even head width; dim 6 / heads 2 is 3\."):
        built(name, dim=6, rotary=True)
    assert built(name, dim=6, rotary=False).positions == "lab"


@pytest.mark.parametrize("name", PLAIN)
def test_one_head_at_least_sees_the_whole_row(name: str) -> None:
    with pytest.raises(ValueError, match=r"local_heads 2 must be below heads 2: one head at least has to see the"):
        built(name, local_heads=2)


@pytest.mark.parametrize("name", LOCAL)
def test_local_heads_need_whole_windows(name: str) -> None:
    assert built(name, local_heads=1, window=4).length_multiple == 4
    assert built(name, window=4).length_multiple == 1


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize(("changed", "seeing"), [(0, range(0, 8)), (13, range(8, 20)), (23, range(16, 24))])
@pytest.mark.parametrize("name", WINDOWS_OF_FOUR)
def test_a_local_head_sees_its_window_and_its_neighbours(name: str, changed: int, seeing: range, rotary: bool) -> None:
    """In the encoder: of a layer in which only the local head is heard; local heads come first."""
    model, x = built(name, rotary=rotary, local_heads=1, **WINDOWS_OF_FOUR[name]), states()
    for path, weight in model.named_parameters():
        if path.endswith(("to_out.weight", "attended.weight")):
            weight[:, DIM // 2 :] = 0.0
    other = x.clone()
    other[:, changed] += torch.randn(DIM, generator=torch.Generator().manual_seed(2))
    differs = (model(x, MASK) != model(other, MASK)).any(-1)
    assert all(row.nonzero().flatten().tolist() == list(seeing) for row in differs)
