"""Documents as sequences for torch's varlen_attn: on CUDA with its kernel, on a CPU with a plain replacement."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen
from torch import Tensor
from torch.nn import functional as F

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble
from electra_lab.config.load import load
from electra_lab.data.rows import document_counts, piece_counts
from electra_lab.model import long_rows
from electra_lab.model.layers import KERNELS, Softcap, attend, visible_in
from electra_lab.model.long_rows import WINDOWS, Sequences, documents_at_most
from electra_lab.testing import on_each_device
from electra_lab.training.device import recompute
from electra_lab.training.step import gradients
from registry import backbones
from tests.helpers import write_experiment

LONG = 300  # positions
PLACES = torch.arange(LONG)
ROWS = {  # document and whether it is real, of each position of a row
    "one document": (PLACES * 0, PLACES >= 0),
    "single tokens": (PLACES.flip(0), PLACES >= 0),
    "long and short": ((PLACES > 99).long() + (PLACES // 40 > 6), PLACES >= 0),
    "padding behind": ((PLACES // 30).clamp(max=7), PLACES < 211),
    "padding on both sides": (torch.where(PLACES < 17, 0, PLACES // 100), (PLACES >= 17) & (PLACES < 290)),
    "padding alone": (PLACES * 0 - 1, PLACES < 0),
}
calls: list[tuple[Any, ...]] = []


def plain(
    q: Tensor, k: Tensor, v: Tensor, begins: Tensor, same: Tensor, longest: int, too: int, **window: tuple[int, int]
) -> Tensor:
    """Attend within sequences [begins[i], begins[i + 1]), as varlen_attn; positions behind the last are not written."""
    assert begins is same
    assert longest == too
    if not torch.compiler.is_compiling():
        calls.append((q, begins))
        assert begins.dtype == torch.int32
        assert begins[0] == 0
        assert 0 <= begins.diff().min() <= begins.diff().max() <= longest
    number = torch.searchsorted(begins[1:].contiguous(), torch.arange(len(q), dtype=torch.int32), right=True)
    parts = (x.transpose(0, 1)[None] for x in (q, k, v))  # [N H d] -> [1 H N d]
    before, after = window.get("window_size", (len(q), len(q)))
    away = torch.arange(len(q)) - torch.arange(len(q))[:, None]
    seen = (number[:, None] == number) & (-before <= away) & (away <= after)
    attended = F.scaled_dot_product_attention(*parts, attn_mask=seen)[0].transpose(0, 1)
    return attended.masked_fill((number == len(begins) - 1)[:, None, None], float("nan"))


@pytest.fixture(autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, use a plain kernel in float64; on CUDA, only count the calls."""
    calls.clear()
    monkeypatch.setattr(long_rows, "FLASH_BEYOND", LONG - 1)
    on_cuda = "cuda" in request.node.name
    real = torch.nn.attention.varlen.varlen_attn

    def counted(*given: Any, **window: Any) -> Tensor:
        if not torch.compiler.is_compiling():
            calls.append((given[0], given[3]))
        return real(*given, **window)

    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", counted if on_cuda else plain)
    if not on_cuda:
        monkeypatch.setattr(long_rows, "_has_flash", lambda device: True)
        monkeypatch.setattr(long_rows, "FLASH_TYPES", (torch.float64, torch.bfloat16))


def half_precision(device: str) -> torch.autocast:
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def assert_same(found: list[Tensor], expected: list[Tensor], device: str) -> None:
    """Compare within the rounding of half precision on CUDA, where a single gradient may consist of rounding only."""
    mine = torch.cat([part.detach().double().flatten() for part in found])
    reference = torch.cat([part.detach().double().flatten() for part in expected])
    away = float((mine - reference).norm() / reference.norm())
    assert away < (0.03 if device == "cuda" else 1e-5 if found[0].dtype == torch.float32 else 1e-9), (
        f"the results are {away:.2g} of their norm apart"
    )


