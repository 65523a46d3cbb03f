"""Compare attention with documents in a row, and attention with dropout, with torch's kernel and a dense mask.

    python benchmarks/attention.py --threads 1 --clock processor

Forward and backward of one layer's attention, without its projections, on 2,048 tokens in rows of each length. The
lengths of documents are drawn from an exponential distribution. A GPU takes `--device cuda --kind bf16` and more
tokens. Also given: the bytes kept for the backward pass,
without queries, keys and values.
"""

from collections.abc import Callable
from functools import partial

import torch
from _alternating import CLOCKS, alternate, device_name, markdown, on, parser, ratios, reason, spread, write
from choices import processor
from torch import Tensor
from torch.nn import functional as F

from electra_lab.model.attention import KERNELS, Visible, attend, visible_in

SEED = 0
Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16}


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
    options = parser(__doc__, rounds=7)
    options.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048])
    options.add_argument("--tokens", type=int, default=2048)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--width", type=int, default=64, help="of a head")
    options.add_argument("--document", type=float, default=150, help="mean length")
    options.add_argument("--dropout", type=float, default=0.1)
    options.add_argument("--kind", choices=KINDS, default="fp32", help="the type of queries, keys and values")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    rows, every = [], {}
    for length in given.lengths:
        shape = (max(given.tokens // length, 1), length)
        drawn = torch.randn(3, *shape, given.heads, given.width, generator=torch.Generator().manual_seed(SEED))
        inputs = drawn.transpose(2, 3).to(given.device, KINDS[given.kind]).requires_grad_()
        documents = documents_of(*shape, given.document).to(given.device)
        real = torch.ones_like(documents, dtype=torch.bool)
        for separate, rate in ((documents, 0.0), (documents, given.dropout), (None, given.dropout)):
            what = f"{length:,} x {shape[0]}, {'one document' if separate is None else 'documents'}, dropout {rate}"
            theirs, ours = torchs(visible_in(real, separate, blocks=False)), labs(visible_in(real, separate))
            calls = {"torch": partial(step, theirs, inputs, rate), "electra_lab": partial(step, ours, inputs, rate)}
            clock = on(given.device, CLOCKS[given.clock])
            try:
                found = alternate(calls, given.rounds, clock=clock, calls=1 if given.device == "cpu" else 10)
            except torch.OutOfMemoryError as error:
                rows.append([what, reason(error), "", "", "", ""])
                continue
            times = [
                spread([second * 1e3 for second in seconds], ",.0f" if given.device == "cpu" else ",.2f")
                for seconds in found.values()
            ]
            faster = spread(ratios(found, "torch", "electra_lab"))
            rows.append([what, *times, faster, *(kept(way, inputs, rate) for way in (theirs, ours))])
            every[what] = found
    where = f"{processor()}, {given.threads} threads"
    if given.device != "cpu":
        where = f"{device_name(given.device, given.threads)}, {given.kind}"
    about = f"{where}, {given.clock} time, torch {torch.__version__}"
    title = f"Attention, {given.heads} heads of {given.width}, documents of {given.document:g} on average: {about}"
    titles = ["", "torch, dense mask, ms", "electra_lab, ms", "times as fast", "torch, MB kept", "electra_lab, MB kept"]
    write(
        given.out,
        title,
        markdown(titles, rows),
        {"case": "attention", "threads": given.threads, "device": given.device},
        {"seconds": every},
    )


def step(way: Attention, inputs: Tensor, dropout: float) -> None:
    """Take a forward and a backward pass."""
    inputs.grad = None
    way(*inputs.unbind(), dropout).sum().backward()


if __name__ == "__main__":
    main()
