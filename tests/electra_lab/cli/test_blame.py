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
    "train": "{steps: 2, batch_size: 2, precision: fp32}", "generator": "{scale: 0.5}",
}  # fmt: skip
GUESSES = SECTIONS | {"generator": "{type: guesses}"}
READING = "reading the corpus (once; the result is kept)\n"
# The line that is changed, and to what; @ stands for its file and number.
CASES = [
    ("SAMPLER", "return 1 / 0", "@sampler 'second' failed: ZeroDivisionError"),
    ("SAMPLER", "return logits", "sampler 'second' returned tokens"),
    ("GENERATOR", "return self.nothing", "@generator 'guesses' failed: AttributeError"),
    ("OBJECTIVE", "return losses.nothing", "@objective 'aims' failed: AttributeError"),
    ("OBJECTIVE", "return losses.terms", "objective 'aims' returned a dict"),
    ("OBJECTIVE", "return Losses({'generator': losses.terms['generator']})", "objective 'aims' returned the terms"),
    ("OPTIMIZER", "raise KeyError('state')", "@optimizer 'descends' failed: KeyError"),
    ("OPTIMIZER", "raise ValueError('no')", "optimizer: descends refuses this: no"),
]


@pytest.mark.parametrize(("mark", "replacement", "sentence"), CASES)
def test_the_component_that_is_wrong_is_named(lab: Any, tmp_path: Path, mark, replacement, sentence) -> None:
    text = re.sub(rf"\S.*  # {mark}", lambda _: replacement, PLUG_IN)
    (tmp_path / "mine.py").write_text(text)
    file = write_experiment(tmp_path, **(GUESSES if mark == "GENERATOR" else SECTIONS))
    err = lab.fails(2, "run", file, "--out", tmp_path / "run")
    place = next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(replacement))
    here = rf"\S*mine\.py:{place}: " if sentence.startswith("@") else r"\S+:\d+: "
    assert re.match(here + re.escape(sentence.removeprefix("@")), err.removeprefix(READING)), err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sections", [SECTIONS, GUESSES])
def test_the_file_is_good_before_it_is_changed(lab: Any, tmp_path: Path, no_report: None, sections) -> None:
    (tmp_path / "mine.py").write_text(PLUG_IN)
    code, _, err = lab("run", write_experiment(tmp_path, **sections))
    assert code == 0, err


def test_a_failure_during_training_names_all_calls_of_the_plug_in(lab: Any, tmp_path: Path) -> None:
    late = 'return value if not hasattr(helper, "late") else value.nothing'
    text = PLUG_IN.replace("return value  # HELPER", late).replace(
        "return super().step()  # OPTIMIZER", "helper.late = True\n        super().step()"
    )
    (tmp_path / "mine.py").write_text(text)
    err = lab.fails(2, "run", write_experiment(tmp_path, **SECTIONS), "--out", tmp_path / "run")
    last = "\n".join(err.splitlines()[-4:])
    assert "mine.py:7: sampler 'first' failed: AttributeError" in last
    assert "in forward: losses = super().forward(batch, rng)" in last
    assert "in second: return helper(logits.argmax(-1))" in last
