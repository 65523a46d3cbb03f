"""The parts of gpu.py that no other script measures: `python benchmarks/_gpu_parts.py PART --device cuda --out DIR`."""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from _alternating import alternate, markdown, on, write
from torch import Tensor

import registry
from electra_lab.assembly.build import BERT_VOCABULARY, Built, build, make_optimizer, vocabulary_size
from electra_lab.assembly.data import allocate_memory, random_rows
from electra_lab.config.load import Loaded, load
from electra_lab.data.rows import Rows
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.objectives._shared import draw
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.device import use_exact_kernels
from electra_lab.training.random import Streams
from electra_lab.training.step import Learner, training_step

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments"
ROWS = 8  # per batch of a tried step
Cells = list[str]


def environment(device: str, out: Path) -> None:
    """Report versions, and the rates of matrix products."""
    facts = {"python": platform.python_version(), "system": platform.platform(), "torch": torch.__version__}
    for name in ("triton", "numpy", "transformers", "electra-pytorch", "x-transformers", "reformer-pytorch"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "not installed"
    facts["C compiler"] = shutil.which("cc") or shutil.which("gcc") or "none"
    facts["processor"] = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    size, seconds = 512, {}
    if device == "cuda":
        size, properties = 8192, torch.cuda.get_device_properties(0)
        facts["GPUs"] = f"{torch.cuda.device_count()} x {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        facts["CUDA, cuDNN"] = f"{torch.version.cuda}, {torch.backends.cudnn.version()}"
        facts["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        asked = ["--query-gpu=driver_version,power.limit,clocks.max.sm,mig.mode.current", "--format=csv,noheader"]
        if shutil.which("nvidia-smi"):
            told = subprocess.run(["nvidia-smi", *asked], capture_output=True, text=True)
            facts["driver, power limit, clock, MIG"] = told.stdout.strip().replace("\n", "; ") or told.stderr.strip()
    for name, kind in kinds.items():
        one = torch.randn(size, size, device=device, dtype=kind)
        seconds |= alternate({name: lambda one=one: one @ one}, 3, clock=on(device), calls=5)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
        one = torch.randn(size, size, device=device)
        seconds |= alternate({"tf32": lambda: one @ one}, 3, clock=on(device), calls=5)
    rates = {name: 2 * size**3 / sorted(values)[1] / 1e12 for name, values in seconds.items()}
    figures = {f"product in {name}, TFLOP/s": rate for name, rate in rates.items()} | launches(device)
    rows = [[name, str(value)] for name, value in facts.items()]
    rows += [[name, f"{value:,.2f}"] for name, value in figures.items()]
    write(
        out,
        "Versions, rates and launches",
        markdown(["", ""], rows),
        {"case": "environment"},
        {"figures": figures, "facts": facts},
    )


def launches(device: str) -> dict[str, float]:
    """Return the rate of copies, and on a GPU the time of an empty kernel, launched alone and by a graph."""
    large = torch.empty(2**28 if device == "cuda" else 2**20, device=device)  # 1 GiB
    target = torch.empty_like(large)
    copies = alternate({"copy": lambda: target.copy_(large)}, 3, clock=on(device), calls=5)["copy"]
    figures = {"copy, TB/s": 2 * 4 * large.numel() / sorted(copies)[1] / 1e12}  # read and written
    one, number = torch.zeros(1, device=device), 1000

    def many() -> None:
        for _ in range(number):
            one.zero_()

    ways: dict[str, Callable[[], object]] = {"empty launch, us": many}
    if device == "cuda":
        many()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            many()
        ways["empty node, us"] = graph.replay
    for name, values in alternate(ways, 5, clock=on(device)).items():
        figures[name] = sorted(values)[2] / number * 1e6
    return figures


def equality(device: str, out: Path) -> None:
    """Random numbers, masks and draws of the same seed on the CPU and on the device."""
    rows: list[Cells] = []
    size, length = (64, 128) if device == "cuda" else (8, 32)
    words = {place: stand_in_vocabulary(BERT_VOCABULARY, torch.device(place)) for place in {"cpu", device}}
    tokens = torch.randint(4, BERT_VOCABULARY, (size, length), generator=torch.Generator().manual_seed(0))
    tokens[:, 0], tokens[:, -1] = words["cpu"].cls_id, words["cpu"].sep_id

    def compare(name: str, of: Callable[[str], Tensor]) -> None:
        here, there = of("cpu"), of(device).cpu()
        rows.append([name, f"{int((here == there).sum()):,}", f"{here.numel():,}"])

    def rng(place: str) -> Any:
        return Streams.of(0, 1, torch.arange(size, device=place))("masking")

    compare("random numbers", lambda place: rng(place).uniform(size, 4096))
    for name in registry.masking_strategies.names():
        for what in ("inputs", "positions", "valid"):

            def masked(place: str, name: str = name, what: str = what) -> Tensor:
                mine, known = tokens.to(place), words[place]
                strategy: Any = registry.masking_strategies.get(name).component
                found: Tensor = getattr(
                    strategy(mine, ~known.is_special[mine], known, rng(place), mask_prob=0.15), what
                )
                return found

            compare(f"`{name}`, {what}", masked)
    logits = 3 * torch.randn(size, 20, BERT_VOCABULARY, generator=torch.Generator().manual_seed(1))
    for name in registry.samplers.names():
        sampler: Any = registry.samplers.get(name).component
        compare(f"`{name}`, draws", lambda p, s=sampler: draw(s, logits.to(p), words[p], rng(p)))
    # A whole step of ELECTRA: the weights are equal, so that logits differ by rounding only
    guesses, corrupted = {}, {}
    for place in words:
        loaded, built = made("electra_small", place, f"train.batch_size={size}", "discriminator.depth=2")
        objective: Any = built.learner.objective.eval()
        batch = rows_of(loaded, place).training_batch(0, 1, size, torch.device(place))
        streams = Streams.of(0, 1, batch.example_ids)
        with torch.no_grad():
            guesses[place] = objective.guess(batch, streams)
            corrupted[place] = objective.replace(guesses[place], batch, streams)
    compare("`electra`, masked inputs", lambda place: guesses[place].masked.inputs)
    compare("`electra`, replaced text", lambda place: corrupted[place])
    counts = guesses["cpu"].masked.valid  # logits of other slots are arbitrary
    gap = (guesses["cpu"].logits - guesses[device].logits.cpu())[counts].abs().max()
    table = markdown(["the same on CPU and device", "equal", "of"], rows)
    table += f"\n\nThe generator's logits differ by at most {float(gap):.2g}."
    figures = {name: "equal" if here == number else f"{here} of {number} equal" for name, here, number in rows}
    write(
        out,
        "Equality with the CPU",
        table,
        {"case": "equality"},
        {"figures": figures, "rows": rows, "logits": float(gap)},
    )


def made(name: str, device: str, *changes: str) -> tuple[Loaded[Any], Built]:
    """Build an experiment of experiments/ for random text on a device."""
    loaded = load(EXPERIMENTS / f"{name}.yaml", list(changes))
    words = stand_in_vocabulary(vocabulary_size(loaded) or BERT_VOCABULARY, torch.device(device))
    built = build(loaded, words, seed=0)
    allocate_memory(loaded, built.learner.objective.to(device), 1000, torch.device(device))
    return loaded, built


def rows_of(loaded: Loaded[Any], device: str) -> Rows:
    """Return rows of random text, with some padding."""
    words, length = stand_in_vocabulary(vocabulary_size(loaded) or BERT_VOCABULARY), loaded.config.data.sequence_length
    return random_rows(loaded, words, [length // 3, length // 2, 3 * length] * ROWS)


@contextmanager
def waiting(lines: Counter[str]) -> Iterator[None]:
    """Count the lines of the lab that make the host wait for the GPU."""

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            lines[place(traceback.extract_stack()[:-1])] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def place(stack: traceback.StackSummary) -> str:
    """Return the innermost line of the lab."""
    ours = [frame for frame in stack if f"{ROOT}/electra_lab/" in frame.filename or "registry/" in frame.filename]
    frame = ours[-1] if ours else stack[-1]
    return f"{frame.filename.removeprefix(f'{ROOT}/')}:{frame.lineno}"


def failure(error: Exception) -> str:
    """Return the first line of an error, and the innermost line of the lab."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__} at {place(traceback.extract_tb(error.__traceback__))}: {first[:200]}"


def experiments(device: str, out: Path) -> None:
    """Compare losses on both devices, and take a step in each precision, for experiments that take minutes on a CPU."""
    from shipped import shipped

    names = [name for name in ["electra_small", *shipped()] if not name.startswith("plugins")]
    rows = []
    for name in names if device == "cuda" else ["transformer_tiny", "bert_small"]:
        began = time.monotonic()
        cells = tried(name, device)
        rows.append([f"`{name}`", *cells, f"{time.monotonic() - began:.1f}"])
        print(rows[-1], flush=True)
    titles = ["", "loss on the CPU", "difference here", "fp32", "bf16", "fp16", "lines at which the host waits", "s"]
    failed = [row[0] for row in rows if any(": " in cell for cell in row[1:-2])]  # errors of `failure`
    figures = {"experiments": len(rows), "with an error": ", ".join(failed) or "none"}
    write(out, "Experiments", markdown(titles, rows), {"case": "experiments"}, {"figures": figures, "rows": rows})


def tried(name: str, device: str) -> Cells:
    """Return the cells of an experiment."""
    sizes, lines = [f"train.batch_size={ROWS}", "discriminator.depth=2"], Counter[str]()
    losses = []
    try:
        for kind in ("cpu", device):
            loaded, built = made(name, kind, *sizes)
            batch = rows_of(loaded, kind).training_batch(0, 0, ROWS, torch.device(kind))
            with torch.no_grad(), built.learner.evaluating(0):
                losses.append(loss_of(built.learner, batch))
    except Exception as error:
        traceback.print_exc()
        return [*[f"{loss:.5f}" for loss in losses], *[""] * (1 - len(losses)), failure(error), "", "", "", ""]
    cells = [f"{losses[0]:.5f}", f"{abs(losses[1] - losses[0]):.1e}"]
    for precision in ("fp32", "bf16", "fp16"):
        try:
            cells.append(f"{stepped(name, device, precision, lines, sizes):.4f}")
        except Exception as error:
            traceback.print_exc()
            cells.append(failure(error))
    return [*cells, ", ".join(f"`{line}`" for line in lines) or "none"]


def loss_of(learner: Learner, batch: Any) -> float:
    terms = learner.losses(batch, Streams.of(0, 0, batch.example_ids), "fp32").terms.values()
    return float(sum(float(term.weight) * term.sum / term.count.clamp(min=1) for term in terms))


def stepped(name: str, device: str, precision: str, lines: Counter[str], sizes: list[str]) -> float:
    """Take five steps and watch the last one; returns its loss. Raises RuntimeError if it is not finite."""
    from electra_lab.training.execution import LossScale

    loaded, built = made(name, device, *sizes)
    optimizer, rows = make_optimizer(loaded, built), rows_of(loaded, device)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    scale = LossScale(torch.device(device)) if precision == "fp16" else None
    built.learner.objective.train()

    def step(number: int) -> Any:
        batch = rows.training_batch(0, number, ROWS, torch.device(device))
        return training_step(
            built.learner, optimizer, batch, seed=0, step=number, rate=0.01, clip_norm=1.0, micro_batch_size=ROWS,
            precision=precision, scale=scale,  # type: ignore[arg-type]
        )  # fmt: skip

    for number in range(4):
        step(number)
    if device == "cuda":
        with waiting(lines):
            result = step(4)
    else:
        result = step(4)
    if not bool(result.accepted) and precision != "fp16":
        raise RuntimeError(f"the step is not finite: { ({k: float(v) for k, v in result.sums.items()}) }")
    return sum(w * float(result.sums[k]) / max(float(result.counts[k]), 1) for k, w in result.weights.items())


def trained(device: str, out: Path, *changes: str, ranks: int = 1) -> list[dict[str, Any]]:
    """Run ELECTRA-Small on the docstrings, on a CPU `bert_small`; returns its records."""
    name, steps = ("electra_small", 600) if device == "cuda" else ("bert_small", 20)
    every = [f"train.steps={steps}", f"evaluate.every={steps // 5}", f"train.log_every={steps // 10}"]
    kept = [f"checkpoint.every={steps}", f"schedules.learning_rate.warmup_steps={steps // 10}"]
    corpus = ["corpus={type: docstrings}", "data.held_out=0.05"]
    few = ["evaluate.tokens=2048", "evaluate.test_tokens=2048"]
    sizes = ["tokenizer.vocab_size=8192", "train.batch_size=128"] if device == "cuda" else few
    corpus.append(f"data.store={out.parent / 'store'}")
    folder = out / f"run-{ranks}-{time.time_ns()}"
    command = ["-m", "electra_lab", "run", str(EXPERIMENTS / f"{name}.yaml")]
    if ranks > 1:
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *command]
    command += ["--device", device, "--out", str(folder)]
    for change in (*corpus, *sizes, *every, *kept, *changes):
        command += ["--set", change]
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT)
    records = RunDirectory(folder).records()
    shutil.rmtree(folder)
    return records


def training(device: str, out: Path) -> None:
    """Train it, and report the learning curve as numbers."""
    records = trained(device, out)
    rates = {record["step"]: record for record in records if record["split"] == "train"}
    rows = []
    for record in records:
        if record["split"] != "train":
            rate = rates.get(record["step"], {}).get("tokens_per_second", 0)
            keys = ("generator_loss", "discriminator_loss", "discriminator_auc")
            numbers = [f"{record.get(key, float('nan')):.3f}" for key in keys]
            rows.append([f"{record['step']:,}", record["split"], *numbers, f"{rate:,.0f}"])
    titles = ["step", "split", "generator loss", "discriminator loss", "AUC", "tokens a second"]
    title = "ELECTRA-Small on docstrings, 128 x 128" if device == "cuda" else "bert_small on docstrings"
    figures = {
        "tokens a second": max(record.get("tokens_per_second", 0) for record in records),
        "peak with evaluations, MB": max(record.get("peak_memory_bytes", 0) for record in records) / 1e6,
    }
    write(out, title, markdown(titles, rows), {"case": "training"}, {"figures": figures, "records": records})


def ranks(device: str, out: Path) -> None:
    """The same training in one process and in two."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        write(out, "Two processes", "There is one device here.", {"case": "ranks"}, {})
        return
    found = {number: trained(device, out, "train.steps=20", "evaluate.every=20", ranks=number) for number in (1, 2)}
    rows, figures = [], dict[str, float]()
    for number, records in found.items():
        last, rate = records[-1], max(record.get("tokens_per_second", 0) for record in records)
        figures |= {f"loss, processes: {number}": last["loss"], f"tokens a second, processes: {number}": rate}
        rows.append([str(number), f"{last['loss']:.5f}", f"{rate:,.0f}"])
    table = markdown(["processes", "loss on test text", "tokens a second"], rows)
    write(out, "Two processes", table, {"case": "ranks"}, {"figures": figures, "records": found})


def tests(device: str, out: Path) -> None:
    """Tests that need CUDA; on a CPU, those of the random numbers."""
    files = with_cuda() if device == "cuda" else ["tests/electra_lab/training/test_random.py"]
    tested(["-m", "cuda"] if device == "cuda" else [], files, device, out)


def tested(chosen: list[str], files: list[str], device: str, out: Path) -> None:
    """Run tests, and write how many passed."""
    workers = str(min(os.cpu_count() or 1, 12))
    how = ["-v", "-p", "no:cacheprovider", "--tb=short", "-n", workers, "--dist", "load"]
    if device == "cpu":
        how = ["-v", "-p", "no:cacheprovider", "--tb=short"]
    log = out / "pytest.txt"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *how, *chosen, *files], cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT,
            env=environment,
        )  # fmt: skip
        # The results are rewritten all the time, so that a time limit does not lose them.
        while (code := process.poll()) is None:
            time.sleep(2)
            counted(log, out, None)
    counted(log, out, code)
    if code:
        print("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-150:]))
        sys.exit(code)


def with_cuda() -> list[str]:
    """Return the files that may have tests on CUDA: collecting all files takes long."""
    words = re.compile(r"mark\.cuda|Contract|on_each_device|DEVICES")
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if words.search(file.read_text(encoding="utf-8"))]
    return sorted(str(file.relative_to(ROOT)) for file in files)


def counted(log: Path, out: Path, code: int | None) -> None:
    """Write how many tests passed and failed so far, and the names of those that failed."""
    text = log.read_text(encoding="utf-8", errors="replace")
    ended = re.findall(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL) (tests/\S+)", text)
    ended += [(how, name) for name, how in re.findall(r"^(tests/\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)", text, re.M)]
    by_name = {name: how for how, name in ended}
    counts = Counter(by_name.values())
    failed = [name for name, how in by_name.items() if how in ("FAILED", "ERROR")]
    table = markdown([*counts, "ended"], [[*map(str, counts.values()), "no" if code is None else f"with {code}"]])
    table += "".join(f"\n- `{name}`" for name in ["", *failed]).removeprefix("\n- ``")
    for file in out.glob("results.*"):
        file.unlink()
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.md").write_text(f"## Tests\n\n{table}\n", encoding="utf-8")
    record = {"title": "Tests", "case": "tests", "figures": counts, "failed": failed, "code": code}
    (out / "results.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")


PARTS = {part.__name__: part for part in (environment, equality, experiments, training, ranks, tests)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("part", choices=PARTS)
    options.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    if given.device == "cuda":
        use_exact_kernels()  # as where the lab trains
    PARTS[given.part](given.device, given.out)


if __name__ == "__main__":
    main()
