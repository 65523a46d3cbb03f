"""The cross-entropy that shares its softmax, against torch's."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.model.softmax import cross_entropy
from electra_lab.testing import on_each_device
from electra_lab.testing.common import law


@on_each_device
@law
@given(seed=st.integers(0, 2**32), rows=st.integers(0, 5), size=st.integers(1, 400), scale=st.floats(0, 1000))
def test_value_and_gradient_are_those_of_torch(device: str, seed: int, rows: int, size: int, scale: float) -> None:
    source = torch.Generator().manual_seed(seed)
    given = (torch.randn(rows, size, generator=source, dtype=torch.float64) * scale).to(device)
    targets = torch.randint(0, size, (rows,), generator=source).to(device)
    weights = torch.rand(rows, generator=source, dtype=torch.float64).to(device)
    ours, theirs = given.clone().requires_grad_(), given.clone().requires_grad_()
    losses, probabilities, normalizers = cross_entropy(ours, targets)
    expected = F.cross_entropy(theirs, targets, reduction="none")
    assert torch.allclose(losses, expected, rtol=1e-12, atol=1e-9)
    assert torch.equal(probabilities, given.softmax(-1))
    assert not probabilities.requires_grad
    assert torch.allclose(normalizers, given.logsumexp(-1), rtol=1e-12, atol=1e-9)
    # Each alone, then both: the normalizer has a separate gradient.
    for uses in ((True, False), (False, True), (True, True)):
        mine = [part for part, used in zip((losses, normalizers), uses, strict=True) if used]
        other = [part for part, used in zip((expected, theirs.logsumexp(-1)), uses, strict=True) if used]
        pairs = (mine, ours), (other, theirs)
        given_ = [weights] * len(mine)
        slopes = [torch.autograd.grad(parts, logits, given_, retain_graph=True)[0] for parts, logits in pairs]
        assert torch.allclose(*slopes, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 0)])
def test_any_leading_axes(shape: tuple[int, ...]) -> None:
    losses, probabilities, _ = cross_entropy(torch.zeros(*shape, 7), torch.zeros(shape, dtype=torch.long))
    assert losses.shape == shape
    assert probabilities.shape == (*shape, 7)
    assert torch.allclose(losses, torch.tensor(math.log(7)))


@pytest.mark.parametrize(
    ("logits", "target", "loss", "slopes"),
    [
        ([300.0, 0.0], 1, 300.0, [1.0, -1.0]), ([1e4, -1e4], 1, 2e4, [1.0, -1.0]),  # of probability 0 in float32
        ([math.nan, 0.0, 0.0], 1, math.nan, [math.nan] * 3), ([0.0] * 4, 0, math.log(4), [-0.75, 0.25, 0.25, 0.25]),
    ],
)  # fmt: skip
def test_extremes_keep_their_digits_and_backward_can_be_called_again(logits, target: int, loss: float, slopes) -> None:
    given = torch.tensor([logits], requires_grad=True)
    found = cross_entropy(given, torch.tensor([target]))[0]
    assert found.tolist() == pytest.approx([loss], nan_ok=True)
    for _ in range(2):
        [slope] = torch.autograd.grad(found.sum(), given, retain_graph=True)
        assert slope.tolist()[0] == pytest.approx(slopes, nan_ok=True)
    assert not cross_entropy(torch.tensor([[math.inf, 0.0]]), torch.tensor([1]))[0].isfinite().any()


def test_backward_makes_no_gradient_of_the_probabilities() -> None:
    """By default autograd creates zeros of the logits' size for results without a gradient."""
    made = list[str]()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.shape == logits.shape:
                made.append(str(operator))
            return result

    logits = torch.randn(3, 5, requires_grad=True)
    losses, *_ = cross_entropy(logits, torch.tensor([0, 1, 2]))
    total = losses.sum()
    with Watch():
        total.backward()
    assert "aten.scatter_add_.default" in made
    assert not [name for name in made if "zeros" in name]


def test_the_last_backward_needs_no_memory_of_its_own() -> None:
    logits = torch.zeros(1, 4, requires_grad=True)
    losses, probabilities, _ = cross_entropy(logits, torch.tensor([0]))
    losses.sum().backward()
    assert torch.equal(probabilities, logits.grad)  # written over
    other = cross_entropy(logits, torch.tensor([0]))[0]
    other.backward(torch.ones(1))
    with pytest.raises(RuntimeError, match="backward"):
        other.backward(torch.ones(1))
