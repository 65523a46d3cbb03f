"""The example plug-ins run and obey the laws; mistakes in a plug-in are reported before anything is written; the
example package installs, works and uninstalls."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab import testing
from electra_lab.assembly.experiment import assemble, open_data
from electra_lab.config.load import load
from electra_lab.training.evaluation import evaluate
from registry import Masked, corpora, load_plugin
from tests.helpers import ROOT, exit_code, write_experiment

PLUGINS = ROOT / "experiments" / "plugins"
EXAMPLES = sorted(path.stem for path in PLUGINS.glob("*.yaml"))


@pytest.fixture
def _examples() -> None:
    for name in EXAMPLES:
        load_plugin(PLUGINS / f"{name}.py")
    load_plugin(PLUGINS / "package" / "electra_lab_min_p.py")
    for name in ("genome", "python_source", "service_log"):  # of logs_small, dna_small and python_small
        load_plugin(PLUGINS / f"{name}.py")


@pytest.mark.usefixtures("_examples")
class TestServiceLog(testing.CorpusContract):
    name, options = "service_log", {"lines": 200}


@pytest.mark.usefixtures("_examples")
class TestGenome(testing.CorpusContract):
    name, options = "genome", {"chromosomes": 3, "length": 1000}


@pytest.mark.usefixtures("_examples")
def test_the_best_detector_of_the_genome_needs_its_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The more is replaced, the less context tells; of independent letters it tells nothing."""
    genome: Any = sys.modules[corpora.get("genome").component.__module__]
    few, many = genome.best_auc(rows=60, masked=0.05), genome.best_auc(rows=60, masked=0.4)
    assert 0.55 < many < few < 1
    monkeypatch.setattr(genome, "MOTIFS", ())
    monkeypatch.setattr(genome, "STAY", genome.STAY * 0 + 0.25)
    assert genome.best_auc(rows=60) == pytest.approx(0.5, abs=0.03)


@pytest.mark.usefixtures("_examples")
class TestEta(testing.SamplerContract):
    name = "eta"

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        """The paper's threshold, in doubles."""
        p = logits.double().softmax(-1)
        p[p < min(6e-4, math.sqrt(6e-4) * math.exp(-torch.special.entr(p).sum()))] = 0
        return p / p.sum()


@pytest.mark.usefixtures("_examples")
class TestMinP(testing.SamplerContract):
    name, options = "min_p", {"share": 0.01}

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        p = logits.double().softmax(-1)
        p[p < 0.01 * p.max()] = 0
        return p / p.sum()


@pytest.mark.usefixtures("_examples")
class TestRareTokens(testing.MaskingContract):
    name = "rare_tokens"

    def test_rare_tokens_are_masked_in_the_proportion_of_their_weights(self) -> None:
        """One token a row, from two frequent and one rare one: the shares are those of the weights."""
        words, rows = testing.vocabulary(40), 20_000
        tokens = torch.tensor([5, 6, 39]).expand(rows, 3)
        masked = self.component()(
            tokens, torch.ones_like(tokens, dtype=torch.bool), words, testing.random_numbers(1, rows, "cpu")
        )
        weights = (1.0 + words.counts[[5, 6, 39]]).pow(-0.5)
        seen = torch.bincount(masked.positions[masked.valid], minlength=3) / rows
        assert torch.allclose(seen, weights / weights.sum(), atol=0.02)


@pytest.mark.usefixtures("_examples")
class TestLightConv(testing.BackboneContract):
    name = "light_conv"


@pytest.mark.usefixtures("_examples")
class TestThreeClassHead(testing.HeadContract):
    name = "three_classes"


@pytest.mark.usefixtures("_examples")
class TestThreeClasses(testing.ObjectiveContract):
    name = "three_classes"


def test_the_accuracy_of_three_classes_is_that_of_a_plain_count(tmp_path: Path) -> None:
    corpus = write_experiment(tmp_path).with_name("corpus.txt")
    small = [f"corpus={{type: text_files, paths: [{corpus}]}}", "tokenizer.vocab_size=200", "data.held_out=0.3"]
    loaded = load(PLUGINS / "three_classes.yaml", [*small, f"data.store={tmp_path / 'store'}",
                  "masking={type: replace_prob, mask_prob: 0.5, replace_prob: 0.6, random_prob: 0.4}"])  # fmt: skip
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))
    given: dict[str, list[torch.Tensor]] = {"generator": [], "discriminator": [], "logits": []}
    objective: Any = made.run.learner.objective
    for name in ("generator", "discriminator"):
        embeddings = getattr(objective, name).embeddings
        embeddings.register_forward_pre_hook(lambda _, inputs, name=name: given[name].append(inputs[0]))
    objective.discriminator.heads["three_classes"].register_forward_hook(lambda *_: given["logits"].append(_[2]))
    found = evaluate(made.run.learner, made.validation, made.accumulate, seed=0, batch_size=4, precision="fp32",
                     device=made.device)  # fmt: skip
    mask_id, right, number, classes = made.run.learner.objective.vocabulary.mask_id, 0, 0, Counter[int]()
    embedded = given["generator"]  # both networks have one embedding: it is called for the one, then for the other
    for index, batch in enumerate(made.validation.in_order(4, made.device)):
        masked, inputs, logits = embedded[2 * index], embedded[2 * index + 1], given["logits"][index]
        for row, place in batch.attention_mask.nonzero().tolist():
            original, token, seen = (int(tokens[row, place]) for tokens in (batch.tokens, inputs, masked))
            truth = 0 if token == original else 2 if seen not in (original, mask_id) else 1
            right += int(logits[row, place].argmax()) == truth
            number, classes[truth] = number + 1, classes[truth] + 1
    assert found.metrics["class_accuracy"] == pytest.approx(right / number, rel=1e-12)
    assert min(classes[truth] for truth in range(3)) > 10, "each class must be there, or this test says little"


