"""Compare the alternatives of `auto`, alternating in one process, and show the choices of its rules.

    python benchmarks/choices.py --shapes 128x16 512x4 --widths 128 256 --compile

A step of ELECTRA-Small, also at other widths, is taken in each precision with each kernel of attention, and with
compiled layers if `--compile` is given. The first step of each way compiles; it is not counted. Compiling pays above
the FLOPs after which it has saved ten times the seconds that it took.
"""

import statistics
import time

import torch
from _alternating import CLOCKS, alternate, parser, table, write
from _steps import LAB, Case, make, settings_of

from electra_lab.assembly.budget import Scale, by_rule
from electra_lab.training.device import bf16_units

AUTO = ("train.precision=auto", "train.attention=auto", "train.compile=auto")


def processor() -> str:
    """Return the name of the processor's model."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.partition(": ")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {bf16_units() or 'no bf16 units'}"


def main() -> None:
    options = parser(__doc__, rounds=5)
    options.add_argument("--experiment", default="electra_small", help="a file of experiments/")
    options.add_argument("--shapes", nargs="+", default=["128x16", "512x4"], help="length x rows")
    options.add_argument("--widths", nargs="+", type=int, default=[256], help="of the discriminator")
    options.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    options.add_argument("--compile", action="store_true", help="compiled layers, too")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    for shape in given.shapes:
        for width in given.widths:
            compare(given, *map(int, shape.split("x")), width)


def compare(given: object, length: int, rows: int, width: int) -> None:
    """Time the ways of one step, and write their table."""
    options = vars(given)
    case = Case(options["experiment"], length, rows, (f"discriminator.dim={width}",))
    ways, compiling = {}, {}
    for precision in options["precisions"]:
        for kernel in ("fused", "products"):
            for compiled in ("off", "layers") if options["compile"] else ("off",):
                name = f"{LAB} {precision}+{kernel}+{compiled}"
                ways[name] = make(case, name)
                began = time.perf_counter()
                ways[name]()
                compiling[name] = time.perf_counter() - began
    found = alternate(ways, options["rounds"], before=settings_of, clock=CLOCKS[options["clock"]])
    flops = case.built()[1].flops.per_step
    median = {name: statistics.median(seconds) for name, seconds in found.items()}
    pays = {}
    for name in (name for name in median if name.endswith("+layers")):
        plain = name.replace("+layers", "+off")
        saved = median[plain] - median[name]
        if saved > 0:
            pays[name] = f"{10 * (compiling[name] - compiling[plain]) / saved * flops:.0e}"
    rule = by_rule(case.loaded(*AUTO).config.train, Scale(width, length, 10**18), torch.device("cpu"))
    said = "; ".join(f"{key} {value} ({reason})" for key, (value, reason) in rule.items())
    about = f"{processor()}, {options['threads']} threads, {options['clock']} time, torch {torch.__version__}"
    write(
        options["out"],
        f"Step of {case}, {width} wide: {about}, {flops / 1e9:,.0f} GFLOPs. For a long training, auto is {said}",
        table(found, [next(iter(ways))], {"compiling pays above FLOPs": pays} if pays else None),
        {"case": str(case), "width": width, "threads": options["threads"], "processor": processor()},
        {"seconds": found, "rule": rule, "compiling": compiling},
    )


if __name__ == "__main__":
    main()