def rows_of(name: str, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    document, real = ROWS[name]
    documents = torch.stack([document, (PLACES + 70) // 77])
    mask = torch.stack([real, PLACES >= 0])
    counts = document_counts(documents.numpy(), mask.numpy())
    assert counts is not None
    return documents.to(device), mask.to(device), counts


@on_each_device
@pytest.mark.parametrize("name", ROWS)
def test_sequences_are_as_exact_as_a_dense_mask(name: str, device: str) -> None:
    """Values and gradients, in half precision on CUDA; bit for bit independent of the content of padding."""
    documents, mask, counts = rows_of(name, device)
    visible = visible_in(mask, documents, most=int(counts.sum()))
    assert isinstance(visible, Sequences)
    dtype = torch.bfloat16 if device == "cuda" else torch.float64
    drawn = torch.randn(3, 2, 2, LONG, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = drawn.to(device, dtype)
    given, wanted = drawn.clone().requires_grad_(), drawn.double().requires_grad_()
    found = attend(*given, visible, 0.0, "fused")
    assert len(calls) == 1
    assert found.dtype == dtype
    assert found.isfinite().all()
    # Each position sees the real ones of its document; padding is not compared.
    at = mask[:, None, :, None]
    expected = attend(*wanted, visible_in(mask, documents, blocks=False), 0.0, "products")
    assert_same([found * at], [expected * at], device)
    (found * at).double().square().sum().backward()
    (expected * at).square().sum().backward()
    assert given.grad is not None
    assert wanted.grad is not None
    assert_same([given.grad], [wanted.grad], device)
    other = torch.where(at, drawn, drawn.flip(0) + 1)
    assert torch.equal(attend(*other, visible, 0.0, "fused") * at, found * at)


@on_each_device
@pytest.mark.parametrize("what", ["float32", "dropout", "products", "softcap", "width"])
def test_what_the_kernel_cannot_do_has_a_mask(what: str, device: str) -> None:
    documents, mask, counts = rows_of("padding behind", device)
    dtype = torch.float32 if what == "float32" else torch.bfloat16
    inputs = torch.randn(3, 2, 2, LONG, 12 if what == "width" else 16, device=device).to(dtype)
    way: Any = {"products": KERNELS[1], "softcap": Softcap(20.0)}.get(what, "fused")
    found = []
    for visible in (visible_in(mask, documents, most=int(counts.sum())), visible_in(mask, documents, blocks=False)):
        torch.manual_seed(0)
        found.append(attend(*inputs, visible, 0.5 if what == "dropout" else 0.0, way))
    assert not calls
    assert torch.equal(*found)


@on_each_device
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("name", ["bert", "transformer", "modernbert"])
def test_backbones_read_sequences_where_they_know_a_bound(name: str, recomputed: bool, device: str) -> None:
    """With the states and gradients of a mask; under autocast on CUDA."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"rotary": True} if name == "transformer" else {}
    options |= {"local_attention": 8, "global_every": 2} if name == "modernbert" else {}
    encoder: Any = backbones.get(name).component(32, 2, 2, LONG, dropout=0.0, **options).to(device)
    encoder = encoder if device == "cuda" else encoder.double()
    documents, mask, counts = rows_of("padding behind", device)
    x = torch.randn(2, LONG, 32, device=device, dtype=next(encoder.parameters()).dtype)
    if recomputed:
        recompute(encoder.layers if name != "transformer" else [part for pair in encoder.layers for part in pair[1:2]])
    found, at = {}, mask[..., None]
    for bound in (None, counts):
        encoder.zero_grad()
        with half_precision(device), documents_at_most(bound, [encoder], torch.device(device), LONG):
            states = encoder(x, mask, documents)
        assert encoder.most_documents is None
        assert len(calls) == (0 if bound is None else 1 if name == "modernbert" and not WINDOWS else 2)
        (states * at).double().square().mean().backward()
        found[bound is None] = [states * at, *(p.grad for p in encoder.parameters() if p.grad is not None)]
    assert_same(found[False], found[True], device)


@on_each_device
@pytest.mark.parametrize("name", ["bert", "transformer", "modernbert"])
def test_backbones_read_padded_rows_as_sequences(name: str, device: str) -> None:
    """With the states and gradients of a mask; with another mask than the batch has, the bound does not hold."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"local_attention": 8, "global_every": 2} if name == "modernbert" else {}
    encoder: Any = backbones.get(name).component(32, 2, 2, LONG, dropout=0.0, **options).to(device)
    encoder = encoder if device == "cuda" else encoder.double()
    mask = torch.stack([PLACES < 211, PLACES >= 50, PLACES >= 0]).to(device)  # padding on either side, and none
    x = torch.randn(3, LONG, 32, device=device, dtype=next(encoder.parameters()).dtype)
    states, counts = {}, piece_counts(mask.cpu().numpy())
    for batch_mask in (None, mask.clone(), mask):
        encoder.zero_grad()
        encoder.batch_mask = batch_mask
        with half_precision(device), documents_at_most(counts, [encoder], torch.device(device), LONG):
            found = encoder(x, mask) * mask[..., None]
        assert len(calls) == (0 if batch_mask is not mask else 1 if name == "modernbert" and not WINDOWS else 2)
        found.double().square().mean().backward()
        states[batch_mask is mask] = [found, *(p.grad for p in encoder.parameters() if p.grad is not None)]
    assert_same(states[True], states[False], device)
    assert calls[0][1].tolist() == [0, 211, LONG, LONG + 50, 2 * LONG, 3 * LONG, 3 * LONG, 3 * LONG, 3 * LONG]


def test_rows_with_padding_have_one_bound() -> None:
    """One graph serves all batches with padding, and a row with padding on both sides is not cut short."""
    ends = torch.tensor([[211, LONG, 1], [LONG, 299, LONG], [LONG, LONG, 5]])
    sums = {int(piece_counts((ends[number][:, None] > PLACES).numpy()).sum()) for number in range(3)}
    assert sums == {6}
    assert piece_counts(ROWS["padding on both sides"][1][None].numpy()).tolist() == [3]


@pytest.mark.parametrize("name", ["bert", "transformer"])
def test_a_bound_is_set_only_where_sequences_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer rows, without dropout: compiled code is for one bound, and a mask is created once."""
    monkeypatch.setattr(long_rows, "sequences_of", None)
    encoder: Any = backbones.get(name).component(32, 2, 2, LONG, dropout=0.5)
    documents, mask, _ = rows_of("padding behind")
    x = torch.randn(2, LONG, 32)
    for length in (LONG - 1, LONG):
        with documents_at_most(torch.tensor([30, 30]), [encoder], torch.device("cpu"), length):
            assert (encoder.most_documents is None) == (length < LONG)
            encoder.train()(x, mask, documents)


@on_each_device
@torch.no_grad()
def test_one_graph_serves_all_rows_of_a_bound(device: str) -> None:
    """Compiled layers, and whole backbones without graph breaks."""
    graphs: list[Any] = []
    dtype = torch.float32 if device == "cuda" else torch.float64  # of all layers' input; autocast narrows its products
    backend = "inductor" if device == "cuda" else "eager"
    encoder: Any = backbones.get("bert").component(32, 2, 2, LONG, dropout=0.0).to(device, dtype).eval()
    whole = torch.compile(encoder, backend=backend, fullgraph=True, dynamic=False)
    x = torch.randn(2, LONG, 32, device=device, dtype=dtype)
    for name in ("padding behind", "long and short"):
        documents, mask, _ = rows_of(name, device)
        expected = encoder(x, mask, documents) * mask[..., None]
        with half_precision(device), documents_at_most(torch.tensor([30, 30]), [encoder], torch.device(device), LONG):
            found = whole(x, mask, documents) * mask[..., None]
        assert_same([found], [expected], device)

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    for layer in encoder.layers:
        layer.compile(backend=count, dynamic=False)
    for name in ("padding behind", "long and short"):
        documents, mask, _ = rows_of(name, device)
        with half_precision(device), documents_at_most(torch.tensor([30, 30]), [encoder], torch.device(device), LONG):
            assert encoder(x, mask, documents)[mask].isfinite().all()
    assert len(graphs) == 1


@on_each_device
@pytest.mark.parametrize("packing", ["{type: contiguous, attention: within_documents}", "{type: documents}"])
def test_both_networks_of_a_step_read_sequences(
    packing: str, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_rows, "FLASH_BEYOND", 8)
    if device == "cpu":
        monkeypatch.setattr(long_rows, "FLASH_TYPES", (torch.float32,))
    bert = "{type: bert, dim: 16, depth: 2, heads: 2, dropout: 0.0}"
    file = write_experiment(
        tmp_path,
        data=f"{{sequence_length: 16, held_out: 0.3, store: {tmp_path / 'store'}}}",
        packing=packing,
        embedding="{dim: 8, max_length: 16, dropout: 0.0}",
        discriminator=bert,
        train="{steps: 5, batch_size: 8}",
    )
    loaded = load(file, [])
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device(device))
    learner, batch = made.run.learner, made.train.training_batch(0, 0, 8, torch.device(device))
    learner.objective.train()
    if batch.document_counts is None:  # a CPU has no kernel for padding
        batch = replace(batch, document_counts=piece_counts(batch.attention_mask.numpy()))
        assert not batch.full
    calls.clear()  # by the check of the objective
    precision: Any = "bf16" if device == "cuda" else "fp32"
    found = []
    for known in (batch, replace(batch, document_counts=None)):
        learner.objective.zero_grad()
        learner.at_step(0, 0, known.example_ids.cpu().numpy())
        sums, _, _ = gradients(learner, known, 4, precision, None)
        slopes = [p.grad.clone() for p in learner.objective.parameters() if p.grad is not None]
        found.append([*sums.values(), *slopes])
    assert len(calls) == 8  # two micro-batches, two networks, two layers
    assert_same(found[0], found[1], device)


def test_too_small_a_bound_is_refused() -> None:
    documents, mask, counts = rows_of("single tokens")
    with pytest.raises(RuntimeError):
        visible_in(mask, documents, most=int(counts.sum()) - 1)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_the_host_does_not_wait_for_the_device_cuda() -> None:
    documents, mask, counts = rows_of("padding behind", "cuda")
    inputs = torch.randn(3, 2, 2, LONG, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        attend(*inputs, visible_in(mask, documents, most=int(counts.sum())), 0.0, "fused").sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(calls) == 1
