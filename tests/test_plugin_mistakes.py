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
from registry import backbones


@backbones.register("mine")
class Mine(torch.nn.Module):
    \"""Mine.\"""

    length_multiple, positions = 1, "lab"

    def __init__(self, dim, depth, heads, max_length, /, *, gain: float = 1.0):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x, mask):
        for layer in self.layers:
            x = x + layer(x)
        return x

    def at_step(self, seed, step):
        pass
"""

RETURNED = "  return drawn"
MASKED = "  return Masked(inputs, positions, valid)"
STATES = "        return x\n"

# Each case: the change to a good file, the line that is named (None: the experiment's) and the sentence.
SAMPLERS = {
    "syntax": ("mine(logits", "mine logits", 8, r"SyntaxError: "),
    "import": ("import torch", "import torhc", 2, r"ModuleNotFoundError: No module named 'torhc'"),
    "signature": ("logits, rng, /", "scores, /", 7, r"mine: must take \(logits, rng\) before its options"),
    "untyped": (": Annotated[float, Field(gt=0)]", "", 7, r"mine: option 'heat' has no type; write"),
    "default": ("= 1.0", "= -1.0", 7, r"mine: the default of 'heat' does not fit its type"),
    "docstring": ('    """Mine."""\n', "", 7, r"sampler 'mine' has no docstring"),
    "declares": ('"mine"', '"mine", unbiasd=True', 7, r"samplers\.register has no argument 'unbiasd'\. Did you"),
    "taken": ('"mine"', '"gumbel"', 7, r"sampler 'gumbel' is already defined at .*gumbel\.py:\d+\. Choose"),
    "exit": ("import torch", "import sys; sys.exit(0)", 2, r"SystemExit: 0"),
    "above": (RETURNED, "  return drawn + 10**6", 7, r"sampler 'mine' drew the id 10\d+; ids are 0 to \d+\."),
    "below": (RETURNED, "  return drawn - 10**6", 7, r"sampler 'mine' drew the id -\d+; ids are 0 to \d+\."),
    "special": (RETURNED, "  return drawn * 0", 7, r"sampler 'mine' drew the id 0, whose logit is -inf"),
    "floats": (RETURNED, "  return drawn.float()", 7, r"sampler 'mine' returned tokens .* of torch\.float32, mu"),
    "shape": (RETURNED, "  return drawn[:, None]", 7, r"sampler 'mine' returned tokens \[\d+, 1\] of .*, must"),
    "none": (RETURNED, "  pass", 7, r"sampler 'mine' returned a NoneType as tokens, must be a tensor"),
    "raises": (RETURNED, "  return drawn / heat / [][0]", 11, r"sampler 'mine' failed: IndexError: list index"),
    "torch": (RETURNED, "  return drawn @ logits", 11, r"sampler 'mine' failed: RuntimeError: "),
    "uniform": (RETURNED, "  return rng.uniform(len(logits) + 1)", 11, r"sampler 'mine' failed: ValueError: unif"),
    "exits": (RETURNED, "  raise SystemExit(0)", 11, r"sampler 'mine' failed: SystemExit: 0"),
    "nan": (RETURNED, "  return (logits * float('nan')).argmax(-1)", 7, r"sampler 'mine' drew the id \d+"),
    "unregistered": ('@samplers.register("mine")\n', "", None, r"sampler\.type: .*'mine'"),
    "in place": (RETURNED, "  return logits.zero_().argmax(-1)", 7, r"sampler 'mine' changed logits in place; it must"),
}  # fmt: skip

