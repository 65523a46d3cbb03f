"""The draws of a frozen generator that runs share."""

from pathlib import Path

from electra_lab.assembly.budget import largest_mask_prob
from electra_lab.assembly.experiment import Experiment
from electra_lab.config.load import Loaded
from electra_lab.jobs.changes import content
from electra_lab.jobs.provenance import environment_of
from electra_lab.training.draws import Draws
from registry import count

SECTIONS = ("seed", "packing", "embedding", "generator", "masking", "sampler")


def kept_draws(loaded: Loaded, experiment: Experiment) -> Draws | None:
    """Return the place of the draws if the objective has a folder for them.

    Two runs share draws if everything is equal that decides them: rows and their order, masks, sampler, generator, and
    the code and the machine that compute them, as another order of summation may round otherwise.
    """
    config, plain, steps = loaded.config, content(loaded), experiment.settings.steps
    folder = getattr(experiment.run.learner.objective, "cache", None)
    if not isinstance(folder, Path):  # a plug-in may mean something else
        return None
    scheduled = {key: value for key, value in plain["schedules"].items() if key.startswith(("masking.", "sampler."))}
    identity = {
        **{key: plain[key] for key in SECTIONS},
        "store": experiment.store.key,
        "rows": [config.train.batch_size, plain["train"].get("batch_warmup")],
        "length": [config.data.sequence_length, config.data.group_by_length],
        "schedules": [scheduled, steps] if scheduled else [],
        "disallow_correct": plain["objective"].get("disallow_correct"),
        "plugins": sorted(plugin.sha256 for plugin in loaded.plugins),
        "environment": environment_of(experiment).model_dump(exclude={"reasons"}),
    }
    slots = count(largest_mask_prob(config), config.data.sequence_length)
    return Draws(folder, identity, slots, experiment.vocabulary.size)
