"""In a file of several components, the one that is wrong is named, by kind, name and line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import write_experiment

PLUG_IN = '''\
import torch
from electra_lab.objectives.electra import Electra
from registry import Losses, generators, objectives, optimizers, samplers


def helper(value):
    return value  # HELPER


@samplers.register("first")
def first(logits, rng, /):
    """Right."""
    return logits.argmax(-1)


@samplers.register("second")
def second(logits, rng, /):
    """Draws."""
    return helper(logits.argmax(-1))  # SAMPLER


@generators.register("guesses")
class Guesses(torch.nn.Module):
    """Knows nothing."""

    dim = 1

    def __init__(self, vocabulary, /):
        super().__init__()
        self.size = vocabulary.size

    def hidden(self, tokens, attention_mask, segments, documents=None):
        return torch.zeros(*tokens.shape, 1)

    def token_logits(self, hidden, positions):
        return torch.zeros(*positions.shape, self.size)  # GENERATOR


@objectives.register("aims")
class Aims(Electra):
    """Aims."""

    def __init__(self, generator, discriminator, masking, sampler, vocabulary, /):
        super().__init__(generator, discriminator, masking, sampler, vocabulary)

    def forward(self, batch, rng):
        losses = super().forward(batch, rng)
        return losses  # OBJECTIVE


@optimizers.register("descends")
class Descends(torch.optim.SGD):
    """Descends."""

    def __init__(self, parameters, learning_rate, /):
        super().__init__([p for _, p in parameters], lr=learning_rate)

    def step(self, closure=None):
        return super().step()  # OPTIMIZER

    def state_bytes(self, parameter):
        return 0
'''
SECTIONS = {
    "imports": "[mine.py]", "sampler": "{type: second}", "objective": "{type: aims}", "optimizer": "{type: descends}",
    "train": "{steps: 2, batch_size: 2, precision: fp32}",
}  # fmt: skip
CASES: dict[str, tuple[str, str, str]] = {
    "sampler raises": ("SAMPLER", "return 1 / 0", "@ sampler 'second' failed: ZeroDivisionError"),
    "sampler returns": ("SAMPLER", "return logits", "sampler 'second' returned tokens"),
    "generator raises": ("GENERATOR", "return self.nothing", "@ generator 'guesses' failed: AttributeError"),
    "objective raises": ("OBJECTIVE", "return losses.nothing", "@ objective 'aims' failed: AttributeError"),
    "objective returns": ("OBJECTIVE", "return losses.terms", "objective 'aims' returned a dict"),
    "objective leaves out a term": (
        "OBJECTIVE", "return Losses({'generator': losses.terms['generator']})", "objective 'aims' returned the terms"),
    "optimizer raises": ("OPTIMIZER", "raise KeyError('state')", "@ optimizer 'descends' failed: KeyError"),
    "optimizer refuses": ("OPTIMIZER", "raise ValueError('no')", ": optimizer: descends refuses this: no"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_component_that_is_wrong_is_named(lab: Any, tmp_path: Path, case: str) -> None:
    mark, replacement, sentence = CASES[case]
    lines = PLUG_IN.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.endswith(f"  # {mark}")]
    lines[place] = lines[place][: len(lines[place]) - len(lines[place].lstrip())] + replacement
    (tmp_path / "mine.py").write_text("\n".join(lines))
    sections = SECTIONS | ({"generator": "{type: guesses}"} if mark == "GENERATOR" else {"generator": "{scale: 0.5}"})
    err = lab.fails(2, "run", write_experiment(tmp_path, **sections), "--out", tmp_path / "run")
    said = "".join(line for line in err.splitlines(keepends=True) if "reading the corpus" not in line)
    here = rf"\S*mine\.py:{place + 1}: " if sentence.startswith("@") else r"\S+:\d+: "
    assert re.match(here + re.escape(sentence.removeprefix("@ ").removeprefix(": ")), said), said
    assert not (tmp_path / "run").exists()


def test_the_file_is_good_before_it_is_changed(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("electra_lab.jobs.pretraining.execute.write_report", lambda directory: directory.path)
    (tmp_path / "mine.py").write_text(PLUG_IN)
    for generator in ("{scale: 0.5}", "{type: guesses}"):
        code, _, err = lab("run", write_experiment(tmp_path, **SECTIONS, generator=generator))
        assert code == 0, err


def test_a_failure_during_training_names_all_calls_of_the_plug_in(lab: Any, tmp_path: Path) -> None:
    failing = 'return value if not hasattr(helper, "late") else value.nothing'
    text = PLUG_IN.replace("return value  # HELPER", failing)
    text = text.replace(
        "        return super().step()  # OPTIMIZER", "        helper.late = True\n        super().step()"
    )
    (tmp_path / "mine.py").write_text(text)
    err = lab.fails(2, "run", write_experiment(tmp_path, **SECTIONS), "--out", tmp_path / "run")
    number = next(n for n, line in enumerate(text.splitlines(), 1) if "value.nothing" in line)
    last = "\n".join(err.splitlines()[-4:])
    assert f"mine.py:{number}: sampler 'first' failed: AttributeError" in last
    assert "in forward: losses = super().forward(batch, rng)" in last
    assert "in second: return helper(logits.argmax(-1))" in last
