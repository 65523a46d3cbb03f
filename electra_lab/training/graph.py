"""The device's part of a step, recorded as CUDA graphs and replayed, so that the host does not hold the device back.

Launching the 2,000 kernels of a step of ELECTRA-Small one by one takes several times as long as running them. A graph
is launched at once, with the same kernels and the same numbers. It is recorded after some eager steps, once for each
shape of a batch, and reads what `prepare` wrote: keys, rates, scheduled numbers and rows at fixed addresses.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from electra_lab.training.loop import Run, Settings, compute_step
from electra_lab.training.random import seed_global
from electra_lab.training.step import StepResult, parameters_of
from registry import Batch

Graph = Literal["auto", "on", "off"]
Signature = tuple[Any, ...]
Step = Callable[[], StepResult]
WARM_UP = 3  # eager steps of each shape before it is recorded
EAGER = WARM_UP + 2  # and those that are also done by the graph
MOST = 16  # graphs; a step that needs more differs too often to be worth recording
NOT_RECORDED = "note: steps are not recorded as CUDA graphs"
FEWEST = 100  # steps of a training that `auto` records


def obstacle(graph: Graph, run: Run, settings: Settings, device: torch.device) -> str | None:
    """Return the reason why steps are not recorded, None if they are; "" where nobody would expect them to be."""
    if graph == "off" or (device.type != "cuda" and graph == "auto"):
        return ""
    if device.type != "cuda":
        return "there is no CUDA device here"
    if run.learner.world.size > 1:
        return "several processes train it"
    if graph == "auto" and settings.steps - run.step < FEWEST:
        return f"fewer than {FEWEST} steps are left"
    return None


def record_steps(graph: Graph, run: Run, settings: Settings, device: torch.device, say: Callable[[str], None]) -> None:
    """Let the steps of a run be recorded, or say why they are not."""
    reason = obstacle(graph, run, settings, device)
    if reason is None:
        run.compute = Recorded(run, CudaGraphs(device), device, say)
    elif reason:
        say(f"{NOT_RECORDED}: {reason}")


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch on its device, by name. The host alone reads `document_counts` and `full`."""
    names = {part.name for part in fields(batch)} - {"document_counts", "full"}
    parts = {name: getattr(batch, name) for name in names}
    labels = parts.pop("labels")
    return {name: part for name, part in {**parts, **labels}.items() if part is not None}


def copied(batch: Batch) -> Batch:
    """Return the same rows at other addresses, which stay."""
    clones: dict[str, Any] = {name: tensor.clone() for name, tensor in tensors_of(batch).items()}
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


def tensors_that_change(run: Run) -> list[Tensor]:
    """Return everything that the device's part of a step changes: weights, buffers, memory, and states."""
    objective, watch, scale = run.learner.objective, run.watch, run.scale
    tensors = [*objective.parameters(), *objective.buffers(), *objective.row_memory.values()]
    for state in run.optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    tensors += [watch.average, watch.accepted, watch.first, watch.spiked]
    if scale is not None:
        tensors += [scale.scale, scale.calm, scale.overflows]
    return tensors if run.window.totals is None else [*tensors, run.window.totals]


def signature(run: Run, batch: Batch, micro_batch_size: int) -> Signature:
    """Return everything that the host decides in a step. A graph holds for steps with the same decisions alone.

    These are the shapes of the batch, whether it has padding, the bound of documents in each micro-batch, the
    parameters that learn, and whatever `at_step` of a component has set.
    """
    shapes = tuple((name, tensor.shape) for name, tensor in tensors_of(batch).items())
    counts = batch.document_counts
    parts = () if counts is None else counts.split(micro_batch_size)  # type: ignore[no-untyped-call]
    documents = tuple((int(part.sum()) - 1).bit_length() for part in parts)
    decided: list[Any] = [tuple(parameter.requires_grad for parameter in parameters_of(run.optimizer))]
    for module in run.learner.changing:
        plain = {name: value for name, value in vars(module).items() if isinstance(value, int | float | str)}
        decided.append(tuple(plain.items()))
        decided.append(tuple(part.training for part in module.modules()))
    return shapes, batch.full, documents, *decided


