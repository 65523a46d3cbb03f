"""The cost of a step of the small experiments without a clock: operations, logits and reads by the host.

The speed of small models depends on the number of operations: adding some to each layer or parameter costs a tenth of
the speed, and no other test would notice.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.assembly.build import build, make_optimizer, vocabulary_size
from electra_lab.config.load import load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.testing.common import as_batch
from electra_lab.training import random
from electra_lab.training.step import compute, prepare
from registry import count

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
ROWS, FIRST = 5, 2  # rows of a batch; the steps before the one that is counted
# Operations of a step at depth 1, with a few percent to spare.
OPERATIONS = {"bert_small": 605, "transformer_tiny": 690, "performer_small": 1135, "reformer_small": 1180}
# Kernels that a GPU's host launches in `compute` in bf16, at depth 1: all operations but views and fresh memory
LAUNCHES = {"bert_small": 545, "transformer_tiny": 640, "performer_small": 1215, "reformer_small": 1150}
FREE = {"detach", "alias", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
# Casts of a step in bf16 at depth 1. On a GPU, each is a kernel that the host launches.
CASTS = {"bert_small": 84, "transformer_tiny": 105, "performer_small": 132, "reformer_small": 86}
# Passes over logits: the product with the table, log-softmax, the sampler's three, the gradient and its two products.
PASSES = 8.1
# Operations whose result the host needs: a number, or a shape that depends on numbers.
READING = {"_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "_unique2",
           "unique_dim", "unique_consecutive", "bincount", "argwhere"}  # fmt: skip
every_experiment = pytest.mark.parametrize("name", OPERATIONS)


@dataclass
class Trainer:
    name: str
    step: int = 0
    changes: tuple[str, ...] = ()
    made: Any = field(init=False)

    def __post_init__(self) -> None:
        changes = ["discriminator.depth=1", f"train.batch_size={ROWS}", *self.changes]
        self.loaded = load(EXPERIMENTS / f"{self.name}.yaml", changes)
        self.size = vocabulary_size(self.loaded)
        self.made = build(self.loaded, stand_in_vocabulary(self.size), seed=0)
        self.optimizer = make_optimizer(self.loaded, self.made)
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.length = self.loaded.config.data.sequence_length
        self.made.learner.objective.train()

    def prepare(self) -> None:
        prepare(self.made.learner, self.optimizer, np.arange(ROWS), seed=0, step=self.step, rate=0.01)

    def compute(self, **options: Any) -> None:
        drawn = torch.Generator().manual_seed(self.step)
        batch = as_batch(torch.randint(10, self.size, (ROWS, self.length), generator=drawn))
        settings: dict[str, Any] = {"clip_norm": 1.0, "micro_batch_size": ROWS, "precision": "fp32"}
        compute(self.made.learner, self.optimizer, batch, **(settings | options))
        self.step += 1

    def take(self, **options: Any) -> None:
        self.prepare()
        self.compute(**options)


class Cost(TorchDispatchMode):
    """Count operations by name, rows of logits, and reads by the host.

    Rows of logits are those of tensors with the vocabulary as last dimension, except the token table's gradient [E V].
    """

    def __init__(self, vocabulary: int, embedding: int = 0) -> None:
        super().__init__()
        self.vocabulary, self.embedding = vocabulary, embedding
        self.operations: Counter[str] = Counter()
        self.launches = 0
        self.reads: list[str] = []
        self.logits = self.widest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.removeprefix("aten::")
        self.operations[name] += 1
        self.launches += not function.is_view and name not in FREE
        if reads(function, name, args):
            self.reads.append(str(function))
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor) and tensor.dim() > 1 and tensor.shape[-1] == self.vocabulary:
                rows = 0 if function.is_view else tensor.numel() // self.vocabulary
                if rows != self.embedding:
                    self.logits, self.widest = self.logits + rows, max(self.widest, rows)
        return made


def reads(function: Any, name: str, args: Any) -> bool:
    """Return True if an operation makes the host wait: it returns a number, or its shape depends on numbers."""
    if name in READING or torch.Tag.data_dependent_output in function.tags:
        return True
    if torch.Tag.dynamic_output_shape in function.tags:
        # Boolean indices are positions that have to be found first.
        indices = args[1] if name.startswith("index") and len(args) > 1 else None
        return indices is None or any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)
    return False


def cost(trainer: Trainer, **options: Any) -> Cost:
    trainer.prepare()
    with Cost(trainer.size, trainer.loaded.config.embedding.dim) as counted:
        trainer.compute(**options)
    return counted


@cache
def trained(name: str) -> Trainer:
    trainer = Trainer(name)
    while trainer.step < FIRST:
        trainer.take()
    return trainer


@cache
def later(name: str, micro: int = ROWS) -> Cost:
    return cost(trained(name), micro_batch_size=micro)


@every_experiment
def test_a_step_has_no_more_operations_than_it_needs(name: str) -> None:
    counted = later(name).operations
    assert counted.total() <= OPERATIONS[name], (
        f"a step of {name} has {counted.total()} operations, where {OPERATIONS[name]} did. Find what was added, do it "
        "once a step instead of once a layer; if it is worth it, raise the bound and measure with benchmarks/step.py. "
        f"The most frequent: {counted.most_common(15)}"
    )


@every_experiment
def test_a_step_in_bf16_casts_no_more_than_it_needs(name: str) -> None:
    trainer = Trainer(name)
    for _ in range(FIRST):
        trainer.take(precision="bf16")
    counted = cost(trainer, precision="bf16").operations
    assert counted["_to_copy"] <= CASTS[name]
    assert counted.total() - counted["_to_copy"] <= OPERATIONS[name]


@every_experiment
def test_a_step_on_a_gpu_launches_no_more_than_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numpy, by which a CPU makes random numbers."""
    monkeypatch.setattr(random, "_in_numpy", lambda _: False)
    trainer = Trainer(name)
    for _ in range(FIRST):
        trainer.take(precision="bf16")
    counted = cost(trainer, precision="bf16")
    assert counted.launches <= LAUNCHES[name], f"The most frequent: {counted.operations.most_common(15)}"


