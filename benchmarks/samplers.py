"""Compare each sampler with electra-pytorch's `gumbel_sample`, alternating in one process.

    python benchmarks/samplers.py --threads 1 --clock processor

Logits are [2400, 30522], normal numbers.
"""

from collections.abc import Callable
from functools import partial

import torch
from _alternating import CLOCKS, alternate, parser, table, write
from _steps import settings_of
from electra_pytorch.electra_pytorch import gumbel_sample

from electra_lab.training.random import Streams
from registry import samplers

PEER = "electra-pytorch gumbel_sample"
OPTIONS = {"nucleus": {"p": 0.9}, "top_k": {"k": 50}}


def ways_of(rows: int, size: int) -> dict[str, Callable[[], object]]:
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(rows)
    ways: dict[str, Callable[[], object]] = {PEER: lambda: gumbel_sample(logits)}

    def call(draw: Callable[..., object], given: torch.Tensor) -> object:
        return draw(given, Streams.of(0, 0, ids)("sampling"))

    for name in samplers.names():
        entry, options = samplers.get(name), OPTIONS.get(name, {})
        ways[f"electra_lab {name}"] = partial(call, partial(entry.component, **options), logits)
    return ways


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--rows", type=int, default=2400)
    options.add_argument("--vocabulary", type=int, default=30_522)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    seconds = alternate(
        ways_of(given.rows, given.vocabulary), given.rounds, before=settings_of, clock=CLOCKS[given.clock]
    )
    title = f"Samplers, [{given.rows}, {given.vocabulary}]: {given.threads} threads, {given.clock} time"
    case = {"case": "samplers", "rows": given.rows, "threads": given.threads, "clock": given.clock}
    write(given.out, title, table(seconds, [PEER]), case, {"seconds": seconds})


if __name__ == "__main__":
    main()
