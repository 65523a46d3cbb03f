"""Faults inside a command, other than those of the file system: called in its process before it starts.

They use the public hooks of torch and Python, so that they do not depend on names inside the lab.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt"><metadata></metadata></svg>'


def no_charts() -> None:
    """Draw empty pictures: matplotlib takes half the time of a tiny run."""
    from matplotlib.figure import Figure

    Figure.savefig = lambda self, stream, **_: stream.write(SVG)  # type: ignore[method-assign,assignment]


def stream(number: int, target: str) -> None:
    """Replace a standard stream by a file or by a "pipe" without a reader, or close it ("closed")."""
    os.close(number)
    name, mode = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))[number]
    if target == "closed":
        setattr(sys, name, None)
        return
    if target == "pipe":
        reading, opened = os.pipe()
        os.dup2(opened, number)
        os.close(opened)
        if reading != number:
            os.close(reading)
    else:
        opened = os.open(target, os.O_RDONLY if number == 0 else os.O_WRONLY)
    setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def encoded(encoding: str) -> None:
    """Set the encoding of standard output, as PYTHONIOENCODING does."""
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115


def signals(point: str, nth: int, numbers: list[int], gap: float = 0.0) -> None:
    """Send signals to this process at a point, `gap` seconds apart."""

    def send() -> None:
        for place, number in enumerate(numbers):
            if place:
                time.sleep(gap)
            os.kill(os.getpid(), number)

    _at(point, nth, send)


def out_of_memory(point: str, nth: int) -> None:
    """Raise the error that torch raises when memory runs out."""
    _at(point, nth, lambda: _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")))


def bad_alloc(point: str, nth: int) -> None:
    """Raise the error that torch raises on a CPU when memory runs out."""
    said = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    said += "68719476736 bytes. Error code 12 (Cannot allocate memory)"
    _at(point, nth, lambda: _raise(RuntimeError(said)))


def _raise(error: Exception) -> None:
    raise error


def poison_gradient(nth: int, value: float, whole: bool = False) -> None:
    """Put a value into one element of a gradient in the n-th step, or multiply all of them by it."""
    clip, seen = torch.nn.utils.clip_grad_norm_, 0

    def clipped(parameters: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal seen
        seen, parameters = seen + 1, list(parameters)
        if seen == nth:
            given = [parameter.grad for parameter in parameters if parameter.grad is not None]
            for gradient in given if whole else given[:1]:
                gradient.mul_(value) if whole else gradient.view(-1)[0].fill_(value)
        return clip(parameters, *arguments, **options)

    torch.nn.utils.clip_grad_norm_ = clipped


def poison_weight(nth: int, value: float) -> None:
    """Put a value into one weight after the n-th step, as a broken kernel would."""
    seen = 0

    @torch.no_grad()
    def spoil(optimizer: Optimizer, *_: Any) -> None:
        nonlocal seen
        seen += _is_real(optimizer)
        if seen == nth and _is_real(optimizer):
            optimizer.param_groups[0]["params"][0].view(-1)[0] = value

    register_optimizer_step_post_hook(spoil)


def no_network() -> None:
    """Refuse every connection but those of Unix sockets, and note each attempt in the error output."""
    import socket

    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            print(f"connection attempted: {address}", file=sys.__stderr__, flush=True)
            raise OSError(101, "Network is unreachable")
        connect(self, address)

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    socket.socket.connect = refuse  # type: ignore[method-assign,assignment]
    socket.getaddrinfo = unknown


def threads(number: int) -> None:
    torch.set_num_threads(number)


def limit_memory(point: str, nth: int, spare: int) -> None:
    """Limit the address space, at a point, to the bytes in use then plus `spare`."""
    import resource

    def limit() -> None:
        with open("/proc/self/statm") as stream:
            used = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + spare, used + spare))

    _at(point, nth, limit)


def close_reader(stream: str, point: str, nth: int) -> None:
    """Send the output to a pipe whose reader closes it at a point, as in `... | head`."""
    number = {"out": 1, "err": 2}[stream]
    reader, writer = os.pipe()
    os.dup2(writer, number)
    os.close(writer)
    setattr(sys, f"std{stream}", open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    _at(point, nth, lambda: os.close(reader))


def hold(point: str, nth: int, mark: str) -> None:
    """Write a file at a point, and wait until it is removed."""

    def wait() -> None:
        with open(mark, "w") as stream:
            stream.write(str(os.getpid()))
        while os.path.exists(mark):
            time.sleep(0.005)

    _at(point, nth, wait)


def journal(point: str, file: str) -> None:
    """Append a letter to a file each time a point is reached."""

    def write() -> None:
        with open(file, "a") as stream:
            stream.write("x")

    _at(point, 0, write)


def _at(point: str, nth: int, act: Callable[[], None]) -> None:
    """Call `act` the n-th time a point is reached, or every time (0).

    Points: forward and evaluation (passes of the objective), backward, step (of the optimizer), open:NAME (of a file).
    """
    seen = 0

    def count() -> None:
        nonlocal seen
        if threading.current_thread() is not threading.main_thread() and point != "backward":
            return
        seen += 1
        if nth in (0, seen):
            act()

    if point.startswith("open:"):
        end = point.removeprefix("open:")

        def opened(event: str, given: Any) -> None:
            if event == "open" and str(given[0]).endswith(end):
                count()

        sys.addaudithook(opened)
    elif point == "step":
        register_optimizer_step_pre_hook(lambda optimizer, *_: count() if _is_real(optimizer) else None)
    elif point == "backward":
        backward = torch.Tensor.backward

        def counted(tensor: torch.Tensor, *arguments: Any, **options: Any) -> None:
            count()
            backward(tensor, *arguments, **options)

        torch.Tensor.backward = counted  # type: ignore[method-assign,assignment]
    else:
        training = point == "forward"
        register_module_forward_pre_hook(
            lambda module, _: count() if module.training == training and _is_objective(module) else None
        )


def _is_real(optimizer: Optimizer) -> bool:
    """Return False for the optimizer of two parameters with which the lab tries a component before training."""
    return sum(len(group["params"]) for group in optimizer.param_groups) > 2


def _is_objective(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("electra_lab.objectives")
