"""The extension surface of electra_lab: how a component is defined, named, found and validated.

from registry import samplers

@samplers.register("my_sampler")
def my_sampler(logits, rng, /, *, temperature: float = 1.0):
    \"""One line that listings show.\"""
"""

from collections.abc import Callable
from typing import Any

from registry.contracts.backbone import Backbone
from registry.contracts.corpus import LONGEST, Corpus, Document, Skipped, Split
from registry.contracts.data import Batch, Batches, Random, Streams, Vocabulary
from registry.contracts.launcher import Launcher, Outcome, Work
from registry.contracts.masking import Masked, MaskingStrategy, count
from registry.contracts.measure import Measure, Trained
from registry.contracts.metric import Metric
from registry.contracts.network import Generator, Network
from registry.contracts.objective import (
    Accumulator,
    Detection,
    Example,
    Flops,
    Losses,
    Needs,
    Objective,
    Prediction,
    Price,
    Setup,
    Term,
)
from registry.contracts.optimizer import Optimizer
from registry.contracts.packing import Packed, Packing, Tokens
from registry.contracts.sampler import Sampler
from registry.contracts.schedule import Schedule
from registry.contracts.tokenizer import TokenizerTrainer
from registry.core import Entry, Registry
from registry.discovery import Plugin, blame, load_plugin
from registry.errors import LabError
from registry.listing import Listing

__electra_lab__ = True  # electra_lab checks this mark: `registry` is a name that another package could take

backbones: Registry[Callable[..., Backbone]] = Registry(
    "backbone", "backbones", "Backbone", ("dim", "depth", "heads", "max_length"), key="discriminator"
)
masking_strategies: Registry[MaskingStrategy] = Registry(
    "masking strategy", "masking_strategies", "MaskingStrategy", ("tokens", "maskable", "vocabulary", "rng"),
    required={"mask_prob": float, "replace_prob": float, "random_prob": float}, key="masking",
    home="electra_lab.masking",
)  # fmt: skip
samplers: Registry[Sampler] = Registry(
    "sampler", "samplers", "Sampler", ("logits", "rng"), declares={"unbiased": False}
)
objectives: Registry[Callable[..., Objective]] = Registry(
    "objective", "objectives", "Objective", ("generator", "discriminator", "masking", "sampler", "vocabulary")
)
generators: Registry[Callable[..., Generator]] = Registry("generator", "generators", "Generator", ("vocabulary",))
corpora: Registry[Callable[..., Corpus]] = Registry("corpus", "corpora", "Corpus")
tokenizers: Registry[TokenizerTrainer] = Registry(
    "tokenizer", "tokenizers", "TokenizerTrainer", ("documents",), declares={"trained": True}
)
packings: Registry[Callable[..., Packing]] = Registry(
    "packing", "packings", "Packing", ("tokens", "length", "vocabulary"),
    declares={"crosses_documents": False, "separates_documents": False},
)  # fmt: skip
optimizers: Registry[Callable[..., Optimizer]] = Registry(
    "optimizer", "optimizers", "Optimizer", ("parameters", "learning_rate")
)
schedules: Registry[Schedule] = Registry("schedule", "schedules", "Schedule", ("progress",), ("step", "steps"))
measures: Registry[Callable[..., Measure]] = Registry("measure", "measures", "Measure")
launchers: Registry[Callable[..., Launcher]] = Registry(
    "launcher", "launchers", "Launcher", required={"workers": int, "threads": int}
)

ALL: tuple[Registry[Any], ...] = (
    backbones, masking_strategies, samplers, objectives, generators, corpora, tokenizers, packings, optimizers,
    schedules, measures, launchers,
)  # fmt: skip

__all__ = [
    "ALL", "LONGEST", "Accumulator", "Backbone", "Batch", "Batches", "Corpus", "Detection", "Document", "Entry",
    "Example", "Flops", "Generator", "LabError", "Launcher", "Listing", "Losses", "Masked", "MaskingStrategy",
    "Measure", "Metric", "Needs", "Network", "Objective", "Optimizer", "Outcome", "Packed", "Packing", "Plugin",
    "Prediction", "Price", "Random", "Registry", "Sampler", "Schedule", "Setup", "Skipped", "Split", "Streams",
    "Term", "TokenizerTrainer", "Tokens", "Trained", "Vocabulary", "Work", "backbones", "blame", "corpora",
    "count", "generators", "launchers", "load_plugin", "masking_strategies", "measures", "objectives",
    "optimizers", "packings", "samplers", "schedules", "tokenizers",
]  # fmt: skip
