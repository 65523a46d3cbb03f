"""Parts that several test files share: a tiny experiment on disk, and fresh Python processes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

EXPERIMENT = """\
name: tiny
corpus: {type: text_files, paths: [corpus.txt]}
tokenizer: {type: wordpiece, vocab_size: 200}
data: {sequence_length: 16, held_out: 0.3}
embedding: {dim: 8, max_length: 16}
discriminator: {type: bert, dim: 16, depth: 1, heads: 2}
generator: {scale: 0.5}
masking: {type: replace_prob}
sampler: {type: gumbel}
objective: {type: electra}
schedules: {learning_rate: {type: warmup_linear, warmup_steps: 0}}
train: {steps: 1, batch_size: 2, precision: fp32}
"""


def peer(name: str) -> Any:
    """Return a module of a package that only the Makefile installs. Without it, skip the tests that need it."""
    package = name.partition(".")[0].replace("_", "-")
    return pytest.importorskip(name, reason=f"{package} is not installed: make test", exc_type=ImportError)


def same_but_for_rounding(found: Any, expected: Any) -> bool:
    """Compare results of other batch shapes, thread counts, processors or kernels: all but floats are equal.

    Floats may differ by 1e-5 of their size or, near 0, by 1e-6. docs/reliability.md says where numbers are equal bit
    for bit; there, tests compare with == and torch.equal.
    """
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True))
    if is_dataclass(expected):
        return type(found) is type(expected) and same_but_for_rounding(vars(found), vars(expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same_but_for_rounding(found[k], expected[k]) for k in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same_but_for_rounding, found, expected))
    return bool(found == expected)


def line_of(key: str, text: str = EXPERIMENT) -> int:
    """Return the number of the line that begins with `key`."""
    return next(number for number, line in enumerate(text.splitlines(), start=1) if line.startswith(f"{key}:"))


def experiment_text(**sections: str) -> str:
    """Return the tiny experiment with some of its lines replaced: `train="{steps: 2}"`."""
    lines = {line.split(":")[0]: line.split(": ", 1)[1] for line in EXPERIMENT.splitlines()}
    return "".join(f"{key}: {value}\n" for key, value in (lines | sections).items())


def write_experiment(folder: Path, file: str = "tiny.yaml", **sections: str) -> Path:
    """Write the tiny experiment and its corpus into `folder`; every section stays on its own line."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [f"the cat number {n} sat on the mat and saw {n + 1} dogs" for n in range(40)]
    (folder / "corpus.txt").write_text("\n\n".join(documents), encoding="utf-8")
    path = folder / file
    path.write_text(experiment_text(**sections), encoding="utf-8")
    return path


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter that finds the lab from any working directory."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def exit_code(*words: str) -> int:
    """Run a command of the lab in this process."""
    from electra_lab.cli import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["electra-lab", *words])
        try:
            main()
        except SystemExit as stopped:
            return int(str(stopped.code or 0))
    return 0


def ended(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return exit code and standard error of a command, in this process."""
    capsys.readouterr()
    return exit_code(*command), capsys.readouterr().err


@contextmanager
def pipe(path: Path, seconds: int = 5) -> Iterator[None]:
    """Replace a file by a named pipe; a process that opens it for reading gets an empty file after some seconds."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    writer = subprocess.Popen(["sh", "-c", f'sleep {seconds}; : > "$0"', str(path)])
    try:
        yield
    finally:
        writer.kill()
        writer.wait()


def datasets_offline(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Let the library `datasets` draw no progress bars, use no network, and cache in a separate folder."""
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", cache)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def rewrite_config(run: Path, text: str) -> None:
    """Give a run another config.yaml, as if it had begun with it."""
    (run / "config.yaml").write_text(text, encoding="utf-8")
    file = run / "provenance.json"
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"config_sha256": sha256}), encoding="utf-8")
