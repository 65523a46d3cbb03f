"""The draws of a frozen generator that runs share."""

from typing import Any

import torch

from electra_lab.assembly.budget import largest_mask_prob
from electra_lab.assembly.build import Built
from electra_lab.assembly.choices import Choices
from electra_lab.config.load import Loaded
from electra_lab.data.store import Store
from electra_lab.parallel.world import World
from electra_lab.training.draws import Draws
from electra_lab.training.loop import Settings
from registry import count


def kept_draws(
    loaded: Loaded,
    built: Built,
    store: Store,
    settings: Settings,
    choices: Choices,
    world: World,
    device: torch.device,
) -> Draws | None:
    """Return the place of the draws if the objective has a folder for them. Raises ConfigError.

    Two runs share draws if everything is equal that decides them: rows and their order, masks, sampler, the generator,
    and how and where it is computed, as another order of summation may round otherwise.
    """
    config, objective = loaded.config, built.learner.objective
    folder: Any = getattr(objective, "cache", None)
    if folder is None:
        return None
    if world.size > 1 and config.train.parallel == "fsdp":
        reason = "fsdp divides the generator, which runs outside the step. Use ddp, or remove this key."
        raise loaded.problem(("objective", "cache"), reason)
    plain = config.model_dump(mode="json")
    scheduled = {key: plain["schedules"][key] for key in config.schedules if key.startswith(("masking.", "sampler."))}
    rows = min(settings.micro_batch_size, settings.batch_size // world.size)
    identity = {
        **{key: plain[key] for key in ("seed", "packing", "embedding", "generator", "masking", "sampler")},
        "store": store.key,
        "rows": [plain["train"]["batch_size"], plain["train"]["batch_warmup"]],
        "length": [config.data.sequence_length, config.data.group_by_length],
        "schedules": [scheduled, settings.steps] if scheduled else [],
        "disallow_correct": plain["objective"].get("disallow_correct"),
        "computed": [rows, world.size, choices.precision, choices.attention, choices.compile, torch.__version__],
        "device": machine(device),
        "plugins": sorted(plugin.sha256 for plugin in loaded.plugins),
    }
    slots = count(largest_mask_prob(config), config.data.sequence_length)
    return Draws(folder, identity, slots, built.vocabulary.size)


def machine(device: torch.device) -> list[Any]:
    """Return what rounding may depend on."""
    if device.type == "cuda":
        return [torch.cuda.get_device_name(device)]
    return [device.type, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]
