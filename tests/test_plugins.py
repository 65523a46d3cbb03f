"""The example plug-ins run and obey the laws; the example package installs, works and uninstalls."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab import testing
from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble
from electra_lab.config.load import load
from electra_lab.training.evaluation import evaluate
from registry import corpora, load_plugin
from tests.helpers import ROOT, ended, write_experiment
from tests.test_wheel import Environment

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
    """The more is replaced, the less the context helps; for independent letters it does not help at all."""
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
        """One token per row, from two frequent ones and a rare one: their shares are proportional to the weights."""
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
    embedded = given["generator"]  # both networks share one embedding, which is called for each of them
    for index, batch in enumerate(made.validation.in_order(4, made.device)):
        masked, inputs, logits = embedded[2 * index], embedded[2 * index + 1], given["logits"][index]
        for row, place in batch.attention_mask.nonzero().tolist():
            original, token, seen = (int(tokens[row, place]) for tokens in (batch.tokens, inputs, masked))
            truth = 0 if token == original else 2 if seen not in (original, mask_id) else 1
            right += int(logits[row, place].argmax()) == truth
            number, classes[truth] = number + 1, classes[truth] + 1
    assert found.metrics["class_accuracy"] == pytest.approx(right / number, rel=1e-12)
    assert min(classes[truth] for truth in range(3)) > 10, "this test needs every class"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path, capsys) -> None:
    write_experiment(tmp_path)  # for its corpus
    small = [f"corpus={{type: text_files, paths: [{tmp_path / 'corpus.txt'}]}}", "tokenizer.vocab_size=200",
             "data.held_out=0.3", f"data.store={tmp_path / 'store'}", "train.steps=3",
             "schedules.learning_rate.warmup_steps=0"]  # fmt: skip
    overrides = [word for setting in small for word in ("--set", setting)]
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
    lab = Environment(tmp_path, "--without-pip")
    lab.borrow(sysconfig.get_path("purelib"), ROOT)
    shutil.copytree(PLUGINS / "package", lab.folder / "experiments" / "plugins" / "package")
    lab.pip(*install[1:])

    spy = (
        "import sys; from electra_lab.cli import main\ntry: main()\nfinally: print('electra_lab_min_p' in sys.modules)"
    )
    *listed, imported = lab("python", "-c", spy, "registry", "list", "samplers").splitlines()
    assert imported == "False"
    line = next(line for line in listed if line.split()[0] == "min_p")
    assert "Leave out tokens less likely" in line
    assert "electra-lab-min-p 1.0.0" in line

    write_experiment(lab.folder, sampler="{type: min_p, share: 0.1}")
    lab("python", "-m", "electra_lab", "run", "tiny.yaml", "--set", "data.store=store", "--out", "run")
    (plugin,) = json.loads((lab.folder / "run" / "provenance.json").read_text())["plugins"]
    module = Path(plugin["file"])
    assert (plugin["package"], module.name) == ("electra-lab-min-p 1.0.0", "electra_lab_min_p.py")
    assert module.is_relative_to(lab.venv)
    assert plugin["sha256"] == hashlib.sha256(module.read_bytes()).hexdigest()
    (kept,) = (lab.folder / "run" / "plugins").iterdir()
    assert kept.read_bytes() == module.read_bytes()

    lab.pip(*uninstall[1:])
    with pytest.raises(AssertionError, match="no sampler is called 'min_p'"):
        lab("python", "-m", "electra_lab", "registry", "describe", "sampler", "min_p")
