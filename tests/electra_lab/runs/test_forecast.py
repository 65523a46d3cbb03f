"""`run --dry-run`: what it tells is what the run does, and it makes nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from electra_lab.runs import execute
from tests.helpers import python, write_experiment

READS_NUMBERS = '''\
from registry import samplers


@samplers.register("reading")
def reading(logits, rng, /):
    """Looks at a number."""
    assert logits[0, 9].item() != 3.0
    return logits.argmax(-1)
'''


def told(file: Path, *overrides: str, device: str = "cpu") -> str:
    return execute.dry_run(file, list(overrides), None, device)


def numbers(line: str) -> list[int]:
    return [int(word.replace(",", "")) for word in re.findall(r"\b\d[\d,]*\b", line)]


def line(text: str, beginning: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(beginning))


def test_it_tells_what_the_run_then_does(tmp_path: Path) -> None:
    """Parameters, steps and FLOPs as in the run's own provenance. The corpus fills a vocabulary of 100."""
    train = "{tokens: 200, batch_size: 2, warmup_steps: 0, precision: fp32}"
    file = write_experiment(tmp_path, tokenizer="{type: wordpiece, vocab_size: 100}", train=train)
    text = told(file)
    words = "\n\n".join(f"{n**3} {n**4} {n**5}" for n in range(100))
    (tmp_path / "corpus.txt").write_text(words)
    run = execute.run(file, [], tmp_path / "run", "cpu")
    done = json.loads((run / "provenance.json").read_text())
    assert done["data"]["vocabulary"] == 100
    for name in ("discriminator", "generator"):
        whole, *parts = numbers(line(text, name))
        assert whole == sum(parts) == done["parameters"][name]
    assert numbers(line(text, "shared")) == [done["parameters"]["shared"]]
    assert numbers(line(text, "in all")) == [done["parameters"]["total"]]
    assert line(text, "tiny: ") == f"tiny: {done['steps']:,} steps of 2 x 16 tokens"
    assert line(text, "tokens").split() == f"tokens 32 a step, {32 * done['steps']} in all".split()
    flops = done["flops_per_step"]
    assert (
        line(text, "compute").split() == f"compute {flops:.4g} FLOPs a step, {flops * done['steps']:.4g} in all".split()
    )


def test_it_reads_no_corpus_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_experiment(tmp_path / "there")
    (file.parent / "corpus.txt").unlink()
    here = tmp_path / "here"
    here.mkdir()
    done = python("-m", "electra_lab", "run", str(file), "--dry-run", cwd=here)
    assert done.returncode == 0
    assert done.stdout.startswith("tiny: 1 steps of 2 x 16 tokens\n")
    corpus = file.parent / "corpus.txt"
    assert done.stderr == f"note: {file}:2: corpus: text_files: {corpus}: no file matches. A run would stop there.\n"
    assert not list(here.iterdir())


def test_mistakes_are_told_as_by_a_run(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, train="{flops: 5, batch_size: 2}")
    done = python("-m", "electra_lab", "run", str(file), "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(
        r"\S+tiny\.yaml:11: train\.flops: 5 does not pay for one step, which costs \S+\.\n", done.stderr
    )


def test_a_large_network_takes_no_time_and_no_memory(tmp_path: Path) -> None:
    """A hundred billion parameters."""
    file = write_experiment(tmp_path, discriminator="{type: bert, dim: 16384, depth: 32, heads: 64}")
    total = numbers(line(told(file), "in all"))[0]
    assert total > 1e11


def test_a_plan_for_another_machine(tmp_path: Path) -> None:
    text = told(write_experiment(tmp_path, train="{steps: 1, batch_size: 2}"), device="cuda")
    assert " on cuda in bf16: " in text


def test_a_component_that_reads_numbers_costs_the_estimate_of_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "reading.py").write_text(READS_NUMBERS)
    file = write_experiment(tmp_path, imports="[reading.py]", sampler="{type: reading}")
    text = told(file)
    assert re.search(r"memory +\S+ MB of weights and optimizer; what a step adds cannot be told from shapes", text)
    assert "FLOPs a step" in text
    run = execute.run(file, [], tmp_path / "run", "cpu")  # a forecast leaves nothing behind that a run trips over
    assert (run / "report.html").is_file()


def test_the_command_says_where_it_is_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from electra_lab.cli import main

    out = tmp_path / "out"
    out.mkdir()
    (out / "kept").touch()
    monkeypatch.setattr(
        sys, "argv", ["electra-lab", "run", str(write_experiment(tmp_path)), "--dry-run", "--out", str(out)]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "exists and is not empty" in capsys.readouterr().err


READING_BACKBONE = '''\
import torch
from registry import backbones


@backbones.register("reading")
class Reading(torch.nn.Module):
    """Reads numbers where it is built and where it runs, as stochastic depth and unpadding do."""

    length_multiple, positions = 1, "lab"

    def __init__(self, dim, depth, heads, max_length, /):
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, depth)]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x, mask):
        if not mask.all():
            x = x * mask.unsqueeze(-1)
        for layer in self.layers:
            x = x + layer(x)
        return x

    def at_step(self, seed, step):
        """Nothing changes."""
'''


def test_a_backbone_that_reads_numbers_is_checked_forecast_and_run(tmp_path: Path) -> None:
    """It has no formula either: its operations are counted with numbers."""
    (tmp_path / "reading.py").write_text(READING_BACKBONE)
    discriminator = "{type: reading, dim: 16, depth: 2, heads: 2}"
    file = write_experiment(tmp_path, imports="[reading.py]", discriminator=discriminator, generator="{scale: 0.5}")
    text = told(file)
    assert (execute.run(file, [], tmp_path / "run", "cpu") / "report.html").is_file()
    assert numbers(line(text, "discriminator"))[3] == 2 * (16 * 16 + 16)
    assert re.search(r"compute +[1-9]\S* FLOPs a step", text)
    assert "cannot be told from shapes" in text


def test_evaluation_counts_where_it_needs_more(tmp_path: Path) -> None:
    sections = {"train": "{steps: 1, batch_size: 2}", "evaluate": "{batch_size: 64}"}
    text = told(write_experiment(tmp_path, **sections))
    state, step, evaluation = (float(n) for n in re.findall(r"([\d.]+) MB (?:of|at)", text))
    assert evaluation > 4 * step
    assert float(re.search(r"about ([\d.]+) MB", text)[1]) == pytest.approx(state + evaluation, abs=0.11)
