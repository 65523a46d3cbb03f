"""The FLOPs of a step, by formula, against torch's counter around a real step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from electra_lab.assembly.experiment import assemble, open_data
from electra_lab.backbones.bert import Bert
from electra_lab.backbones.reformer import Reformer
from electra_lab.backbones.transformer import Transformer
from electra_lab.config.load import load
from electra_lab.model.embeddings import Embeddings
from electra_lab.model.flops import backbone_flops, counted_flops, network_flops
from electra_lab.model.heads import ReplacedHead, TokenHead
from electra_lab.model.network import Network
from electra_lab.training.step import training_step
from tests.helpers import write_experiment

BATCH = 4
DISCRIMINATORS = {
    "bert": "{type: bert, dim: 64, depth: 2, heads: 2}",
    "bert, other feed-forward": "{type: bert, dim: 64, depth: 2, heads: 2, ff_mult: 1.5}",
    "transformer": "{type: transformer, dim: 64, depth: 2, heads: 2}",
    "transformer, gated": "{type: transformer, dim: 64, depth: 2, heads: 2, glu: true, flash: false}",
    "reformer": "{type: reformer, dim: 64, depth: 2, heads: 2, bucket_size: 16, hashes: 2}",
    "reformer, one hash": "{type: reformer, dim: 64, depth: 2, heads: 2, bucket_size: 32, hashes: 1}",
}


@pytest.mark.parametrize("discriminator", DISCRIMINATORS)
@pytest.mark.parametrize("tie", ["none", "tokens"])
def test_a_step_costs_what_the_formula_says(tmp_path: Path, discriminator: str, tie: str) -> None:
    """Forward and backward of both networks, within two percent.

    Torch's counter knows the products of plain attention in both directions, so the fused kernels are left out.
    What the formula does not know: hashing has no backward pass.
    """
    file = write_experiment(
        tmp_path,
        data="{sequence_length: 64, held_out: 0.3}",
        embedding=f"{{dim: 48, max_length: 64, tie: {tie}}}",
        discriminator=DISCRIMINATORS[discriminator],
        train=f"{{steps: 1, batch_size: {BATCH}, precision: fp32}}",
    )
    loaded = load(file)
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))
    made.run.learner.objective.train()
    batch = made.train.training_batch(0, 0, BATCH, made.device)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        training_step(
            made.run.learner, made.run.optimizer, batch,
            seed=0, step=0, rate=1.0, clip_norm=1.0, micro_batch_size=BATCH, precision="fp32",
        )  # fmt: skip
    assert made.settings.flops.per_step == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_one_bert_layer_by_hand() -> None:
    """D 8, feed-forward 16, T 10: four products with 8 x 8, two with 8 x 16, scores and their use over 10 x 10."""
    projections = 4 * 10 * 8 * 8 * 2
    attention = 2 * 10 * 10 * 8 * 2
    feed_forward = 2 * 10 * 8 * 16 * 2
    assert Bert(8, 1, 2, 16, ff_mult=2.0).flops(10) == projections + attention + feed_forward == 13_440
    assert Bert(8, 3, 2, 16, ff_mult=2.0).flops(10) == 3 * 13_440


def test_heads_and_projection_by_hand() -> None:
    """E 4, D 8, V 100, T 10 padded to 12, K 2 masked slots."""

    class Free(nn.Module):
        length_multiple = 4
        flops = staticmethod(lambda length: 1_000_000 * length)

    embeddings = Embeddings(100, 4, 16, positions=True, dropout=0.0)
    generator = Network(embeddings, Free(), 8, pad_id=0, heads={"tokens": TokenHead(8, 4, 100)})
    assert network_flops(generator, 10, 2) == 12_000_000 + 2 * 12 * 4 * 8 + 2 * 2 * (8 * 4 + 4 * 100)
    discriminator = Network(embeddings, Free(), 8, pad_id=0, heads={"replaced": ReplacedHead(8)})
    assert network_flops(discriminator, 10, 2) == 12_000_000 + 2 * 12 * 4 * 8 + 2 * 10 * (8 * 8 + 8)
    same_width = Network(embeddings, Free(), 4, pad_id=0)
    assert network_flops(same_width, 10, 2) == 12_000_000


class Plugin(nn.Module):
    """A backbone without a formula: one product, and dropout that counting must not leave switched off."""

    length_multiple = 1
    positions = "lab"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("training", [True, False])
def test_a_backbone_without_a_formula_is_counted(training: bool) -> None:
    plugin = Plugin().train(training)
    assert backbone_flops(plugin, 10, 8) == 2 * 10 * 8 * 8
    assert plugin.training == training
    assert plugin.layer.training == training
    assert plugin.layer.weight.grad is None


@pytest.mark.parametrize("backbone", [
    lambda: Bert(64, 2, 2, 64), lambda: Transformer(64, 2, 2, 64), lambda: Reformer(64, 2, 2, 64, bucket_size=16),
], ids=["bert", "transformer", "reformer"])  # fmt: skip
def test_counting_sees_the_fused_attention(backbone: object) -> None:
    made = backbone()
    assert counted_flops(made, 64, 64) == pytest.approx(made.flops(64), rel=0.01)
