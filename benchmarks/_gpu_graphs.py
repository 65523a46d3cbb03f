"""The parts of gpu.py about recorded steps: `python benchmarks/_gpu_graphs.py PART --device cuda --out DIR`.

With `--device cpu` the recorder of operations of the tests takes the place of CUDA graphs, in tiny sizes.
"""

import argparse
import multiprocessing as mp
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _alternating import alternate, markdown, on, write
from _gpu_parts import ROOT, made, rows_of
from _steps import Case, make, recorder
from attention import labs, step, torchs

from electra_lab.assembly.build import loop_settings, make_optimizer
from electra_lab.model.layers import visible_in
from electra_lab.model.long_rows import sequences_of
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.device import use_exact_kernels
from electra_lab.training.execution import Watch
from electra_lab.training.graph import Recorded, rates_on, tensors_that_change
from electra_lab.training.loop import Run, advance, compute_step

EXPERIMENTS = ROOT / "experiments"
LARGEST = 30  # kernels that are listed by name
TINY = ("transformer_tiny", 16, 2)  # on a CPU
Step = Callable[[], object]
# Kinds of kernels by words in names of CUDA's kernels, triton's code and operations on a CPU; the first match counts.
KINDS = {
    "compiled": r"^triton_|inductor",
    "attention": r"fmha|flash|attention|varlen",  # before products, as some are cutlass's
    "products": r"gemm|cutlass|nvjet|cublas|xmma|::(add|b|)mm\b",
    "optimizer": r"FusedAdam|multi_tensor_apply|_foreach|_fused_adam",
    "random numbers": r"[Bb]itwise|[Ll]shift|[Rr]shift|MulFunctor<(long|int64)|philox|arange",
    "LayerNorm": r"[Ll]ayer_?[Nn]orm|GammaBeta",
    "GELU": r"[Gg]elu",
    "softmax and loss": r"[Ss]oft_?[Mm]ax|[Ll]og_?[Ss]oft|nll|[Cc]umsum|scan",
    "casts and copies": r"copy|Memcpy|_to\b|LoadWithCast|cast",
    "sums": r"reduce|::sum|norm",
    "embeddings": r"embedding|index|gather|scatter|sort|topk|radix",
    "additions and other arithmetic": r"elementwise|Functor|Memset|fill|::",
}


@dataclass
class Trained:
    """An experiment that is trained step by step, eagerly or by graphs."""

    run: Run
    settings: Any
    device: torch.device
    batches: Any
    said: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, device: str, precision: str, *changes: str, graph: bool) -> "Trained":
        loaded, built = made(name, device, f"train.precision={precision}", *changes)
        options: Any = {"precision": precision, "steps": 1000, "flops": built.flops, "examples": 0}
        rows = loaded.config.train.batch_size
        settings = replace(loop_settings(loaded.config, seed=0, **options), micro_batch_size=rows)
        run = Run(built.learner, make_optimizer(loaded, built), watch=Watch(factor=None))
        trained = cls(run, settings, torch.device(device), rows_of(loaded, device))
        run.learner.objective.train()
        run.begin(settings, trained.device)
        rates_on(trained.device, run.optimizer)
        if graph:
            run.compute = Recorded(run, recorder(run, trained.device), trained.device, trained.said.append)
        else:
            run.compute = compute_step
        return trained

    def steps(self, number: int) -> None:
        for _ in range(number):
            advance(self.run, self.settings, self.batches, self.device)

    def named(self) -> dict[str, torch.Tensor]:
        """Return weights and states, by name; what has no name is numbered."""
        names = {id(tensor): name for name, tensor in self.run.learner.objective.named_parameters()}
        state = tensors_that_change(self.run)
        return {names.get(id(tensor), f"state {number}"): tensor for number, tensor in enumerate(state)}


def bits(device: str, out: Path) -> None:
    """Twenty steps by graphs and twenty eager ones: the first tensor that differs."""
    steps, name, sizes = 20, "electra_small", ("discriminator.depth=2", "train.batch_size=8")
    if device == "cpu":
        steps, name, sizes = 8, "transformer_tiny", ("discriminator.depth=1", "train.batch_size=4")
    figures = {}
    for precision, dropout, sampler in product(("fp32", "bf16"), ("0.0", "0.1"), ("gumbel", "temperature")):
        what = f"{precision}, dropout {dropout}, {sampler}"
        changes = (
            *sizes,
            f"discriminator.dropout={dropout}",
            f"embedding.dropout={dropout}",
            f"sampler={{type: {sampler}}}",
        )
        pair = [Trained.of(name, device, precision, *changes, graph=graph) for graph in (False, True)]
        for trained in pair:
            trained.steps(steps)
        expected, state = (trained.named() for trained in pair)
        differ = [key for key, tensor in state.items() if not torch.equal(tensor, expected[key])]
        figures[what] = pair[1].said[0] if pair[1].said else f"{differ[0]} differs" if differ else "equal"
        print(what, figures[what], flush=True)
    rows = [[what, result] for what, result in figures.items()]
    write(out, f"Graph and eager, {steps} steps", markdown(["", ""], rows), {"case": "bits"}, {"figures": figures})


