"""The rules of `auto` for precision, attention and compilation. benchmarks/choices.py measures the alternatives."""

import json
import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from electra_lab.config.load import Loaded
from electra_lab.config.schema import Train
from electra_lab.model.layers import Kernel
from electra_lab.storage.provenance import Environment
from electra_lab.training.device import Compile, bf16_units, choose_precision, missing_compiler
from electra_lab.training.execution import Precision
from registry.contracts.objective import World
from registry.errors import ConfigError

# Narrowest network whose steps are clearly faster in bf16 on a CPU: 1.2 to 1.5 times with every backbone; 64 wide, 1.1.
WIDE = 128
# Longest rows for which `products` has been measured to be faster in bf16, by the units of a CPU.
SHORT_ROWS = {"AVX-512 BF16": 512, "AMX": 128}
# FLOPs of a training above which half a minute of compiling is a small part of what compiled layers save. By
# calculation, an H100 recovers it after 600 steps of ELECTRA-Base, 3e15, or 2,700 of ELECTRA-Small, 1.6e15.
LONG = {"cpu": 1e15, "cuda": 1e16}

Ruled = dict[str, tuple[str, str]]  # by key of `train`, the value and the reason


@dataclass(frozen=True)
class Scale:
    """The numbers that the rules depend on. Experiments that are compared share the numbers of one of them."""

    width: int  # width of the discriminator
    length: int  # positions of a row
    flops: int  # FLOPs of the whole training

    @classmethod
    def of(cls, loaded: Loaded[Any], flops: int) -> "Scale":
        sizes = loaded.config.discriminator.sizes
        assert sizes is not None
        return cls(sizes.dim, loaded.config.data.sequence_length, flops)


@dataclass(frozen=True)
class Choices:
    """Precision, attention and compilation of a run; provenance.json keeps them for a resume on the same device."""

    precision: Precision
    attention: Kernel
    compile: Compile
    reasons: dict[str, str]  # by key of `train` whose value is `auto`


def decide(train: Train, scale: Scale, device: torch.device, world: World, began: Environment | None = None) -> Choices:
    """Decide, the same on all ranks. Raises ConfigError if the experiment needs a compiler that is missing.

    began  environment of the run's beginning, if it is resumed on the same device
    """
    if began is not None:
        how: Any = began.compile if train.compile == "auto" else train.compile
        choices = Choices(cast("Precision", began.precision), cast("Kernel", began.attention), how, began.reasons)
    else:
        # Rank 0 decides, as the processors of other ranks may differ.
        ruled: Ruled = json.loads(world.once(lambda: json.dumps(by_rule(train, scale, device))))
        values: dict[str, Any] = {key: value for key, (value, _) in ruled.items()}
        choices = Choices(**values, reasons={key: reason for key, (_, reason) in ruled.items() if reason})
    # Each machine needs a compiler; the search takes seconds, so it is left out if nothing is compiled.
    if choices.compile != "off" and (missing := missing_compiler(device.type)):
        if train.compile != "auto":
            raise ConfigError(f"train.compile: {choices.compile} needs a compiler: {missing}. Use off or auto.")
        choices = replace(choices, compile="off", reasons=choices.reasons | {"compile": missing})
    return choices


def by_rule(train: Train, scale: Scale, device: torch.device) -> Ruled:
    """Return the values of precision, attention and compile, with the reason where `auto` decides."""
    precision, why = precision_by_rule(train.precision, scale.width, device)
    units = bf16_units() if device.type == "cpu" and precision == "bf16" else ""
    return {
        "precision": (precision, why),
        "attention": _attention(train.attention, scale.length, units),
        "compile": _compile(train.compile, scale.flops, device, units),
    }


def precision_by_rule(name: str, width: int, device: torch.device) -> tuple[Precision, str]:
    """Return the precision; `auto` is narrow on CUDA, and on CPUs with bf16 units if the network is wide."""
    if name != "auto":
        return cast("Precision", name), ""
    if device.type == "cuda":
        precision = choose_precision(name, device)
        return precision, f"this GPU {'has' if precision == 'bf16' else 'does not have'} bf16"
    units = bf16_units()
    if not units:
        return "fp32", "this processor has no AVX-512 BF16 or AMX"
    if width < WIDE:
        return "fp32", f"it hardly pays for networks narrower than {WIDE}, even with {units}"
    return "bf16", f"this processor has {units}, and the network is at least {WIDE} wide"


def _attention(name: str, length: int, units: str) -> tuple[str, str]:
    if name != "auto":
        return name, ""
    if not units:
        return "fused", "products are faster only in bf16 on a CPU that has it"
    faster = f"with {units} in bf16, products are faster for rows of up to {SHORT_ROWS[units]}"
    return "fused" if length > SHORT_ROWS[units] else "products", faster


def _compile(name: str, flops: int, device: torch.device, units: str) -> tuple[str, str]:
    if name != "auto":
        return name, ""
    if device.type == "cpu" and not units:
        return "off", "compiled layers are faster only in bf16 on a CPU that has it"
    if flops < LONG.get(device.type, math.inf):
        return "off", "the training is short"
    return "layers", "the training is long"
