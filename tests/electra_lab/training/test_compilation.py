"""Compiled layers: no graph breaks, shared code. Recomputed layers: less memory. Both: the same numbers."""

import os
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.assembly.build import build
from electra_lab.checks.diagnosis import Probe
from electra_lab.config.load import load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.planning.memory import peak_bytes
from electra_lab.testing.common import as_batch
from electra_lab.training import device
from electra_lab.training.device import compile_modules, layers_of, recompute
from electra_lab.training.random import Streams
from electra_lab.training.step import backward
from registry import Batch
from registry.errors import ConfigError

EXPERIMENTS = Path(__file__).parents[3] / "experiments"


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
        learner.at_step(0, step, batch.example_ids.numpy())
        losses = learner.losses(batch, learner.keys.streams(batch.example_ids), "fp32")
        backward(losses.terms)
        with torch.no_grad(), learner.evaluating(0):
            learner.losses(batch, Streams.of(0, 0, batch.example_ids), "fp32")
    return losses.terms["discriminator"].sum.detach(), {n: p.grad for n, p in objective.named_parameters()}


@pytest.fixture
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile with a backend that only records graphs."""
    monkeypatch.setattr(device, "BACKEND", "eager")
    torch._dynamo.reset()
    counters.clear()


recorded = pytest.mark.usefixtures("_recorded")


def compiled(how: Any, name: str = "bert_small", depth: int = 1, **options: Any) -> tuple[Any, Batch]:
    made, batch = built(name, depth, **options)
    compile_modules(how, made.learner.objective, made.networks.values())
    return made, batch


# The number of graphs for the pair: one for each class of module and width. Two layers would have twice as many if
# they did not share them.
EACH: list[tuple[str, int, dict[str, Any]]] = [
    ("bert_small", 1, {}), ("transformer_small", 8, {}), ("performer_small", 2, {}), ("reformer_small", 4, {}),
    ("transformer_small", 8, {"discriminator.local_heads": 2, "discriminator.window": 16, "generator.local_heads": 1}),
]  # fmt: skip
SOAK = pytest.mark.skipif("ELECTRA_LAB_SOAK" not in os.environ, reason="takes ten seconds: make soak")


@recorded
@pytest.mark.parametrize(
    ("name", "graphs", "options", "again"),
    [
        *((*case, False) for case in EACH if case[0] != "transformer_small" or case[2]),
        pytest.param(*EACH[1], False, marks=pytest.mark.slow),  # a part of the one with local heads
        (*EACH[0], True), pytest.param(*EACH[3], True, marks=SOAK),
        *(pytest.param(*EACH[number], True, marks=pytest.mark.slow) for number in (1, 2, 4)),  # torch's, as above
    ],
)  # fmt: skip
def test_layers_compile_whole_and_once(name: str, graphs: int, options: dict[str, Any], again: bool) -> None:
    """No graph breaks, layers share their graphs, the same numbers.

    again  layers are recomputed in the backward pass
    """
    expected = two_steps(*built(name, 2, **options))
    made, batch = compiled("layers", name, 2, **options, **{"train.activation_checkpointing": str(again).lower()})
    with patch.object(torch._dynamo.config, "fail_on_recompile_limit_hit", True):
        found = two_steps(made, batch)
    assert not counters["graph_break"], dict(counters["graph_break"])
    assert 1 <= counters["stats"]["unique_graphs"] <= graphs
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@recorded
def test_many_trainings_of_a_process_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker of an ablation: torch stops compiling a function after eight versions, here after two."""
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
    for width in (8, 16, 24):
        counters.clear()
        made, batch = compiled("layers", **{"discriminator.dim": width, "discriminator.heads": 1})
        with patch.object(torch._dynamo.config, "fail_on_recompile_limit_hit", True):
            two_steps(made, batch)
        assert counters["stats"]["unique_graphs"]


@recorded
def test_an_evaluation_makes_no_code() -> None:
    """Its last batches have different sizes."""
    for how in ("layers", "full"):
        made, batch = compiled(how)
        with torch.no_grad(), made.learner.evaluating(0):
            made.learner.losses(batch, Streams.of(0, 0, batch.example_ids), "fp32")
        assert not counters["stats"]["unique_graphs"]


@recorded
def test_evaluations_that_overlap_leave_compilation_on() -> None:
    """In two threads: the first to begin also ends first. Nothing is compiled before both have ended."""
    (made, batch), (other, _) = compiled("layers"), built("bert_small", 1)
    for second in (other.learner.evaluating(0), Probe(other.learner.objective)):
        counters.clear()
        first = made.learner.evaluating(0)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        with torch.no_grad():
            made.learner.losses(batch, Streams.of(0, 0, batch.example_ids), "fp32")
        assert not counters["stats"]["unique_graphs"]
        second.__exit__(None, None, None)
        two_steps(made, batch)
        assert counters["stats"]["unique_graphs"]
        torch._dynamo.reset()