def kind_of(kernel: str) -> str:
    return next((kind for kind, words in KINDS.items() if re.search(words, kernel)), "other")


def kernels(device: str, out: Path) -> None:
    """The kernels of a step of ELECTRA-Small by kind, and a picture of them."""
    from torch.profiler import ProfilerActivity, profile

    case = Case("electra_small", 128, 64, device=device) if device == "cuda" else Case(*TINY)
    take, steps = make(case, "electra_lab bf16+graph"), 3
    take()
    with profile(activities=[ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU]) as profiled:
        for _ in range(steps):
            take()
        on(device)()
    counts, micros = Counter[str](), Counter[str]()
    for event in profiled.events():
        if device == "cpu" or event.device_type == torch.autograd.DeviceType.CUDA:
            counts[event.name] += 1
            micros[event.name] += event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
    kinds, spent = Counter[str](), Counter[str]()
    for name, number in counts.items():
        kinds[kind_of(name)] += number
        spent[kind_of(name)] += micros[name]
    rows = [
        [kind, f"{kinds[kind] / steps:,.0f}", f"{spent[kind] / steps / 1e3:.2f}"] for kind, _ in spent.most_common()
    ]
    listed = [
        [f"`{name[:90]}`", f"{counts[name] / steps:,.0f}", f"{time / steps:,.0f}"]
        for name, time in micros.most_common(LARGEST)
    ]
    table = markdown(["kernels of a step", "number", "ms"], rows)
    table += "\n\n" + markdown(["the largest", "number", "us"], listed)
    drawn(out / "kernels.svg", {kind: spent[kind] / steps / 1e3 for kind, _ in spent.most_common()}, str(case))
    figures = {"kernels a step": sum(counts.values()) / steps, "of the device, ms": sum(micros.values()) / steps / 1e3}
    values = {"figures": figures, "kinds": kinds, "microseconds": spent, "by name": micros.most_common(100)}
    write(out, f"Kernels of {case}", table, {"case": "kernels"}, values)


