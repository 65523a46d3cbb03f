"""Weights that a component brings stay, and a run says where the weights of each part come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from electra_lab.assembly.build import Built, build
from electra_lab.assembly.initial_weights import origins
from electra_lab.config.load import load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.interop.hugging_face.models import ElectraLabConfig, ElectraLabModel
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.checkpoint import read_model
from tests.electra_lab.jobs.finetuning.small import PLUGIN, write_finetuning
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module
from tests.helpers import write_experiment

LAB, OWN = "initialized by the lab", "brought by the component"
PLUG_IN = '''\
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from electra_lab.backbones.bert import Bert
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.objectives.electra import Electra
from electra_lab.tasks.text_classification import TextClassification
from registry import TextExample, backbones, generators, objectives, tasks


class Loading(Bert):
    def __init__(self, dim, depth, heads, max_length, /, *, file: Path, frozen: bool = False):
        super().__init__(dim, depth, heads, max_length)
        saved = load_file(file)
        self.load_state_dict(saved)
        if frozen:
            self.layers[0].key.requires_grad_(False)


@backbones.register("loaded")
class Loaded(Loading):
    """Brings its weights."""


@backbones.register("asking", initialized_by_lab=True)
class Asking(Loading):
    """Asks for the lab's initialization of what it does not freeze."""


@generators.register("masked")
class Masked(nn.Module):
    """A model of transformers."""

    def __init__(self, vocabulary, /, *, path: Path):
        super().__init__()
        from transformers import AutoModelForMaskedLM

        self.model = AutoModelForMaskedLM.from_pretrained(path)
        self.dim = self.model.config.hidden_size

    def hidden(self, tokens, attention_mask, segments, documents=None):
        return self.model.base_model(tokens, attention_mask, segments).last_hidden_state

    def token_logits(self, hidden, positions):
        chosen = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, self.dim))
        return self.model.generator_lm_head(self.model.generator_predictions(chosen))


@generators.register("network")
def network(vocabulary, /):
    """A network of the lab, with an embedding that is its own."""
    sizes = EmbeddingSizes(vocabulary.size, 8, 16, 0.0)
    made = make_pair(None, 0, Bert(16, 1, 2, 16), 16, sizes, "none", 0, ["tokens"])[1]
    made.embeddings.tokens.weight.data.fill_(0.5)
    return made


@objectives.register("taught")
class Taught(Electra):
    """Brings a teacher, and in `fills` a layer of the discriminator's head."""

    def __init__(self, generator, discriminator, masking, sampler, vocabulary, /, *, fills: bool = False):
        super().__init__(generator, discriminator, masking, sampler, vocabulary)
        self.teacher = nn.Linear(3, 3)
        self.teacher.weight.data = torch.arange(9.0).view(3, 3)
        if fills:
            with torch.no_grad():
                discriminator.heads["replaced"].dense.weight.fill_(0.5)


@tasks.register("known", takes=TextExample)
class Known(TextClassification):
    """Brings the weights of its head."""

    def head(self, dim, dropout):
        made = super().head(dim, dropout)
        made.out.weight.data = torch.linspace(-1, 1, made.out.weight.numel()).view_as(made.out.weight)
        return made
