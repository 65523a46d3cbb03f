"""`run --dry-run` and its forecast: correct for the run that follows, and not written anywhere."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.build import outline, vocabulary_or_bert
from electra_lab.assembly.needs import forecast, workload
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.planning.forecast import Workload
from electra_lab.planning.memory import peak_bytes, shapes_only
from electra_lab.training.random import Streams
from electra_lab.training.step import backward
from registry.errors import ConfigError
from tests.electra_lab.training.tiny import experiment
from tests.helpers import exit_code, write_experiment

READS_NUMBERS = '''\
from registry import samplers


@samplers.register("reading")
def reading(logits, rng, /):
    """Looks at a number."""
    assert logits[0, 9].item() != 3.0
    return logits.argmax(-1)
'''


@pytest.fixture(autouse=True)
def _own_store(no_report: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan_of(file: Path, *overrides: str, device: str = "cpu") -> str:
    return execute.dry_run(file, list(overrides), None, device)


def numbers(line: str) -> list[int]:
    return [int(word.replace(",", "")) for word in re.findall(r"\b\d[\d,]*\b", line)]


def line(text: str, beginning: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(beginning))


def test_it_says_what_the_run_then_does(tmp_path: Path) -> None:
    """Parameters, steps and FLOPs as in the run's own provenance. The corpus fills a vocabulary of 100."""
    train = "{tokens: 200, batch_size: 2, precision: fp32}"
    file = write_experiment(tmp_path, tokenizer="{type: wordpiece, vocab_size: 100}", train=train)
    text = plan_of(file)
    words = "\n\n".join(f"{n**3} {n**4} {n**5}" for n in range(100))
    (tmp_path / "corpus.txt").write_text(words)
    run = execute.run(file, [], tmp_path / "run", "cpu")
    done = json.loads((run / "provenance.json").read_text())
    assert done["data"]["vocab_size"] == 100
    for name in ("discriminator", "generator"):
        whole, *parts = numbers(line(text, name))
        assert whole == sum(parts) == done["parameters"][name]
    assert numbers(line(text, "shared")) == [done["parameters"]["shared"]]
    assert numbers(line(text, "total")) == [done["parameters"]["total"]]
    assert line(text, "tiny: ") == f"tiny: {done['steps']:,} steps of 2 x 16 tokens"
    assert line(text, "tokens").split() == f"tokens 32 per step, {32 * done['steps']} in total".split()
    flops = done["flops_per_step"]
    expected = f"compute {flops:.4g} FLOPs per step, {flops * done['steps']:.4g} in total (matrix products)"
    assert line(text, "compute").split() == expected.split()
    paper = f"{done['paper_flops'] / done['steps']:.4g} FLOPs per step, {done['paper_flops']:.4g} in total (as the "
    assert paper + "ELECTRA paper counts)" in text


def test_it_reads_no_corpus_and_writes_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    file, here = write_experiment(tmp_path / "there"), tmp_path / "here"
    (file.parent / "corpus.txt").unlink()
    here.mkdir()
    monkeypatch.chdir(here)
    assert exit_code("run", str(file), "--dry-run") == 0
    out, err = capsys.readouterr()
    assert out.startswith("tiny: 1 steps of 2 x 16 tokens\n")
    assert err.startswith(f"note: {file}:2: corpus: text_files: {file.parent / 'corpus.txt'}: ")
    assert err.count("\n") == 1
    assert not list(here.iterdir())


def test_a_large_network_takes_no_time_and_no_memory(tmp_path: Path) -> None:
    """Two layers of 12 x 65,536² weights, 400 GB."""
    text = plan_of(write_experiment(tmp_path, discriminator="{type: bert, dim: 65536, depth: 2, heads: 64}"))
    assert numbers(line(text, "total"))[0] > 24 * 65_536**2


def test_a_plan_for_another_machine(tmp_path: Path) -> None:
    text = plan_of(write_experiment(tmp_path, train="{steps: 1, batch_size: 2}"), device="cuda")
    assert " on cuda in bf16: " in text


def test_an_optimizer_that_cannot_skip_by_itself_needs_copies_to_return_to(tmp_path: Path) -> None:
    """Gradients take 4 bytes per parameter; in addition, a copy of the weights and the optimizer's state is needed."""
    options = {"discriminator": "{type: bert, dim: 128, depth: 1, heads: 2}", "train": "{steps: 1, batch_size: 1}"}
    file = write_experiment(tmp_path, **options)
    fused, unfused = needs(file, "optimizer.type=adamw"), needs(file, "optimizer.type=adafactor")
    assert fused.working_bytes is not None
    assert unfused.working_bytes == 4 * unfused.parameters["total"] + unfused.state_bytes
    assert unfused.working_bytes > fused.working_bytes


