"""What a step costs, and how many steps a budget buys."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from torch import nn

from electra_lab.config.load import Loaded
from electra_lab.config.schema import Component
from electra_lab.config.schema import Experiment as Config
from electra_lab.model.flops import network_flops
from electra_lab.model.network import Network
from electra_lab.training.loop import Flops
from registry import schedules

Pair: TypeAlias = tuple[nn.Module | None, Network]  # the generator may be no network
PROGRESS = [i / 1000 for i in range(1001)]  # where a schedule's largest number is looked for


def price(pair: Pair, config: Config) -> Flops:
    """Of a step: a forward pass and, for what learns, a backward pass of twice its cost, over the global batch.

    Vocabulary logits are wanted at the masked positions, or as the objective says.
    """
    length, needs = config.data.sequence_length, config.needs
    masked = math.ceil(largest_mask_prob(config) * length - 1e-9)
    slots = {"generator": masked, "discriminator": length if needs.everywhere else masked}
    rows = {
        name: network_flops(network, length, slots[name]) if isinstance(network, Network) else 0
        for name, network in networks(pair).items()
    }
    guess, study = (config.train.batch_size * rows.get(name, 0) for name in ("generator", "discriminator"))
    if needs.first_stage:
        return Flops(guess + 3 * study, getattr(config.objective.options, needs.first_stage), 3 * guess)
    return Flops((1 if needs.frozen else 3) * guess + 3 * study)


def budgeted_steps(loaded: Loaded, flops: Flops | None) -> int:
    """The number of steps that the budget buys: whole ones, at least one. Without `flops`, only what needs none."""
    config, train, length = loaded.config, loaded.config.train, loaded.config.data.sequence_length
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        key, budget, price = "tokens", train.tokens, train.batch_size * length
        steps = int(budget // price)
    elif flops is not None:
        key, budget, price = "flops", float(train.flops or 0), flops.total(1)
        steps = flops.steps(budget)
    else:
        return 1
    if not steps:
        raise loaded.problem(("train", key), f"{budget:g} does not pay for one step, which costs {price:g}.")
    if config.needs.first_stage and steps <= (first := getattr(config.objective.options, config.needs.first_stage)):
        reason = f"{first} steps of the first stage leave none for the second: train.{key} buys {steps} steps. "
        reason += f"Set it below {steps}, or raise train.{key}."
        raise loaded.problem(("objective", config.needs.first_stage), reason)
    return steps


def networks(pair: Pair) -> dict[str, nn.Module]:
    named = zip(("generator", "discriminator"), pair, strict=True)
    return {name: network for name, network in named if network is not None}


def count_parameters(pair: Pair) -> dict[str, int]:
    """Parameters of each network; `shared` are counted in both and once in `total`."""

    def count(*modules: nn.Module) -> int:
        return sum(p.numel() for p in {p for m in modules for p in m.parameters()})

    parted = networks(pair)
    parts, total = {name: count(network) for name, network in parted.items()}, count(*parted.values())
    return {**parts, "shared": sum(parts.values()) - total, "total": total}


def largest_mask_prob(config: Config) -> float:
    """Of the whole training, in doubles."""
    given: float = config.masking.keywords()["mask_prob"]
    schedule = config.schedules.get("masking.mask_prob")
    return max(map(number_at(schedule), PROGRESS)) if schedule else given


def number_at(component: Component) -> Callable[[float], float]:
    """The number that a schedule gives, by progress."""
    return partial(schedules.get(component.type).component, **component.keywords())