def drawn(path: Path, milliseconds: dict[str, float], case: str) -> None:
    """Draw the time of each kind of kernel."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.35 * len(milliseconds) + 1))
    axes.barh([*reversed(milliseconds)], [*reversed(milliseconds.values())])
    axes.set_xlabel(f"ms of a step, {case}")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def replayed(step: Step, device: str) -> Step:
    """Return a function that replays a graph of a step; on a CPU the step."""
    if device == "cpu":
        step()
        return step
    stream: Any = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def borders(device: str, out: Path) -> None:
    """Attention of one layer by graphs, half of the rows with padding: masks, none, and sequences."""
    lengths, all_heads, tokens, width, kind = (128, 256, 512, 1024), (4, 12), 16_384, 64, torch.bfloat16
    if device == "cpu":
        lengths, all_heads, tokens, width, kind = (16, 32), (2,), 64, 8, torch.float32
    rows, figures = [], dict[str, float | str]()
    for heads, length in product(all_heads, lengths):
        inputs = torch.randn(3, tokens // length, heads, length, width, device=device, dtype=kind, requires_grad=True)
        ends = torch.full((tokens // length, 1), length, device=device)
        ends[::2] = 2 * length // 3
        real = torch.arange(length, device=device) < ends
        sequences = sequences_of(real, None, 2 * len(real))
        ways = {"mask": torchs(visible_in(real)), "mask, cuDNN": torchs(visible_in(real)), "no mask": labs(None)}
        if device == "cuda":  # there is no other kernel for sequences
            ways["sequences"] = labs(sequences)
        replays, missing = dict[str, Step](), dict[str, str]()
        for name, way in ways.items():
            use_exact_kernels()
            torch.backends.cuda.enable_cudnn_sdp(name == "mask, cuDNN")
            try:
                replays[name] = replayed(partial(step, way, inputs, 0.0), device)
            except Exception as error:  # a kernel that is missing or cannot be recorded stops no other
                missing[name] = (str(error).splitlines() or [type(error).__name__])[0]
        seconds = alternate(replays, 5, clock=on(device), calls=30 if device == "cuda" else 1)
        middle = {name: sorted(values)[2] * 1e3 for name, values in seconds.items()}
        rows.append(
            [
                f"{length} x {tokens // length}, {heads} heads",
                *(f"{middle[n]:.3f}" if n in middle else missing.get(n, "") for n in ways),
            ]
        )
        figures |= {f"{length}, {heads} heads: {name}, ms": value for name, value in middle.items()}
        figures |= {f"{length}, {heads} heads: {name}": value for name, value in missing.items()}
    table = markdown(["forward and backward, ms", *ways], rows)
    write(
        out,
        f"Attention by graphs, {tokens:,} tokens, half of the rows with padding",
        table,
        {"case": "borders"},
        {"figures": figures},
    )


def kill(device: str, out: Path) -> None:
    """Train with graphs, once without a break and once with kill -9 and resume: weights bit by bit."""
    name, steps, every = ("electra_small", 200, 50) if device == "cuda" else ("transformer_tiny", 12, 3)
    changes = [
        f"train.steps={steps}",
        f"checkpoint.every={every}",
        "evaluate.every=1000",
        "train.batch_size=8",
        "discriminator.depth=2",
    ]
    changes += [
        "corpus={type: docstrings}",
        "tokenizer.vocab_size=4096",
        f"data.store={out.parent / 'store'}",
        "evaluate.tokens=2048",
    ]
    changes += [
        "evaluate.test_tokens=2048",
        "schedules.learning_rate.warmup_steps=5",
        *(["train.graph=on"] if device == "cuda" else []),
    ]
    options = ["--device", device, *(part for change in changes for part in ("--set", change))]
    folders = {way: out / way for way in ("whole", "killed")}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    lab = [sys.executable, "-m", "electra_lab"]
    command = [*lab, "run", str(EXPERIMENTS / f"{name}.yaml"), *options]
    subprocess.run([*command, "--out", str(folders["whole"])], check=True, cwd=ROOT)
    process = subprocess.Popen([*command, "--out", str(folders["killed"])], cwd=ROOT, start_new_session=True)
    while process.poll() is None and not any(folders["killed"].glob("checkpoints/*")):
        time.sleep(0.02)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    died = process.wait() < 0
    subprocess.run([*lab, "resume", str(folders["killed"]), "--device", device], check=True, cwd=ROOT)
    states = [tensors_in(RunDirectory(folder)) for folder in folders.values()]
    differ = [key for key, tensor in states[0].items() if not torch.equal(tensor, states[1][key])]
    result = (
        f"{len(differ)} of {len(states[0])} tensors differ, such as {differ[0]}"
        if differ
        else f"{len(states[0])} tensors equal"
    )
    figures = {"killed at a checkpoint": "yes" if died else "no", "weights after it": result}
    rows = [[what, value] for what, value in figures.items()]
    write(
        out,
        f"kill -9 and resume, {steps} steps with graphs",
        markdown(["", ""], rows),
        {"case": "kill"},
        {"figures": figures},
    )


def tensors_in(run: RunDirectory) -> dict[str, torch.Tensor]:
    """Return the tensors of the last checkpoint."""
    from safetensors.torch import load_file

    folder = sorted((run.path / "checkpoints").glob("*[0-9]"))[-1]
    return {
        f"{file.name}: {name}": tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def cells(device: str, out: Path) -> None:
    """Steps a second of several processes on one device, together."""
    numbers, seconds = ((1, 4, 8, 16, 24), 3.0) if device == "cuda" else ((1, 2), 0.2)
    context = mp.get_context("spawn")
    barrier, figures = context.Barrier(max(numbers) + 1), dict[str, float]()
    counts: Any = context.Array("d", max(numbers))
    for how in ("bf16", "bf16+graph"):
        workers = [
            context.Process(target=cell, args=(number, numbers, seconds, how, device, barrier, counts), daemon=True)
            for number in range(max(numbers))
        ]
        for worker in workers:
            worker.start()
        for number in numbers:
            barrier.wait(240)  # all are ready
            barrier.wait(60)  # all have counted
            figures[f"{number} at a time, {how}: steps a second"] = sum(counts[:number])
        for worker in workers:
            worker.join(30)
    rows = [[what, f"{value:,.1f}"] for what, value in figures.items()]
    write(
        out,
        "Processes that share a device, bert_small",
        markdown(["", ""], rows),
        {"case": "cells"},
        {"figures": figures},
    )


def cell(
    index: int, numbers: tuple[int, ...], seconds: float, how: str, device: str, barrier: Any, counts: Any
) -> None:
    torch.set_num_threads(1)
    take = make(Case("bert_small", device=device) if device == "cuda" else Case(*TINY), f"electra_lab {how}")
    clock = on(device)
    for number in numbers:
        barrier.wait(240)
        began, taken = clock(), 0
        while index < number and clock() - began < seconds:
            for _ in range(10 if device == "cuda" else 1):
                take()
                taken += 1
        counts[index] = taken / (clock() - began)
        barrier.wait(60)


PARTS = {part.__name__: part for part in (bits, kernels, borders, kill, cells)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=PARTS)
    options.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.device == "cuda":
        use_exact_kernels()  # as where the lab trains
    PARTS[given.part](given.device, given.out)


if __name__ == "__main__":
    main()
