"""The FLOPs of a step, by formula, against torch's counter around a real step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.assembly.build import sketch
from electra_lab.backbones.bert import Bert
from electra_lab.config.load import load
from electra_lab.model.flops import backbone_flops, network_flops, paper_flops
from electra_lab.model.network import Embeddings, Network
from electra_lab.model.pair import EmbeddingSizes, make_heads
from registry import Backbone
from tests.helpers import ROOT, write_experiment

SIZES = EmbeddingSizes(vocabulary_size=100, dim=4, max_length=16, dropout=0.0)


def test_one_bert_layer_by_hand() -> None:
    """D 8, feed-forward 16, T 10: four products with 8 x 8, two with 8 x 16, scores and their use over 10 x 10."""
    projections = 4 * 10 * 8 * 8 * 2
    attention = 2 * 10 * 10 * 8 * 2
    feed_forward = 2 * 10 * 8 * 16 * 2
    assert Bert(8, 1, 2, 16, ff_mult=2.0).flops(10) == projections + attention + feed_forward == 13_440
    assert Bert(8, 3, 2, 16, ff_mult=2.0).flops(10) == 3 * 13_440


def free(**attributes: Any) -> nn.Module:
    """A backbone without layers."""
    made: Any = Plugin()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def around(backbone: nn.Module, *heads: str, width: int = 8) -> Network:
    embeddings = Embeddings(100, 4, 16, positions=True, dropout=0.0)
    return Network(embeddings, backbone, width, pad_id=0, heads=make_heads(list(heads), width, SIZES))


def test_heads_and_projection_by_hand() -> None:

    backbone = free(length_multiple=4, flops=lambda length: 1_000_000 * length)
    generator, discriminator = (around(backbone, head) for head in ("tokens", "replaced"))
    assert network_flops(generator, 10, 2) == 12_000_000 + 2 * 12 * 4 * 8 + 2 * 2 * (8 * 4 + 4 * 100)
    assert network_flops(discriminator, 10, 2) == 12_000_000 + 2 * 12 * 4 * 8 + 2 * 10 * (8 * 8 + 8)
    assert network_flops(around(backbone, width=4), 10, 2) == 12_000_000  # without a projection
    for of_rows in (network_flops, paper_flops):  # a table that the backbone projects once for all rows
        projects = free(flops=lambda length: 11, shared_flops=lambda length: 1000 * length)
        alone = of_rows(around(free(flops=lambda length: 11), "tokens"), 10, 2)
        assert of_rows(around(projects, "tokens"), 10, 2, None, 3) == 3 * alone + 10_000


class Plugin(Backbone, nn.Module):
    """A backbone without a formula: a product with each row and one with a table of 5, and dropout, which counting must
    not leave disabled."""

    layers = ()

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(8, 8), nn.Parameter(torch.ones(5, 8))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x) + self.layer(self.table).sum(0)


@pytest.mark.parametrize("training", [True, False])
def test_a_backbone_without_a_formula_is_counted(training: bool) -> None:
    plugin = Plugin().train(training)
    for rows in (1, 4):
        assert backbone_flops(plugin, 10, 8, rows) == 2 * (10 * rows + 5) * 8 * 8
    assert backbone_flops(plugin, 20, 8) == 2 * (20 + 5) * 8 * 8
    assert plugin.training == training
    assert plugin.layer.training == training
    assert plugin.layer.weight.grad is None


# Output of google-research/electra's flops_computation.py, by the file here with the same training.
OFFICIAL = {"electra_small": 1.293744e18, "electra_base": 6.424542e19, "electra_large": 7.117606e20}


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_papers_convention_gives_the_official_numbers(name: str) -> None:
    built = sketch(load(ROOT / "experiments" / f"{name}.yaml"))
    assert built.paper_flops.total(built.steps) == pytest.approx(OFFICIAL[name], rel=1e-6)


@pytest.mark.parametrize(
    ("dim", "embedding", "heads", "length", "steps", "rows", "official"),
    [(256, 128, 4, 128, 1_450_000, 128, 1.4187399146496e18), (768, 768, 12, 512, 1_000_000, 256, 6.428335104e19)],
    ids=["BERT-Small", "BERT-Base"],
)
def test_the_papers_convention_for_bert(tmp_path: Path, dim, embedding, heads, length, steps, rows, official) -> None:
    """Masked language modelling with one network."""
    file = write_experiment(
        tmp_path, data=f"{{sequence_length: {length}}}", tokenizer="{type: wordpiece, vocab_size: 30522}",
        embedding=f"{{dim: {embedding}, max_length: 512}}", generator="null", sampler="null", objective="{type: mlm}",
        discriminator=f"{{type: bert, dim: {dim}, depth: 12, heads: {heads}}}",
        train=f"{{steps: {steps}, batch_size: {rows}}}",
    )  # fmt: skip
    built = sketch(load(file))
    assert built.paper_flops.total(built.steps) == pytest.approx(official, rel=1e-9)


def test_the_papers_convention_by_hand() -> None:
    """E 4, D 8, V 100, T 10, a backbone of 7 operations; 15.625 % of the positions have vocabulary logits."""

    backbone = free(paper_flops=lambda length: 7)
    generator, discriminator = (around(backbone, head) for head in ("tokens", "replaced"))
    below = 7 + 10 * (2 * 4 * 100 + 2 * 4 * (10 + 2) + 2 * 4 + 5 * 4 + 4 * 4) + 10 * (2 * 4 * 8 + 8)
    words = 10 * (2 * 8 * 4 + 4 + 8 * 4 + 5 * 4 + 2 * 4 * 100 + 5 * 100 + 2 * 100)
    assert paper_flops(generator, 10, 2) == below + 0.15625 * words
    assert paper_flops(generator, 10, 10) == below + words
    assert paper_flops(discriminator, 10, 2) == below + 10 * (2 * 8 * 8 + 8 + 8 * 8 + 2 * 8)
    discriminator = around(free(flops=lambda length: 11), "replaced")
    assert paper_flops(discriminator, 10, 2) == below - 7 + 11 + 10 * (2 * 8 * 8 + 8 + 8 * 8 + 2 * 8)
