"""Measure the lab on a GPU, the most uncertain figures first, and compare each with its prediction.

    python benchmarks/gpu.py --out build/gpu --minutes 9.5
    python benchmarks/gpu.py --device cpu --out build/rehearsal

A measurement is a process with a time limit. When it ends, one line is added to DIR/gpu.jsonl and DIR/gpu.md is written
again: a table of predictions and results, and the tables of all measurements, in the form of docs/performance.md.
A measurement that fails has its error as its result, and stops no other. Calling the script again goes on where it has
ended, or was ended: first with measurements that were not tried, then with those that failed. DIR/logs has what each
has printed, and its results.

--minutes bounds a call; nothing is begun that has less than half of its limit left. Everything takes two calls of ten
minutes. --device cpu rehearses all of it, in tiny sizes and with a recorder of operations instead of CUDA graphs.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "benchmarks"
LAST_LINES = 12  # lines of the log that are kept of a measurement that failed
PATIENCE = 5  # times the limits, for a rehearsal on a busy CPU
OFF = 1.5  # times a prediction; results further from it are marked: their kernels are worth a look
Figures = Mapping[str, float | str]


@dataclass(frozen=True)
class Measurement:
    """A script of this folder with its arguments, on a GPU and in a rehearsal.

    seconds      its limit
    predictions  by the names of its figures; numbers are calculated, for an H100
    """

    title: str
    seconds: float
    script: str
    arguments: Sequence[str]
    rehearsed: Sequence[str]
    predictions: Figures = field(default_factory=dict)

    def command(self, device: str, out: Path) -> list[str]:
        arguments = self.arguments if device == "cuda" else self.rehearsed
        return [str(HERE / self.script), *arguments, "--device", device, "--out", str(out)]


def part(script: str, name: str, title: str, seconds: float, predictions: Figures | None = None) -> Measurement:
    """Return a part of a script, which knows its sizes."""
    return Measurement(title, seconds, script, [name], [name], predictions or {})


ELECTRA_PYTORCH, USUAL, LAB = "electra-pytorch", "usual step", "electra_lab"
TINY = ["--experiment", "transformer_tiny", "--length", "16", "--batch", "2"]


def steps(
    title: str,
    seconds: float,
    size: str,
    ours: Mapping[str, float | None],
    peers: Mapping[str, float | None],
    calls: int = 10,
) -> Measurement:
    """Return a comparison of steps: ms by the name of a way, calculated or measured before, None if unknown."""
    experiment, length, batch = size.split()
    ways = ["--peers", *peers, "--ours", *ours]
    real = ["--experiment", experiment, "--length", length, "--batch", batch, "--rounds", "5", "--calls", str(calls)]
    expected = {f"{way}, ms": ms for way, ms in peers.items() if ms is not None}
    expected |= {f"{LAB} {how}, ms": ms for how, ms in ours.items() if ms is not None}
    rounds = ["--warm-up", "1"]
    return Measurement(
        title, seconds, "step.py", [*real, *rounds, *ways], [*TINY, "--rounds", "1", *rounds, *ways], expected
    )


SMALL, BASE = "electra_small 128 64", "electra_base 512 16"
COMPILED_PEERS: dict[str, float | None] = {
    f"{ELECTRA_PYTORCH} bf16+full+adam": None, f"{USUAL} bf16+full+adam": None, f"{USUAL} bf16+overhead+adam": None,
}  # fmt: skip


def of_memory(title: str, size: str, ours: Mapping[str, float]) -> Measurement:
    experiment, length, batch = size.split()
    ways = ["--peers", f"{ELECTRA_PYTORCH} bf16", f"{USUAL} bf16", "--ours", *ours]
    expected = {f"{LAB} {how}, MB": mb for how, mb in ours.items()}
    rehearsed = [*TINY, "--peers", "--ours", "fp32"]  # each way takes seconds
    real = ["--experiment", experiment, "--length", length, "--batch", batch, *ways]
    return Measurement(title, 60, "memory.py", real, rehearsed, expected)


# What is decided by them comes first; the second call begins at about `small peers`.
SCHEDULE = {
    "environment": part("_gpu_parts.py", "environment", "Versions, rates and launches", 45, {
        "product in bf16, TFLOP/s": 798.0, "copy, TB/s": 3.0, "empty launch, us": 6.4, "empty node, us": 0.6,
    }),
    "bits": part("_gpu_graphs.py", "bits", "Graph = eager, 20 steps", 90, {
        f"{precision}, dropout {dropout}, {sampler}": "equal"
        for precision in ("fp32", "bf16") for dropout in ("0.0", "0.1") for sampler in ("gumbel", "temperature")
    }),
    "small": steps("ELECTRA-Small, 128 x 64", 110, SMALL,
                   {"fp32": 76.0, "bf16": 83.0, "fp32+graph": 22.0, "bf16+graph": 10.7},
                   {ELECTRA_PYTORCH: 107.0, f"{ELECTRA_PYTORCH} bf16": None, USUAL: 55.0, f"{USUAL} bf16": None}),
    "base": steps("ELECTRA-Base, 512 x 16", 90, BASE, {"bf16": 93.0, "bf16+graph": 32.6},
                  {f"{ELECTRA_PYTORCH} bf16": 129.0, f"{USUAL} bf16": 91.0}),
    "kernels": part("_gpu_graphs.py", "kernels", "Kernels of a step", 45, {
        "kernels a step": 2540.0, "of the device, ms": 8.4,
    }),
    "borders": part("_gpu_graphs.py", "borders", "Attention by graphs", 60),
    "small layers": steps("ELECTRA-Small, 128 x 64, compiled layers", 70, SMALL,
                          {"bf16+graph": 10.7, "bf16+layers+graph": 8.0}, {}, 30),
    "base layers": steps("ELECTRA-Base, 512 x 16, compiled layers", 60, BASE,
                         {"bf16+graph": 32.6, "bf16+layers+graph": 28.0}, {}, 30),
    "small full": steps("ELECTRA-Small, 128 x 64, compiled whole", 110, SMALL,
                        {"bf16+graph": 10.7, "bf16+full+graph": 6.5}, {}, 30),
    "base full": steps("ELECTRA-Base, 512 x 16, compiled whole", 110, BASE,
                       {"bf16+graph": 32.6, "bf16+full+graph": 25.6}, {}, 30),
    "small peers": steps("ELECTRA-Small, 128 x 64, and compiled peers", 200, SMALL,
                         {"bf16+graph": 10.7}, COMPILED_PEERS),
    "base peers": steps("ELECTRA-Base, 512 x 16, and compiled peers", 200, BASE,
                        {"bf16+graph": 32.6}, COMPILED_PEERS),
    "more small": steps("ELECTRA-Small, 128 x 128, its published batch", 150, "electra_small 128 128",
                        {"bf16+graph": 15.4, "bf16+full+graph": 9.9}, {f"{USUAL} bf16+full+adam": None}),
    "more base": steps("ELECTRA-Base, 512 x 64", 150, "electra_base 512 64",
                       {"bf16+graph": 110.0, "bf16+full+graph": 87.0}, {f"{USUAL} bf16+full+adam": None}),
    "draws": steps("ELECTRA-Small, 128 x 64, samplers", 60, SMALL,
                   {"bf16+graph": 10.7, "bf16+graph+gumbel": 14.2}, {}, 30),
    "captures": steps("ELECTRA-Small, micro-batches and checkpointing", 70, SMALL, {
        "bf16+graph": 10.7, "bf16+halves+graph": None, "bf16+checkpointing+graph": None,
    }, {}, 30),
    "kill": part("_gpu_graphs.py", "kill", "kill -9 and resume", 150, {"killed at a checkpoint": "yes"}),
    "memory small": of_memory("Memory of ELECTRA-Small, 128 x 64", SMALL, {"bf16": 1090.0, "bf16+graph": 1200.0}),
    "memory base": of_memory("Memory of ELECTRA-Base, 512 x 16", BASE, {"bf16": 4550.0, "bf16+graph": 5000.0}),
    "cells": part("_gpu_graphs.py", "cells", "Processes that share a GPU", 150),
    "long": steps("ELECTRA-Small, 512 x 32", 70, "electra_small 512 32",
                  {"bf16+graph": 18.5, "bf16+full+graph": 13.0}, {}, 30),
    "largest": steps("ELECTRA-Base, 512 x 256, its published batch", 100, "electra_base 512 256",
                     {"bf16": None, "bf16+graph": 421.0, "bf16+halves+graph": None}, {}, 3),  # a graph may be too large
    "training": part("_gpu_parts.py", "training", "A training", 120),
    "equality": part("_gpu_parts.py", "equality", "Masks and draws on both devices", 60),
    "experiments": part("_gpu_parts.py", "experiments", "A step of each experiment", 180),
    "sequences": Measurement("Attention within documents", 60, "attention.py",
        ["--lengths", "512", "1024", "2048", "8192", "--types", "bf16", "--rounds", "5"],
        ["--lengths", "300", "--tokens", "600", "--heads", "1", "--width", "4", "--rounds", "1"]),
    "lengths": Measurement("Lengths", 120, "lengths.py",
        ["--lengths", "512", "1024", "2048", "8192", "16384", "--rounds", "3"],
        ["--backbones", "bert", "--lengths", "32", "64", "--rounds", "1", "--no-memory"]),
    "ranks": part("_gpu_parts.py", "ranks", "Two processes", 120),
    "tests": part("_gpu_parts.py", "tests", "Tests on CUDA", 300),
}  # fmt: skip


def medians(seconds: Any, name: str = "") -> dict[str, float]:
    """Return the median ms of each list of seconds, however deep, by the keys that lead to it."""
    if isinstance(seconds, list):
        return {f"{name}, ms": statistics.median(seconds) * 1e3} if seconds else {}
    found = dict[str, float]()
    for key, value in seconds.items():
        found |= medians(value, f"{name}, {key}" if name else key)
    return found


def figures_of(record: Mapping[str, Any]) -> Figures:
    """Return the figures of a line that a script has written: its own, or the medians of its ways."""
    figures: dict[str, float | str] = dict(record.get("figures", {}))
    figures |= medians(record.get("seconds", {}))
    if record["case"].startswith("memory"):
        figures |= {f"{way}, MB": max(grown.values()) for way, grown in record["megabytes"].items()}
    for way, why in record.get("missing", {}).items():
        figures[f"{way}, ms"] = why
    for way, seconds in record.get("ready after", {}).items():
        if "full" in way or "layers" in way or "overhead" in way:
            figures[f"{way}, s to compile"] = seconds
    return figures


def measured(measurement: Measurement, device: str, folder: Path, limit: float) -> dict[str, Any]:
    """Run a measurement within `limit` seconds; returns its line."""
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "true"}
    if device == "cpu":
        environment["ELECTRA_LAB_REHEARSAL"] = "1"
    log = folder / "log.txt"
    with log.open("w", encoding="utf-8") as stream:
        command = [sys.executable, *measurement.command(device, folder)]
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            error = f"ended with {code}" if (code := process.wait(limit)) else ""
        except subprocess.TimeoutExpired:
            error = f"did not end within {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):  # its workers, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    line: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1), "predicted": dict(measurement.predictions)}
    if (results := folder / "results.jsonl").exists():
        records = [json.loads(text) for text in results.read_text(encoding="utf-8").splitlines()]
        line["figures"] = {name: value for record in records for name, value in figures_of(record).items()}
        line["results"] = records
    elif not error:
        error = "wrote no results"
    if error:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LAST_LINES:]
        line["error"] = "\n".join([error, *(text[:300] for text in last)])
    return line


def lines_in(file: Path) -> dict[str, dict[str, Any]]:
    """Return the last line of each measurement; one that was being written when everything ended does not count."""
    lines = {}
    for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        with suppress(json.JSONDecodeError):
            line = json.loads(text)
            lines[line["measurement"]] = line
    return lines


def append(file: Path, line: Mapping[str, Any]) -> None:
    """Add a line that outlives the machine's end."""
    begun = file.exists() and not file.read_bytes().endswith(b"\n")
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n" * begun + json.dumps(line) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def shown(value: float | str | None) -> str:
    if value is None:
        return ""
    return value.replace("|", "/") if isinstance(value, str) else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def compared(expected: float | str | None, value: float | str | None) -> str:
    """Return how many times the prediction a result is, or whether both are the same."""
    if expected is None or value is None:
        return ""
    if isinstance(expected, str) or isinstance(value, str):
        return "" if expected == value else "**not as predicted**"
    times = value / expected
    return f"{times:.2f}" if 1 / OFF <= times <= OFF else f"**{times:.2f}**"


