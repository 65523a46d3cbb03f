"""Compile the layers of backbones, or the whole objective; recompute layers in the backward pass."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from electra_lab.model.network import backbones_of

Compile = Literal["off", "layers", "full"]
# Compiled versions of a function that torch keeps, by shapes and types. Its default is eight, and it runs further ones
# uncompiled. The cells of an ablation share a process, and each width, batch size and precision needs another version.
KINDS = 128
BACKEND = "inductor"
# Torch's stance is one for the process: blocks of several threads that restored it themselves could leave it changed.
_stance, _lock, _open = ExitStack(), threading.Lock(), 0


def recompute(modules: Iterable[nn.Module]) -> None:
    """Let modules keep no activations in training, in place (Chen et al. 2016). All numbers stay, dropout included."""
    for module in modules:
        module.forward = Recomputing(module, module.forward)


class Recomputing:
    """A module's forward pass, which is computed again in the backward pass. A copy of the module has its own."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self.module, self.forward = module, forward

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if not (self.module.training and torch.is_grad_enabled()):
            return self.forward(*inputs, **options)
        return checkpoint(self.forward, *inputs, use_reentrant=False, **options)


def missing_compiler(kind: str) -> str | None:
    """Return why torch cannot build code for a kind of device, None if it can. Looking for a compiler takes seconds."""
    if kind == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            return "there is no triton here for this GPU"
        found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")  # as triton looks
        return None if found else "there is no C compiler here, such as gcc"
    from torch._inductor import cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except Exception as error:  # torch has several
        return f"there is no C++ compiler here, such as g++ ({str(error).splitlines()[0]})"
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
        for module in chain.from_iterable(layers_of(networks)):
            if isinstance(again := module.forward, Recomputing):
                # Recompute around the compiled code. Inside it, compilers would see one function for all classes of
                # modules, of which they keep few versions, and would refuse layers with side effects, as reformer's.
                again.forward = torch.compile(again.forward, backend=BACKEND, dynamic=False)
            else:
                module.compile(backend=BACKEND, dynamic=False)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run everything eagerly in this process until all threads have left these blocks."""
    global _open
    with _lock:
        # Without torch's compiler, whose import takes seconds, there is no compiled code.
        if not _open and "torch._dynamo" in sys.modules:
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
    """Return the callable modules of each layer of each backbone; a layer that networks share comes once."""
    layers: dict[nn.Module, None] = {}
    for backbone in backbones_of(networks):
        layers |= dict.fromkeys(backbone.layers)
    return [list(_called(layer)) for layer in layers]


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the module itself, or the modules inside a ModuleList or ModuleDict."""
    if type(module) in (nn.ModuleList, nn.ModuleDict):
        for child in module.children():
            yield from _called(child)
    else:
        yield module
