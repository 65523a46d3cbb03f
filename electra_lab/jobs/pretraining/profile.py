"""The time of a step by its parts: labels around the parts of a model, set while some steps are profiled.

Labels are ranges of torch.profiler. A backward operation has the label of the forward operation whose gradient it
computes, which autograd's sequence numbers tell.
"""

import os
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile, record_function

from electra_lab.assembly.budget import training_flops
from electra_lab.config.schema import ExperimentConfig
from electra_lab.model.flops import Convention, backbone_flops, network_flops, read_heads
from electra_lab.model.network import Network
from electra_lab.storage.records import Profile
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.loop import Record, Run

WARM_UP = 3  # steps before the profile: the first ones allocate memory
PREFIX = "electra_lab: "
STEP, COMPUTE = "host", "other"  # time of a step outside the computation, and of the computation outside all parts
BACKWARD = "autograd::engine::evaluate_function: "
BACKWARD_SCOPE = 1  # of the operations inside it, which have its sequence number
WIDTHS = "expand", "contract"  # the two linear layers of a feed-forward network in the lab's own encoders
ADDED, CONTRACTED = "add_feed_forward", "_contracted"  # functions of such encoders
Span = tuple[float, float, str]  # begin and end in microseconds, and the label


@dataclass
class Profiler:
    """Records `steps` steps of a run, after WARM_UP others, and writes profile.json and trace.json.gz."""

    steps: int
    run: Run
    config: ExperimentConfig
    directory: RunDirectory
    done: Callable[[Profile], None]
    _labels: ExitStack = field(default_factory=ExitStack)
    _profile: Any = None
    _seen: int = 0

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass on the records of a training."""
        records = iter(records)
        with self._labels:
            while True:
                with record_function(f"{PREFIX}{STEP}"):
                    record = next(records, None)
                if record is None:
                    return
                if not record.values and not record.evaluating:
                    self._after_step(record.step)
                yield record

    def _after_step(self, step: int) -> None:
        self._seen += 1
        if self._seen == WARM_UP:
            label(self.run, self._labels)
            kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # above that of its messages about each phase
            self._profile = self._labels.enter_context(profile(activities=kinds))
        elif self._seen == WARM_UP + self.steps:
            self._labels.close()
            self._profile.export_chrome_trace(str(self.directory.path / "trace.json.gz"))
            seconds, device = times(self._profile.events())
            networks = dict(self.run.learner.objective.named_children())
            flops = flops_by_part(self.run.learner.objective, networks, self.config, step - self.steps, step)
            per_step = {part: time / self.steps for part, time in seconds.items()}
            found = Profile(steps=self.steps, seconds=per_step, on_device=device, flops=flops)
            self.directory.write("profile.json", found.model_dump_json(indent=1) + "\n")
            self.done(found)


def label(run: Run, labels: ExitStack) -> None:
    """Label the parts of a step, until `labels` is closed.

    No label is on a linear layer or norm that an encoder would fuse with others: it fuses only those without hooks.
    """
    objective = run.learner.objective
    labels.enter_context(_replaced(run, "compute", COMPUTE))
    labels.enter_context(_hooked(objective, "losses"))
    labels.enter_context(_hooked(run.optimizer, "optimizer"))
    for name in ("masking", "sampler"):
        if callable(vars(objective).get(name)):
            labels.enter_context(_replaced(objective, name, name))
    for network in objective.children():
        if isinstance(network, Network):
            for module in filter(None, (network.embeddings, network.project)):
                labels.enter_context(_hooked(module, "embedding"))
            for head in network.heads.values():
                labels.enter_context(_hooked(head, "heads"))
            _label_encoder(network.backbone, labels)


def _label_encoder(backbone: nn.Module, labels: ExitStack) -> None:
    labels.enter_context(_hooked(backbone, encoder_part(backbone)))
    replaced = set[Any]()
    for module in _feed_forwards(backbone):
        code = sys.modules[type(module).__module__]
        if not _is_layer(module):
            labels.enter_context(_hooked(module, "feed-forward"))
        elif hasattr(module, CONTRACTED):  # a gated one, whose first layer is not fused
            labels.enter_context(_replaced(module, CONTRACTED, "feed-forward"))
            labels.enter_context(_hooked(module.get_submodule(WIDTHS[0]), "feed-forward"))
        elif code not in replaced:
            replaced.add(code)
            labels.enter_context(_replaced(code, ADDED, "feed-forward"))


def encoder_part(backbone: nn.Module) -> str:
    """Return the label of everything in an encoder but its feed-forward networks, if these are known."""
    return "attention" if any(True for _ in _feed_forwards(backbone)) else "encoder"


def _is_layer(module: nn.Module) -> bool:
    children, code = dict(module.named_children()), sys.modules[type(module).__module__]
    is_known = hasattr(module, CONTRACTED) or hasattr(code, ADDED)
    return is_known and all(isinstance(children.get(name), nn.Linear) for name in WIDTHS)


def _feed_forwards(backbone: nn.Module) -> Iterator[nn.Module]:
    """Yield the feed-forward networks of an encoder, or its layers that have one of two linear layers."""
    for module in backbone.modules():
        if _is_layer(module) or type(module).__name__ == "FeedForward":
            yield module


def _hooked(called: nn.Module | torch.optim.Optimizer, part: str) -> ExitStack:
    """Label each call of a module, or step of an optimizer."""
    stack, running = ExitStack(), list[Any]()

    def begin(*_: Any) -> None:
        running.append(record_function(f"{PREFIX}{part}"))
        running[-1].__enter__()

    def end(*_: Any) -> None:
        running.pop().__exit__(None, None, None)

    if isinstance(called, nn.Module):
        handles = called.register_forward_pre_hook(begin), called.register_forward_hook(end)
    else:
        handles = called.register_step_pre_hook(begin), called.register_step_post_hook(end)
    for handle in handles:
        stack.callback(handle.remove)
    return stack


def _replaced(place: Any, name: str, part: str) -> ExitStack:
    """Label each call of a function that is an attribute."""
    stack, plain, was_set = ExitStack(), getattr(place, name), name in vars(place)

    def labelled(*arguments: Any, **options: Any) -> Any:
        with record_function(f"{PREFIX}{part}"):
            return plain(*arguments, **options)

    setattr(place, name, labelled)
    stack.callback(lambda: setattr(place, name, plain) if was_set else delattr(place, name))
    return stack


def times(events: Iterable[Any]) -> tuple[dict[str, float], bool]:
    """Return the seconds of each part, and whether they are those of kernels on a device.

    On a CPU, each moment of a step belongs to the innermost part. On a device, kernels belong to the part that launched
    them, and the rest of the step, in which the device waits, to the host. The sum is that of the steps.
    """
    events = [event for event in events if event.device_type == DeviceType.CPU]
    spans = defaultdict[int, list[Span]](list)
    for event in events:
        if event.name.startswith(PREFIX):
            spans[event.thread].append((*_ends(event), event.name.removeprefix(PREFIX)))
    # Without the steps that only read a record: nothing is computed in them.
    everything = [*chain.from_iterable(spans.values())]
    computed = Timeline([span for span in everything if span[2] == COMPUTE])
    steps = [span for span in everything if span[2] == STEP and computed.is_inside(*span[:2])]
    for thread, of_thread in spans.items():
        spans[thread] = [span for span in of_thread if span[2] != STEP or span in steps]
    # The label of a backward operation is that of the last forward operation with its sequence number.
    forward, labelled = {thread: Timeline(of_thread) for thread, of_thread in spans.items()}, dict[int, str]()
    for event in sorted(events, key=lambda event: event.time_range.start):
        backward = event.scope == BACKWARD_SCOPE or event.name.startswith(BACKWARD)
        if event.sequence_nr >= 0 and not backward and event.thread in forward:
            labelled[event.sequence_nr] = forward[event.thread].at(event.time_range.start)
    for event in events:
        if event.name.startswith(BACKWARD) and labelled.get(event.sequence_nr):
            spans[event.thread].append((*_ends(event), labelled[event.sequence_nr]))
    timelines = {thread: Timeline(of_thread) for thread, of_thread in spans.items()}
    by_part = defaultdict[str, float](float)
    for timeline in timelines.values():
        for label, time in timeline.totals().items():
            by_part[label] += time * 1e-6
    if not any(event.kernels for event in events):
        return dict(by_part), False
    whole = sum(end - begin for begin, end, _ in steps) * 1e-6
    on_device = defaultdict[str, float](float)
    for event in events:
        if event.kernels and event.thread in timelines and (label := timelines[event.thread].at(_ends(event)[0])):
            on_device[label] += sum(kernel.duration for kernel in event.kernels) * 1e-6
    on_device[STEP] = max(0.0, whole - sum(time for label, time in on_device.items() if label != STEP))
    return dict(on_device), True


def _ends(event: Any) -> tuple[float, float]:
    return float(event.time_range.start), float(event.time_range.end)


class Timeline:
    """The innermost label at each moment of a thread."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._at, self._labels = list[float](), list[str]()
        inside = list[tuple[float, str]]()  # ends and labels of the spans around
        for begin, end, label in [*sorted(spans, key=lambda span: (span[0], -span[1])), (float("inf"),) * 2 + ("",)]:
            while inside and inside[-1][0] <= begin:
                at, _ = inside.pop()
                self._add(at, inside[-1][1] if inside else "")
            if label:
                inside.append((end, label))
                self._add(begin, label)

    def _add(self, at: float, label: str) -> None:
        self._at.append(at)
        self._labels.append(label)

    def at(self, moment: float) -> str:
        index = bisect_right(self._at, moment) - 1
        return self._labels[index] if index >= 0 else ""

    def is_inside(self, begin: float, end: float) -> bool:
        """Return True if a label begins or ends in a time."""
        return bisect_right(self._at, end) > bisect_right(self._at, begin)

    def totals(self) -> dict[str, float]:
        totals = defaultdict[str, float](float)
        for (begin, end), label in zip(pairwise(self._at), self._labels, strict=False):
            if label:
                totals[label] += end - begin
        return totals