def report(out: Path, device: str) -> str:
    """Write gpu.md from gpu.jsonl; returns the table of predictions and results."""
    lines = lines_in(out / "gpu.jsonl")
    rows = ["| | figure | predicted | measured | of the prediction |", "|---|---|--:|--:|--:|"]
    for name in SCHEDULE:
        if name not in lines:
            rows.append(f"| {SCHEDULE[name].title} | not yet measured | | | |")
            continue
        figures, expected = lines[name].get("figures", {}), lines[name]["predicted"]
        for what in {**expected, **figures}:
            cells = [SCHEDULE[name].title, what, shown(expected.get(what)), shown(figures.get(what))]
            rows.append(f"| {' | '.join([*cells, compared(expected.get(what), figures.get(what))])} |")
        if "error" in lines[name]:
            rows.append(f"| {SCHEDULE[name].title} | **failed**: {shown(lines[name]['error'].splitlines()[0])} | | | |")
    table = "\n".join(rows)
    commits = sorted({line["commit"] for line in lines.values()})
    parts = [f"# Measured on {device}", "", f"Commits: {', '.join(commits)}.", "", table]
    for name, line in lines.items():
        parts += ["", f"## {SCHEDULE[name].title} (`{name}`, {line['seconds']} s)", ""]
        details = out / "logs" / name / "results.md"
        if details.exists():
            parts.append(re.sub("^## ", "### ", details.read_text(encoding="utf-8"), flags=re.MULTILINE).strip())
        if "error" in line:
            parts += ["", "Failed:", "", "```text", line["error"], "```"]
    (out / "gpu.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    return table


def next_of(names: Sequence[str], lines: Mapping[str, Mapping[str, Any]], left: float, tried: set[str]) -> str | None:
    """Return the next measurement for `left` seconds: one never tried, or then one that failed in an earlier call."""
    waiting = [name for name in names if name not in lines]
    waiting += [name for name in names if "error" in lines.get(name, {})]
    fitting = [name for name in waiting if name not in tried and left >= SCHEDULE[name].seconds / 2]
    return fitting[0] if fitting else None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", metavar="DIR", help="default: build/gpu")
    options.add_argument("--minutes", type=float, default=9.5, help="of this call, default 9.5")
    options.add_argument("--only", nargs="+", choices=SCHEDULE, metavar="NAME", help=", ".join(SCHEDULE))
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    given = options.parse_args()
    out, end = given.out.resolve(), time.monotonic() + 60 * given.minutes
    out.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    file, tried = out / "gpu.jsonl", set[str]()
    while name := next_of(given.only or [*SCHEDULE], lines_in(file), left := end - time.monotonic(), tried):
        limit = min(SCHEDULE[name].seconds * (1 if given.device == "cuda" else PATIENCE), left)
        print(f"{name}: at most {limit:.0f} s", flush=True)
        line = measured(SCHEDULE[name], given.device, out / "logs" / name, limit)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        append(file, {"measurement": name, "at": when, "commit": commit.stdout.strip() or "none", **line})
        tried.add(name)
        if "error" in line:
            print(line["error"], flush=True)
        report(out, given.device)
    print(report(out, given.device), flush=True)


if __name__ == "__main__":
    main()
