"""No optimizer makes the host wait for the device in a step: none reads a number from a tensor."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.training.step import update
from registry import optimizers

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
