"""Compare attention with documents in a row, and attention with dropout, with torch's kernel and a dense mask.

    python benchmarks/attention.py --threads 1 --clock processor
    python benchmarks/attention.py --device cuda --compile

Forward and backward of one layer's attention, without its projections, on the same number of tokens in rows of each
length. The lengths of documents are drawn from an exponential distribution. Also given: on a CPU the bytes kept for the
backward pass, without queries, keys and values; on CUDA the peak of the allocated bytes above them, the time to prepare
the mask or the sequences, once for all layers, and how far results and gradients are from a mask's in fp32.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from _alternating import CLOCKS, alternate, markdown, on, parser, ratios, spread, write
from choices import processor
from torch import Tensor
from torch.nn import functional as F

from electra_lab.data.rows import document_counts
from electra_lab.model.layers import KERNELS, Visible, attend, visible_in
from electra_lab.model.long_rows import documents_at_most
from electra_lab.training.device import use_exact_kernels

SEED = 0
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CALLS = 5  # timed together on CUDA, so that waiting for the device hardly counts
Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def documents_of(rows: int, length: int, mean: float) -> Tensor:
    """Return documents [B T] of random lengths, numbered from 0 in each row."""
    source = torch.Generator().manual_seed(SEED)
    begins = torch.rand(rows, length, generator=source) < 1 / mean
    return begins.long().cumsum(-1)


def torchs(visible: Tensor) -> Attention:
    return lambda q, k, v, p: F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=p)


def labs(visible: Visible) -> Attention:
    return lambda q, k, v, p: attend(q, k, v, visible, p, KERNELS[0])


def kept(way: Attention, inputs: Tensor, dropout: float) -> str:
    """Return the MB that a forward pass keeps, each block of memory once."""
    storages = {}

    def seen(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(seen, lambda tensor: tensor):
        attended = way(*inputs.unbind(), dropout)
    own = {place: storage.nbytes() for place, storage in storages.items() if place != inputs.data_ptr()}
    assert attended.requires_grad
    return f"{sum(own.values()) / 1e6:,.1f}"


def main() -> None:
    options = parser(__doc__, rounds=7, devices=True)
    options.add_argument("--types", nargs="+", choices=TYPES, help="fp32; on CUDA also bf16")
    options.add_argument("--compile", action="store_true", help="also time what torch.compile makes of both")
    options.add_argument("--lengths", nargs="+", type=int, help="512 1024 2048; on CUDA also 8192")
    options.add_argument("--tokens", type=int, help="2048; on CUDA 16384")
    options.add_argument("--heads", type=int, help="4; on CUDA 12")
    options.add_argument("--width", type=int, default=64, help="of a head")
    options.add_argument("--document", nargs="+", type=float, help="mean lengths: 150; on CUDA 200 1000")
    options.add_argument("--dropout", type=float, default=0.1, help="on a CPU")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    usual = (["bf16", "fp32"], [512, 1024, 2048, 8192], 16_384, 12, [200.0, 1000.0])
    usual = usual if given.device == "cuda" else (["fp32"], [512, 1024, 2048], 2048, 4, [150.0])
    for name, value in zip(("types", "lengths", "tokens", "heads", "document"), usual, strict=True):
        setattr(given, name, getattr(given, name) or value)
    (on_cuda if given.device == "cuda" else on_cpu)(given)


def on_cpu(given: Any) -> None:
    rows, every = [], {}
    for kind, mean, length in product(given.types, given.document, given.lengths):
        inputs, documents, real = drawn(given, length, mean, TYPES[kind])
        for separate, rate in ((documents, 0.0), (documents, given.dropout), (None, given.dropout)):
            theirs, ours = torchs(visible_in(real, separate, blocks=False)), labs(visible_in(real, separate))
            calls = {"torch": partial(step, theirs, inputs, rate), "electra_lab": partial(step, ours, inputs, rate)}
            found = alternate(calls, given.rounds, clock=CLOCKS[given.clock])
            what = f"{size(real)}, {'one document' if separate is None else 'documents'}, dropout {rate}"
            what += f", {kind}, of {mean:g}" if len(given.types) + len(given.document) > 2 else ""
            times = [spread([second * 1e3 for second in seconds], ",.0f") for seconds in found.values()]
            faster = spread(ratios(found, "torch", "electra_lab"))
            rows.append([what, *times, faster, *(kept(way, inputs, rate) for way in (theirs, ours))])
            every[what] = found
    about = f"{processor()}, {given.threads} threads, {given.clock} time, torch {torch.__version__}"
    means = " or ".join(f"{mean:g}" for mean in given.document)
    title = f"Attention, {given.heads} heads of {given.width}, documents of {means} on average: {about}"
    titles = ["", "torch, dense mask, ms", "electra_lab, ms", "times as fast", "torch, MB kept", "electra_lab, MB kept"]
    write(given.out, title, markdown(titles, rows), {"case": "attention", "threads": given.threads}, {"seconds": every})


def on_cuda(given: Any) -> None:
    use_exact_kernels()  # as where the lab trains
    rows, every = [], {}
    timed = partial(alternate, rounds=given.rounds, warm_up=2, clock=on("cuda"), calls=CALLS)
    for kind, mean, length in product(given.types, given.document, given.lengths):
        inputs, documents, real = drawn(given, length, mean, TYPES[kind])
        counts = document_counts(documents.cpu().numpy(), real.cpu().numpy())
        number = 0 if counts is None else int(counts.sum())
        prepare = {"torch": partial(visible_in, real, documents, blocks=False),
                   "electra_lab": partial(sequences, real, documents, counts)}  # fmt: skip
        prepared = timed(prepare)
        visible = {name: way() for name, way in prepare.items()}
        ways = {"torch": torchs(visible["torch"]), "electra_lab": labs(visible["electra_lab"])}
        away = difference(*(results(way, inputs) for way in ways.values()))
        exact = results(ways["torch"], inputs.detach().float().requires_grad_())
        off = [difference(results(way, inputs), exact) for way in ways.values()]
        for compiled in (False, True) if given.compile else (False,):
            if compiled:
                torch._dynamo.reset()
                ways = {name: torch.compile(way, dynamic=False) for name, way in ways.items()}
            found = timed({name: partial(step, way, inputs, 0.0) for name, way in ways.items()})
            what = f"{size(real)}, documents of {mean:g} ({number}), {kind}, {'compiled' if compiled else 'eager'}"
            times, before = (
                [spread([second * 1e3 for second in seconds], ",.3f") for seconds in table.values()]
                for table in (found, prepared)
            )
            faster = spread(ratios(found, "torch", "electra_lab"))
            most_bytes = [peak(prepare[name], way, inputs) for name, way in ways.items()]
            rows.append([what, type(visible["electra_lab"]).__name__, *times, faster, *before, *most_bytes, away, *off])
            every[what] = {"step": found, "prepare": prepared}
            print(" | ".join(rows[-1]), flush=True)
    about = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    title = f"Attention, {given.heads} heads of {given.width}, {given.tokens:,} tokens: {about}"
    pair = ("torch, dense mask", "electra_lab")
    titles = ["", "electra_lab reads", *(f"{name}, ms" for name in pair), "times as fast"]
    titles += [*(f"{name}, ms to prepare" for name in pair), *(f"{name}, peak MB" for name in pair), "apart"]
    titles += [f"{name}, from fp32" for name in pair]
    write(given.out, title, markdown(titles, rows), {"case": "attention", "device": "cuda"}, {"seconds": every})


def drawn(given: Any, length: int, mean: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [3 B H T d], documents [B T] and which positions are real [B T]."""
    shape = (max(given.tokens // length, 1), length)
    source = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(3, *shape, given.heads, given.width, generator=source).to(given.device, dtype)
    real = torch.ones(shape, dtype=torch.bool, device=given.device)
    return inputs.transpose(2, 3).requires_grad_(), documents_of(*shape, mean).to(given.device), real


def size(real: Tensor) -> str:
    return f"{real.shape[1]:,} x {real.shape[0]}"


def sequences(real: Tensor, documents: Tensor, counts: Tensor | None) -> Visible:
    """Return the sequences that a backbone passes to its layers in a training step."""
    backbone = SimpleNamespace(most_documents=None)
    half = torch.autocast(documents.device.type, torch.bfloat16)
    with half, documents_at_most(counts, [backbone], documents.device, documents.shape[1]):
        visible: Visible = visible_in(real, documents, most=backbone.most_documents)
    return visible


def results(way: Attention, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of attention, and the gradient of the sum of its squares."""
    attended = way(*inputs.unbind(), 0.0).float()
    (gradient,) = torch.autograd.grad(attended.square().sum(), inputs)
    return attended.detach(), gradient.float()


def difference(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> str:
    return ", ".join(f"{float((one - two).abs().max()):.1e}" for one, two in zip(found, expected, strict=True))


def peak(prepare: Callable[[], Visible], way: Attention, inputs: Tensor) -> str:
    """Return the peak MB of preparation and a step, with the gradients."""
    inputs.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    held = prepare()
    step(way, inputs, 0.0)
    del held
    return f"{(torch.cuda.max_memory_allocated() - before) / 1e6:,.1f}"


def step(way: Attention, inputs: Tensor, dropout: float) -> None:
    """Take a forward and a backward pass."""
    inputs.grad = None
    way(*inputs.unbind(), dropout).sum().backward()


if __name__ == "__main__":
    main()