def test_a_component_that_reads_numbers_costs_the_estimate_of_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "reading.py").write_text(READS_NUMBERS)
    file = write_experiment(tmp_path, imports="[reading.py]", sampler="{type: reading}")
    text = plan_of(file)
    assert re.search(r"memory +\S+ MB of weights and optimizer; the memory of a step cannot be predicted", text)
    assert re.search(r"compute +[1-9]\S* FLOPs per step", text)
    run = execute.run(file, [], tmp_path / "run", "cpu")  # a forecast leaves nothing behind that would affect a run
    assert (run / "checkpoints").is_dir()


def test_a_folder_that_a_run_could_not_use_is_refused(tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    with pytest.raises(ConfigError, match="exists and is not empty"):
        execute.dry_run(file, [], tmp_path, "cpu")


def test_evaluation_counts_where_it_needs_more(tmp_path: Path) -> None:
    sections = {"train": "{steps: 1, batch_size: 2}", "evaluate": "{batch_size: 64}"}
    text = plan_of(write_experiment(tmp_path, **sections))
    state, step, evaluation = (float(n) for n in re.findall(r"([\d.]+) MB (?:of|at)", text))
    assert evaluation > 4 * step
    assert float(re.search(r"about ([\d.]+) MB", text)[1]) == pytest.approx(state + evaluation, abs=0.11)


# Numbers


def needs(file: Path, *overrides: str) -> Any:
    return forecast(load(file, list(overrides)), torch.device("cpu"))


def test_what_is_forecast_grows_as_it_must(tmp_path: Path) -> None:
    """With the gradients of the first micro-batch; and bf16 takes less than fp32."""
    file = write_experiment(tmp_path, discriminator="{type: bert, dim: 64, depth: 1, heads: 2}")
    whole, split = needs(file, "train.batch_size=64"), needs(file, "train.batch_size=128", "train.micro_batch_size=64")
    # During the second micro-batch the first one's gradients exist, four bytes per parameter; the state has twelve.
    assert split.state_bytes == whole.state_bytes
    gradients = whole.state_bytes / 3
    assert 0.5 * gradients < split.working_bytes - whole.working_bytes < 1.5 * gradients
    assert needs(file, "train.batch_size=64", "train.precision=bf16").working_bytes < 0.9 * whole.working_bytes


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])  # the laws check `state_bytes` of each optimizer
def test_memory_is_that_of_a_real_step(tmp_path: Path, optimizer: str) -> None:
    """The state exactly; working memory as counted in a real forward and backward pass.

    The corpus fills its vocabulary, rows are full.
    """
    words = "\n\n".join(f"{n**3} {n**4} {n**5}" for n in range(100))
    (tmp_path / "words.txt").write_text(words)
    sections = {
        "corpus": "{type: text_files, paths: [words.txt]}", "tokenizer": "{type: wordpiece, vocab_size: 100}",
        "optimizer": f"{{type: {optimizer}}}", "train": "{steps: 1, batch_size: 8, precision: fp32}",
    }  # fmt: skip
    made = experiment(tmp_path, **sections)
    found = needs(tmp_path / "tiny.yaml")
    assert made.vocabulary.size == 100 == found.vocabulary_size
    objective, learner, trained = made.run.learner.objective.train(), made.run.learner, made.run.optimizer
    batch = made.train.training_batch(0, 0, 8, torch.device("cpu"))
    peak = peak_bytes(lambda: backward(learner.losses(batch, Streams.of(0, 0, batch.example_ids), "fp32").terms))
    assert found.working_bytes == pytest.approx(peak, rel=0.02)
    trained.step()
    state = sum(value.nbytes for tensors in trained.state.values() for value in tensors.values())
    assert found.state_bytes == state + sum(p.nbytes for p in objective.parameters())


def test_the_dearer_stage_of_two_decides(tmp_path: Path) -> None:
    sections = {"embedding": "{dim: 8, max_length: 16, tie: none}", "generator": "{scale: 0.5}"}
    file = write_experiment(tmp_path, objective="{type: two_stage, generator_steps: 2}", **sections)

    def of(*overrides: str) -> Workload:
        loaded = load(file, ["train.steps=5", *overrides])
        return workload(loaded, outline(loaded, vocabulary_or_bert(loaded), shapes_only()), "fp32")

    small, alone = of(), of("objective={type: electra}")
    assert (small.settings.flops.first, small.settings.steps) == (2, 5)
    assert small.settings.flops.at_first < alone.settings.flops.per_step
    # Activations of a network count in the stage in which it learns.
    wide = "generator.scale=4.0"
    stages = {
        "first": (of(wide), of(wide, "generator.depth=3")),
        "second": (small, of("generator.depth=1", "discriminator.depth=3")),
    }
    for stage, (less, more) in stages.items():
        assert (more.working_bytes() or 0) > 1.5 * (less.working_bytes() or math.inf), stage
