"""The device's part of a step, recorded as CUDA graphs and replayed, so that the host does not hold the device back.

Launching the 2,000 kernels of a step of ELECTRA-Small one by one takes several times as long as running them. A graph
is launched at once, with the same kernels and the same numbers. It is recorded after some eager steps, once for each
shape of a batch, and reads what `prepare` wrote: keys, rates, scheduled numbers and rows at fixed addresses.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from electra_lab.training.loop import Run, Settings, compute_step
from electra_lab.training.step import StepResult
from registry import Batch

Graph = Literal["auto", "on", "off"]
WARM_UP = 3  # eager steps of each shape before it is recorded
MOST = 16  # graphs; a step that needs more differs too often to be worth recording
FEWEST = 100  # steps of a training that `auto` records


def obstacle(graph: Graph, run: Run, settings: Settings, device: torch.device) -> str | None:
    """Return why the steps of a training are not recorded, None if they are; "" where nobody would expect it."""
    if graph == "off" or (device.type != "cuda" and graph == "auto"):
        return ""
    if device.type != "cuda":
        return "there is no CUDA device here"
    if run.learner.world.size > 1:
        return "several processes train it"
    if graph == "auto" and settings.steps - run.step < FEWEST:
        return f"fewer than {FEWEST} steps are left"
    return None


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch on its device, by name. The host alone reads `document_counts`."""
    parts = {part.name: getattr(batch, part.name) for part in fields(batch) if part.name != "document_counts"}
    labels = parts.pop("labels")
    return {name: part for name, part in {**parts, **labels}.items() if part is not None}


def copied(batch: Batch) -> Batch:
    """Return the same rows at other addresses, which stay."""
    clones = {name: tensor.clone() for name, tensor in tensors_of(batch).items()}
    labels = {name: clones.pop(name) for name in batch.labels}
    return replace(batch, **clones, labels=labels)


def refill(static: Batch, batch: Batch) -> None:
    """Write the rows of a batch where a recorded step reads them."""
    rows = tensors_of(batch)
    for name, tensor in tensors_of(static).items():
        tensor.copy_(rows[name], non_blocking=True)


def rates_on(device: torch.device, optimizer: Optimizer) -> None:
    """Put the rates of an optimizer's groups on a device, where `prepare` changes them in place."""
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
        if "capturable" in group:  # torch's name: its optimizers refuse to be recorded otherwise
            group["capturable"] = True


def signature(run: Run, batch: Batch) -> tuple[Any, ...]:
    """Return everything that the host decides in a step. A graph holds for steps with the same decisions alone.

    These are the shapes of the batch, the bound of its documents, and whatever `at_step` of a component has set.
    """
    shapes = tuple((name, tensor.shape) for name, tensor in tensors_of(batch).items())
    counts = batch.document_counts
    documents = None if counts is None else (int(counts.sum()) - 1).bit_length()
    decided: list[Any] = []
    for module in run.learner.changing:
        plain = (int, float, str, type(None))
        decided.append(tuple((name, value) for name, value in vars(module).items() if isinstance(value, plain)))
        decided.append(tuple(part.training for part in module.modules()))
    return shapes, documents, *decided


class Recorded:
    """Does the device's part of each step: eagerly at first, then by a graph for each signature. See `Run.compute`.

    Warm-up and recording run on one stream, as autograd remembers the stream of a parameter's gradient. All graphs
    share their memory, as they never run at the same time.

    reason  why a step could not be recorded; then all further steps are eager
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        rates_on(device, run.optimizer)
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Batch, StepResult]] = {}
        self.reason: str | None = None

    def __call__(self, run: Run, settings: Settings, batch: Batch) -> StepResult:
        if self.reason is not None:
            return compute_step(run, settings, batch)
        key = signature(run, batch)
        if key not in self.graphs:
            self.seen[key] += 1
            if self.seen[key] <= WARM_UP:
                return self._eager(run, settings, batch)
            if not self._record(key, run, settings, batch):
                return compute_step(run, settings, batch)
        else:
            run.window.steps += 1  # recording has counted its step
        graph, static, result = self.graphs[key]
        refill(static, batch)
        run.learner.updating = True
        graph.replay()
        run.learner.updating = False
        return result

    def _eager(self, run: Run, settings: Settings, batch: Batch) -> StepResult:
        if len(self.seen) > MOST:
            self.reason = f"its steps differ in more than {MOST} ways"
            return compute_step(run, settings, batch)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = compute_step(run, settings, batch)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _record(self, key: tuple[Any, ...], run: Run, settings: Settings, batch: Batch) -> bool:
        """Record a step without running it; False, and the reason, if that is not possible."""
        steps, static, graph = run.window.steps, copied(batch), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                result = compute_step(run, settings, static)
        except Exception as error:  # components and libraries have many ways to read from a device
            self.reason = f"a component cannot be recorded ({(str(error).splitlines() or [type(error).__name__])[0]})"
            run.window.steps, run.learner.updating = steps, False
            run.optimizer.zero_grad(set_to_none=True)
            return False
        self.graphs[key] = graph, static, result
        return True
