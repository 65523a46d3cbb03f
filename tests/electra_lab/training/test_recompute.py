"""Activation checkpointing: less memory, and every number as before."""

from collections import Counter
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.assembly.build import build
from electra_lab.config.load import load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.planning.memory import peak_bytes
from electra_lab.training.recompute import recompute
from electra_lab.training.step import backward
from registry import Batch
from registry.errors import ConfigError

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
NAMES = ("bert_small", "transformer_small", "performer_small", "reformer_small")
TOKENS = torch.randint(5, 300, (4, 128), generator=torch.Generator().manual_seed(0))
BATCH = Batch(TOKENS, torch.ones_like(TOKENS, dtype=torch.bool), torch.zeros_like(TOKENS), torch.arange(4))


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counted["products"] += function._schema.name in ("aten::addmm", "aten::mm", "aten::bmm")
        return function(*args, **(kwargs or {}))


def made(name: str, again: bool, depth: int = 4) -> Any:
    changes = [f"discriminator.depth={depth}", "data.sequence_length=128", "embedding.max_length=128",
               "embedding.dropout=0.1", "discriminator.dropout=0.1",
               f"train.activation_checkpointing={str(again).lower()}"]  # fmt: skip
    return build(load(EXPERIMENTS / f"{name}.yaml", changes), stand_in_vocabulary(300), seed=0).learner


def step(learner: Any, precision: Any = "fp32") -> None:
    learner.objective.train()
    learner.at_step(7, 3)
    backward(learner.losses(BATCH, 7, 3, precision).terms)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_same_with_less_memory(name: str) -> None:
    """To the last bit, with dropout and with hashes, which are drawn again as they were."""
    plain, again = made(name, False), made(name, True)
    assert list(plain.objective.state_dict()) == list(again.objective.state_dict())
    peaks = [peak_bytes(partial(step, learner)) or 0 for learner in (plain, again)]
    for (key, one), two in zip(plain.objective.named_parameters(), again.objective.parameters(), strict=True):
        assert one.grad is not None, key
        assert torch.equal(one.grad, two.grad), key
    assert 0 < peaks[1] < 0.75 * peaks[0]


def test_in_bf16_too() -> None:
    plain, again = made("bert_small", False, 1), made("bert_small", True, 1)
    for learner in (plain, again):
        step(learner, "bf16")
    pairs = zip(plain.objective.parameters(), again.objective.parameters(), strict=True)
    assert all(torch.equal(one.grad, two.grad) for one, two in pairs)


def test_evaluation_computes_nothing_twice() -> None:
    counted = []
    for again in (False, True):
        learner = made("bert_small", again)
        with Products() as seen, torch.no_grad(), learner.evaluating(0):
            learner.losses(BATCH, 0, 0, "fp32")
        counted.append(seen.counted["products"])
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
