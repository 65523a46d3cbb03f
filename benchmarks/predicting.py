"""Compare `predict` with transformers' pipeline on the same fine-tuned model, texts and batch size, in one process.

    python benchmarks/predicting.py [--rows 20000] [--batch-size 32] [--rounds 3] [--threads 1]

The texts are docstrings of the installed Python, its standard library and torch, repeated if they are too few. The
model is an ELECTRA of two layers of width 128, fine-tuned for an epoch on docstring_origin. The pipeline reads model/
of seed 0, cuts texts to the length of its rows as `predict` does, and pads each batch to its longest text. Both include
tokenization. Then `predict` alone reads 2,000 and all texts as a stream in a process for each, for its peak memory.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from _alternating import alternate, parser, ratios, spread, table, write
from finetuning import write_model

import electra_lab
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.sources.docstrings import documentation, installed_files

FEW = 2_000


def fine_tuned(folder: Path) -> Path:
    """Fine-tune a model for an epoch; returns the folder of the fine-tuning."""
    (folder / "untrained").mkdir()
    write_model(folder / "untrained", "tiny")
    sections = {
        "name": "origin",
        "model": str(folder / "untrained"),
        "task": {"type": "text_classification", "head": "dense"},
        "dataset": {"type": "docstring_origin"},
        "train": {"epochs": 1.0, "learning_rate": 1e-3, "layer_decay": 1.0},
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


def main() -> None:
    options = parser(__doc__, rounds=3, threads=1)
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--batch-size", type=int, default=32)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
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
