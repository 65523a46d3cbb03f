"""Compiled layers: no graph breaks, code that layers share, the same numbers, and who decides."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from electra_lab.assembly.build import build
from electra_lab.checks.diagnosis import Probe
from electra_lab.config.load import load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.training import compilation
from electra_lab.training.compilation import compile_modules, layers_of, refuse_missing_compiler
from electra_lab.training.step import backward
from registry import Batch
from registry.errors import ConfigError

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def built(name: str, depth: int, **others: Any) -> tuple[Any, Batch]:
    overrides = [f"discriminator.depth={depth}", "embedding.dropout=0.0", *(f"{k}={v}" for k, v in others.items())]
    loaded = load(EXPERIMENTS / f"{name}.yaml", overrides)
    tokens = torch.randint(5, 300, (3, loaded.config.data.sequence_length), generator=torch.Generator().manual_seed(0))
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, -9:] = False
    batch = Batch(tokens * real, real, torch.zeros_like(tokens), torch.arange(3))
    return build(loaded, stand_in_vocabulary(300), seed=0), batch


def two_steps(made: Any, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the discriminator's loss of a training step, and the gradients of two, with an evaluation in between."""
    objective, learner = made.learner.objective.train(), made.learner
    for step in range(2):
        learner.at_step(0, step)
        losses = learner.losses(batch, 0, step, "fp32")
        backward(losses.terms)
        with torch.no_grad(), learner.evaluating(0):
            learner.losses(batch, 0, 0, "fp32")
    return losses.terms["discriminator"].sum.detach(), {n: p.grad for n, p in objective.named_parameters()}


# The number of graphs for the pair: one for each class of module, of both widths. Three layers would have three times
# as many, if each had its own.
EACH: list[tuple[str, int, dict[str, Any]]] = [
    ("bert_small", 1, {}), ("transformer_small", 8, {}),
    ("transformer_small", 8, {"discriminator.local_heads": 2, "discriminator.window": 16, "generator.local_heads": 1}),
    ("performer_small", 2, {}), ("reformer_small", 4, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "graphs", "options", "again"),
    [
        *((*each, False) for each in EACH), (*EACH[0], True),
        *(pytest.param(*each, True, marks=pytest.mark.slow) for each in EACH[1:-1]),
        pytest.param(*EACH[-1], True, marks=pytest.mark.skipif(
            "ELECTRA_LAB_SOAK" not in os.environ, reason="takes ten seconds: make soak")),
    ],
)  # fmt: skip
def test_layers_compile_whole_and_once(
    name: str, graphs: int, options: dict[str, Any], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a backend that only records: no breaks, layers share their graphs, the same numbers.

    again  layers are computed again in the backward pass
    """
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    plain, batch = built(name, 3, **options)
    expected = two_steps(plain, batch)
    torch._dynamo.reset()
    counters.clear()
    made, _ = built(name, 3, **options, **{"train.activation_checkpointing": str(again).lower()})
    compile_modules("layers", made.learner.objective, made.networks.values())
    with patch.object(torch._dynamo.config, "fail_on_recompile_limit_hit", True):
        found = two_steps(made, batch)
    assert not counters["graph_break"], dict(counters["graph_break"])
    assert 1 <= counters["stats"]["unique_graphs"] <= graphs
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_many_trainings_of_a_process_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker of an ablation: torch gives up on a function of which it has eight kinds, or two here."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
    torch._dynamo.reset()
    for width in range(8, 40, 8):
        made, batch = built("bert_small", 1, **{"discriminator.dim": width, "discriminator.heads": 1})
        counters.clear()
        compile_modules("layers", made.learner.objective, made.networks.values())
        with patch.object(torch._dynamo.config, "fail_on_recompile_limit_hit", True):
            two_steps(made, batch)
        assert counters["stats"]["unique_graphs"]


def test_an_evaluation_makes_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last batches have sizes of their own."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.reset()
    for how in ("layers", "full"):
        made, batch = built("bert_small", 1)
        compile_modules(how, made.learner.objective, made.networks.values())
        counters.clear()
        with torch.no_grad(), made.learner.evaluating(0):
            made.learner.losses(batch, 0, 0, "fp32")
        assert not counters["stats"]["unique_graphs"]


def test_evaluations_that_overlap_leave_compilation_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two threads: what began first also ends first. Nothing is compiled before both have ended."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.reset()
    made, batch = built("bert_small", 1)
    other, _ = built("bert_small", 1)
    compile_modules("layers", made.learner.objective, made.networks.values())
    for second in (other.learner.evaluating(0), Probe(other.learner.objective)):
        counters.clear()
        first = made.learner.evaluating(0)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        with torch.no_grad():
            made.learner.losses(batch, 0, 0, "fp32")
        assert not counters["stats"]["unique_graphs"]
        second.__exit__(None, None, None)
        two_steps(made, batch)
        assert counters["stats"]["unique_graphs"]
        torch._dynamo.reset()


def test_the_whole_objective_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    plain, batch = built("bert_small", 1)
    torch._dynamo.reset()
    counters.clear()
    made, _ = built("bert_small", 1)
    compile_modules("full", made.learner.objective, made.networks.values())
    torch.testing.assert_close(two_steps(made, batch), two_steps(plain, batch), rtol=1e-5, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"], dict(counters["graph_break"])


def test_code_of_a_compiler_gives_the_same_numbers() -> None:
    if compilation.missing_compiler():
        pytest.skip("there is no C++ compiler here")
    plain, batch = built("bert_small", 1)
    expected = two_steps(plain, batch)
    torch._dynamo.reset()
    made, _ = built("bert_small", 1)
    compile_modules("layers", made.learner.objective, made.networks.values())
    torch.testing.assert_close(two_steps(made, batch), expected, rtol=1e-4, atol=1e-5)


def test_layers_are_the_modules_that_are_called_and_names_stay() -> None:
    for name in ("bert_small", "transformer_small", "performer_small", "reformer_small"):
        made, _ = built(name, 2)
        before = list(made.learner.objective.state_dict())
        layers = layers_of([*made.networks.values(), made.networks["discriminator"]])
        assert len(layers) == len({layer for network in made.networks.values() for layer in network.backbone.layers})
        assert all(layers)
        assert not any(type(module) in (nn.ModuleList, nn.ModuleDict) for layer in layers for module in layer)
        compile_modules("layers", made.learner.objective, made.networks.values())
        assert list(made.learner.objective.state_dict()) == before


def test_without_a_compiler_layers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setattr(compilation, "missing_compiler", lambda: "no working C++ compiler found")
    with pytest.raises(ConfigError, match=r"train.compile: layers needs a C\+\+ compiler, such as g\+\+ \(no working"):
        refuse_missing_compiler("layers")