@recorded
def test_the_whole_objective_compiles() -> None:
    expected, found = two_steps(*built("bert_small", 1)), two_steps(*compiled("full"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"], dict(counters["graph_break"])


@pytest.mark.slow  # inductor's compilation of graphs that are tested above; test_random.py compiles the lab's own code
def test_code_of_a_compiler_gives_the_same_numbers() -> None:
    if device.missing_compiler("cpu"):
        pytest.skip("there is no C++ compiler here")
    torch._dynamo.reset()
    expected = two_steps(*built("bert_small", 1))
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):  # torch would compile programs to find it out
        found = two_steps(*compiled("layers"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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


def test_triton_and_a_c_compiler_build_code_for_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "")
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    assert "triton" in str(device.missing_compiler("cuda"))
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    assert "gcc" in str(device.missing_compiler("cuda"))
    for name in ("gcc", "clang"):
        tmp_path.joinpath(name).touch(mode=0o755)
        assert device.missing_compiler("cuda") is None
        tmp_path.joinpath(name).unlink()
    monkeypatch.setenv("CC", "/opt/cc")
    assert device.missing_compiler("cuda") is None


def test_a_cpp_compiler_builds_code_for_the_cpu() -> None:
    with torch._inductor.config.patch({"cpp.cxx": ("/nowhere/g++",)}):
        assert "C++ compiler" in str(device.missing_compiler("cpu"))


BATCH = as_batch(torch.randint(5, 300, (4, 128), generator=torch.Generator().manual_seed(0)))


class Products(TorchDispatchMode):
    number = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += function._schema.name in ("aten::addmm", "aten::mm", "aten::bmm")
        return function(*args, **(kwargs or {}))


def made(name: str, again: bool) -> Any:
    changes = ["discriminator.depth=4", "data.sequence_length=128", "embedding.max_length=128",
               "embedding.dropout=0.1", "discriminator.dropout=0.1",
               f"train.activation_checkpointing={str(again).lower()}"]  # fmt: skip
    return build(load(EXPERIMENTS / f"{name}.yaml", changes), stand_in_vocabulary(300), seed=0).learner


def step(learner: Any, precision: Any) -> None:
    learner.objective.train()
    learner.at_step(7, 3)
    backward(learner.losses(BATCH, Streams.of(7, 3, BATCH.example_ids), precision).terms)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("bert_small", "bf16"), ("transformer_small", "fp32"), ("reformer_small", "fp32"),
     pytest.param("performer_small", "fp32", marks=pytest.mark.slow)],  # only dropout draws in its layers, as in bert
)  # fmt: skip
def test_gradients_are_the_same_with_less_memory(name: str, precision: str) -> None:
    """Bit for bit, with dropout and hashes, whose draws are repeated."""
    plain, again = made(name, False), made(name, True)
    assert list(plain.objective.state_dict()) == list(again.objective.state_dict())
    peaks = [peak_bytes(partial(step, learner, precision)) or 0 for learner in (plain, again)]
    for (key, kept), repeated in zip(plain.objective.named_parameters(), again.objective.parameters(), strict=True):
        assert kept.grad is not None, key
        assert torch.equal(kept.grad, repeated.grad), key
    assert 0 < peaks[1] < 0.75 * peaks[0]


def test_evaluation_computes_nothing_twice() -> None:
    counted = []
    for again in (False, True):
        learner = made("bert_small", again)
        with Products() as seen, torch.no_grad(), learner.evaluating(0):
            learner.losses(BATCH, Streams.of(0, 0, BATCH.example_ids), "fp32")
        counted.append(seen.number)
    assert counted[0] == counted[1] > 0


def test_a_copy_computes_with_its_own_weights() -> None:
    layer = nn.Linear(2, 2)
    recompute([layer])
    other = deepcopy(layer)
    nn.init.zeros_(other.weight)
    nn.init.zeros_(other.bias)
    other(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad is None
    assert other.weight.grad is not None
    assert not other.eval()(torch.ones(1, 2)).any()
    assert layer(torch.ones(1, 2)).any()


def test_layers_that_keep_nothing_are_refused() -> None:
    file = EXPERIMENTS / "reformer_small.yaml"
    loaded = load(file, ["discriminator.reversible=true", "train.activation_checkpointing=true"])
    with pytest.raises(ConfigError, match=r"reversible layers already keep no activations\. Remove this key, or"):
        build(loaded, stand_in_vocabulary(300))