@pytest.fixture
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lab's own guards see shapes that the suite's checks of signatures would refuse (tests/shapes.py)."""
    monkeypatch.setattr(Masked, "__init__", inspect.unwrap(Masked.__init__))


def ended(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and standard error of a command, in this process."""
    capsys.readouterr()
    return exit_code(*command), capsys.readouterr().err


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path, capsys) -> None:
    write_experiment(tmp_path)  # for its corpus
    small = [f"corpus={{type: text_files, paths: [{tmp_path / 'corpus.txt'}]}}", "tokenizer.vocab_size=200",
             "data.held_out=0.3", f"data.store={tmp_path / 'store'}", "train.steps=3",
             "schedules.learning_rate.warmup_steps=0"]  # fmt: skip
    overrides = [word for each in small for word in ("--set", each)]
    run = ["run", str(PLUGINS / f"{name}.yaml"), *overrides, "--out", str(tmp_path / "run")]
    code, said = ended(run, capsys)
    assert code == 0, said
    assert re.search(rf"\b{name}\s+\S*experiments/plugins/{name}\.py:\d+", said)
    (plugin,) = json.loads((tmp_path / "run" / "provenance.json").read_text())["plugins"]
    assert (Path(plugin["file"]).name, plugin["package"]) == (f"{name}.py", None)
    assert [copy.name[9:] for copy in (tmp_path / "run" / "plugins").iterdir()] == [f"{name}.py"]


def test_a_refusal_of_a_constructor_is_reported_where_the_value_was_written(capsys) -> None:
    run = ["check", str(PLUGINS / "light_conv.yaml"), "--set", "discriminator.width=4"]
    code, said = ended(run, capsys)
    assert code == 2
    assert re.search(r"discriminator\.width=4: discriminator: light_conv refuses this: width 4 is even", said)


# Mistakes in a plug-in. Each case: the change to a good file, the line that is named (None: the experiment's) and the
# sentence.

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


class Environment:
    """A virtual environment of its own that sees what this one has, and the lab; nothing comes from the network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        packages = next((folder / "venv").rglob("site-packages"))
        (packages / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n", encoding="utf-8")

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`electra-lab ...`, `pip ...` or `-c code`, as one would type it with the environment active."""
        offline = {
            "install": ["--no-index", "--no-deps", "--no-build-isolation", "--quiet"],
            "uninstall": ["--yes", "--quiet"],
        }
        program, *rest = arguments
        match program:
            case "pip":
                command = [sys.executable, "-m", "pip", "--python", str(self.python), *rest, *offline[rest[0]]]
            case "electra-lab":
                command = [str(self.python), "-m", "electra_lab", *rest]
            case _:
                command = [str(self.python), *arguments]
        away = ("PYTHONPATH", "PIP_REQUIRE_VIRTUALENV")
        environment = {key: value for key, value in os.environ.items() if key not in away}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )


DOCUMENTED = [
    line[2:].split()
    for text in (ROOT / "docs" / "extending.md", PLUGINS / "package" / "README.md")
    for line in text.read_text(encoding="utf-8").splitlines()
    if line.startswith("$ pip ")
]


@pytest.mark.slow
def test_the_example_package_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """Installed, it is listed without an import, run and recorded; uninstalled, it is unknown."""
    pytest.importorskip("setuptools", minversion="61", reason="building the package needs setuptools here")
    install, uninstall = ["pip", "install", "./experiments/plugins/package"], ["pip", "uninstall", "electra-lab-min-p"]
    assert all(command in (install, uninstall) for command in DOCUMENTED)
    shutil.copytree(PLUGINS / "package", tmp_path / "experiments" / "plugins" / "package")
    lab = Environment(tmp_path)
    done = lab(*install)
    assert done.returncode == 0, done.stderr

    spy = (
        "import sys; from electra_lab.cli import main\ntry: main()\nfinally: print('electra_lab_min_p' in sys.modules)"
    )
    done = lab("-c", spy, "registry", "list", "samplers")
    assert done.returncode == 0, done.stderr
    *listed, imported = done.stdout.splitlines()
    assert imported == "False"
    line = next(line for line in listed if line.split()[0] == "min_p")
    assert "Leave out tokens less likely" in line
    assert "electra-lab-min-p 1.0.0" in line

    write_experiment(tmp_path, sampler="{type: min_p, share: 0.1}")
    done = lab("electra-lab", "run", "tiny.yaml", "--set", "data.store=store", "--out", "run")
    assert done.returncode == 0, done.stderr
    (plugin,) = json.loads((tmp_path / "run" / "provenance.json").read_text())["plugins"]
    module = Path(plugin["file"])
    assert (plugin["package"], module.name) == ("electra-lab-min-p 1.0.0", "electra_lab_min_p.py")
    assert module.is_relative_to(tmp_path / "venv")
    assert plugin["sha256"] == hashlib.sha256(module.read_bytes()).hexdigest()
    (kept,) = (tmp_path / "run" / "plugins").iterdir()
    assert kept.read_bytes() == module.read_bytes()

    done = lab(*uninstall)
    assert done.returncode == 0, done.stderr
    done = lab("electra-lab", "registry", "describe", "sampler", "min_p")
    assert done.returncode == 2
    assert "no sampler is called 'min_p'" in done.stderr
