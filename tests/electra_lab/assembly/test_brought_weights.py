"""Weights that a component loads itself are kept, and a run reports the origin of each part's weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import registry
from electra_lab.assembly.build import Built, build
from electra_lab.assembly.initial_weights import origins
from electra_lab.backbones.bert import Bert
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


@generators.register("network")
def network(vocabulary, /):
    """A network of the lab, with an embedding that is its own."""
    sizes = EmbeddingSizes(vocabulary.size, 8, 16, 0.0)
    made = make_pair(None, 0, Bert(16, 1, 2, 16), 16, sizes, "none", 0, ["tokens"])[1]
    made.embeddings.tokens.weight.data.fill_(0.5)
    return made


@objectives.register("taught")
class Taught(Electra):
    """Brings a teacher, and fills a layer of the discriminator's head."""

    def __init__(self, generator, discriminator, masking, sampler, vocabulary, /):
        super().__init__(generator, discriminator, masking, sampler, vocabulary)
        self.teacher = nn.Linear(3, 3)
        self.teacher.weight.data = torch.arange(9.0).view(3, 3)
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
    """Write backbone.safetensors with the tensors of a BERT, whose numbers no initialization draws; returns them."""
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
    folder = tmp_path_factory.mktemp("first")
    with for_a_module():
        return execute.run(experiment(folder), [], folder / "first", "cpu")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose backbone and generator load their own weights, and whose training changes none of them."""
    folder = tmp_path_factory.mktemp("loaded")
    write_weights(folder)
    still = {"train": "{steps: 1, batch_size: 4, learning_rate: 1.0e-30}", "optimizer": "{weight_decay: 0.0}"}
    parts = {"discriminator": backbone(folder, "loaded"), "generator": "{type: network}"}
    file = experiment(
        folder, imports="[mine.py]", embedding=UNTIED, schedules="{learning_rate: {type: constant}}", **still, **parts
    )
    with for_a_module():
        return execute.run(file, [], folder / "model", "cpu")


UNTIED = "{dim: 8, max_length: 16, tie: none}"


def built(folder: Path, seed: int = 0, **sections: str) -> Built:
    loaded = load(write_experiment(folder, imports="[mine.py]", **{"generator": "{type: bert, scale: 0.5}"} | sections))
    return build(loaded, stand_in_vocabulary(200), seed=seed)


def backbone(folder: Path, kind: str, more: str = "") -> str:
    file = folder / "backbone.safetensors"
    return f"{{type: {kind}, dim: 16, depth: 1, heads: 2, file: {file}{more}}}"


def weights_of(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((path / "provenance.json").read_text())["weights"]
    return found


@pytest.mark.parametrize("tie", ["none", "tokens", "embeddings", "gradient_disentangled"])
def test_a_backbone_keeps_all_that_it_brings(tmp_path: Path, weights: dict[str, Tensor], tie: str) -> None:
    embedding = f"{{dim: 8, max_length: 16, tie: {tie}}}"
    made = built(tmp_path, discriminator=backbone(tmp_path, "loaded"), embedding=embedding)
    own = made.model.backbone.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in weights.items())
    assert made.model.embeddings.segments.weight.abs().max() <= 0.04, "the embeddings are the lab's"
    said = origins(made)
    assert said.pop("discriminator.backbone") == OWN
    assert set(said.values()) == {LAB}
    assert {"discriminator.embeddings", "discriminator.project", "discriminator.heads.replaced",
            "generator.embeddings", "generator.backbone", "generator.heads.tokens"} <= said.keys()  # fmt: skip


@pytest.mark.usefixtures("weights")
def test_one_that_asks_keeps_what_it_freezes(tmp_path: Path) -> None:
    section = backbone(tmp_path, "asking", ", frozen: true")
    first, second = (built(tmp_path, seed, discriminator=section) for seed in (0, 1))
    one, other = (made.model.backbone.layers[0] for made in (first, second))
    assert one.key.weight.abs().max() > 0.05, "the loaded one, which is wider than the lab's"
    for name in ("query", "value", "attended", "expand", "contract"):
        drawn, again = getattr(one, name), getattr(other, name)
        assert 0.012 < drawn.weight.std() < 0.022
        assert not drawn.bias.any()
        assert not torch.equal(drawn.weight, again.weight)
    assert origins(first)["discriminator.backbone"] == f"{OWN} and {LAB}"


@pytest.mark.usefixtures("weights")
def test_an_objective_keeps_what_it_brings_and_what_it_fills(tmp_path: Path) -> None:
    made = built(tmp_path, objective="{type: taught}")
    objective: Any = made.learner.objective
    assert objective.teacher.weight.tolist() == torch.arange(9.0).view(3, 3).tolist()
    assert (made.model.heads["replaced"].dense.weight == 0.5).all()
    said = origins(made)
    assert said["objective.teacher"] == OWN
    assert said["discriminator.heads.replaced"] == f"{OWN} and {LAB}"
    assert said["discriminator.backbone"] == LAB


def test_a_run_with_a_loaded_generator_keeps_it_and_says_so(loaded: Path) -> None:
    kept, said = read_model(loaded / "checkpoints").tensors, weights_of(loaded)
    assert (kept["generator.embeddings.tokens.weight"] == 0.5).all()
    assert {origin for part, origin in said.items() if part.startswith("generator.")} == {OWN}
    assert said["discriminator.backbone"] == OWN
    assert said["discriminator.heads.replaced"] == said["discriminator.embeddings"] == LAB


def test_loaded_weights_are_said_to_be_loaded(first: Path, tmp_path: Path, capsys) -> None:
    said = weights_of(execute.run(experiment(tmp_path, init=f"{{generator: {first}}}"), [], tmp_path / "second", "cpu"))
    source = f"loaded from {first}"
    assert {part for part, origin in said.items() if origin == source} == {
        "generator.embeddings", "generator.backbone", "generator.heads.tokens", "discriminator.embeddings"
    }  # fmt: skip
    assert {said["discriminator.backbone"], said["discriminator.heads.replaced"]} == {LAB}
    shown = capsys.readouterr().err.split("  weights       ")[1].split("  compile")[0]
    assert f"generator, discriminator.embeddings: {source}\n" in shown


def test_a_difference_to_a_loaded_table_is_not_the_table(first: Path, tmp_path: Path) -> None:
    """tie: gradient_disentangled; the generator's table is drawn, the discriminator's difference to it is loaded."""
    tie = "{dim: 8, max_length: 16, tie: gradient_disentangled}"
    file = experiment(tmp_path, init=f"{{discriminator: {first}}}", embedding=tie)
    said = weights_of(execute.run(file, [], tmp_path / "second", "cpu"))
    assert said["generator.embeddings"] == said["generator.backbone"] == LAB
    assert said["discriminator.backbone"] == f"loaded from {first}"


@pytest.mark.parametrize(
    ("task", "init", "origin"),
    [("known", "pretrained", OWN), ("text_classification", "pretrained", LAB), ("known", "random", OWN)],
)
def test_a_head_keeps_what_it_brings(loaded, tmp_path, capsys, task, init, origin) -> None:
    capsys.readouterr()
    imports = [str(loaded.with_name("mine.py")), str(PLUGIN)]
    file = write_finetuning(tmp_path, loaded, task={"type": task}, init=init, imports=imports)
    folder = finetune(file, ["train.learning_rate=1e-30", "optimizer.weight_decay=0"], tmp_path / "out", "cpu")
    said = weights_of(folder / "seed-0")
    assert said["head"] == origin
    assert f"head: {origin}" in capsys.readouterr().err.replace("discriminator, ", "")
    if init == "pretrained":
        assert said["discriminator"] == f"loaded from {loaded}"
    else:
        assert (said["discriminator.backbone"], said["discriminator.embeddings"]) == (OWN, LAB)
    head = read_model(folder / "seed-0" / "checkpoints").tensors["head.out.weight"]
    known = torch.linspace(-1, 1, head.numel()).view_as(head)
    assert torch.allclose(head, known) == (task == "known")


def test_an_auto_class_keeps_what_a_backbone_brings(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    registry.load_plugin(tmp_path / "mine.py")
    embedding = {"dim": 16, "max_length": 16, "dropout": 0.0}
    for kind, kept in (("loaded", True), ("asking", False)):
        section = {"type": kind, "dim": 16, "depth": 1, "heads": 2, "file": str(tmp_path / "backbone.safetensors")}
        config = ElectraLabConfig(vocab_size=50, backbone=section, embedding=embedding)
        own = ElectraLabModel(config).network.backbone.state_dict()
        assert torch.equal(own["layers.0.query.weight"], weights["layers.0.query.weight"]) == kept


def test_without_a_declaration_nothing_is_drawn_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUG_IN.replace("        saved = load_file(file)\n", "        return\n"))
    drawn = [built(tmp_path, seed, discriminator=backbone(tmp_path, "loaded")) for seed in (0, 0, 1)]
    one, same, other = (made.model.backbone.layers[0].query for made in drawn)
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)
    assert one.bias.any(), "torch draws biases, the lab does not"
