"""Compare the training step with electra-pytorch's, the usual one on transformers and txtai's, alternating.

    python benchmarks/step.py --length 128 --batch 16 --ours fp32 bf16
    python benchmarks/step.py --experiment reformer_small --length 512 --batch 4

The ways are described in _steps.py; ours is written as precision[+attention][+compile][+sampler], with `temperature`
unless another sampler is named. `--clock processor` counts the processor's time instead of the clock's.

The share of the peak is FLOPs / seconds / peak, round by round. FLOPs are those that the step needs, by the formula of
electra_lab/model/flops.py: 3 x batch x (generator + discriminator), with vocabulary logits at masked positions alone.
They are the same for every way, so what a way does beyond them counts for nothing. The peak is the rate of a product
of two 2048 x 2048 matrices in float32, 2 x 2048^3 FLOPs, which takes its turns with the steps.
"""

import statistics

import torch
from _alternating import CLOCKS, Seconds, alternate, parser, spread, table, write
from _steps import LAB, PEERS, Case, Missing, Step, make, memory_of

PRODUCT = "matrix product"


def product() -> Step:
    one = torch.randn(2048, 2048)
    return lambda: one @ one


def shares(seconds: Seconds, peak: list[float], flops: int) -> dict[str, str]:
    """Return the share of the peak that each way reaches; `peak` are the seconds of the matrix product."""

    def share(values: list[float]) -> list[float]:
        return [100 * (flops / step) / (2 * 2048**3 / best) for step, best in zip(values, peak, strict=True)]

    return {name: spread(share(values), ".0f") + " %" for name, values in seconds.items()}


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--experiment", default="electra_small", help="a file of experiments/")
    options.add_argument("--length", type=int, help="by default the file's")
    options.add_argument("--batch", type=int, help="by default the file's")
    options.add_argument("--ours", nargs="+", default=["fp32"])
    options.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    case = Case(given.experiment, given.length, given.batch)
    ways, missing = dict[str, Step](), dict[str, str]()
    for name in (*given.peers, *(f"{LAB} {how}" for how in given.ours)):
        try:
            ways[name] = make(case, name)
        except Missing as reason:
            missing[name] = str(reason)
    found = alternate({**ways, PRODUCT: product()}, given.rounds, 2, before=memory_of, clock=CLOCKS[given.clock])
    peak, flops = found.pop(PRODUCT), case.built()[1].flops.per_step
    rates = {name: f"{1 / statistics.median(values):.2f}" for name, values in found.items()}
    more = {"steps a second": rates, "share of the peak": shares(found, peak, flops)}
    gflops = 2 * 2048**3 / statistics.median(peak) / 1e9
    about = f"{given.threads} threads, {given.clock} time, torch {torch.__version__}"
    title = f"Step of {case}: {about}, {flops / 1e9:,.0f} GFLOPs, matrix product at {gflops:,.0f} GFLOP/s"
    bases = [name for name in given.peers if name in ways]
    write(
        given.out,
        title,
        table(found, bases or [next(iter(ways))], more, missing),
        {"case": str(case), "threads": given.threads, "clock": given.clock, "torch": torch.__version__},
        {"seconds": found, "missing": missing, "flops": flops, "product seconds": peak},
    )


if __name__ == "__main__":
    main()
