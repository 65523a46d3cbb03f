"""Mistakes in a plug-in are reported with file and line before anything is written."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from registry import Masked
from tests.helpers import ended, write_experiment

SAMPLER = """\
from typing import Annotated
import torch
from pydantic import Field
from registry import samplers


@samplers.register("mine")
def mine(logits, rng, /, *, heat: Annotated[float, Field(gt=0)] = 1.0):
    \"""Mine.\"""
    drawn = logits.argmax(-1)
    return drawn
"""

MASKING = """\
import torch
from registry import Masked, masking_strategies


@masking_strategies.register("mine")
def mine(tokens, maskable, vocabulary, rng, /, *, mask_prob: float = 0.15, replace_prob: float = 1.0,
         random_prob: float = 0.0):
    \"""Mine: one token of a row.\"""
    positions = maskable.int().topk(3).indices
    valid = maskable.any(-1, keepdim=True) & (torch.arange(3) < 1)
    seen = torch.where(valid, vocabulary.mask_id, tokens.gather(1, positions))
    inputs = tokens.scatter(1, positions, seen)
    return Masked(inputs, positions, valid)
"""

BACKBONE = """\
import torch
from registry import Backbone, backbones


@backbones.register("mine")
class Mine(Backbone, torch.nn.Module):
    \"""Mine.\"""

    def __init__(self, dim, depth, heads, max_length, /, *, gain: float = 1.0):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x, mask):
        for layer in self.layers:
            x = x + layer(x)
        return x
"""

RETURNED = "  return drawn"
MASKED = "  return Masked(inputs, positions, valid)"
STATES = "        return x\n"

# Each case: the change to a good file, the line that is named (None: the experiment's), and the message. Tests of the
# registry and of checks cover the other mistakes.
SAMPLERS = {
    "syntax": ("mine(logits", "mine logits", 8, "SyntaxError: "),
    "import": ("import torch", "import torhc", 2, "ModuleNotFoundError: No module named 'torhc'"),
    "signature": ("logits, rng, /", "scores, /", 7, "mine: "),
    "taken": ('"mine"', '"gumbel"', 7, r"sampler 'gumbel' .*gumbel\.py:\d+"),
    "exit": ("import torch", "import sys; sys.exit(0)", 2, "SystemExit: 0"),
    "above": (RETURNED, "  return drawn + 10**6", 7, r"sampler 'mine' drew the id 10\d+; ids are 0 to \d+\."),
    "raises": (RETURNED, "  return drawn / heat / [][0]", 11, "sampler 'mine' failed: IndexError: list index"),
    "torch": (RETURNED, "  return drawn @ logits", 11, "sampler 'mine' failed: RuntimeError: "),
    "uniform": (RETURNED, "  return rng.uniform(len(logits) + 1)", 11, "sampler 'mine' failed: ValueError: unif"),
    "exits": (RETURNED, "  raise SystemExit(0)", 11, "sampler 'mine' failed: SystemExit: 0"),
    "unregistered": ('@samplers.register("mine")\n', "", None, r"sampler\.type: .*'mine'"),
    "in place": (RETURNED, "  return logits.zero_().argmax(-1)", 7, "sampler 'mine' changed logits in place"),
}
MASKINGS = {
    "options": ("mask_prob: float = 0.15, ", "", 5, "mine: .* mask_prob"),
    "text": ("mask_prob: float = 0.15", "mask_prob: str = 'a'", 5, r".*\bmask_prob\b"),
    "outside": (MASKED, "  return Masked(inputs, positions + 99, valid)", 5, ".* positions outside 0 to 15"),
    "in place": ("tokens.scatter(", "tokens.scatter_(", 5, "masking strategy 'mine' changed tokens in place"),
    "slots": (MASKED, "  return Masked(inputs, positions.repeat(1, 9), valid.repeat(1, 9))", 5, ".* 27 .* 3"),
    "raises": (MASKED, "  return 1 / 0", 13, "masking strategy 'mine' failed: ZeroDivisionError: division"),
}
BACKBONES = {
    "shape": (STATES, "        return x[:, :1]\n", 5, r"Mine\.forward .*\[\d+, 1, \d+\]"),
    "dtype": (STATES, "        return x.double()\n", 5, r"Mine\.forward .* torch\.float64"),
    "none": (STATES, "", 5, r"Mine\.forward .* NoneType"),
    "tuple": (STATES, "        return x, mask\n", 5, r"Mine\.forward .* tuple"),
    "detached": (STATES, "        return x.detach()\n", 5, r"Mine\.forward .* gradient"),
    "layers": ("self.layers =", "self.parts =", 5, "backbone 'mine' has no layers; see registry/contracts"),
    "refuses": ("super().__init__()", "raise ValueError('not today')", None, "discriminator: mine refuses this: no"),
    "typo": ("super().__init__()", "super().__init__(); dmi", 10, "backbone 'mine' failed: NameError: name 'dmi'"),
    "raises": ("x = x + layer(x)", "x = x + layer(x[..., 1:])", 15, "backbone 'mine' failed: RuntimeError: "),
    "key": ("x = x + layer(x)", "x = {}[depth]", 15, "backbone 'mine' failed: NameError: "),
}

CASES = [
    pytest.param(kind, good, *case, id=f"{kind}-{name}")
    for kind, good, cases in (
        ("sampler", SAMPLER, SAMPLERS), ("masking", MASKING, MASKINGS), ("discriminator", BACKBONE, BACKBONES)
    )
    for name, case in cases.items()
]  # fmt: skip

SECTIONS = {
    "sampler": "{type: mine}",
    "masking": "{type: mine}",
    "discriminator": "{type: mine, dim: 16, depth: 1, heads: 2}",
}


def experiment(folder: Path, kind: str, text: str) -> Path:
    (folder / "mine.py").write_text(text, encoding="utf-8")
    file = write_experiment(folder, **{kind: SECTIONS[kind]}, data="{store: store, sequence_length: 16, held_out: 0.3}")
    file.write_text(f"imports: [mine.py]\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    return file


@pytest.fixture
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the suite's checks of signatures (tests/shapes.py), so that wrong shapes reach the lab's own guards."""
    monkeypatch.setattr(Masked, "__init__", inspect.unwrap(Masked.__init__))


@pytest.mark.parametrize(("kind", "good"), [("sampler", SAMPLER), ("masking", MASKING), ("discriminator", BACKBONE)])
def test_the_files_are_good_before_they_are_changed(kind: str, good: str, tmp_path: Path, capsys) -> None:
    file = experiment(tmp_path, kind, good)
    code, said = ended(["run", str(file), "--out", str(tmp_path / "run")], capsys)
    assert code == 0, said


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize(("kind", "good", "old", "new", "line", "sentence"), CASES)
def test_a_mistake_in_a_plug_in_is_reported_and_nothing_is_written(
    kind: str, good: str, old: str, new: str, line: int | None, sentence: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    assert good.count(old) == 1 or old == "import torch"
    monkeypatch.chdir(tmp_path)
    file = experiment(tmp_path, kind, good.replace(old, new, 1))
    code, said = ended(["run", file.name], capsys)
    assert code == 2, said
    lines = [line for line in said.splitlines() if "reading the corpus" not in line]
    place = rf"\S*\bmine\.py:{line}: " if line else r"tiny\.yaml:\d+: "
    assert re.match(place + sentence, lines[0]), said
    assert "Traceback" not in said
    assert not (tmp_path / "runs").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"corpus.txt", "mine.py", "tiny.yaml", "store"}
