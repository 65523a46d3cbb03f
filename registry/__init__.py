"""The extension surface of electra_lab: what a component is, how it is named, found, validated and tested.

from registry import samplers

@samplers.register("my_sampler")
def my_sampler(logits, rng, /, *, temperature: float = 1.0):
    \"""One line that listings show.\"""
"""

from collections.abc import Callable
from typing import Any

from registry.contracts import (
    Batch,
    Detection,
    Losses,
    Masked,
    Needs,
    Outcome,
    Prediction,
    Quantity,
    Term,
    Trained,
    Vocabulary,
)
from registry.core import Entry, Registry
from registry.discovery import Plugin, load_plugin
from registry.discovery import blame as _blame
from registry.errors import LabError, PluginError
from registry.listing import Listing

__electra_lab__ = True  # electra_lab checks this mark: `registry` is a name that another package could take

Component = Callable[..., Any]

backbones: Registry[Component] = Registry(
    "backbone",
    "backbones",
    home="electra_lab.backbones",
    lead=("dim", "depth", "heads", "max_length"),
    contract="Backbone",
)
masking_strategies: Registry[Component] = Registry(
    "masking strategy",
    "masking_strategies",
    home="electra_lab.masking",
    lead=("tokens", "maskable", "vocabulary", "rng"),
    required={"mask_prob": float, "replace_prob": float, "random_prob": float},
    contract="MaskingStrategy",
)
samplers: Registry[Component] = Registry(
    "sampler", "samplers", home="electra_lab.samplers", lead=("logits", "rng"), contract="Sampler"
)
objectives: Registry[Component] = Registry(
    "objective",
    "objectives",
    home="electra_lab.objectives",
    lead=("generator", "discriminator", "masking", "sampler", "vocabulary"),
    contract="Objective",
)
generators: Registry[Component] = Registry(
    "generator", "generators", home="electra_lab.generators", lead=("vocabulary",), contract="Generator"
)
corpora: Registry[Component] = Registry("corpus", "corpora", home="electra_lab.corpora", lead=(), contract="Corpus")
tokenizers: Registry[Component] = Registry(
    "tokenizer", "tokenizers", home="electra_lab.tokenizers", lead=("documents",), contract="TokenizerTrainer"
)

schedules: Registry[Component] = Registry(
    "schedule", "schedules", home="electra_lab.schedules", lead=("progress",), contract="Schedule"
)
measures: Registry[Component] = Registry(
    "measure", "measures", home="electra_lab.measures", lead=(), contract="Measure"
)
launchers: Registry[Component] = Registry(
    "launcher",
    "launchers",
    home="electra_lab.launchers",
    lead=("work", "folder", "ids"),
    required={"workers": int, "threads": int},
    contract="Launcher",
)

ALL: tuple[Registry[Component], ...] = (
    backbones,
    masking_strategies,
    samplers,
    objectives,
    generators,
    corpora,
    tokenizers,
    schedules,
    measures,
    launchers,
)


def blame(error: BaseException) -> PluginError | None:
    """The plug-in in whose code `error` arose, as a sentence; None if in none."""
    return _blame(error, ALL)


__all__ = [
    "ALL",
    "Batch",
    "Detection",
    "Entry",
    "LabError",
    "Listing",
    "Losses",
    "Masked",
    "Needs",
    "Outcome",
    "Plugin",
    "Prediction",
    "Quantity",
    "Registry",
    "Term",
    "Trained",
    "Vocabulary",
    "backbones",
    "blame",
    "corpora",
    "generators",
    "launchers",
    "load_plugin",
    "masking_strategies",
    "measures",
    "objectives",
    "samplers",
    "schedules",
    "tokenizers",
]
