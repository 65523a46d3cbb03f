"""The diagnosis names the innermost module whose own code fails, not its neighbours."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra_lab.checks.diagnosis import Probe


def fine(x: Tensor) -> Tensor:
    return x * 2


def root(x: Tensor) -> Tensor:
    """The value is 0, the slope infinite."""
    return (x - x.detach()).sqrt() + x


def infinite(x: Tensor) -> Tensor:
    return x / (x - x.detach())


class Part(nn.Module):
    def __init__(self, what: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.what, self.scale = what, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.what(x) * self.scale if mask is None else self.what(x * self.scale) + mask.exp()


class Net(nn.Module):
    """Two parts that read the same tensor, one of which may be recomputed, and a last one."""

    def __init__(self, first: Any = fine, second: Any = fine, last: Any = fine, inline: Any = fine) -> None:
        super().__init__()
        self.start, self.first, self.second, self.last = Part(fine), Part(first), Part(second), Part(last)
        self.inline, self.again = inline, False

    def forward(self, x: Tensor) -> Tensor:
        x = self.inline(self.start(x))
        hidden = checkpoint(self.first, x, use_reentrant=False) if self.again else self.first(x)
        with torch.no_grad():
            self.second(x)
        mask = torch.full((), float("-inf"))
        return self.last(hidden + self.second(x, mask=mask))


CASES = {"first": {"first"}, "second": {"second"}, "last": {"last"}, "": {"inline"}}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("wrong", [root, infinite])
@pytest.mark.parametrize("name", CASES)
def test_the_module_is_named(name: str, wrong: Any, again: bool) -> None:
    net = Net(**dict.fromkeys(CASES[name], wrong))
    net.again = again
    with Probe(net) as probe:
        net(torch.tensor([1.0, 2.0])).sum().backward()
    found = probe.forward if wrong is infinite else probe.backward
    assert found is not None
    assert found.call is not None
    assert found.call.name == name
    if wrong is root:
        assert probe.forward is None
    else:
        assert found.call.largest_input == pytest.approx({"first": 8, "second": 8, "last": 32, "": 2}[name])


def test_nothing_is_found_where_nothing_is_wrong_and_nothing_stays_behind() -> None:
    net, x = Net(), torch.tensor([1.0, 2.0])
    with Probe(net) as probe:
        net(x).sum().backward()
    assert probe.forward is None
    assert probe.backward is None
    net.zero_grad()
    net.first.what = root
    net(x).sum().backward()
    assert probe.backward is None


def test_no_module_is_to_blame_for_gradients_that_come_from_outside() -> None:
    net = Net()
    with Probe(net) as probe:
        (net(torch.tensor([1.0, 2.0])).sum() * float("inf")).backward()
    assert probe.backward is not None
    assert (probe.backward.call, probe.backward.parameter) == (None, "last.scale")
    without_weights = nn.Sequential(nn.ReLU())
    with Probe(without_weights) as probe:
        (without_weights(torch.ones(2, requires_grad=True)).sum() * float("inf")).backward()
    assert probe.backward is None
