"""The device of a run, its precision and its memory."""

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from electra_lab.model.network import backbones_of
from electra_lab.training.execution import Precision
from registry.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device; `auto` is CUDA if there is one. Raises ConfigError."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; it must be 'cpu', 'cuda' or 'auto'.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device here. Use --device cpu or auto.")
    if name == "cpu":
        return torch.device(name)
    use_exact_kernels()
    return torch.device("cuda", torch.cuda.current_device())


def planned_device(name: str) -> torch.device:
    """Return the device of a plan, which may be for another machine: CUDA need not be here. Raises ConfigError."""
    return torch.device(name) if name == "cuda" and not torch.cuda.is_available() else choose_device(name)


def use_exact_kernels() -> None:
    """Let torch on CUDA use no kernels whose results are not those of their definition.

    Convolutions in fp32 stay in fp32, as matrix products do. cuDNN's attention is off: torch prefers it on Hopper,
    where with a mask it gave wrong gradients (pytorch/pytorch#196678) and outputs (#191612).
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def bf16_units() -> str:
    """Return the name of this processor's instructions for matrix products in bf16, "" if it has none."""
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("amx_bf16"):
        return "AMX"
    return "AVX-512 BF16" if capabilities.get("avx512_bf16") else ""


def choose_precision(name: str, device: torch.device) -> Precision:
    """Return the precision; `auto` is bf16 on CUDA, fp16 on older cards, and fp32 elsewhere."""
    if name != "auto":
        return cast("Precision", name)
    if device.type != "cuda":
        return "fp32"
    # Without a device, a dry run is meant for a recent one.
    bf16 = not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if bf16 else "fp16"


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Let torch use a number of threads within the block; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let the C library keep memory freed by CPU tensors until the process ends; returns whether it does.

    By default glibc returns every large block to the system, and each step spends a tenth of its time on getting them
    back, page by page and filled with zeros. Only glibc has these settings (mallopt(3)); elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))


Compile = Literal["off", "layers", "full"]
# Compiled versions of a function that torch keeps, by shapes and types. Its default is eight, and it runs further ones
# uncompiled. The cells of an ablation share a process, and each width, batch size and precision needs another version.
KINDS = 128
BACKEND = "inductor"


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
        compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")  # as triton looks
        return None if compiler else "there is no C compiler here, such as gcc"
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
