"""The choice of device and precision."""

from contextlib import AbstractContextManager
from typing import Literal, cast

import torch

from registry.errors import ConfigError

Precision = Literal["bf16", "fp16", "fp32"]
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}  # the types of products; all else is in fp32


def choose_device(name: str) -> torch.device:
    """Return the device; `auto` is CUDA if there is one. Raises ConfigError."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; it must be 'cpu', 'cuda' or 'auto'.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device here. Use --device cpu or auto.")
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def has_bf16(device: torch.device) -> bool:
    """Return whether the device multiplies matrices in bf16 natively."""
    if device.type == "cuda":
        # Without a device, a dry run is meant for one of today's.
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def narrowest(device: torch.device) -> Precision:
    """Return the narrow precision whose products are fast on the device, otherwise fp32.

    On CUDA that is bf16, or on older cards fp16, with a scaled loss; processors have bf16 or nothing.
    """
    if has_bf16(device):
        return "bf16"
    return "fp16" if device.type == "cuda" else "fp32"


def choose_precision(name: str, device: torch.device) -> Precision:
    """Return the precision; `auto`, where nothing was measured, is the narrow one on CUDA, otherwise fp32.

    On a CPU bf16 pays for large networks alone.
    """
    if name == "auto":
        return narrowest(device) if device.type == "cuda" else "fp32"
    return cast("Precision", name)


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[None]:
    """Compute matrix products in a narrow type; weights, softmax and losses stay in fp32."""
    return torch.autocast(device.type, NARROW.get(precision, torch.bfloat16), enabled=precision in NARROW)
