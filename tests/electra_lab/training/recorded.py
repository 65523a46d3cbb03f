"""A recorder of operations, which replays them as a CUDA graph would, and shipped experiments in small sizes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from electra_lab.assembly.build import build, loop_settings, make_optimizer
from electra_lab.config.load import load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.testing.common import as_batch
from electra_lab.training.execution import LossScale, Watch
from electra_lab.training.graph import (
    rates_on,
    tensors_that_change,
)
from electra_lab.training.loop import Run
from electra_lab.training.step import StepResult, prepare
from registry import Batch
from tests.electra_lab.training.test_cost import reads

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
SIZE, ROWS, LENGTH = 200, 8, 64
CPU = torch.device("cpu")


class Recorder(TorchDispatchMode):
    """Keep the operations that run inside, with their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not reads(function, function._schema.name.removeprefix("aten::"), args), f"the host reads: {function}"
        made = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, made))
        return made

    @torch.no_grad()
    def replay(self) -> None:
        """Run them again. Results are written to where they were; views of them need no work."""
        for function, args, kwargs, made in self.calls:
            results = [tensor for tensor in tree_leaves(made) if isinstance(tensor, Tensor)]
            if function._schema.is_mutable or not results:
                function(*args, **kwargs)
                continue
            inputs = {place(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
            if any(place(tensor) in inputs for tensor in results if tensor.numel()):
                continue
            again = [tensor for tensor in tree_leaves(function(*args, **kwargs)) if isinstance(tensor, Tensor)]
            for tensor, value in zip(results, again, strict=True):
                tensor.copy_(value)


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Trainer:
    """A shipped experiment, shallow and with short rows, some of which have padding."""

    def __init__(
        self, name: str, *changes: str, rates: bool = False, full: Sequence[int] = (), **settings: Any
    ) -> None:
        small = {
            "discriminator.depth": 2 if "teams" in name else 1,
            "train.batch_size": ROWS,
            "data.sequence_length": LENGTH,
            "embedding.max_length": 128,
        }
        values = [f"{key}={value}" for key, value in small.items()]
        loaded = load(EXPERIMENTS / f"{name}.yaml", [*values, *changes])
        built = build(loaded, stand_in_vocabulary(SIZE), seed=0)
        learner, options = built.learner, {"steps": 40, "flops": built.flops, "examples": 0, "precision": "fp32"}
        learner.objective.allocate(100, LENGTH, LENGTH, CPU)
        learner.objective.train()
        self.settings = replace(loop_settings(loaded.config, seed=3, **options), **settings)
        self.full = full  # steps whose rows have no padding, as their batch says
        self.run = Run(learner, make_optimizer(loaded, built), watch=Watch(factor=1.02))
        self.run.scale = LossScale(CPU, 2.0**10) if self.settings.precision == "fp16" else None
        if rates:
            rates_on(CPU, self.run.optimizer)

    def prepare(self, step: int) -> Batch:
        drawn = torch.Generator().manual_seed(step)
        tokens = torch.randint(10, SIZE, (ROWS, LENGTH), generator=drawn)
        real = torch.arange(LENGTH) < torch.tensor(
            [LENGTH, LENGTH - 3 * step * (step not in self.full)] * (ROWS // 2)
        ).unsqueeze(1)
        prepare(
            self.run.learner, self.run.optimizer, np.arange(ROWS), seed=3, step=step, rate=(step + 1) / 7,
            watch=self.run.watch,
        )  # fmt: skip
        batch = as_batch(torch.where(real, tokens, 0), real)
        return replace(batch, full=step in self.full, row_ids=torch.randperm(100, generator=drawn)[:ROWS])

    def state(self) -> dict[str, Any]:
        """Return everything that a step changes."""
        return {str(number): tensor for number, tensor in enumerate(tensors_that_change(self.run))}


class CpuGraphs:
    """As CudaGraphs, with the recorder of operations: recording leaves no trace in the state."""

    def __init__(self, run: Run) -> None:
        self.run, self.recorded = run, 0

    def eagerly(self, step: Callable[[], StepResult]) -> tuple[StepResult, str]:
        return step(), ""

    def record(self, step: Callable[[], StepResult]) -> tuple[Callable[[], None], StepResult]:
        self.recorded += 1
        before = [tensor.clone() for tensor in tensors_that_change(self.run)]
        with torch.random.fork_rng(devices=[]), Recorder() as recorder:
            result = step()
        with torch.no_grad():
            for tensor, value in zip(tensors_that_change(self.run), before, strict=True):
                tensor.copy_(value)
        return recorder.replay, result
