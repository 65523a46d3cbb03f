"""Compare the training step with electra-pytorch's, the usual one on transformers and txtai's, alternating.

    python benchmarks/step.py --length 128 --batch 16 --ours fp32 bf16
    python benchmarks/step.py --experiment reformer_small --length 512 --batch 4

The ways are described in _steps.py; ours is written as precision[+attention][+compile][+sampler], with `temperature`
unless another sampler is named. `--clock processor` counts the processor's time instead of the clock's.

`--peers` takes names alone or with a precision and options, as in "usual step bf16+full+adam". `--device cuda` times
several calls at once, as the host does not wait between steps. `ready after` in results.jsonl is the time to build,
compile and record each way.

The share of the peak is FLOPs / seconds / peak, round by round. FLOPs are those that the step needs, by the formula of
electra_lab/model/flops.py: 3 x batch x (generator + discriminator), with vocabulary logits at masked positions alone.
They are the same for every way, so additional work of a way does not count. The peak is the rate of a product
of two 2048 x 2048 matrices in float32, 2 x 2048^3 FLOPs, which alternates with the steps; on a GPU, of 8192 x
8192 matrices in bf16, for steps in any precision.
"""

import statistics
import sys
import time

import torch
from _alternating import CLOCKS, Seconds, alternate, device_name, on, parser, reason, spread, table, write
from _steps import LAB, PEERS, Case, Missing, Step, make, peer, settings_of

PRODUCT = "matrix product"


def product(device: str) -> tuple[Step, int]:
    """Return a product of two square matrices, and its FLOPs."""
    size, kind = (2048, torch.float32) if device == "cpu" else (8192, torch.bfloat16)
    one = torch.randn(size, size, device=device, dtype=kind)
    return lambda: one @ one, 2 * size**3


def shares(seconds: Seconds, peak: list[float], flops: int, of_product: int) -> dict[str, str]:
    """Return the share of the peak that each way reaches.

    peak        seconds of the matrix product
    of_product  FLOPs of it
    """

    def share(values: list[float]) -> list[float]:
        return [100 * (flops / step) / (of_product / best) for step, best in zip(values, peak, strict=True)]

    return {name: spread(share(values), ".0f") + " %" for name, values in seconds.items()}


def main() -> None:
    options = parser(__doc__, rounds=7, devices=True)
    options.add_argument("--experiment", default="electra_small", help="a file of experiments/")
    options.add_argument("--length", type=int, help="by default the file's")
    options.add_argument("--batch", type=int, help="by default the file's")
    options.add_argument("--ours", nargs="+", default=["fp32"])
    options.add_argument("--peers", nargs="*", type=peer, default=list(PEERS), metavar="PEER")
    options.add_argument("--calls", type=int, help="timed together; by default 1 on a CPU, 10 on a GPU")
    options.add_argument("--warm-up", type=int, default=2, help="rounds that do not count")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    case = Case(given.experiment, given.length, given.batch, device=given.device)
    ways, missing, ready = dict[str, Step](), dict[str, str](), dict[str, float]()
    for name in (*given.peers, *(f"{LAB} {how}" for how in given.ours)):
        began = time.perf_counter()
        try:
            way = make(case, name)
            way()  # compiles, with the kernels that are allowed in this way
        except Missing as absent:
            missing[name] = str(absent)
        except Exception as error:  # a missing kernel or too little memory does not stop the others
            missing[name] = reason(error)
        else:
            ways[name], ready[name] = way, time.perf_counter() - began
    if not ways:
        sys.exit(f"no way could be timed: {missing}")
    ways[PRODUCT], of_product = product(given.device)
    clock, calls = on(given.device, CLOCKS[given.clock]), given.calls or (1 if given.device == "cpu" else 10)
    found = alternate(ways, given.rounds, given.warm_up, before=settings_of, clock=clock, calls=calls)
    peak, flops = found.pop(PRODUCT), case.built()[1].flops.per_step
    rates = {name: f"{1 / statistics.median(values):.2f}" for name, values in found.items()}
    more = {"steps a second": rates, "share of the peak": shares(found, peak, flops, of_product)}
    gflops = of_product / statistics.median(peak) / 1e9
    about = f"{device_name(given.device, given.threads)}, {given.clock} time, torch {torch.__version__}"
    title = f"Step of {case}: {about}, {flops / 1e9:,.0f} GFLOPs, matrix product at {gflops:,.0f} GFLOP/s"
    bases = [name for name in given.peers if name in found]
    write(
        given.out,
        title,
        table(found, bases or [next(iter(found))], more, missing),
        {
            "case": str(case),
            "threads": given.threads,
            "device": given.device,
            "clock": given.clock,
            "torch": torch.__version__,
        },
        {"seconds": found, "missing": missing, "flops": flops, "product seconds": peak, "ready after": ready},
    )


if __name__ == "__main__":
    main()
