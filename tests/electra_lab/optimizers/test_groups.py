"""For every optimizer: decayed parameters, each parameter once, and steps that do not make the host wait."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.optimizers.adamw import decayed
from electra_lab.training.step import update
from registry import optimizers


def names_of(groups: list[dict[str, Any]], parameters: list[tuple[str, nn.Parameter]]) -> dict[float, list[str]]:
    names = {id(parameter): name for name, parameter in parameters}
    found = {}
    for group in groups:
        found[group["weight_decay"]] = [names[id(parameter)] for parameter in group["params"]]
    return found


SHAPES = {"table": (7, 3), "bias": (3,), "cube": (2, 3, 4), "scalar": (), "kernel": (1, 1), "gain": (1,)}
PARAMETERS = [(name, nn.Parameter(torch.ones(shape))) for name, shape in SHAPES.items()]


def test_only_two_and_more_dimensions_decay() -> None:
    expected = {0.3: ["table", "cube", "kernel"], 0.0: ["bias", "scalar", "gain"]}
    assert names_of(decayed(PARAMETERS, 0.3), PARAMETERS) == expected
    for place, decay in ((0, 0.3), (1, 0.0)):
        alone = PARAMETERS[place : place + 1]
        assert names_of(decayed(alone, 0.3), alone) == {decay: [alone[0][0]]}


class Tied(nn.Module):
    """A table that is used twice, a bias, and a gain that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(6, 4), nn.Linear(4, 6)
        self.out.weight = self.table.weight
        self.norm = nn.LayerNorm(4).requires_grad_(False)


@pytest.mark.parametrize("name", optimizers.names())
def test_shared_parameters_are_there_once_and_step_once(name: str) -> None:
    module = Tied()
    learning = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    optimizer = optimizers.get(name).component(learning, 0.01, weight_decay=0.3)
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in listed} == {id(module.table.weight), id(module.out.bias)}
    assert len(listed) == 2
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {id(module.table.weight): 0.3, id(module.out.bias): 0.0}
    before = module.table.weight.detach().clone()
    once = nn.Parameter(before.clone())
    single = optimizers.get(name).component([("table.weight", once)], 0.01, weight_decay=0.3)
    for parameter in (*listed, once):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    single.step()
    assert torch.equal(module.table.weight, once)
    assert not torch.equal(once, before)


SMALLEST = {"adafactor": 4 * (6 + 5) + 4, "adamw": 8 * 30 + 4, "adamw_no_bias_correction": 8 * 30, "muon": 4 * 30,
            "stable_adamw": 8 * 30 + 4}  # fmt: skip


@pytest.mark.parametrize("name", SMALLEST)
def test_parameters_without_a_gradient_stay_and_have_no_state(name: str) -> None:
    """And the state of a matrix has the expected size."""
    assert SMALLEST.keys() == set(optimizers.names())
    named = [("layer.weight", nn.Parameter(torch.ones(6, 5))), ("layer.bias", nn.Parameter(torch.ones(5)))]
    optimizer = optimizers.get(name).component(named, 0.1, weight_decay=0.5)
    optimizer.step()
    named[0][1].grad = torch.ones(6, 5)
    optimizer.step()
    assert not torch.equal(named[0][1], torch.ones(6, 5))
    assert torch.equal(named[1][1], torch.ones(5))
    assert [parameter.shape for parameter, state in optimizer.state.items() if state] == [(6, 5)]
    held = sum(value.nbytes for value in optimizer.state[named[0][1]].values())
    assert held == optimizer.state_bytes(named[0][1]) == SMALLEST[name]


READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}


class NoReads(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function._schema.name not in READS, f"{function} waits for the device"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("name", optimizers.names())
def test_a_step_reads_nothing(name: str, finite: bool) -> None:
    with NoReads(), pytest.raises(AssertionError, match="waits for the device"):
        float(torch.tensor(1.0))
    module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Embedding(7, 3))
    optimizer = optimizers.get(name).component(list(module.named_parameters()), 0.1)
    flag = torch.tensor(finite)
    for _ in range(2):
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 if finite else float("nan"))
        with NoReads():
            update(optimizer, flag)
    assert all(parameter.isfinite().all() for parameter in module.parameters())
