"""The cost of a step, the steps that a budget buys, and the rules of `auto`, which depend on the cost.

benchmarks/choices.py measures the alternatives of `auto`.
"""

import json
import math
import sys
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from electra_lab.config.load import Loaded
from electra_lab.config.schema import ExperimentConfig, Train
from electra_lab.config.sections import value_of
from electra_lab.model.flops import Convention
from electra_lab.model.layers import Kernel
from electra_lab.model.network import Network
from electra_lab.storage.provenance import Environment
from electra_lab.training.device import Compile, bf16_units, choose_precision, missing_compiler
from electra_lab.training.execution import Precision
from registry import BatchSizes, Flops, Objective, count
from registry.contracts.objective import World
from registry.errors import ConfigError


def training_flops(
    objective: Objective, networks: Mapping[str, nn.Module], config: ExperimentConfig, convention: Convention
) -> Flops:
    """Return the cost of training: forward passes and, for networks that learn, backward passes."""
    length, train = config.data.sequence_length, config.train
    masked = count(largest_mask_prob(config), length)
    at_once = rows_at_once(train.batch_size, train.micro_batch_size)

    def price(
        network: str,
        *,
        learns: bool = True,
        everywhere: bool = False,
        share: float = 1.0,
        heads: Collection[str] | None = None,
    ) -> int:
        module = networks.get(network)
        if not isinstance(module, Network):  # a generator that learns nothing costs nothing
            return 0
        read = count(share, length)
        forward = convention.forward(module, read, read if everywhere else masked, heads, at_once)
        return round(train.batch_size // at_once * forward * (1 + convention.backward * learns))

    flops = objective.flops(price)
    if not isinstance(flops, Flops):
        raise TypeError(f"flops() returned a {type(flops).__name__}, must be a registry.Flops.")
    return replace(flops, batches=train.batches) if train.batch_warmup else flops


def rows_at_once(batch_size: int, micro_batch_size: int | str | None) -> int:
    """Return the rows of a forward pass by the file alone: `auto` depends on the machine, and stands for a batch."""
    return micro_batch_size if isinstance(micro_batch_size, int) else batch_size


def steps_of(epochs: float, rows: int, batches: BatchSizes) -> int:
    """Return the number of steps in `epochs` passes over `rows` rows, rounded, at least one.

    Too large if training would end within the warm-up of the batch size, which is refused.
    """
    lacking = batches.warmup * batches.full - batches.before(batches.warmup)
    return max(1, round((epochs * rows + lacking) / batches.full))


def with_steps(loaded: Loaded, rows: int) -> Loaded:
    """Return the experiment with the steps of `train.epochs`, if set, for `rows` training rows. Raises ConfigError.

    Only for building: the file of a run keeps the epochs.
    """
    config, train = loaded.config, loaded.config.train
    if train.epochs is None:
        return loaded
    steps = steps_of(train.epochs, rows, train.batches)
    _refuse_conflicts(loaded, "epochs", steps)
    return replace(loaded, config=config.model_copy(update={"train": train.model_copy(update={"steps": steps})}))


def budgeted_steps(loaded: Loaded, flops: Flops, paper_flops: Flops) -> int | None:
    """Return the number of steps that the budget buys: whole ones, at least one. Raises ConfigError.

    None for epochs, until `with_steps` has the number of rows.
    """
    config, train = loaded.config, loaded.config.train
    if train.steps is not None or train.epochs is not None:
        return train.steps
    if train.tokens is not None:
        key, budget, price = "tokens", train.tokens, config.tokens_after(1)
        steps = bisect_right(range(sys.maxsize), budget, key=config.tokens_after) - 1
    else:
        key, spent = ("flops", flops) if train.flops else ("paper_flops", paper_flops)
        budget, price = float(getattr(train, key)), spent.total(1)
        steps = spent.steps(budget)
    if not steps:
        raise loaded.problem(("train", key), f"{budget:g} is too low: one step costs {price:g}.")
    _refuse_conflicts(loaded, key, steps)
    return steps


def _refuse_conflicts(loaded: Loaded, key: str, steps: int) -> None:
    for loc, reason, _ in loaded.config.conflicts(steps):
        raise loaded.problem(loc, f"{reason} (train.{key} buys {steps:,} steps.)")


def count_parameters(networks: Mapping[str, nn.Module]) -> dict[str, int]:
    """Count the parameters of each network; `shared` ones are counted in both, and once in `total`."""
    parts = {name: size_of(network) for name, network in networks.items()}
    total = size_of(nn.ModuleList(networks.values()))
    return {**parts, "shared": sum(parts.values()) - total, "total": total}


def largest_mask_prob(config: ExperimentConfig) -> float:
    """Return the largest mask_prob of the whole training, in doubles, at the thousandths of its progress."""
    constant: float = config.masking.keywords()["mask_prob"]
    schedule = config.schedules.get("masking.mask_prob")
    return max(map(value_of(schedule), (i / 1000 for i in range(1001)))) if schedule else constant


def size_of(module: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


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
