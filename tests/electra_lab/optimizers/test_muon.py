"""Muon against torch's own for the matrices and torch's AdamW for the rest; and the assignment of parameters."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.backbones.bert import Bert
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.model.task_model import TaskModel, with_layer_rates
from electra_lab.optimizers.muon import Muon, is_hidden
from tests.electra_lab.training.tiny import DISCRIMINATORS, experiment

SHAPES = {
    "embeddings.tokens.weight": (9, 4), "project.weight": (6, 4), "layers.wide.weight": (3, 8), "layers.bias": (5,),
    "layers.square.weight": (5, 5), "layers.memory": (2, 3, 4), "heads.out.weight": (4, 6),
}  # fmt: skip
HIDDEN = ["project.weight", "layers.wide.weight", "layers.square.weight"]
RATE = 0.02


def parameters() -> list[tuple[str, nn.Parameter]]:
    numbers = torch.Generator().manual_seed(0)
    return [(name, nn.Parameter(torch.randn(shape, generator=numbers))) for name, shape in SHAPES.items()]


def gradients(step: int) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=numbers) for shape in SHAPES.values()]


def theirs(named: list[tuple[str, nn.Parameter]], **options: Any) -> list[torch.optim.Optimizer]:
    decay, scale = options.pop("weight_decay", 0.01), options.pop("adamw_scale", 1.0)
    betas, epsilon = options.pop("betas", (0.9, 0.999)), options.pop("epsilon", 1e-6)
    settings = {"adjust_lr_fn": "match_rms_adamw"} | options
    others = [(name, p) for name, p in named if name not in HIDDEN]
    groups = [
        {"params": [p for _, p in others if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for _, p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [
        torch.optim.Muon([p for name, p in named if name in HIDDEN], lr=RATE, weight_decay=decay, **settings),
        torch.optim.AdamW(groups, lr=RATE * scale, betas=betas, eps=epsilon, fused=True),
    ]


OPTIONS: list[dict[str, Any]] = [
    {}, {"momentum": 0.5}, {"nesterov": False}, {"ns_steps": 2}, {"adjust_lr_fn": "original"}, {"weight_decay": 0.7},
    {"adamw_scale": 0.25}, {"betas": (0.5, 0.6)}, {"epsilon": 0.1},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_step_is_that_of_torch_bit_for_bit(options: dict[str, Any]) -> None:
    """Weights and state, while the learning rate follows a schedule."""
    ours, others = parameters(), parameters()
    optimizer, references = Muon(ours, RATE, **options), theirs(others, **options)
    first = [group["lr"] for group in optimizer.param_groups]
    for step in range(8):
        for named in (ours, others):
            for (_, parameter), gradient in zip(named, gradients(step), strict=True):
                parameter.grad = gradient.clone()
        factor = 1 / (1 + step)
        for group, rate in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = rate * factor
        optimizer.step()
        for reference, scale in zip(references, (1.0, options.get("adamw_scale", 1.0)), strict=True):
            for group in reference.param_groups:
                group["lr"] = RATE * scale * factor
            reference.step()
        for (name, tensor), (_, expected) in zip(ours, others, strict=True):
            assert torch.equal(tensor, expected), f"{name} at step {step}"
            other = references[name not in HIDDEN].state[expected]
            assert optimizer.state[tensor].keys() == other.keys()
            assert all(torch.equal(value, other[key]) for key, value in optimizer.state[tensor].items()), name


def test_the_update_of_a_matrix_is_nearly_orthogonal_and_as_large_as_adamws() -> None:
    """Its singular values are equal up to a factor, so that its root mean square is about 0.2 learning rates."""
    matrix = nn.Parameter(torch.zeros(24, 8))
    matrix.grad = torch.randn(24, 8, generator=torch.Generator().manual_seed(0)) * torch.logspace(-1, 1, 8)
    Muon([("w", matrix)], 1.0).step()
    values = torch.linalg.svdvals(matrix.detach()) / (0.2 * 24**0.5)
    assert values.min() > 0.5
    assert values.max() < 1.5
    assert float(matrix.detach().square().mean().sqrt()) == pytest.approx(0.2, rel=0.3)


def test_the_groups_of_a_small_module() -> None:
    named = parameters()
    groups = Muon(named, RATE, weight_decay=0.3, adamw_scale=0.5).param_groups
    names = {parameter: name for name, parameter in named}
    expected = [
        (RATE, 0.3, HIDDEN),
        (0.5 * RATE, 0.3, ["embeddings.tokens.weight", "layers.memory", "heads.out.weight"]),
        (0.5 * RATE, 0.0, ["layers.bias"]),
    ]
    for group, (rate, decay, members) in zip(groups, expected, strict=True):
        assert (group["lr"], group["weight_decay"]) == (rate, decay)
        assert [names[parameter] for parameter in group["params"]] == members


@pytest.mark.parametrize("hidden", [True, False])
def test_names_decide(hidden: bool) -> None:
    names = {
        True: ["weight", "discriminator.backbone.layers.0.query.weight", "discriminator.project.weight",
               "backbone.to_heads.weight"],
        False: ["generator.embeddings.tokens.table.weight", "backbone.pos_emb.weight",
                "generator.heads.tokens.dense.weight", "head.out.weight"],
    }  # fmt: skip
    for name in names[hidden]:
        assert is_hidden(name, torch.ones(3, 4)) == hidden, name
        assert not any(is_hidden(name, torch.ones(shape)) for shape in ((), (3,), (1, 4), (4, 1), (2, 3, 4))), name


def linear_weights(*modules: nn.Module | None) -> set[nn.Parameter]:
    return {m.weight for module in modules if module for m in module.modules() if isinstance(m, nn.Linear)}


def of_muon(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups if "ns_steps" in group for p in group["params"]]


EMBEDDING = "{dim: 8, max_length: 16, tie: tokens, dropout: 0.0}"
MEMORY = "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, memory: 8, rotary: false, glu: true}"
SECTIONS: list[dict[str, str]] = [
    *({"discriminator": backbone} for backbone in (*DISCRIMINATORS.values(), MEMORY)),
    {"discriminator": "{type: performer, dim: 16, depth: 1, heads: 2, rotary: false}"},
    *({"embedding": EMBEDDING.replace("tokens", tie)} for tie in ("none", "embeddings", "gradient_disentangled")),
    {"embedding": EMBEDDING.replace("tokens", "all"), "generator": "{scale: 1.0}"},
    {"objective": "{type: all_tokens_mlm}"}, {"objective": "{type: adversarial}"},
]  # fmt: skip


@pytest.mark.parametrize("sections", SECTIONS, ids=str)
def test_of_the_networks_it_has_the_linear_layers_of_encoders(tmp_path: Path, sections: dict[str, str]) -> None:
    """All others are AdamW's: tables, heads, an objective's own outputs. A shared parameter occurs once."""
    made = experiment(tmp_path, optimizer="{type: muon}", **{"embedding": EMBEDDING, **sections})
    objective: Any = made.run.learner.objective
    networks = objective.generator, objective.discriminator
    expected = linear_weights(*[part for network in networks for part in (network.backbone, network.project)])
    listed = [p for group in made.run.optimizer.param_groups for p in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(objective.parameters())
    assert set(of_muon(made.run.optimizer)) == expected != set()


class Outputs(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense, self.out = nn.Linear(dim, dim), nn.Linear(dim, 3)

    def forward(self, states: Tensor, batch: Any) -> Tensor:
        return self.out(self.dense(states[:, 0]))


@pytest.mark.parametrize("frozen", [False, True])
def test_fine_tuning_with_rates_of_layers(frozen: bool) -> None:
    """The task's own layers are AdamW's; groups that are split by layer keep their optimizer."""
    network = make_pair(None, 0, Bert(8, 2, 2, 16), 8, EmbeddingSizes(30, 4, 16, 0.0), "none", 0)[1]
    model: Any = TaskModel(network, SimpleNamespace(head=lambda dim, dropout: Outputs(dim)), 0.0, frozen=frozen)
    learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizer = Muon(learning, 1.0)
    assert all(group["params"] for group in optimizer.param_groups)
    with_layer_rates(optimizer, model, 0.5, "exact")
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates.keys() == {p for _, p in learning}
    layers = network.backbone.layers
    expected = {layers[1]: 0.5, layers[0]: 0.25, network.project: 0.125}
    of_each = {weight: rate for module, rate in expected.items() for weight in linear_weights(module)}
    assert {p: rates[p] for p in of_muon(optimizer)} == ({} if frozen else of_each)
    for _, parameter in learning:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for _, parameter in learning:
        expected_state = {"momentum_buffer"} if parameter in of_each else {"step", "exp_avg", "exp_avg_sq"}
        assert optimizer.state[parameter].keys() == expected_state
