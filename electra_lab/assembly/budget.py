"""The cost of a step, and the number of steps that a budget buys."""

import sys
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import replace

from torch import nn

from electra_lab.config.component import value_of
from electra_lab.config.load import Loaded
from electra_lab.config.schema import ExperimentConfig
from electra_lab.model.flops import Convention
from electra_lab.model.network import Network
from registry import BatchSizes, Flops, Objective, count


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
