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
    given: float = 0.0  # the largest finite number of its inputs, without sign
    gradients: list[bool] = field(default_factory=list)  # of its outputs, in the backward pass: whether they are finite

    @property
    def sound(self) -> bool:
        """The gradients that came into it in the backward pass were finite."""
        return bool(self.gradients) and all(self.gradients)


@dataclass(frozen=True)
class Found:
    """Where numbers that are not finite come from, in the forward or the backward pass."""

    kind: Literal["forward", "backward"]
    call: Call | None
    parameter: str | None = None  # whose gradient is the first that is not finite, if it is that of a parameter


@dataclass
class _Passed:
    """A tensor that went from one module to another."""

    tensor: Tensor  # kept, so that no other gets its id
    made: list[Call] = field(default_factory=list)  # by, from the inside out
    read: list[Call] = field(default_factory=list)


class Probe:
    """Watches every module of an objective while a step is computed inside of the `with` block.

    forward   the first module whose output is not finite, though its inputs are
    backward  the first module that makes gradients that are not finite of gradients that are

    Both are the innermost one whose own code does so. Inputs may hold -inf, as attention masks do.
    """

    def __init__(self, objective: nn.Module) -> None:
        self.forward: Found | None = None
        self.backward: Found | None = None
        self._objective, self._stack = objective, ExitStack()
        self._calls: dict[str, list[Call]] = {}
        self._passed: dict[int, _Passed] = {}

    def __enter__(self) -> Self:
        self._stack.enter_context(uncompiled())
        owners: dict[int, list[str]] = {}
        for name, module in self._objective.named_modules():
            for handle in (
                module.register_forward_pre_hook(partial(self._begun, name), with_kwargs=True),
                module.register_forward_hook(partial(self._ended, name), with_kwargs=True),
            ):
                self._stack.callback(handle.remove)
            for parameter in module.parameters(recurse=False):
                owners.setdefault(id(parameter), []).append(name)
        for name, parameter in self._objective.named_parameters():
            if parameter.requires_grad:
                hook = _on_gradient(parameter, partial(self._weighed, name, owners[id(parameter)]))
                self._stack.callback(hook.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._passed.clear()

    def _begun(self, name: str, module: nn.Module, given: Any, options: Any) -> tuple[Any, Any]:
        around = (self._calls[outer][-1] for outer in _outside(name) if outer in self._calls)
        self._calls.setdefault(name, []).append(Call(name, module, next(around, None)))
        views: dict[int, Tensor] = {}

        def own(value: Any) -> Any:
            """Return a view for this module alone, so that its gradient excludes those of other modules."""
            if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or not value.requires_grad:
                return value
            return views.setdefault(id(value), value.view_as(value))

        return tuple(map(own, given)), {key: own(value) for key, value in options.items()}

    @torch.no_grad()
    def _ended(self, name: str, module: nn.Module, given: Any, options: Any, made: Any) -> None:
        call, inputs, outputs = self._calls[name][-1], list(tensors_in((given, options))), list(tensors_in(made))
        numbers = [tensor[tensor.isfinite()].abs().max() for tensor in inputs if tensor.isfinite().any()]
        call.given = max(map(float, numbers), default=0.0)
        sound = all(bool((tensor.isfinite() | tensor.isneginf()).all()) for tensor in inputs)
        if self.forward is None and sound and not all(map(_finite, outputs)):
            self.forward = Found("forward", call)
        for tensor in inputs:
            if passed := self._through(tensor):
                passed.read.append(call)
        for tensor in outputs:
            if passed := self._through(tensor):
                passed.made.append(call)

    def _through(self, tensor: Tensor) -> _Passed | None:
        if not tensor.requires_grad or isinstance(tensor, nn.Parameter):
            return None
        if id(tensor) not in self._passed:
            passed = self._passed[id(tensor)] = _Passed(tensor)
            _on_gradient(tensor, partial(self._returned, passed))
        return self._passed[id(tensor)]

    def _returned(self, passed: _Passed, gradient: Tensor) -> None:
        """Look at the gradient of a tensor, to which all that read it have added."""
        finite = _finite(gradient)
        for call in passed.made:
            call.gradients.append(finite)
        if finite or self.backward is not None:
            return
        readers = [call for call in passed.read if call.sound]
        outer = set(chain.from_iterable(_outside(call.name) for call in readers))
        innermost = [call for call in readers if call.name not in outer]
        # If no module that read it is to blame, the code around the module that made it is.
        around = passed.made[-1].parent if passed.made else None
        while around is not None and not around.sound:
            around = around.parent
        if culprit := innermost[-1] if innermost else around:
            self.backward = Found("backward", culprit)

    def _weighed(self, name: str, owners: list[str], gradient: Tensor) -> None:
        """Look at the gradient of a parameter."""
        if self.backward is None and not _finite(gradient):
            calls = chain.from_iterable(self._calls.get(owner, []) for owner in owners)
            sound = [call for call in calls if call.sound]
            self.backward = Found("backward", sound[-1] if sound else None, name)


def _outside(name: str) -> list[str]:
    """Return the names of the modules around a module, from the inside out."""
    parts = name.split(".") if name else []
    return [".".join(parts[:number]) for number in reversed(range(len(parts)))]


def _on_gradient(tensor: Tensor, look: Callable[[Tensor], None]) -> RemovableHandle:
    handle: RemovableHandle = tensor.register_hook(look)  # type: ignore[no-untyped-call]
    return handle


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