'''


def write_weights(folder: Path) -> dict[str, Tensor]:
    """Write the tensors of a BERT, numbers that no initialization draws, into backbone.safetensors; returns them."""
    from electra_lab.backbones.bert import Bert

    (folder / "mine.py").write_text(PLUG_IN)
    tensors = {name: torch.full_like(t, 0.25) + torch.arange(len(t)).view(-1, *[1] * (t.dim() - 1))
               for name, t in Bert(16, 1, 2, 16).state_dict().items()}  # fmt: skip
    save_file(tensors, folder / "backbone.safetensors")
    return tensors


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, Tensor]:
    return write_weights(tmp_path)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run."""
    folder = tmp_path_factory.mktemp("first")
    with for_a_module():
        return execute.run(experiment(folder), [], folder / "first", "cpu")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose backbone brings its weights."""
    folder = tmp_path_factory.mktemp("loaded")
    write_weights(folder)
    sections = {"discriminator": backbone(folder, "loaded"), "generator": "{type: bert, scale: 0.5}"}
    with for_a_module():
        return execute.run(experiment(folder, imports="[mine.py]", **sections), [], folder / "model", "cpu")


def built(folder: Path, seed: int = 0, **sections: str) -> Built:
    loaded = load(write_experiment(folder, imports="[mine.py]", **sections))
    return build(loaded, stand_in_vocabulary(200), seed=seed)


def backbone(folder: Path, kind: str, more: str = "") -> str:
    file = folder / "backbone.safetensors"
    return f"{{type: {kind}, dim: 16, depth: 1, heads: 2, file: {file}{more}}}"


@pytest.mark.parametrize("tie", ["none", "tokens", "embeddings", "gradient_disentangled"])
def test_a_backbone_keeps_all_that_it_brings(tmp_path: Path, weights: dict[str, Tensor], tie: str) -> None:
    made = built(
        tmp_path,
        discriminator=backbone(tmp_path, "loaded"),
        generator="{type: bert, scale: 0.5}",
        embedding=f"{{dim: 8, max_length: 16, tie: {tie}}}",
    )
    own = made.model.backbone.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in weights.items())
    assert made.model.embeddings.segments.weight.abs().max() <= 0.04, "the embeddings are the lab's"
    said = origins(made)
    assert {part for part, origin in said.items() if origin != LAB} == {"discriminator.backbone"}
    assert said["discriminator.backbone"] == OWN
    assert {"discriminator.embeddings", "discriminator.project", "discriminator.heads.replaced",
            "generator.embeddings", "generator.backbone", "generator.heads.tokens"} <= said.keys()  # fmt: skip


@pytest.mark.usefixtures("weights")
def test_one_that_asks_keeps_what_it_freezes(tmp_path: Path) -> None:
    parts = [
        built(tmp_path, seed, discriminator=backbone(tmp_path, "asking", ", frozen: true"),
              generator="{type: bert, scale: 0.5}")
        for seed in (0, 1)
    ]  # fmt: skip
    (one, other) = (made.model.backbone.layers[0] for made in parts)
    assert one.key.weight.abs().max() > 0.05, "the loaded one, which is wider than the lab's"
    for name in ("query", "value", "attended", "expand", "contract"):
        drawn, again = getattr(one, name), getattr(other, name)
        assert 0.012 < drawn.weight.std() < 0.022
        assert not drawn.bias.any()
        assert not torch.equal(drawn.weight, again.weight)
    assert origins(parts[0])["discriminator.backbone"] == f"{OWN} and {LAB}"


def test_an_objective_keeps_what_it_brings_and_what_it_fills(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    made = built(tmp_path, objective="{type: taught, fills: true}")
    objective: Any = made.learner.objective
    assert objective.teacher.weight.tolist() == torch.arange(9.0).view(3, 3).tolist()
    assert (made.model.heads["replaced"].dense.weight == 0.5).all()
    said = origins(made)
    assert said["objective.teacher"] == OWN
    assert said["discriminator.heads.replaced"] == f"{OWN} and {LAB}"
    assert said["discriminator.backbone"] == LAB


def masked_model(folder: Path, size: int) -> dict[str, Tensor]:
    """Save a model of transformers; returns its tensors."""
    from transformers import ElectraConfig, ElectraForMaskedLM

    torch.manual_seed(5)
    config = ElectraConfig(
        vocab_size=size, embedding_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    model = ElectraForMaskedLM(config)
    model.save_pretrained(folder)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_run_with_a_loaded_generator_keeps_it_and_says_so(first: Path, tmp_path: Path, weights, capsys) -> None:
    size = json.loads((first / "provenance.json").read_text())["data"]["vocabulary"]
    assert size < 200
    saved = masked_model(tmp_path / "masked", size)
    file = experiment(
        tmp_path, imports="[mine.py]", generator=f"{{type: masked, path: {tmp_path / 'masked'}}}",
        discriminator=backbone(tmp_path, "loaded"), train="{steps: 1, batch_size: 4, learning_rate: 1.0e-30}",
        schedules="{learning_rate: {type: constant}}", optimizer="{type: adamw, weight_decay: 0.0}",
    )  # fmt: skip
    capsys.readouterr()
    path = execute.run(file, [], tmp_path / "run", "cpu")
    kept = read_model(path / "checkpoints").tensors
    assert all(torch.allclose(kept[f"generator.model.{name}"], tensor) for name, tensor in saved.items()
               if f"generator.model.{name}" in kept)  # fmt: skip
    assert sum(name.startswith("generator.model.") for name in kept) > 15
    said = json.loads((path / "provenance.json").read_text())["weights"]
    assert {origin for part, origin in said.items() if part.startswith("generator.")} == {OWN}
    assert said["discriminator.backbone"] == OWN
    assert said["discriminator.heads.replaced"] == said["discriminator.embeddings"] == LAB
    shown = capsys.readouterr().err.split("  weights       ")[1].split("  compile")[0]
    lines = {part.strip(): origin for line in shown.splitlines() if ": " in line
             for parts, origin in [line.rsplit(": ", 1)] for part in parts.split(",")}  # fmt: skip
    assert lines["generator"] == lines["discriminator.backbone"] == OWN
    assert lines["discriminator.heads.replaced"] == LAB


def test_a_generator_that_is_a_network_of_the_lab_keeps_its_weights(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    made = built(tmp_path, generator="{type: network}", embedding="{dim: 8, max_length: 16, tie: none}")
    table: Any = made.networks["generator"].embeddings
    assert (table.tokens.weight == 0.5).all()
    assert origins(made)["generator.embeddings"] == OWN


def test_loaded_weights_are_said_to_be_loaded(first: Path, tmp_path: Path) -> None:
    file = experiment(tmp_path, init=f"{{generator: {first}}}")
    path = execute.run(file, [], tmp_path / "second", "cpu")
    said = json.loads((path / "provenance.json").read_text())["weights"]
    source = f"loaded from {first}"
    assert {part for part, origin in said.items() if origin == source} == {
        "generator.embeddings", "generator.backbone", "generator.heads.tokens", "discriminator.embeddings"
    }  # fmt: skip
    assert {said["discriminator.backbone"], said["discriminator.heads.replaced"]} == {LAB}


def test_a_difference_to_a_loaded_table_is_not_the_table(first: Path, tmp_path: Path) -> None:
    """tie: gradient_disentangled; the generator's table is drawn, the discriminator's difference to it is loaded."""
    tie = "{dim: 8, max_length: 16, tie: gradient_disentangled}"
    file = experiment(tmp_path, init=f"{{discriminator: {first}}}", embedding=tie)
    path = execute.run(file, [], tmp_path / "second", "cpu")
    said = json.loads((path / "provenance.json").read_text())["weights"]
    assert said["generator.embeddings"] == said["generator.backbone"] == LAB
    assert said["discriminator.backbone"] == f"loaded from {first}"


@pytest.mark.parametrize(
    ("task", "init", "origin"),
    [("known", "pretrained", OWN), ("text_classification", "pretrained", LAB), ("known", "random", OWN)],
)
def test_a_head_keeps_what_it_brings(loaded, tmp_path, capsys, task, init, origin) -> None:
    capsys.readouterr()
    file = write_finetuning(tmp_path, loaded, task={"type": task}, init=init, imports=[
        str(loaded.with_name("mine.py")), str(PLUGIN)])  # fmt: skip
    folder = finetune(file, ["train.learning_rate=1e-30", "optimizer.weight_decay=0"], tmp_path / "out", "cpu")
    said = json.loads((folder / "seed-0" / "provenance.json").read_text())["weights"]
    assert said["head"] == origin
    assert f"head: {origin}" in capsys.readouterr().err.replace("discriminator, ", "")
    if init == "pretrained":
        assert said["discriminator"] == f"loaded from {loaded}"
    else:
        assert said["discriminator.backbone"] == OWN
        assert said["discriminator.embeddings"] == LAB
    head = read_model(folder / "seed-0" / "checkpoints").tensors["head.out.weight"]
    known = torch.linspace(-1, 1, head.numel()).view_as(head)
    assert torch.allclose(head, known) == (task == "known")


def test_an_auto_class_keeps_what_a_backbone_brings(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    import registry

    registry.load_plugin(tmp_path / "mine.py")
    for kind, kept in (("loaded", True), ("asking", False)):
        section = {"type": kind, "dim": 16, "depth": 1, "heads": 2, "file": str(tmp_path / "backbone.safetensors")}
        config = ElectraLabConfig(
            vocab_size=50, backbone=section, embedding={"dim": 16, "max_length": 16, "dropout": 0.0}
        )
        own = ElectraLabModel(config).network.backbone.state_dict()
        assert torch.equal(own["layers.0.query.weight"], weights["layers.0.query.weight"]) == kept


def test_without_a_declaration_nothing_is_drawn_again(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    text = PLUG_IN.replace("        saved = load_file(file)\n", "        return\n")
    (tmp_path / "mine.py").write_text(text)
    drawn = [built(tmp_path, seed, discriminator=backbone(tmp_path, "loaded"), generator="{type: bert, scale: 0.5}")
             for seed in (0, 0, 1)]  # fmt: skip
    one, same, other = (made.model.backbone.layers[0].query for made in drawn)
    assert isinstance(one, nn.Linear)
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)
    assert one.bias.any(), "torch draws biases, the lab does not"
