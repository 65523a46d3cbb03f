"""The ends of residual branches: the same numbers as torch, and less memory kept for the backward pass."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.layers import add_feed_forward, add_linear, read_by
from electra_lab.testing import on_each_device

D, WIDE = 24, 96


class Branch(nn.Module):
    """A residual branch by the lab and by separate torch operations. Its input comes from a product, as in a layer."""

    def __init__(self, ours: Callable[..., Tensor], plain: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.ours, self.plain = nn.ModuleDict(layers), ours, plain

    def forward(self, x: Tensor, dropout: float, lab: bool) -> Tensor:
        x = x @ torch.eye(D, device=x.device, dtype=x.dtype)
        return (self.ours if lab else self.plain)(x, dropout, **self.layers)


def attention() -> Branch:
    return Branch(
        lambda x, p, last: add_linear(x, x.sin(), last, p),
        lambda x, p, last: x + F.dropout(last(x.sin()), p),
        last=nn.Linear(D, D),
    )


def feed_forward(pre: bool) -> Branch:
    def plain(x: Tensor, p: float, norm: Any, expand: Any, contract: Any) -> Tensor:
        normed = norm(x)
        return (x if pre else normed) + F.dropout(contract(F.gelu(expand(normed))), p)

    norm, expand, contract = nn.LayerNorm(D, eps=0.1), nn.Linear(D, WIDE), nn.Linear(WIDE, D)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return Branch(
        lambda x, p, norm, expand, contract: add_feed_forward(x, norm, expand, contract, p, pre=pre),
        plain, norm=norm, expand=expand, contract=contract,
    )  # fmt: skip


BRANCHES = {"attention": attention, "post": lambda: feed_forward(pre=False), "pre": lambda: feed_forward(pre=True)}
EACH = pytest.mark.parametrize("name", BRANCHES)


def made(
    name: str, device: str = "cpu", dtype: torch.dtype = torch.float32, rows: Any = (3, 5)
) -> tuple[Tensor, Branch]:
    torch.manual_seed(0)
    return torch.randn(*rows, D, device=device, dtype=dtype).requires_grad_(), BRANCHES[name]().to(device, dtype)


def passes(x: Tensor, branch: Branch, dropout: float, narrow: torch.dtype | None, lab: bool) -> Any:
    leaves = [x, *branch.parameters()]
    with torch.autocast(x.device.type, narrow) if narrow else nullcontext():
        torch.manual_seed(1)
        result = branch(x, dropout, lab)
    (result.double() * torch.linspace(-1, 1, D, device=x.device)).sum().backward()
    slopes = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return result.detach(), slopes


@on_each_device
@EACH
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(
    ("dtype", "narrow"),
    [(torch.float32, None), (torch.float64, None), (torch.float32, torch.bfloat16), (torch.float32, torch.float16)],
)
@pytest.mark.parametrize("rows", [(3, 5), (4,), (0, 5), ()])
def test_the_numbers_are_those_of_torch(device: str, name: str, dropout: float, dtype, narrow, rows) -> None:
    given = made(name, device, dtype, rows)
    result, slopes = passes(*given, dropout, narrow, lab=True)
    expected, expected_slopes = passes(*given, dropout, narrow, lab=False)
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)
    # In float32 gradients agree up to rounding, under autocast up to the rounding of the narrow type.
    tolerance = 1e-6 if narrow is None else 4 * torch.finfo(narrow).eps
    for slope, other in zip(slopes, expected_slopes, strict=True):
        assert slope.dtype == other.dtype
        torch.testing.assert_close(slope, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "kept", "torchs"),
    # attention: sin(x); torch keeps x as well. feed-forward: x and the input of gelu; torch also keeps norm(x)
    # and the output of gelu.
    [("attention", D, D), ("post", D + WIDE, 2 * (D + WIDE)), ("pre", D + WIDE, 2 * (D + WIDE))],
)
def test_little_is_kept(name: str, kept: int, torchs: int) -> None:
    x, branch = made(name, rows=(40, 50))
    inside = x.detach() * 1.0
    inside.requires_grad_()
    weights = {weight.data_ptr() for weight in branch.parameters()}

    def width(lab: bool) -> float:
        """Return the kept numbers per position, without weights and the means of a norm."""
        found = dict[int, int]()

        def note(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in weights and tensor.shape[-1] > 1:
                found[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            result = (branch.ours if lab else branch.plain)(inside, 0.0, **branch.layers)
        del result
        return sum(found.values()) / (40 * 50)

    of_sine = D if name == "attention" else 0  # sin keeps x in any case
    assert width(lab=True) == kept + of_sine
    assert width(lab=False) == torchs + of_sine  # checks the count itself


@EACH
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_frozen_part_gets_no_gradient(name: str, dropout: float) -> None:
    """Also x: below frozen layers its gradient is not needed."""
    x, branch = made(name)
    for frozen in (x, *branch.parameters()):
        frozen.requires_grad_(False)
        _, found = passes(x, branch, dropout, None, lab=True)
        _, expected = passes(x, branch, dropout, None, lab=False)
        frozen.requires_grad_(True)
        for leaf, slope, other in zip((x, *branch.parameters()), found, expected, strict=True):
            assert (slope is None) == (other is None) == (leaf is frozen)
            if slope is not None:
                torch.testing.assert_close(slope, other)


@EACH
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_gradient_may_be_undefined(name: str, dropout: float) -> None:
    """Where it is stopped after the branch, torch passes None instead of zeros."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, given: Tensor) -> None:
            return None

    for lab in (True, False):
        x, branch = made(name)
        Stop.apply(branch(x, dropout, lab=lab)).sum().backward()
        for leaf in (x, *branch.parameters()):
            assert leaf.grad is None or not leaf.grad.any()


