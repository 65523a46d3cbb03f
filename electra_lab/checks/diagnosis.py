"""Find the module in which the numbers of a step go wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from electra_lab.training.execution import uncompiled


@dataclass
class Call:
    """A call of a module."""

    name: str
    module: nn.Module
    parent: Call | None  # the call in which it was made
    largest_input: float = 0.0  # the largest finite number of its inputs, without sign
    gradients: list[bool] = field(default_factory=list)  # of its outputs, in the backward pass: whether they are finite

    @property
    def sound(self) -> bool:
        """The gradients that came into it in the backward pass were finite."""
        return bool(self.gradients) and all(self.gradients)


@dataclass(frozen=True)
class Origin:
    """The origin of numbers that are not finite, in the forward or the backward pass."""

    kind: Literal["forward", "backward"]
    call: Call | None
    parameter: str | None = None  # whose gradient is the first that is not finite, if it is that of a parameter


class Probe:
    """Watches every module of an objective while a step is computed inside of the `with` block.

    forward   first module whose output is not finite, though its inputs are
    backward  first module that makes gradients that are not finite of gradients that are

    Both are the innermost one whose own code does so. Inputs may hold -inf, as attention masks do.
    """

    def __init__(self, objective: nn.Module) -> None:
        self.forward: Origin | None = None
        self.backward: Origin | None = None
        self._objective, self._stack = objective, ExitStack()
        self._calls: dict[str, list[Call]] = {}

    def __enter__(self) -> Self:
        self._stack.enter_context(uncompiled())
        owners: dict[int, list[str]] = {}
        for name, module in self._objective.named_modules():
            for handle in (
                module.register_forward_pre_hook(partial(self._before, name), with_kwargs=True),
                module.register_forward_hook(partial(self._after, name), with_kwargs=True),
            ):
                self._stack.callback(handle.remove)
            for parameter in module.parameters(recurse=False):
                owners.setdefault(id(parameter), []).append(name)
        for name, parameter in self._objective.named_parameters():
            if hook := _on_gradient(parameter, partial(self._of_parameter, name, owners[id(parameter)])):
                self._stack.callback(hook.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _before(self, name: str, module: nn.Module, inputs: Any, options: Any) -> tuple[Any, Any]:
        around = (self._calls[outer][-1] for outer in _outside(name) if outer in self._calls)
        call = Call(name, module, next(around, None))
        self._calls.setdefault(name, []).append(call)
        views: dict[int, Tensor] = {}

        def view(value: Any) -> Any:
            """Return a view for this module alone, so that its gradient excludes those of other modules."""
            if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or not value.requires_grad:
                return value
            if id(value) not in views:
                views[id(value)] = value.view_as(value)
                _on_gradient(views[id(value)], partial(self._of_input, call))
            return views[id(value)]

        return tuple(map(view, inputs)), {key: view(value) for key, value in options.items()}

    @torch.no_grad()
    def _after(self, name: str, module: nn.Module, inputs: Any, options: Any, outputs: Any) -> None:
        call, read, returned = self._calls[name][-1], [*tensors_in((inputs, options))], [*tensors_in(outputs)]
        numbers = [tensor[tensor.isfinite()].abs().max() for tensor in read if tensor.isfinite().any()]
        call.largest_input = max(map(float, numbers), default=0.0)
        sound = all(bool((tensor.isfinite() | tensor.isneginf()).all()) for tensor in read)
        if self.forward is None and sound and not all(map(_finite, returned)):
            self.forward = Origin("forward", call)
        for tensor in returned:
            if not isinstance(tensor, nn.Parameter):
                _on_gradient(tensor, partial(self._of_output, call))

    def _of_output(self, call: Call, gradient: Tensor) -> None:
        """Look at the gradient of an output: if no module that reads it is to blame, the code around the call is."""
        call.gradients.append(_finite(gradient))
        around = call.parent
        while around is not None and not around.sound:
            around = around.parent
        if self.backward is None and not call.gradients[-1] and around is not None:
            self.backward = Origin("backward", around)

    def _of_input(self, call: Call, gradient: Tensor) -> None:
        """Look at the gradient of an input."""
        if self.backward is None and call.sound and not _finite(gradient):
            self.backward = Origin("backward", call)

    def _of_parameter(self, name: str, owners: list[str], gradient: Tensor) -> None:
        """Look at the gradient of a parameter."""
        if self.backward is None and not _finite(gradient):
            calls = chain.from_iterable(self._calls.get(owner, []) for owner in owners)
            sound = [call for call in calls if call.sound]
            self.backward = Origin("backward", sound[-1] if sound else None, name)


def _outside(name: str) -> list[str]:
    """Return the names of the modules around a module, from the inside out."""
    parts = name.split(".") if name else []
    return [".".join(parts[:number]) for number in reversed(range(len(parts)))]


def _on_gradient(tensor: Tensor, look: Callable[[Tensor], None]) -> RemovableHandle | None:
    """Let `look` be called with the gradient of a tensor, unless it has none."""
    return tensor.register_hook(look) if tensor.requires_grad else None  # type: ignore[no-untyped-call]


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of floating-point numbers in the arguments or the result of a module."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
