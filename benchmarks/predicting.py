"""Compare `predict` with transformers' pipeline on the same fine-tuned model, texts and batch size, in one process.

    python benchmarks/predicting.py [--rows 20000] [--batch-size 32] [--rounds 3] [--threads 1]
    python benchmarks/predicting.py --latency 1 32 --rounds 50 --threads 2

The texts are docstrings of the installed Python, its standard library and torch, repeated if they are too few. The
model is an ELECTRA of two layers of width 128, fine-tuned for an epoch on docstring_origin. The pipeline reads model/
of seed 0, cuts texts to the length of its rows as `predict` does, and pads each batch to its longest text. Both include
tokenization. Then `predict` alone reads 2,000 and all texts as a stream in a process for each, for its peak memory.

--latency instead times requests of some texts each that are not cut: `predict`, the pipeline, and examples/serve.py,
which answers over HTTP from another process (fastapi and uvicorn), with model.onnx and with model_int8.onnx.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import torch
import transformers
from _alternating import alternate, parser, ratios, spread, table, write
from finetuning import write_model

import electra_lab
from electra_lab.export.model_folder import copy_folder
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.sources.docstrings import documentation, installed_files

FEW = 2_000


def fine_tuned(folder: Path, epochs: float = 1.0) -> Path:
    """Fine-tune a model; returns the folder of the fine-tuning."""
    (folder / "untrained").mkdir()
    write_model(folder / "untrained", "tiny")
    sections = {
        "name": "origin",
        "model": str(folder / "untrained"),
        "task": {"type": "text_classification", "head": "dense"},
        "dataset": {"type": "docstring_origin"},
        "train": {"epochs": epochs, "learning_rate": 1e-3, "layer_decay": 1.0},
    }
    (folder / "origin.yaml").write_text(json.dumps(sections), encoding="utf-8")
    return finetune(folder / "origin.yaml", [], folder / "tuned", "cpu")


def some_texts(number: int) -> list[str]:
    found = list[str]()
    for file, _ in installed_files():
        found += documentation(file.read_bytes())
        if len(found) >= number:
            break
    return (found * (number // len(found) + 1))[:number]


def peak(folder: Path, texts: Path, number: int, size: int) -> float:
    """Return the peak memory in MB of a process that predicts the first texts of a file as a stream."""
    done = subprocess.run(
        [sys.executable, __file__, "--stream", str(folder), str(texts), str(number), str(size)],
        capture_output=True,
        check=True,
        text=True,
    )
    return float(done.stdout)


def stream(folder: str, texts: str, number: str, size: str) -> None:
    model = electra_lab.load(folder, device="cpu")
    with open(texts, encoding="utf-8") as lines:
        given = (json.loads(line) for _, line in zip(range(int(number)), lines, strict=False))
        for _ in model.stream("predict", given, batch_size=int(size)):
            pass
    # Not ru_maxrss, which includes the memory of the parent process before exec.
    [kilobytes] = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    print(int(kilobytes) / 1024)


@contextmanager
def served(folder: Path) -> Iterator[Callable[[list[str]], Any]]:
    """Start examples/serve.py with a model; yields a function that asks it for the labels of texts."""
    example = Path(__file__).resolve().parents[1] / "examples"
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(example), "serve:app", "--port", "0"]
    command += ["--timeout-keep-alive", "600"]  # between requests, the other ways are timed
    environment = {**os.environ, "MODEL": str(folder)}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as server:
        lines = iter(server.stderr.readline, "")  # type: ignore[union-attr]
        port = next(match[1] for line in lines if (match := re.search(r"127\.0\.0\.1:(\d+)", line)))
        connection = HTTPConnection("127.0.0.1", int(port))

        def ask(texts: list[str]) -> Any:
            body = json.dumps({"inputs": texts})
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            return json.load(response)

        try:
            yield ask
        finally:
            server.terminate()


def latency(sizes: list[int], rounds: int, threads: int, out: Path | None) -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as servers:
        model = fine_tuned(Path(name), epochs=0.1) / "seed-0" / "model"
        copy_folder(model, Path(name) / "fp32", onnx=True, int8=True)
        shutil.copytree(Path(name) / "fp32", Path(name) / "int8")
        (Path(name) / "int8/model_int8.onnx").replace(Path(name) / "int8/model.onnx")
        ours = electra_lab.load(model, device="cpu")
        theirs = transformers.pipeline("text-classification", model=str(model), device="cpu")
        files = {kind: servers.enter_context(served(Path(name) / kind)) for kind in ("fp32", "int8")}
        encoded = zip(texts := some_texts(2_000), ours.encoder.texts(texts), strict=True)
        whole = [text for text, tokens in encoded if len(tokens.ids) + 2 <= ours.length]
        for size in sizes:
            asked = whole[:size]
            ways = {
                "pipeline": lambda asked=asked: theirs(asked, batch_size=len(asked)),
                "predict": lambda asked=asked: ours.predict(asked),
                **{f"serve.py, {kind}": lambda asked=asked, ask=ask: ask(asked) for kind, ask in files.items()},
            }
            labels = [answer["label"] for answer in ways["pipeline"]()]
            best = [max(answer, key=answer.__getitem__) for answer in ways["serve.py, fp32"]()]
            assert labels == best, "serve.py has other labels"
            seconds = alternate(ways, rounds, warm_up=5)
            title = f"requests of {size} texts, {threads} threads of torch, {processor()}"
            about = {"case": "latency", "texts": size, "threads": threads}
            write(out, title, table(seconds, ["pipeline"]), about, {"seconds": seconds})


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return f"{names[0]}, {len(names)} cores" if names else platform.processor()


def main() -> None:
    options = parser(__doc__, rounds=3, threads=1)
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--latency", type=int, nargs="+", help="numbers of texts of a request")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
    if given.latency:
        latency(given.latency, given.rounds, given.threads, given.out)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = fine_tuned(Path(name))
        texts = some_texts(given.rows)
        ours = electra_lab.load(folder, device="cpu")
        theirs = transformers.pipeline("text-classification", model=str(folder / "seed-0" / "model"), device="cpu")
        options = {"batch_size": given.batch_size, "truncation": True, "max_length": ours.length}
        labels: dict[str, list[str]] = {}
        ways = {
            "predict": lambda: labels.update(
                predict=[answer.prediction for answer in ours.stream("predict", texts, batch_size=given.batch_size)]
            ),
            "pipeline": lambda: labels.update(pipeline=[answer["label"] for answer in theirs(texts, **options)]),
        }
        seconds = alternate(ways, given.rounds, warm_up=0)
        equal = sum(one == other for one, other in zip(labels["predict"], labels["pipeline"], strict=True))
        file = Path(name) / "texts.jsonl"
        file.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
        peaks = {number: peak(folder, file, number, given.batch_size) for number in (FEW, given.rows)}
    rows = {way: {"rows/s": spread([given.rows / time for time in taken], ",.0f")} for way, taken in seconds.items()}
    columns = {"rows/s": {way: cells["rows/s"] for way, cells in rows.items()}}
    title = (
        f"{given.rows:,} texts, batches of {given.batch_size}, {given.threads} threads: {equal:,} equal labels of "
        f"{len(set(labels['predict']))} kinds; peak memory of a stream {peaks[FEW]:,.0f} MB for {FEW:,} texts, "
        f"{peaks[given.rows]:,.0f} MB for {given.rows:,}"
    )
    case = {"rows": given.rows, "batch_size": given.batch_size, "threads": given.threads}
    values = {"seconds": seconds, "equal": equal, "peaks": peaks, "ratios": ratios(seconds, "pipeline", "predict")}
    write(given.out, title, table(seconds, ["pipeline"], columns), case, values)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stream"]:
        stream(*sys.argv[2:])
    else:
        main()