def flops_by_part(
    objective: Any, networks: dict[str, nn.Module], config: ExperimentConfig, begin: int, end: int
) -> dict[str, int]:
    """Return the mean FLOPs of the steps after `begin` up to `end` by part; they add up to those of a step."""
    flops = dict[str, int]()
    for part in ("embedding", "attention", "encoder", "feed-forward", "heads"):

        def forward(network: Network, *sizes: Any, part: str = part) -> int:
            return _forward_flops(network, *sizes)[part]

        price = training_flops(objective, networks, config, Convention(forward, backward=2))
        if mean := round((price.total(end) - price.total(begin)) / (end - begin)):
            flops[part] = mean
    return flops


def _forward_flops(network: Network, length: int, masked: int, heads: Any, rows: int) -> dict[str, int]:
    """Return the FLOPs of a forward pass by part."""
    padded = length + -length % network.length_multiple
    encoder = backbone_flops(network.backbone, padded, network.dim, rows)
    of_heads = rows * sum(int(head.flops(length, masked)) for head in read_heads(network, heads))
    fed = 0
    for module in _feed_forwards(network.backbone):
        inside = [module.get_submodule(name) for name in WIDTHS] if _is_layer(module) else module.modules()
        for layer in inside:
            fed += 2 * padded * rows * layer.weight.numel() if isinstance(layer, nn.Linear) else 0
    whole = network_flops(network, length, masked, heads, rows)
    parts = dict.fromkeys(("attention", "encoder"), 0) | {encoder_part(network.backbone): encoder - fed}
    return {**parts, "feed-forward": fed, "heads": of_heads, "embedding": whole - encoder - of_heads}