class CudaGraphs:
    """Records on one stream, as autograd remembers that of a parameter's gradient; all graphs share their memory."""

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def eagerly(self, step: Step) -> tuple[StepResult, str]:
        """Run a step that is not recorded yet; returns its result, and where the host waits in it for the device.

        After a recording that failed, older versions of torch can draw no dropout and free no memory.
        """
        mode = torch.cuda.get_sync_debug_mode()
        self.stream.wait_stream(torch.cuda.current_stream())
        with warnings.catch_warnings(record=True) as raised, torch.cuda.stream(self.stream):
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = step()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result, waits_in(raised)

    def record(self, step: Step) -> tuple[Callable[[], None], StepResult]:
        """Record a step without running it; returns the function that runs it, and where its result will be.

        Raises MemoryError unless an eager step, an evaluation or the comparison, fits next to the graph's memory.
        """
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if 2 * torch.cuda.max_memory_allocated() > free:
            raise MemoryError("a graph keeps the memory of a step, and there is too little for another one")
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                result = step()
        finally:
            torch.cuda.set_stream(stream)  # a recording that fails leaves its own
        return graph.replay, result


def waits_in(raised: Sequence[warnings.WarningMessage]) -> str:
    """Return the last place where torch has warned that the host waits for the device, "" if there is none."""
    places = [f"{Path(w.filename).name}:{w.lineno}" for w in raised if "a synchronizing CUDA" in str(w.message)]
    return f"the host waits for the device ({places[-1]})" if places else ""


class Recorded:
    """Does the device's part of each step: eagerly at first, then by a graph for each signature. See `Run.compute`.

    The first two steps that a graph does are also done eagerly, from the same state: the second has other numbers than
    the recorded one. Unless all bits are equal, or if a step cannot be recorded, all further steps are eager.

    say     callback for the reason, called once
    graphs  signature -> function that replays the graph, rows that it reads, its result
    """

    def __init__(self, run: Run, recorder: CudaGraphs, device: torch.device, say: Callable[[str], None]) -> None:
        rates_on(device, run.optimizer)
        self.recorder, self.say, self.gave_up = recorder, say, False
        self.steps: Counter[Signature] = Counter()
        self.graphs: dict[Signature, tuple[Callable[[], None], Batch, StepResult]] = {}

    def __call__(self, run: Run, settings: Settings, batch: Batch) -> StepResult:
        key = () if self.gave_up else signature(run, batch, settings.micro_batch_size)
        self.steps[key] += 1
        if len(self.steps) > MOST and not self.gave_up:
            self._give_up(f"they differ in more than {MOST} ways")
        if not self.gave_up and self.steps[key] <= WARM_UP:
            result, waits = self.recorder.eagerly(partial(compute_step, run, settings, batch))
            if waits and self.steps[key] == WARM_UP:  # the first steps may check components
                self._give_up(waits)
            return result
        if not self.gave_up and key not in self.graphs:
            self._record(key, run, settings, batch)
        if self.gave_up:
            return compute_step(run, settings, batch)
        if self.steps[key] <= EAGER:
            return self._compared(key, run, settings, batch)
        return self._replayed(key, run, batch)

    def _replayed(self, key: Signature, run: Run, batch: Batch) -> StepResult:
        replay, static, result = self.graphs[key]
        refill(static, batch)
        run.learner.updating = True
        replay()
        run.learner.updating = False
        run.window.steps += 1
        return result

    def _record(self, key: Signature, run: Run, settings: Settings, batch: Batch) -> None:
        static, steps = copied(batch), run.window.steps
        try:
            replay, result = self.recorder.record(partial(compute_step, run, settings, static))
        except Exception as error:  # components and libraries have many ways to read from a device
            self._give_up((str(error).splitlines() or [type(error).__name__])[0])
            run.optimizer.zero_grad(set_to_none=True)
        else:
            self.graphs[key] = replay, static, result
        run.window.steps, run.learner.updating = steps, False

    @torch.no_grad()
    def _compared(self, key: Signature, run: Run, settings: Settings, batch: Batch) -> StepResult:
        """Do a step eagerly and by its graph; keep the eager numbers if they differ."""
        state, steps, learner = tensors_that_change(run), run.window.steps, run.learner
        before = [tensor.clone() for tensor in state]
        with torch.enable_grad():
            result = compute_step(run, settings, batch)
        learner.updating = True  # an error from here on finds the weights of no step
        expected = [tensor.clone() for tensor in state]
        # Again, from the same state and with the same random numbers.
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        run.window.steps = steps
        seed_global(settings.seed, run.step, learner.world.rank)
        self._replayed(key, run, batch)
        learner.updating = True
        if not all(torch.equal(tensor, value) for tensor, value in zip(state, expected, strict=True)):
            self._give_up("a recorded step has other numbers than an eager one")
            for tensor, value in zip(state, expected, strict=True):
                tensor.copy_(value)
        learner.updating = False
        return result

    def _give_up(self, reason: str) -> None:
        self.gave_up = True
        self.graphs.clear()  # their memory is for the eager steps
        self.say(f"{NOT_RECORDED}: {reason}")
