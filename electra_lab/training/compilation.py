"""Compile the layers of backbones, where it pays."""

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from torch import nn

from electra_lab.training.device import Precision
from electra_lab.training.recompute import Recomputing
from registry.errors import ConfigError

Compile = Literal["off", "layers", "full"]

# How many compiled versions of one function are kept, by shapes and types. Torch would keep eight and run others as if
# nothing had been said:
# the cells of an ablation share a process, and each width, each size of a batch and each precision needs its own.
KINDS = 128

BACKEND = "inductor"
# The FLOPs of a training above which a warm-up of some ten seconds is a small part of it. On a CPU with bf16 matrix
# units compiled layers made the step of ELECTRA-Small a fifth faster; on others they gained nothing.
LONG = {"cpu": 1e14, "cuda": 1e16}


def choose_compile(name: str, device: torch.device, precision: Precision, flops: int) -> tuple[Compile, str]:
    """Return what is compiled, and the reason of `auto`, or "". Raises ConfigError without a compiler.

    flops  of the whole training
    """
    if name == "off":
        return "off", ""
    if name == "auto":
        if device.type == "cpu" and not (precision == "bf16" and torch.cpu.get_capabilities().get("amx_bf16")):
            return "off", "compiled layers gain nothing on this CPU"
        if flops < LONG.get(device.type, math.inf):
            return "off", "the training is short"
        if device.type == "cpu" and missing_compiler():
            return "off", "there is no C++ compiler here"
        return "layers", "the training is long"
    if device.type == "cpu" and (missing := missing_compiler()):
        raise ConfigError(f"train.compile: {name} needs a C++ compiler, such as g++ ({missing}). Use off or auto.")
    return ("layers" if name == "layers" else "full"), ""


def missing_compiler() -> str | None:
    """Return why torch finds no C++ compiler, None if it does."""
    from torch._inductor import cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except Exception as error:  # torch has several
        return str(error).splitlines()[0]
    return None


def compile_modules(how: Compile, objective: nn.Module, networks: Iterable[nn.Module]) -> None:
    """Compile in place, at the first call: each layer of each backbone, or the whole objective.

    Layers of one class share their code: their weights are its inputs. Names of parameters stay.
    """
    if how != "off":
        torch._dynamo.config.recompile_limit = KINDS
    if how == "full":
        objective.compile(backend=BACKEND, dynamic=False)
    if how == "layers":
        for module in (module for layer in layers_of(networks) for module in layer):
            if isinstance(again := module.forward, Recomputing):
                # Around the compiled code: inside, compilers would see one function for all classes of modules, of
                # which they keep few versions, and refuse layers that note something, such as reformer's.
                again.forward = torch.compile(again.forward, backend=BACKEND, dynamic=False)
            else:
                module.compile(backend=BACKEND, dynamic=False)


# Torch's stance holds for the process. If each block restored what it had found, the last could leave that of another.
_stance, _lock, _open = ExitStack(), threading.Lock(), 0


@contextmanager
def uncompiled() -> Iterator[None]:
    """Compile nothing in this process, and use nothing that is compiled, until the last of these blocks is left.

    Threads may be in blocks at the same time and leave them in any order.
    """
    global _open
    with _lock:
        if not _open:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                _stance.close()


def layers_of(networks: Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Return the modules that are called of each layer of each backbone; a layer that networks share comes once."""
    backbones = (getattr(network, "backbone", None) for network in networks)
    layers = dict.fromkeys(layer for backbone in backbones for layer in getattr(backbone, "layers", ()))
    return [list(_called(layer)) for layer in layers]


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the module itself, or what is inside one that only holds others, such as a ModuleList."""
    if type(module) in (nn.ModuleList, nn.ModuleDict):
        for child in module.children():
            yield from _called(child)
    else:
        yield module
