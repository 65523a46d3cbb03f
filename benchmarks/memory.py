"""Compare the memory that a training step takes: the growth of the process's peak, in a process for each way.

    python benchmarks/memory.py --length 128 --batch 16

The ways are those of step.py. A process builds networks and optimizer and takes a step of a miniature, so that
imports and first allocations of libraries do not count. Growth is the peak resident memory up to the end of
the first step, and of the third, less what was resident before: activations, logits, gradients and, of AdamW, two
numbers for each weight. Reads /proc, so that it needs Linux.

With `--device cuda` it is the memory that torch holds on the GPU, with the weights and the memory that graphs keep
between steps; one process does all, and gives it back after each way.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import torch
from _alternating import device_name, markdown, reason, write
from _steps import LAB, PEERS, Case, Missing, make, peer, settings_of

MINIATURE = ("discriminator.dim=96", "discriminator.depth=1", "embedding.dim=16", "tokenizer.vocab_size=2048")
STEPS = (1, 3)
Growth = dict[int, float]  # MB, by the number of steps


def resident(key: str) -> float:
    """Return VmRSS, the resident memory, or VmHWM, its peak, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024 / 1e6


def measure(case: Case, way: str, steps: Collection[int]) -> Growth:
    """Return the growth up to the end of these steps in this process, which has done nothing else."""
    torch.manual_seed(0)
    settings_of(way)
    if case.device == "cuda":
        return reserved(case, way, steps)
    make(Case(case.experiment, case.length, 1, (*case.changes, *MINIATURE), case.device), way)()
    gc.collect()
    step, grown = make(case, way), Growth()
    ctypes.CDLL(None).malloc_trim(0)  # the step must not reuse memory that was freed after building
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident("VmRSS")
    for number in range(1, max(steps) + 1):
        step()
        if number in steps:
            grown[number] = resident("VmHWM") - before
    return grown


def reserved(case: Case, way: str, steps: Collection[int]) -> Growth:
    """Return the MB that torch holds on a GPU up to the end of these steps, and give them back."""
    grown = Growth()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    step = make(case, way)
    for number in range(1, max(steps) + 1):
        step()
        if number in steps:
            grown[number] = (torch.cuda.max_memory_reserved() - before) / 1e6
    return grown


def growth(case: Case, way: str, threads: int, steps: Collection[int] = STEPS) -> Growth:
    """Return the growth, on a CPU in a separate process. Raises Missing."""
    if case.device == "cuda":
        return measure(case, way, steps)
    given = json.dumps([case.experiment, case.length, case.batch, case.changes, way, threads, list(steps)])
    done = subprocess.run([sys.executable, __file__, "--child", given], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise RuntimeError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    answer = json.loads(done.stdout.splitlines()[-1])
    if isinstance(answer, str):
        raise Missing(answer)
    return {int(steps): grown for steps, grown in answer.items()}


def child(given: str) -> None:
    experiment, length, batch, changes, way, threads, steps = json.loads(given)
    torch.set_num_threads(threads)
    try:
        print(json.dumps(measure(Case(experiment, length, batch, tuple(changes)), way, steps)))
    except Missing as reason:
        print(json.dumps(str(reason)))


def compare(case: Case, ways: Iterable[str], threads: int) -> tuple[str, dict[str, Growth]]:
    """Return a table, and the growth of each way that worked; the others are compared with the first."""
    found, rows, base = dict[str, Growth](), list[list[str]](), ""
    for way in ways:
        try:
            found[way] = growth(case, way, threads)
        except Missing as absent:
            rows.append([way, str(absent), *[""] * (2 * len(STEPS) - 1)])
            continue
        except Exception as error:  # a missing kernel or too little memory does not stop the others
            rows.append([way, reason(error), *[""] * (2 * len(STEPS) - 1)])
            continue
        base = base or way
        values = [[f"{found[way][n]:,.0f}", f"{found[way][n] / found[base][n]:.2f}"] for n in STEPS]
        rows.append([way, *(cell for pair in values for cell in pair)])
    titles = [title for n in STEPS for title in (f"MB up to step {n}", f"of that of {base}")]
    return markdown(["", *titles], rows), found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--experiment", default="electra_small", help="a file of experiments/")
    options.add_argument("--length", type=int, help="by default the file's")
    options.add_argument("--batch", type=int, help="by default the file's")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--ours", nargs="+", default=["fp32"])
    options.add_argument("--peers", nargs="*", type=peer, default=list(PEERS), metavar="PEER")
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--out", type=Path, help="folder; results.jsonl and results.md there are continued")
    options.add_argument("--child", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        child(given.child)
        return
    case = Case(given.experiment, given.length, given.batch, device=given.device)
    ways = [*given.peers, *(f"{LAB} {how}" for how in given.ours)]
    table, found = compare(case, ways, given.threads)
    if not found:
        sys.exit(f"no way could be measured:\n{table}")
    title = f"Memory of {case}: {device_name(given.device, given.threads)}, torch {torch.__version__}"
    about = {"case": f"memory of {case}", "threads": given.threads, "device": given.device, "torch": torch.__version__}
    write(given.out, title, table, about, {"megabytes": found})


if __name__ == "__main__":
    main()