MASKINGS = {
    "options": ("mask_prob: float = 0.15, ", "", 5, r"mine: must have the option mask_prob, which its contract"),
    "padding": (
        "positions = maskable.int()", "positions = (~maskable).int()",
        5, r"masking strategy 'mine' chose a token that may not be masked \(padding or a special token\)",
    ),
    "twice": (
        MASKED, "  return Masked(inputs, positions[:, :1].repeat(1, 3), valid[:, :1].repeat(1, 3))",
        5, r"masking strategy 'mine' chose a position twice in one row",
    ),
    "outside": (MASKED, "  return Masked(inputs, positions + 99, valid)", 5, r".* positions outside 0 to 15"),
    "more": (MASKED, "  return Masked(inputs * 0 + vocabulary.mask_id, positions, valid)",
             5, r"masking strategy 'mine' changed inputs at a position that it did not choose"),
    "id": (MASKED, "  return Masked(torch.where(inputs == vocabulary.mask_id, 10**6, inputs), positions, valid)",
           5, r"masking strategy 'mine' put an id outside 0 to \d+ into inputs"),
    "floats": (MASKED, "  return Masked(inputs.float(), positions, valid)", 5, r".* returned inputs .*float32"),
    "valid": (MASKED, "  return Masked(inputs, positions, valid.int())", 5, r".* returned valid .* of torch\.int"),
    "shape": (MASKED, "  return Masked(inputs, positions[0], valid)", 5, r".* returned positions \[3\] of"),
    "tuple": (MASKED, "  return inputs, positions, valid", 5, r".* returned a tuple, must be a registry\.Masked"),
    "none": (MASKED, "  pass", 5, r"masking strategy 'mine' returned a NoneType, must be a registry\.Masked"),
    "in place": ("tokens.scatter(", "tokens.scatter_(", 5, r"masking strategy 'mine' changed tokens in place"),
    "text": ("mask_prob: float = 0.15", "mask_prob: str = 'a'", 5, r".*\bmask_prob\b"),
    "slots": (MASKED, "  return Masked(inputs, positions.repeat(1, 9), valid.repeat(1, 9))",
              5, r"masking strategy 'mine' returned 27 slots a row; at mask_prob 0\.15 there must be 3"),
    "nothing": (MASKED, "  return Masked(tokens, positions, valid & False)",
                5, r"masking strategy 'mine' chose nothing in a row that has tokens to choose from"),
    "cls": ("vocabulary.mask_id, tokens", "vocabulary.cls_id, tokens",
            5, r"masking strategy 'mine' put a special token other than \[MASK\] into inputs"),
    "raises": (MASKED, "  return 1 / 0", 13, r"masking strategy 'mine' failed: ZeroDivisionError: division"),
}  # fmt: skip

BACKBONES = {
    "signature": ("depth, heads, max", "heads, depth, max", 5, r"Mine: must take \(dim, depth, heads, max_leng"),
    "shape": (STATES, "        return x[:, :1]\n", 5, r"Mine\.forward returned the shape \[\d+, 1, \d+\]; it must"),
    "dtype": (STATES, "        return x.double()\n", 5, r"Mine\.forward returned the type torch\.float64; it must"),
    "none": (STATES, "", 5, r"Mine\.forward returned a NoneType; it must return a tensor like its input"),
    "tuple": (STATES, "        return x, mask\n", 5, r"Mine\.forward returned a tuple; it must return a tensor"),
    "layers": ("self.layers =", "self.blocks =", 5, r"backbone 'mine' has no layers; see registry/contracts"),
    "at_step": ("def at_step", "def at_stop", 5, r"backbone 'mine' has no at_step; see registry/contracts"),
    "multiple": ("positions = 1", "positions = 0", 5, r"backbone 'mine' has the length_multiple 0, must be"),
    "positions": ('"lab"', '"none"', 5, r"backbone 'mine' has the positions 'none', must be 'lab' or 'own'"),
    "refuses": ("super().__init__()", "raise ValueError('not today')", None, r"discriminator: mine refuses this: no"),
    "typo": ("super().__init__()", "super().__init__(); dmi", 12, r"backbone 'mine' failed: NameError: name 'dmi'"),
    "raises": ("x = x + layer(x)", "x = x + layer(x[..., 1:])", 17, r"backbone 'mine' failed: RuntimeError: "),
    "no parameters": ("torch.nn.Linear(dim, dim) for", "torch.nn.Identity() for", 5, r"backbone 'mine'"),
    "forward's signature": ("forward(self, x, mask)", "forward(self, x)", 5, r".*\bforward\b"),
    "at_step's signature": ("at_step(self, seed, step)", "at_step(self, step)", 5, r".*\bat_step\b"),
    "flops": ("    def at_step", "    def flops(self, length):\n        pass\n\n    def at_step", 5, r".*\bflops\b"),
    "detached": (STATES, "        return x.detach()\n", 5, r"Mine\.forward returned a tensor without a gradient; it"),
    "key": ("x = x + layer(x)", "x = {}[depth]", 17, r"backbone 'mine' failed: NameError: "),
}  # fmt: skip

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
    """Let the lab's own guards see shapes that the suite's checks of signatures would refuse (tests/shapes.py)."""
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