@every_experiment
def test_logits_of_the_vocabulary_are_those_of_masked_positions_alone(name: str) -> None:
    counted, trainer = later(name), trained(name)
    slots = ROWS * count(trainer.loaded.config.masking.keywords()["mask_prob"], trainer.length)
    assert 0 < counted.widest <= slots, f"{counted.widest} positions have logits, of which {slots} are masked."
    passes = counted.logits / slots
    assert passes <= PASSES, f"a step writes the logits {passes:.1f} times over, where {PASSES} did."


@every_experiment
@pytest.mark.parametrize("micro", [ROWS, ROWS // 2])
def test_the_host_reads_nothing_in_a_step(name: str, micro: int) -> None:
    """On an accelerator it would wait for the device."""
    found = later(name, micro).reads
    assert not found, f"the host waits for the device in a step of {name}: {Counter(found)}."


READS: list[Any] = [lambda x: float(x.sum()), lambda x: bool((x > 0).any()), lambda x: x[x > 0], torch.nonzero,
                    lambda x: torch.where(x > 0), lambda x: torch.equal(x, x), torch.unique]  # fmt: skip
OTHERS: list[Any] = [lambda x: x[torch.tensor([0, 1])], lambda x: torch.where(x > 0, x, 0.0), nn.ReLU()]


@pytest.mark.parametrize(("do", "read"), [*((do, True) for do in READS), *((do, False) for do in OTHERS)])
def test_reads_are_noticed_and_other_operations_pass(do: Any, read: bool) -> None:
    with Cost(0) as counted:
        do(torch.ones(3))
    assert bool(counted.reads) == read


@pytest.mark.parametrize(("full", "other"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("name", ["bert_small", "transformer_tiny"])
def test_attention_needs_no_mask_without_padding_and_one_for_all_layers_with_it(
    name: str, full: bool, other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask that is not the batch's, such as that of a cropped row, counts in a batch without padding, too."""
    masks: list[Any] = []
    attention = F.scaled_dot_product_attention

    def note(*inputs: Any, attn_mask: Any, **options: Any) -> Tensor:
        masks.append(attn_mask)
        return attention(*inputs, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", note)
    trainer = Trainer(name, changes=("discriminator.depth=2",))
    learner = trainer.made.learner
    batch = replace(as_batch(torch.randint(10, trainer.size, (ROWS, trainer.length))), full=full)
    learner.at_step(0, 0, np.arange(ROWS))
    learner.losses(batch, learner.keys.streams(batch.example_ids), "fp32")
    if other:
        masks.clear()
        shorter = batch.attention_mask.clone()
        shorter[:, -3:] = False
        learner.objective.discriminator.hidden(batch.tokens, shorter, batch.segments)
    assert len(masks) == (2 if other else 4)
    if full and not other:
        assert masks == [None] * 4
    else:
        assert all(mask is masks[-1] for mask in masks[-2:])
        assert masks[-1].isinf().any() == other
