"""A network with a task's layers on top: rates of layers, frozen networks, outputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.backbones.bert import Bert
from electra_lab.backbones.transformer import Transformer
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.model.task_model import TaskModel, with_layer_rates
from electra_lab.optimizers.adamw import AdamW
from electra_lab.training.random import Streams
from registry import Batch, Term

LAYERS = 12


class Tags:
    """A task with an output per token and one per row."""

    def head(self, dim: int, dropout: float) -> nn.Module:
        return Outputs(dim)

    def losses(self, outputs: Any, batch: Batch) -> dict[str, Term]:
        chosen = outputs["tags"][batch.labels["tags"] >= 0]
        return {"tags": Term(chosen.sum(), torch.tensor(len(chosen)), 1.0)}


class Outputs(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, 1)

    def forward(self, states: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        return {"tags": self.out(states).squeeze(-1), "row": self.out(states[:, 0])}


def network(backbone: Any = None, dim: int = 8) -> Network:
    backbone = backbone or Bert(dim, LAYERS, 2, 16)
    return make_pair(None, 0, backbone, dim, EmbeddingSizes(30, 4, 16, 0.0), "none", 0, ("replaced", "tokens"))[1]


def batch(rows: int = 2) -> Batch:
    tokens = torch.arange(4, 4 + 6 * rows).view(rows, 6)
    tags = torch.zeros_like(tokens)
    tags[:, 4:] = -100
    real = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, real, torch.zeros_like(tokens), torch.arange(rows), labels={"tags": tags})


def rates(model: TaskModel, decay: float, rule: Any) -> dict[str, float]:
    optimizer = with_layer_rates(AdamW(list(model.named_parameters()), 1.0), model, decay, rule)
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = [(names[p], group["lr"]) for group in optimizer.param_groups for p in group["params"]]
    assert len(found) == len(names)
    return dict(found)


def test_the_exact_rule_lowers_the_rate_by_one_factor_for_each_layer() -> None:
    """From the issue's own reading: head 1, top layer d, layer i (from 0) d^(n - i), embeddings d^(n + 1)."""
    found = rates(TaskModel(network(), Tags(), 0.0), 0.8, "exact")  # type: ignore[arg-type]
    for name, rate in found.items():
        if name.startswith("head."):
            expected = 1.0
        elif name.startswith("network.backbone.layers."):
            expected = 0.8 ** (LAYERS - int(name.split(".")[3]))
        else:
            assert name.startswith(("network.embeddings.", "network.project."))
            expected = 0.8 ** (LAYERS + 1)
        assert rate == pytest.approx(expected), name


def test_the_official_rule_has_the_official_numbers() -> None:
    """Of 12 layers at 0.8, google-research/electra's: top .64, lowest .055, embeddings .044, head 1."""
    found = rates(TaskModel(network(), Tags(), 0.0), 0.8, "official")  # type: ignore[arg-type]
    assert found["head.out.weight"] == 1
    assert found["network.backbone.layers.11.query.weight"] == pytest.approx(0.64)
    assert found["network.backbone.layers.0.query.weight"] == pytest.approx(0.8**13)
    assert found["network.embeddings.tokens.weight"] == pytest.approx(0.8**14)
    assert found["network.project.weight"] == pytest.approx(0.8**14)


def test_what_is_outside_the_layers_of_a_backbone_belongs_to_the_top_one() -> None:
    found = rates(TaskModel(network(Transformer(8, 3, 2, 16)), Tags(), 0.0), 0.5, "exact")  # type: ignore[arg-type]
    assert set(found.values()) == {1.0, 0.5, 0.25, 0.125, 0.0625}
    assert found["network.backbone.encoder.final_norm.gamma"] == 0.5


def test_groups_keep_their_weight_decay() -> None:
    model = TaskModel(network(), Tags(), 0.0)  # type: ignore[arg-type]
    optimizer = with_layer_rates(AdamW(list(model.named_parameters()), 2.0, weight_decay=0.3), model, 0.9, "exact")
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {decay for p, decay in decays.items() if p.dim() >= 2} == {0.3}
    assert {decay for p, decay in decays.items() if p.dim() < 2} == {0.0}
    assert max(group["lr"] for group in optimizer.param_groups) == 2.0


def test_the_heads_of_pre_training_are_gone() -> None:
    model = TaskModel(network(), Tags(), 0.0)  # type: ignore[arg-type]
    assert not any("heads" in name for name, _ in model.named_parameters())
    loss = model(batch(), Streams(0, 0, torch.arange(2))).terms["tags"]
    loss.sum.backward()
    assert all(p.grad is not None for p in model.parameters())  # nothing that would never learn


def test_a_frozen_network_stays_in_eval_mode_and_learns_nothing() -> None:
    dropping = Bert(8, 2, 2, 16, dropout=0.5)
    model = TaskModel(network(dropping), Tags(), 0.0, frozen=True)  # type: ignore[arg-type]
    model.train()
    one, other = (model(batch(), Streams(0, 0, torch.arange(2))).terms["tags"].sum for _ in range(2))
    assert one.item() == other.item()  # no dropout
    one.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {"head.out.weight", "head.out.bias"}


def test_a_network_that_is_not_frozen_trains() -> None:
    model = TaskModel(network(Bert(8, 2, 2, 16, dropout=0.5)), Tags(), 0.0)  # type: ignore[arg-type]
    model.train()
    one, other = (model(batch(), Streams(0, 0, torch.arange(2))).terms["tags"].sum.item() for _ in range(2))
    assert one != other


def test_outputs_are_there_in_eval_mode_alone_and_in_float32() -> None:
    model = TaskModel(network(), Tags(), 0.0)  # type: ignore[arg-type]
    streams = Streams(0, 0, torch.arange(2))
    assert model.train()(batch(), streams).outputs == {}
    with torch.autocast("cpu", torch.bfloat16):
        found = model.eval()(batch(), streams).outputs
    assert {name: (tuple(each.shape), each.dtype) for name, each in found.items()} == {
        "tags": ((2, 6), torch.float32),
        "row": ((2, 1), torch.float32),
    }
    assert model.of_tokens == {"tags"}


def test_counts_are_those_of_the_losses() -> None:
    model = TaskModel(network(), Tags(), 0.0)  # type: ignore[arg-type]
    streams = Streams(0, 0, torch.arange(3))
    counted = model.counts(batch(3), streams)
    assert {name: int(count) for name, count in counted.items()} == {"tags": 12}
    assert math.isclose(int(model(batch(3), streams).terms["tags"].count), 12)


def test_examples_without_labels_have_no_loss() -> None:
    model = TaskModel(network(), Tags(), 0.0)  # type: ignore[arg-type]
    given = batch()
    bare = Batch(given.tokens, given.attention_mask, given.segments, given.example_ids)
    found = model.eval()(bare, Streams(0, 0, torch.arange(2)))
    assert not found.terms
    assert found.outputs.keys() == {"tags", "row"}
