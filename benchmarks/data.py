"""Preparing a corpus, against bare tokenization and the usual recipe, and the memory of all its processes.

    python benchmarks/data.py TEXT... --vocabulary vocab.txt [--rounds 3] [--megabytes 40]

TEXT are files or folders of plain text, a document per paragraph. In one process, alternating: `encode_batch` of the
tokenizers library on texts that are in memory; `prepare`; and the recipe of the
transformers examples, `datasets.map(tokenize)` and `group_texts`, if datasets is installed. `prepare` reads the files,
splits, compares, writes and verifies; the tokenizer is given. Then the peak memory of `prepare` over all text.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from electra_lab.assembly.data import open_data
from electra_lab.config.load import load
from electra_lab.tokenizers.pretrained import read_tokenizer
from registry import corpora

BASE = Path(__file__).resolve().parents[1] / "experiments" / "bert_small.yaml"
LENGTH = 128


def experiment(folder: Path, files: list[Path], vocabulary: Path) -> Path:
    """Write an experiment over the files, whose store is in `folder`."""
    sections = {
        "extends": str(BASE),
        "name": "data",
        "corpus": {"type": "text_files", "paths": [str(file) for file in files]},
        "tokenizer": {"type": "pretrained", "path": str(vocabulary)},
        "data": {"store": str(folder / "store")},
    }
    file = folder / "data.yaml"
    file.write_text(json.dumps(sections), encoding="utf-8")
    return file


def prepare(files: list[Path], vocabulary: Path) -> float:
    """Return the seconds that an empty store takes."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = load(experiment(Path(folder), files, vocabulary))
        began = time.perf_counter()
        open_data(loaded, lambda _: None)
        return time.perf_counter() - began


def bare(texts: list[str], vocabulary: Path) -> float:
    """Return the seconds of `encode_batch`, which uses all cores."""
    tokenizer = read_tokenizer(vocabulary)
    began = time.perf_counter()
    for start in range(0, len(texts), 1000):
        tokenizer.encode_batch(texts[start : start + 1000], add_special_tokens=False)
    return time.perf_counter() - began


def usual(texts: list[str], vocabulary: Path) -> float:
    """Return the seconds of tokenizing and grouping by datasets, in as many processes as there are cores."""
    import datasets
    from transformers import PreTrainedTokenizerFast

    datasets.disable_caching()
    datasets.disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=read_tokenizer(vocabulary), model_max_length=1 << 30)

    def tokenize(batch: dict[str, list[str]]) -> Any:
        return tokenizer(batch["text"], return_special_tokens_mask=True)

    def group_texts(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {key: list(chain.from_iterable(batch[key])) for key in batch}
        whole = len(joined["input_ids"]) // LENGTH * LENGTH
        return {key: [flat[i : i + LENGTH] for i in range(0, whole, LENGTH)] for key, flat in joined.items()}

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as folder:
        made = datasets.Dataset.from_dict({"text": texts})
        cores = len(os.sched_getaffinity(0))
        began = time.perf_counter()
        tokenized = made.map(tokenize, batched=True, num_proc=cores, remove_columns=["text"])
        tokenized.map(group_texts, batched=True, num_proc=cores).save_to_disk(folder)
        seconds = time.perf_counter() - began
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    return seconds


def peak_memory(files: list[Path], vocabulary: Path, copies: int) -> float:
    """Return the largest sum of the memory of all processes of `prepare`, in MB; shared memory counts once."""
    with tempfile.TemporaryDirectory() as folder:
        for copy in range(1, copies):
            for number, file in enumerate(files):
                text = file.read_text(encoding="utf-8").replace("the", f"t{copy}e")  # the same amount of other text
                Path(folder, f"{copy}-{number}.txt").write_text(text, encoding="utf-8")
        several = [*files, *sorted(Path(folder).glob("*.txt"))]
        file = experiment(Path(folder), several, vocabulary, "auto")
        command = [sys.executable, "-m", "electra_lab", "prepare", str(file)]
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        most = 0
        while process.poll() is None:
            try:
                team = [process, *process.children(recursive=True)]
                most = max(most, sum(member.memory_full_info().pss for member in team))
            except psutil.Error:
                pass
            time.sleep(0.1)
        if process.returncode:
            raise SystemExit("prepare failed")
    return most / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--vocabulary", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=40)
    given = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    every = [file for path in given.paths for file in (sorted(path.rglob("*.txt")) if path.is_dir() else [path])]
    files: list[Path] = []
    for file in every:
        if sum(f.stat().st_size for f in files) < given.megabytes * 1e6:
            files.append(file)
    texts = [text for text in corpora.get("text_files").component(paths=files) if isinstance(text, str)]
    characters = sum(map(len, texts))
    print(f"{len(files)} files, {len(texts):,} documents, {characters / 1e6:,.1f} million characters")
    ways: dict[str, Callable[[], float]] = {
        "encode_batch": lambda: bare(texts, given.vocabulary),
        "prepare": lambda: prepare(files, given.vocabulary),
        "datasets.map": lambda: usual(texts, given.vocabulary),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            seconds[name].append(way())
    first = statistics.median(seconds["encode_batch"])
    for name, found in seconds.items():
        middle = statistics.median(found)
        each = ", ".join(f"{s:.1f}" for s in found)
        rate = f"{characters / middle / 1e6:>8.2f} million characters/s"
        print(f"{name:<22}{rate}  {first / middle:>5.2f} x encode_batch  ({each} s)")
    for copies in (1, 4):
        size = copies * sum(file.stat().st_size for file in every) / 1e6
        print(
            f"peak memory of all processes for {size:,.0f} MB: {peak_memory(every, given.vocabulary, copies):,.0f} MB"
        )


if __name__ == "__main__":
    main()
