"""Train an experiment in several processes."""

from pathlib import Path
from typing import Any

import torch

from electra_lab.assembly.build import Built
from electra_lab.config.load import Loaded
from electra_lab.parallel.world import World
from electra_lab.training.compilation import layers_of


def refuse_uneven(loaded: Loaded, world: World, group: int = 1) -> None:
    """Raise ConfigError if a batch cannot be divided among the processes, in whole groups of rows."""
    train = loaded.config.train
    numbers: list[tuple[tuple[str, ...], int]] = [(("batch_size",), train.batch_size)]
    if warmup := getattr(train, "batch_warmup", None):
        numbers += [(("batch_warmup", key), getattr(warmup, key)) for key in ("start", "increment")]
    for key, rows in numbers:
        if rows % (world.size * group):
            groups = f" in groups of {group} (objective.group)" if group > 1 else ""
            reason = f"{rows} rows cannot be divided evenly among {world.size} processes{groups}."
            raise loaded.problem(("train", *key), f"{reason} Use a multiple of {world.size * group}.")


def parallelize(loaded: Loaded, built: Built, world: World, device: torch.device, *, partly: bool) -> None:
    """Wrap the objective in DDP or FSDP, before the optimizer is built. Raises ConfigError.

    partly  a step may leave parameters without a gradient
    """
    if world.size == 1:
        return
    refuse_uneven(loaded, world, built.learner.group)
    from electra_lab.parallel.wrap import Replicated, shard

    learner = built.learner
    learner.world = world
    if loaded.config.train.parallel != "fsdp":
        learner.module = Replicated(learner.objective, partly=partly)
        return
    if isinstance(getattr(learner.objective, "cache", None), Path):
        reason = "fsdp divides the generator, which draws outside the step. Use ddp, or remove this key."
        raise loaded.problem(("objective", "cache"), reason)
    if not isinstance(loaded.config.embedding.tie, str):
        reason = "fsdp cannot divide layers that two networks share. Use ddp, or another embedding.tie."
        raise loaded.problem(("train", "parallel"), reason)
    networks: list[Any] = list(built.networks.values())
    reason = "fsdp cannot divide reversible layers. Use ddp, or reversible: false."
    if any(getattr(getattr(network, "backbone", None), "reversible", False) for network in networks):
        raise loaded.problem(("train", "parallel"), reason)
    try:
        shard(learner.objective, layers_of(networks), device)
    except ValueError as error:
        raise loaded.problem(("train", "parallel"), f"fsdp cannot divide these networks: {error}") from error
