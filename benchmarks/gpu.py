"""Try the lab on a GPU: tests, equality with the CPU, steps compared with peers, memory, a training.

    python benchmarks/gpu.py --out build/gpu

Each part is a process (two for some) with a time limit; a failure is reported with the last lines of its error, and the
others go on. DIR/gpu.md has all tables, in the form of docs/performance.md, DIR/gpu.jsonl their numbers, and
DIR/<part>.log the output of a part. Both files are written after each part.

--minutes bounds the whole. A part gets its share of the remaining time; the rest is left for the others.
--device cpu tries this script itself, in tiny sizes.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "benchmarks"
LEAST = 60.0  # seconds that each part gets at least, or all that are left
LAST_LINES = 12  # lines of the log that are shown for a failed part
Command = list[str]

PEERS = ["electra-pytorch", "electra-pytorch bf16", "usual step", "usual step bf16"]
SHAPES = {"electra_small": ["128", "64"], "electra_base": ["512", "16"]}
TINY = ["--experiment", "transformer_tiny", "--length", "16", "--batch", "2", "--ours", "fp32", "--peers"]


def step(script: str, experiment: str, device: str, peers: list[str], ours: list[str], *more: str) -> Command:
    """Return a comparison of a training step with its peers."""
    if device == "cpu":
        return [script, *TINY, *more, "--device", device]
    length, batch = SHAPES[experiment]
    sized = ["--experiment", experiment, "--length", length, "--batch", batch]
    return [script, *sized, "--peers", *peers, "--ours", *ours, *more, "--device", device]


def each_size(script: str, peers: list[str], ours: list[str], *more: str) -> Callable[[str], list[Command]]:
    return lambda device: [step(script, experiment, device, peers, ours, *more) for experiment in SHAPES]


def ours(name: str) -> Callable[[str], list[Command]]:
    return lambda device: [["_gpu_parts.py", name, "--device", device]]


def steps(experiment: str) -> Callable[[str], list[Command]]:
    ways = ["fp32", "bf16", "fp32+graph", "bf16+graph"]
    return lambda device: [step("step.py", experiment, device, PEERS, ways, "--rounds", "5")]


def attention(device: str) -> list[Command]:
    tiny = ["--lengths", "300", "--tokens", "600", "--heads", "1", "--width", "4", "--rounds", "1"]
    real = ["--lengths", "512", "1024", "2048", "8192", "--tokens", "16384", "--heads", "12", "--types", "bf16"]
    return [["attention.py", *(tiny if device == "cpu" else [*real, "--rounds", "5"]), "--device", device]]


def lengths(device: str) -> list[Command]:
    tiny = ["--backbones", "bert", "--lengths", "32", "64", "--rounds", "1", "--no-memory"]
    real = ["--lengths", "512", "1024", "2048", "8192", "16384", "--rounds", "3"]
    return [["lengths.py", *(tiny if device == "cpu" else real), "--device", device]]


@dataclass(frozen=True)
class Part:
    title: str
    share: float  # of the remaining time, relative to the shares of the parts after it
    commands: Callable[[str], list[Command]]  # for a device


COMPILED = (
    ["usual step bf16", "usual step bf16+full"],
    ["bf16", "bf16+layers", "bf16+graph", "bf16+layers+graph", "bf16+full+graph"],
)
PARTS = {
    "environment": Part("Environment", 1, ours("environment")),
    "graphs": Part("Recorded steps equal eager ones", 2, ours("graphs")),
    "experiments": Part("A step of each experiment", 3, ours("experiments")),
    "equality": Part("Masks and draws", 1.5, ours("equality")),
    "small": Part("Steps of ELECTRA-Small", 2, steps("electra_small")),
    "base": Part("Steps of ELECTRA-Base", 3, steps("electra_base")),
    "memory": Part("Memory", 2, each_size("memory.py", PEERS, ["fp32", "bf16"])),
    "attention": Part("Attention", 2, attention),
    "compiled": Part("Compiled steps", 5, each_size("step.py", *COMPILED, "--rounds", "5")),
    "training": Part("A training", 3, ours("training")),
    "ranks": Part("Two processes", 2, ours("ranks")),
    "lengths": Part("Lengths", 2, lengths),
    "tests": Part("Tests on CUDA", 6, ours("tests")),
}


@dataclass(frozen=True)
class Outcome:
    """How a part ended."""

    seconds: float
    failures: list[str]  # the commands that failed, with the last lines of their output


def run(name: str, device: str, out: Path, limit: float) -> Outcome:
    """Run the commands of a part, one after the other, within `limit` seconds."""
    began, failures = time.monotonic(), list[str]()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "true"}
    log = out / f"{name}.log"
    log.write_text("", encoding="utf-8")
    for command in PARTS[name].commands(device):
        left = limit - (time.monotonic() - began)
        said = log.stat().st_size
        with log.open("a", encoding="utf-8") as stream:
            line = [sys.executable, str(HERE / command[0]), *command[1:], "--out", str(out / name)]
            process = subprocess.Popen(
                line, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
            )
            try:
                ended = f"ended with {code}" if (code := process.wait(max(left, 1))) else ""
            except subprocess.TimeoutExpired:
                ended = f"did not end within {left:.0f} s"
            finally:
                with suppress(ProcessLookupError):  # its workers, too
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if ended:
            with log.open("rb") as written:
                written.seek(said)
                last = written.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
            failures.append("\n".join([f"{' '.join(command)}: {ended}", *(f"    {text[:300]}" for text in last)]))
    return Outcome(time.monotonic() - began, failures)


def report(out: Path, device: str, outcomes: dict[str, Outcome]) -> None:
    """Write gpu.md and gpu.jsonl from what the parts have written so far."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    lines = [f"# On a device: {device}", "", f"{when} UTC, {commit.stdout.strip() or 'no commit'}.", ""]
    lines += ["| part | seconds | |", "|---|---|---|"]
    for name, outcome in outcomes.items():
        how = f"{len(outcome.failures)} failed" if outcome.failures else "done"
        lines.append(f"| {PARTS[name].title} (`{name}`) | {outcome.seconds:.0f} | {how} |")
    records = []
    for name, outcome in outcomes.items():
        records.append({"part": name, "seconds": outcome.seconds, "failures": outcome.failures})
        lines += ["", f"## {PARTS[name].title}", ""]
        table, numbers = out / name / "results.md", out / name / "results.jsonl"
        if table.exists():
            lines.append(re.sub("^## ", "### ", table.read_text(encoding="utf-8"), flags=re.MULTILINE).strip())
        if numbers.exists():
            records += [{"part": name, **json.loads(line)} for line in numbers.read_text(encoding="utf-8").splitlines()]
        for failure in outcome.failures:
            lines += ["", "Failed:", "", "```text", failure, "```"]
    (out / "gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "gpu.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", metavar="DIR", help="default: build/gpu")
    options.add_argument("--minutes", type=float, default=20, help="of all parts together, default 20")
    options.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS)
    )
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    given = options.parse_args()
    out, end = given.out.resolve(), time.monotonic() + 60 * given.minutes
    outcomes = dict[str, Outcome]()
    parts = [name for name in PARTS if name in given.parts]
    for number, name in enumerate(parts):
        (out / name).mkdir(parents=True, exist_ok=True)
        for old in (out / name).glob("results.*"):
            old.unlink()
        left, later = end - time.monotonic(), sum(PARTS[other].share for other in parts[number:])
        limit = min(max(left * PARTS[name].share / later, LEAST), left)
        print(f"{name}: at most {limit:.0f} s", flush=True)
        if limit < 1:
            outcomes[name] = Outcome(0, ["no time was left"])
        else:
            outcomes[name] = run(name, given.device, out, limit)
        for failure in outcomes[name].failures:
            print(failure, flush=True)
        report(out, given.device, outcomes)
    print(f"{out / 'gpu.md'}", flush=True)


if __name__ == "__main__":
    main()
