"""Heads of plug-ins, in all places where heads matter: checks, weights, FLOPs, checkpoints, exports."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from electra_lab.assembly.build import sketch
from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble, check
from electra_lab.assembly.initial_weights import origins
from electra_lab.cli import app
from electra_lab.config.load import load
from electra_lab.heads.tokens import TokenHead
from electra_lab.jobs.pretraining import execute
from electra_lab.planning.forecast import parts_by_network
from registry import EmbeddingSizes, Needs, heads, objectives
from registry.errors import BadResult, ConfigError
from tests.helpers import write_experiment

PLUGIN = """\
import torch
from torch import nn
from torch.nn import functional as F
from registry import Needs, heads, objectives


@heads.register("guesses", initialized_by_lab=True)
class Guesses(nn.Module):
    "A score of each token of a list, by the token table and the generator's own opinion."
    reads_table = True

    def __init__(self, dim, sizes, vocabulary, /):
        super().__init__()
        self.dense = nn.Linear(dim, sizes.dim)

    def forward(self, states, ids, opinion, table):
        return (self.dense(states).unsqueeze(-2) * F.embedding(ids, table)).sum(-1) + opinion

    def flops(self, length, masked):
        return 2 * masked * self.dense.in_features * self.dense.out_features


@heads.register("summary")
class Summary(nn.Module):
    "A vector of each row, from its first state."

    def __init__(self, dim, sizes, vocabulary, /, *, size: int = 4):
        super().__init__()
        self.out = nn.Linear(dim, size)
        nn.init.constant_(self.out.weight, 0.25)
        self.rare = int(vocabulary.counts.numel())

    def forward(self, states):
        return F.normalize(self.out(states[:, 0]), dim=-1)

    def flops(self, length, masked):
        return 2 * self.out.in_features * self.out.out_features


@objectives.register("many")
class Many(objectives.get("electra").component):
    "ELECTRA with three more outputs."

    @staticmethod
    def needs(options):
        size = 3 if options["disallow_correct"] else 5
        return Needs(heads={"replaced": {}, "guesses": {}, "summary": {"size": size}},
                     generator_heads={"tokens": {}, "summary": {}})

    def forward(self, batch, rng):
        losses = super().forward(batch, rng)
        hidden = self.discriminator.hidden(batch.tokens, batch.attention_mask, batch.segments)
        places = batch.tokens[:, :2] * 0 + torch.arange(2)
        ids = batch.tokens.unsqueeze(1)[:, :, :3].expand(-1, 2, -1)
        opinion = self.generator.token_logits(hidden[..., : self.generator.dim], places).detach().gather(-1, ids)
        guesses = self.discriminator.predict("guesses", hidden, ids, opinion, positions=places)
        rows = self.discriminator.predict("summary", hidden)
        said = self.generator.predict("summary", hidden[..., : self.generator.dim])
        assert (guesses.shape, rows.shape, said.shape[1]) == ((len(rows), 2, 3), (len(rows), rows.shape[1]), 4)
        extra = sum((part * 1e-3).sum() for part in (guesses, rows, said))
        term = losses.terms["generator"]
        losses.terms["generator"] = type(term)(term.sum + extra, term.count, term.weight)
        return losses
