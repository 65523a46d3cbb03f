"""A network with a task's layers on top: rates of layers, frozen networks, outputs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.backbones.bert import Bert
from electra_lab.backbones.transformer import Transformer
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.model.task_model import TaskModel, with_layer_rates
from electra_lab.optimizers.adamw import AdamW
from electra_lab.testing.common import as_batch
from electra_lab.training.random import Streams
from registry import Batch, Task, Term

LAYERS = 12


class Tags(Task):
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


def made(backbone: Any = None, **options: bool) -> TaskModel:
    backbone, sizes = backbone or Bert(8, LAYERS, 2, 16), EmbeddingSizes(30, 4, 16, 0.0)
    network = make_pair(None, 0, backbone, 8, sizes, "none", 0, ("replaced", "tokens"))[1]
    return TaskModel(network, Tags(), 0.0, **options)


def batch(rows: int = 2) -> Batch:
    tokens = torch.arange(4, 4 + 6 * rows).view(rows, 6)
    tags = torch.zeros_like(tokens)
    tags[:, 4:] = -100
    return replace(as_batch(tokens), labels={"tags": tags})


def streams(rows: int = 2) -> Streams:
    return Streams.of(0, 0, torch.arange(rows))


def rates(model: TaskModel, decay: float, rule: Any) -> dict[str, float]:
    optimizer = with_layer_rates(AdamW(list(model.named_parameters()), 1.0), model, decay, rule)
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = [(names[p], group["lr"]) for group in optimizer.param_groups for p in group["params"]]
    assert len(found) == len(names)
    return dict(found)


def test_the_exact_rule_lowers_the_rate_by_one_factor_for_each_layer() -> None:
    """Head 1, top layer d, layer i (from 0) d^(n - i), embeddings d^(n + 1)."""
    for name, rate in rates(made(), 0.8, "exact").items():
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
    found = rates(made(), 0.8, "official")
    assert found["head.out.weight"] == 1
    assert found["network.backbone.layers.11.query.weight"] == pytest.approx(0.64)
    assert found["network.backbone.layers.0.query.weight"] == pytest.approx(0.8**13)
    assert found["network.embeddings.tokens.weight"] == pytest.approx(0.8**14)
    assert found["network.project.weight"] == pytest.approx(0.8**14)


def test_what_is_outside_the_layers_of_a_backbone_belongs_to_the_top_one() -> None:
    found = rates(made(Transformer(8, 3, 2, 16)), 0.5, "exact")
    assert set(found.values()) == {1.0, 0.5, 0.25, 0.125, 0.0625}
    assert found["network.backbone.encoder.final_norm.gamma"] == 0.5


def test_groups_keep_their_weight_decay() -> None:
    model = made()
    optimizer = with_layer_rates(AdamW(list(model.named_parameters()), 2.0, weight_decay=0.3), model, 0.9, "exact")
    decays = {(p.dim() >= 2, group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    assert decays == {(True, 0.3), (False, 0.0)}
    assert max(group["lr"] for group in optimizer.param_groups) == 2.0


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_network_stays_in_eval_mode_and_learns_nothing(frozen: bool) -> None:
    """An unfrozen network learns completely: the heads of pre-training are removed. Evaluation builds no graph."""
    model, kept = made(Bert(8, 2, 2, 16, dropout=0.5), frozen=frozen), []
    model.network.backbone.register_forward_hook(lambda *given: kept.append(given[-1].requires_grad))
    model.train()
    first, second = (model(batch(), streams()).terms["tags"].sum for _ in range(2))
    assert (first.item() == second.item()) == frozen  # without dropout
    first.backward()
    learning = {name for name, p in model.named_parameters() if p.grad is not None}
    every = {name for name, _ in model.named_parameters()}
    assert learning == ({"head.out.weight", "head.out.bias"} if frozen else every)
    assert not any("heads" in name for name in every)
    with torch.no_grad():
        model(batch(), streams())
    assert kept == [not frozen, not frozen, False]


def test_outputs_are_there_in_eval_mode_alone_and_in_float32() -> None:
    model = made()
    assert model.train()(batch(), streams()).outputs == {}
    with torch.autocast("cpu", torch.bfloat16):
        found = model.eval()(batch(), streams()).outputs
    assert {name: tuple(output.shape) for name, output in found.items()} == {"tags": (2, 6), "row": (2, 1)}
    assert {output.dtype for output in found.values()} == {torch.float32}
    assert model.of_tokens == {"tags"}


def test_counts_are_those_of_the_losses_and_examples_without_labels_have_none() -> None:
    model = made().eval()
    assert {name: int(count) for name, count in model.counts(batch(3), streams(3)).items()} == {"tags": 12}
    assert int(model(batch(3), streams(3)).terms["tags"].count) == 12
    found = model(replace(batch(), labels={}), streams())
    assert not found.terms
    assert found.outputs.keys() == {"tags", "row"}