@EACH
def test_arguments_stay_as_they_are(name: str) -> None:
    x, branch = made(name)
    leaves = [x, *branch.parameters()]
    before = [leaf.detach().clone() for leaf in leaves]
    result = branch(x, 0.0, lab=True)
    for _ in range(2):
        result.sum().backward(retain_graph=True)
    for leaf, old in zip(leaves, before, strict=True):
        assert torch.equal(leaf, old)


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def twice(layer: nn.Module) -> nn.Module:
    """Give a layer its own forward method."""
    layer.forward = lambda x, own=layer.forward: 2 * own(x)
    return layer


@pytest.mark.parametrize(
    ("layer", "other"),
    [
        ("norm", nn.RMSNorm(D)), ("norm", nn.LayerNorm(D, bias=False)), ("norm", twice(nn.LayerNorm(D))),
        ("norm", nn.LayerNorm(D, elementwise_affine=False)), ("expand", Twice(D, WIDE)), ("contract", Twice(WIDE, D)),
        ("expand", nn.Linear(D, WIDE, bias=False)), ("contract", nn.Linear(WIDE, D, bias=False)),
        ("expand", twice(nn.Linear(D, WIDE))), ("contract", twice(nn.Linear(WIDE, D))), ("last", Twice(D, D)),
        ("last", nn.Linear(D, D, bias=False)), ("last", twice(nn.Linear(D, D))),
    ],
)  # fmt: skip
def test_other_layers_are_called(layer: str, other: nn.Module) -> None:
    """A layer of another class, without bias, or with another forward method may use its weights in any way."""
    for name in ("attention",) if layer == "last" else ("pre", "post"):
        x, branch = made(name)
        branch.layers[layer] = other
        assert torch.equal(branch(x, 0.0, lab=True), branch(x, 0.0, lab=False))


HOOKS: dict[str, Any] = {
    "forward": nn.Module.register_forward_hook, "before": nn.Module.register_forward_pre_hook,
    "backward": nn.Module.register_full_backward_hook, "before backward": nn.Module.register_full_backward_pre_hook,
    "of all": lambda layer, hook: nn.modules.module.register_module_forward_hook(
        lambda module, *_: hook() if module is layer else None),
}  # fmt: skip


@EACH
@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
def test_hooks_see_their_layers(name: str, register: Any) -> None:
    """As `electra-lab replay` needs them to find the first layer with wrong numbers. Results do not change."""
    x, branch = made(name)
    expected, slopes = passes(x, branch, 0.0, None, lab=True)
    for layer in branch.layers.values():
        called: list[str] = []
        handle = register(layer, lambda *_, called=called: called.append("called"))
        try:
            result, found = passes(x, branch, 0.0, None, lab=True)
        finally:
            handle.remove()
        assert called == ["called"]
        assert torch.equal(result, expected)
        torch.testing.assert_close(found, slopes)


@EACH
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_of_narrow_numbers_and_wide_weights_are_those_of_torch(name: str, dropout: float) -> None:
    """As with autocast on a CPU, where a norm of narrow numbers does not cast its weights: within half a rounding."""
    _, branch = made(name)
    x = torch.randn(3, 5, D, dtype=torch.bfloat16).requires_grad_()
    (_, slopes), (_, expected) = (passes(x, branch, dropout, torch.bfloat16, lab=lab) for lab in (True, False))
    for slope, other in zip(slopes, expected, strict=True):
        assert (slope.double() - other.double()).norm() <= 1e-3 * other.double().norm()


def test_layers_that_share_a_narrow_copy_have_the_numbers_of_autocast_bit_for_bit() -> None:
    torch.manual_seed(0)
    leaf, layers = torch.randn(3, 5, 16, requires_grad=True), [nn.Linear(16, 16) for _ in range(3)]
    found = []
    for shared in (True, False):
        x = leaf * 1.3  # autocast keeps the copies of leaves
        with torch.autocast("cpu", torch.bfloat16):
            residual, *results = read_by(layers, x) if shared else [x, *(layer(x) for layer in layers)]
            loss = (residual * 1.7).sum() + sum((result.float() * k).sin().sum() for k, result in enumerate(results, 1))
        leaves = [leaf, *(parameter for layer in layers for parameter in layer.parameters())]
        found.append([*results, *torch.autograd.grad(loss, leaves)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
