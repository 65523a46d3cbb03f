"""What happens inside a command, beside faults of the file system: called in its process before it starts.

They hold on to torch's and Python's public hooks, so that no name within the lab matters to them.
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
    """Draw empty pictures: half of a tiny run is matplotlib."""
    from matplotlib.figure import Figure

    Figure.savefig = lambda self, stream, **_: stream.write(SVG)  # type: ignore[method-assign,assignment]


def stream(number: int, target: str) -> None:
    """Replace a standard stream by a file, by a "pipe" that nobody reads, or by nothing if it is "closed"."""
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
    """Let standard output take this encoding alone, as PYTHONIOENCODING does."""
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
    """Raise what torch raises where memory ends."""
    _at(point, nth, lambda: _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")))


def bad_alloc(point: str, nth: int) -> None:
    """Raise what torch raises on a CPU whose memory ends."""
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
            given = [each.grad for each in parameters if each.grad is not None]
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
    """Limit the address space, at a point, to what is in use then and `spare` bytes more."""
    import resource

    def limit() -> None:
        with open("/proc/self/statm") as stream:
            used = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + spare, used + spare))

    _at(point, nth, limit)


def close_reader(stream: str, point: str, nth: int) -> None:
    """Let the output go into a pipe, whose reader closes it at a point: `... | head`."""
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
    """Add a letter to a file at each time of a point."""

    def write() -> None:
        with open(file, "a") as stream:
            stream.write("x")

    _at(point, 0, write)


def _at(point: str, nth: int, act: Callable[[], None]) -> None:
    """Call `act` at the n-th time of a point, or at each of them (0).

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
    """Return False for the optimizer of two parameters on which the lab tries a component before it trains."""
    return sum(len(group["params"]) for group in optimizer.param_groups) > 2


def _is_objective(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("electra_lab.objectives")