"""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    (tmp_path / "many.py").write_text(PLUGIN)
    with heads.isolated(), objectives.isolated():
        yield write_experiment(
            tmp_path, imports="[many.py]", objective="{type: many}", data="{sequence_length: 16, held_out: 0.3}",
            train="{steps: 2, batch_size: 4, precision: fp32}",
        )  # fmt: skip


def test_an_objective_asks_for_heads_of_both_networks_and_sets_their_options(file: Path) -> None:
    loaded = load(file)
    check(loaded)
    built = sketch(loaded)
    generator: Any = built.networks["generator"]
    assert list(built.model.heads) == ["replaced", "guesses", "summary"]
    assert list(generator.heads) == ["tokens", "summary"]
    assert built.model.heads["summary"].out.weight.shape == (5, 16)
    assert sketch(load(file, ["objective.disallow_correct=true"])).model.heads["summary"].out.weight.shape == (3, 16)


def test_the_weights_the_flops_and_the_memory_of_plug_in_heads(file: Path) -> None:
    """The lab initializes heads that ask for it; the weights of `summary` stay as its constructor set them."""
    loaded, plain = load(file), load(file, ["objective.type=electra"])
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))
    with_heads, without = sketch(loaded), sketch(plain)
    found = {name: way for name, way in origins(with_heads).items() if ".heads." in name}
    lab, component = "initialized by the lab", "brought by the component"
    heads_of = {"discriminator": ("replaced", "guesses", "summary"), "generator": ("tokens", "summary")}
    names = [f"{network}.heads.{head}" for network, names in heads_of.items() for head in names]
    assert found == {name: component if "summary" in name else lab for name in names}
    discriminator: Any = made.run.learner.objective.discriminator
    assert discriminator.heads["guesses"].dense.weight.std() < 0.03, "torch's own initialization is wider"
    assert (discriminator.heads["summary"].out.weight == 0.25).all()
    row = 2 * 3 * 16 * 8 + 2 * 16 * 5 + 2 * 8 * 4  # guesses at ceil(0.15 * 16) positions, and a vector for each network
    assert with_heads.flops.per_step - without.flops.per_step == 3 * 4 * row
    parts = [parts_by_network(built.networks) for built in (with_heads, without)]
    extra = parts[0]["discriminator"]["heads"] - parts[1]["discriminator"]["heads"]
    assert extra == 16 * 8 + 8 + 16 * 5 + 5


@pytest.mark.parametrize("backbone", ["bert", "transformer"])
def test_an_export_leaves_out_plug_in_heads_and_says_so(file: Path, tmp_path: Path, backbone: str) -> None:
    discriminator = f"discriminator={{type: {backbone}, dim: 16, depth: 1, heads: 2}}"
    run = execute.run(file, [discriminator], tmp_path / "run", "cpu")
    result = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    for part in ("discriminator", "generator"):
        folder = tmp_path / "out" / part
        tensors = load_file(folder / "model.safetensors")
        assert tensors
        assert not [name for name in tensors if "summary" in name or "guesses" in name]
        card = (folder / "README.md").read_text()
        assert "`summary`" in card
        assert ("`guesses`" in card) == (part == "discriminator")
        architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
        assert architecture.endswith("ForPreTraining" if part == "discriminator" else "ForMaskedLM")
    assert CliRunner().invoke(app, ["detect", str(tmp_path / "out"), "the cat sat"]).exit_code == 0


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"guesses": {}', '"gueses": {}', r"many\.py:40: objective 'many': no head is called 'gueses'\."),
        ('{"size": size}', '{"sise": size}', r"many\.py:40: objective 'many': head 'summary': sise: unknown parameter"),
        ("def flops(self, length, masked):\n        return 2 * masked", "def cost(self):\n        return 2",
         r"many\.py:7: head 'guesses' must be .* flops\(length, masked\)"),
        ("        self.rare = int", "        raise ValueError('too small')\n        int",
         r"many\.py:23: head 'summary' refuses this: too small"),
        ("return Needs(heads", "return dict(heads", r"many\.py:40: objective 'many' has needs that are not"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_at_the_plug_ins_line(file: Path, old: str, new: str, says: str) -> None:
    plugin = file.with_name("many.py")
    assert old in PLUGIN
    plugin.write_text(PLUGIN.replace(old, new))
    with pytest.raises(BadResult, match=says):
        check(load(file))


def test_a_generator_without_layers_has_no_further_heads(file: Path) -> None:
    file.write_text(file.read_text().replace("{scale: 0.5}", "{type: unigram}"))
    with pytest.raises(ConfigError, match=r"generator\.type: many needs a network as generator"):
        load(file)


def test_one_head_may_be_named_by_a_string() -> None:
    assert Needs(heads="swapped", generator_heads=()).all_heads == [("swapped", {})]


def test_the_token_head_has_no_table_of_its_own() -> None:
    """It uses the table that is passed in, so that a shared table stays one parameter."""
    head, table = TokenHead(8, EmbeddingSizes(30, 16, 8, 0.0), None), torch.randn(30, 16)
    assert [name for name, _ in head.named_parameters() if name.endswith("weight")] == ["dense.weight", "norm.weight"]
    assert not head.bias.any()
    hidden, other = torch.randn(2, 5, 8), table.clone()
    other[7] += 1
    changed = (head(hidden, table) != head(hidden, other)).flatten(0, 1).any(0)
    assert changed.nonzero().tolist() == [[7]]
