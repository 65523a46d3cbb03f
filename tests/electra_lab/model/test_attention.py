"""Attention by every kernel, against the formula in float64; every dense backbone uses the chosen kernel."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.model import long_rows
from electra_lab.model.layers import KERNELS, attend, use_kernel, visible_in
from electra_lab.model.long_rows import Blocks
from electra_lab.planning.memory import peak_bytes, shapes_only
from electra_lab.testing import on_each_device
from electra_lab.testing.common import law
from registry import backbones

OPTIONS: dict[str, dict[str, Any]] = {
    "bert": {},
    "transformer": {"rotary": True},
    "transformer local": {"local_heads": 1, "window": 4},
    "performer": {"local_heads": 1, "window": 4},
}


def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
    weights = scores.exp() * visible
    return torch.einsum("bhts,bhsd->bhtd", weights / weights.sum(-1, keepdim=True), v)


@on_each_device
@law
@given(
    seed=st.integers(0, 2**32),
    sizes=st.tuples(*[st.integers(1, 6)] * 4),
    dtype=st.sampled_from(["float64", "bfloat16"]),
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_value_and_gradient_are_those_of_the_formula(device: str, kernel: Any, seed: int, sizes, dtype: str) -> None:
    source, (batch, heads, length, width) = torch.Generator().manual_seed(seed), sizes
    drawn = torch.randn(3, batch, heads, length, width, generator=source, dtype=torch.float64)
    visible = torch.rand(batch, 1, length, length, generator=source) < 0.6
    visible |= torch.eye(length, dtype=torch.bool)
    given_, wanted = drawn.to(device, getattr(torch, dtype)).requires_grad_(), drawn.to(device).requires_grad_()
    found, expected = attend(*given_, visible.to(device), 0.0, kernel), formula(*wanted, visible.to(device))
    assert found.dtype == given_.dtype
    exact = {"rtol": 1e-9, "atol": 1e-9} if dtype == "float64" else {"rtol": 0.1, "atol": 0.1}
    torch.testing.assert_close(found, expected, check_dtype=False, **exact)
    found.double().square().sum().backward()
    expected.square().sum().backward()
    if dtype == "float64":
        torch.testing.assert_close(given_.grad, wanted.grad, rtol=1e-8, atol=1e-8)


@on_each_device
@pytest.mark.parametrize("length", [45, 64, 128, 192])
def test_gradients_past_padding_in_half_precision(device: str, length: int) -> None:
    """For rows that end early, in sizes for which GPUs have special kernels; in float32 with scores down to -100."""
    drawn = torch.randn(3, 4, 4, length, 32, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    drawn[:2] *= 4.0
    visible = (torch.arange(length) < torch.tensor([length, length - 1, length // 2, 1])[:, None])[:, None, None]
    given_, wanted = (
        drawn.to(device, torch.bfloat16).requires_grad_(),
        drawn.to(torch.bfloat16).double().requires_grad_(),
    )
    found, expected = attend(*given_, visible.to(device), 0.0, "fused"), formula(*wanted, visible)
    (found.double() * drawn[2].to(device)).sum().backward()
    (expected * drawn[2]).sum().backward()
    for tensor, reference in ((found, expected), *zip(given_.grad, wanted.grad, strict=True)):
        assert (tensor.detach().cpu().double() - reference).norm() < 0.02 * reference.norm()


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_acts_on_the_weights(kernel: Any) -> None:
    """A quarter of a thousand equal weights is dropped, and the others are scaled up."""
    torch.manual_seed(0)
    q = k = torch.zeros(1, 1, 1000, 4)
    found = attend(q, k, torch.eye(1000)[None, None], torch.ones(1, 1, 1, 1000, dtype=torch.bool), 0.25, kernel) * 1000
    assert abs(float((found == 0).float().mean()) - 0.25) < 0.01
    torch.testing.assert_close(found[found != 0], torch.full_like(found[found != 0], 4 / 3))


class _Kernels(TorchDispatchMode):
    fused = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.fused += "scaled_dot_product" in str(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", OPTIONS)
def test_backbones_use_the_kernel_that_is_chosen(name: str) -> None:
    torch.manual_seed(0)
    encoder: Any = backbones.get(name.split()[0]).component(16, 2, 2, 16, dropout=0.0, **OPTIONS[name])
    x, mask = torch.randn(2, 12, 16), torch.arange(12) < torch.tensor([[12], [7]])
    states = {}
    for kernel in (*KERNELS, "fused"):
        assert use_kernel(kernel, encoder)
        with _Kernels() as seen:
            states[kernel] = encoder(x, mask)[mask]
        calls = 4 if name == "transformer local" else 2  # of two layers; one for local heads, one for the others
        assert seen.fused == (calls if kernel == "fused" else 0), f"{seen.fused} of {calls} calls by {kernel}"
    torch.testing.assert_close(states["products"], states["fused"], rtol=1e-5, atol=1e-5)


def test_what_leaves_no_choice_is_left_alone() -> None:
    slow: Any = backbones.get("transformer").component(16, 1, 2, 16, flash=False)
    hashing: Any = backbones.get("reformer").component(16, 1, 2, 32, bucket_size=8)
    for encoder in (slow, hashing):
        assert not use_kernel("fused", encoder)
    with _Kernels() as seen:
        slow(torch.randn(1, 8, 16), torch.ones(1, 8, dtype=torch.bool))
    assert not seen.fused


def test_backbones_are_the_ones_whose_files_ask_for_it() -> None:
    """A dense backbone that calls a kernel directly would ignore the choice."""
    files = [file.read_text(encoding="utf-8") for file in Path(backbones.get("bert").file).parent.glob("*.py")]
    assert not any("scaled_dot_product_attention" in text for text in files)


LONG = 300  # positions, more than in a row that is attended to at once
ROWS = {  # document and whether it is real, of each position of a row; whether the row is cut into blocks
    "one document": (torch.zeros(LONG), torch.ones(LONG), True),
    "single tokens": (torch.arange(LONG).flip(0), torch.ones(LONG), True),
    "long and short": ((torch.arange(LONG) > 99).long() + (torch.arange(LONG) // 40 > 6), torch.ones(LONG), True),
    "padding behind": (torch.arange(LONG).div(30).floor().clamp(max=7), torch.arange(LONG) < 211, True),
    "padding inside": (torch.arange(LONG) // 110, torch.arange(LONG) % 100 > 3, True),
    "padding alone": (-torch.ones(LONG), torch.zeros(LONG), True),
    "in two parts": (torch.arange(LONG) // 50 % 2, torch.ones(LONG), False),
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ROWS)
def test_blocks_are_as_exact_as_a_dense_mask(name: str, kernel: Any) -> None:
    """Together with another row, and for any content of padding."""
    document, real, cut = ROWS[name]
    documents = torch.stack([document.long(), torch.arange(70, 70 + LONG) // 77])
    mask = torch.stack([real.bool(), torch.ones(LONG, dtype=torch.bool)])
    visible = visible_in(mask, documents)
    assert isinstance(visible, Blocks) == cut
    drawn = torch.randn(3, 2, 2, LONG, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given_, wanted = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    found = attend(*given_, visible, 0.0, kernel)
    # Each position sees the real ones of its document; padding is not compared.
    seen = ((documents[:, :, None] == documents[:, None]) & mask[:, None]) | ~mask[:, :, None]
    expected, at = formula(*wanted, seen[:, None]), mask[:, None, :, None]
    torch.testing.assert_close(found * at, expected * at, rtol=1e-9, atol=1e-9)
    (found * at).square().sum().backward()
    (expected * at).square().sum().backward()
    torch.testing.assert_close(given_.grad, wanted.grad, rtol=1e-8, atol=1e-8)
    other = torch.where(at, drawn, drawn.flip(0) + 1)
    assert torch.equal(attend(*other, visible, 0.0, kernel) * at, found * at)


def test_which_rows_have_blocks() -> None:
    """Short rows and empty batches have a mask; so have all rows when compiling, with one graph for all documents."""
    ones, graphs = torch.ones(2, LONG, dtype=torch.bool), 0
    counts: list[Any] = []
    first, second = (torch.arange(LONG).expand(2, -1) // size for size in (100, 30))
    for part in (slice(256), slice(0)):
        assert isinstance(visible_in(ones[: part.stop, part], first[: part.stop, part]), torch.Tensor)
    # Short documents share blocks of at most 64 positions, two of 30 each; longer ones have their own.
    assert visible_in(ones, second).sizes == [60] * 10
    assert visible_in(ones, first).sizes == [100] * 6
    encoder: Any = backbones.get("bert").component(16, 2, 2, LONG, dropout=0.0)
    x = torch.randn(2, LONG, 16, requires_grad=True)
    expected = [encoder(x, ones, documents) for documents in (first, second)]
    for layer in encoder.layers:
        layer.compile(backend=lambda graph, _: counts.append(graph) or graph)
    for documents, states in zip((first, second), expected, strict=True):
        torch.testing.assert_close(encoder(x, ones, documents), states, rtol=1e-5, atol=1e-5)
        graphs = graphs or len(counts)
    assert len(counts) == graphs > 0
    whole = torch.compile(backbones.get("bert").component(16, 2, 2, LONG), backend="eager", fullgraph=True)
    assert whole(x, ones, first).isfinite().all()


@pytest.mark.parametrize("name", ["bert", "transformer", "modernbert"])
def test_documents_of_long_rows_are_as_if_alone(name: str) -> None:
    """Up to rounding; and bit for bit independent of the other documents."""
    torch.manual_seed(0)
    options = {"rotary": True} if name == "transformer" else {"local_attention": 8} if name == "modernbert" else {}
    encoder: Any = backbones.get(name).component(16, 2, 2, LONG, **options).eval()
    x, mask = torch.randn(2, LONG, 16), torch.ones(2, LONG, dtype=torch.bool)
    ends = [0, 1, 30, 60, 250, LONG]
    documents = torch.bucketize(torch.arange(LONG), torch.tensor(ends[1:-1]), right=True).expand(2, -1)
    with torch.no_grad():
        states = encoder(x, mask, documents)
        for number, (begin, end) in enumerate(pairwise(ends)):
            part = slice(begin, end)
            alone = encoder(x[:, part], mask[:, part])
            torch.testing.assert_close(states[:, part], alone, rtol=1e-5, atol=1e-5)
            other = torch.where(documents[..., None] == number, x, -x)
            assert torch.equal(encoder(other, mask, documents)[:, part], states[:, part])


def dropping(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Any) -> torch.Tensor:
    torch.manual_seed(3)
    return attend(q, k, v, visible, 0.25, "fused")


@pytest.mark.parametrize("masked", ["no", "keys", "pairs"])
def test_long_rows_with_dropout_are_exact_and_keep_no_weights(masked: str) -> None:
    """As the formula with the same weights dropped; an identity in place of the values reveals the weights."""
    source = torch.Generator().manual_seed(0)
    visible = {
        "no": torch.ones(2, 1, 1, LONG, dtype=torch.bool),
        "keys": torch.rand(2, 1, 1, LONG, generator=source) < 0.5,
        "pairs": (torch.rand(2, 1, LONG, LONG, generator=source) < 0.5) | torch.eye(LONG, dtype=torch.bool),
    }[masked]
    drawn = torch.randn(3, 2, 2, LONG, 8, generator=source)
    wanted = drawn.clone().requires_grad_()
    given_ = drawn.transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    shown = dropping(*given_.detach()[:2], torch.eye(LONG).expand(2, 2, -1, -1), visible)
    kept = (shown != 0) / 0.75
    assert abs(float(kept[visible.expand_as(kept)].mean()) - 1) < 0.005
    assert len({tuple(row[:30].tolist()) for row in kept[0, 0]}) > LONG // 2  # queries drop different keys
    weights = (wanted[0] @ wanted[1].transpose(-2, -1) / 8**0.5).masked_fill(~visible, float("-inf")).softmax(-1)
    expected = (weights * kept) @ wanted[2]
    bytes_ = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal bytes_
        bytes_ += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = dropping(*given_, None if masked == "no" else visible)
    assert bytes_ <= given_.nbytes + visible.nbytes + kept[..., ::8].numel()  # a bit for each weight
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    found.mean(-1).square().sum().backward()
    expected.mean(-1).square().sum().backward()
    torch.testing.assert_close(given_.grad, wanted.grad, rtol=1e-5, atol=1e-6)


def test_gradients_with_dropout_are_those_of_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """More queries than are processed at a time, fewer keys, values of another width."""
    monkeypatch.setattr(long_rows, "SHORT", 4)
    monkeypatch.setattr(long_rows, "QUERIES", 3)
    sizes = ((2, 2, 7, 3), (2, 2, 5, 3), (2, 2, 5, 2))
    source = torch.Generator().manual_seed(0)
    inputs = [torch.randn(size, generator=source, dtype=torch.float64, requires_grad=True) for size in sizes]
    visible = torch.tensor([True, True, False, True, True]).expand(2, 1, 1, -1)
    assert torch.autograd.gradcheck(lambda *given_: dropping(*given_, visible), inputs)


def test_shapes_alone_forecast_the_memory_of_dropout() -> None:
    def peak() -> int | None:
        q, k, v = torch.zeros(3, 2, 2, LONG, 8, requires_grad=True).unbind()
        return peak_bytes(lambda: dropping(q, k, v, None).sum().backward())

    with shapes_only():
        forecast = peak()
    assert forecast is not None
    assert forecast == pytest.approx(peak(), rel=0.2)  # torch alone would need 4 times as much


def test_short_rows_with_dropout_are_torchs() -> None:
    q, k, v = torch.randn(3, 2, 2, 256, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(3)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    assert torch.equal(dropping(q, k, v, None), expected)
