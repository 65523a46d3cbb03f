"""The extension surface of electra_lab: definitions, names and schemas of components.

from registry import samplers

@samplers.register("my_sampler")
def my_sampler(logits, rng, /, *, temperature: float = 1.0):
    \"""One line that listings show.\"""
"""

from collections.abc import Callable
from typing import Any

from registry.contracts.data import (
    LONGEST,
    Batch,
    Batches,
    BatchSizes,
    Corpus,
    Document,
    Packed,
    Packing,
    Random,
    Skipped,
    Split,
    Streams,
    TokenizerTrainer,
    Tokens,
    Vocabulary,
)
from registry.contracts.lab import (
    Command,
    Ended,
    Launcher,
    Measure,
    MetricWithDocuments,
    Outcome,
    Tracked,
    Tracker,
    Trained,
)
from registry.contracts.objective import (
    Accumulator,
    Choice,
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
from registry.contracts.tasks import (
    Answer,
    AnyTask,
    Dataset,
    Encoded,
    Encoder,
    Judgement,
    PairExample,
    Pretrained,
    QuestionExample,
    Results,
    Row,
    Table,
    Task,
    TextExample,
    WordsExample,
)
from registry.contracts.training import (
    Backbone,
    EmbeddingSizes,
    Generator,
    Head,
    Heads,
    Masked,
    MaskingStrategy,
    Metric,
    Network,
    Optimizer,
    Sampler,
    Schedule,
    count,
)
from registry.core import Entry, Registry
from registry.discovery import Plugin, blame, load_plugin, using
from registry.errors import LabError
from registry.listing import Listing

__electra_lab__ = True  # electra_lab checks this mark: `registry` is a name that another package could take

backbones: Registry[Callable[..., Backbone]] = Registry(
    "backbone", "backbones", "Backbone", ("dim", "depth", "heads", "max_length"),
    declares={"initialized_by_lab": False, "cloze": False}, key="discriminator",
)  # fmt: skip
masking_strategies: Registry[MaskingStrategy] = Registry(
    "masking strategy", "masking_strategies", "MaskingStrategy", ("tokens", "maskable", "vocabulary", "rng"),
    required={"mask_prob": float, "replace_prob": float, "random_prob": float}, key="masking",
    home="electra_lab.masking",
)  # fmt: skip
samplers: Registry[Sampler] = Registry(
    "sampler", "samplers", "Sampler", ("logits", "rng"), declares={"unbiased": False}
)
objectives: Registry[Callable[..., Objective]] = Registry(
    "objective",
    "objectives",
    "Objective",
    ("generator", "discriminator", "masking", "sampler", "vocabulary"),
    declares={"initialized_by_lab": False},
)
generators: Registry[Callable[..., Generator]] = Registry(
    "generator", "generators", "Generator", ("vocabulary",), declares={"initialized_by_lab": False, "cloze": False}
)
heads: Registry[Callable[..., Head]] = Registry(
    "head", "heads", "Head", ("dim", "sizes", "vocabulary"),
    declares={"initialized_by_lab": False, "exports_as": None},
)  # fmt: skip
corpora: Registry[Callable[..., Corpus]] = Registry("corpus", "corpora", "Corpus")
tokenizers: Registry[TokenizerTrainer] = Registry(
    "tokenizer", "tokenizers", "TokenizerTrainer", ("documents",), declares={"trained": True}
)
packings: Registry[Callable[..., Packing]] = Registry(
    "packing", "packings", "Packing", ("tokens", "length", "vocabulary"),
    declares={"crosses_documents": False, "separates_documents": False},
)  # fmt: skip
optimizers: Registry[Callable[..., Optimizer]] = Registry(
    "optimizer", "optimizers", "Optimizer", ("parameters", "learning_rate"), declares={"elementwise": False}
)
schedules: Registry[Schedule] = Registry("schedule", "schedules", "Schedule", ("progress",), ("step", "steps"))
measures: Registry[Callable[..., Measure]] = Registry("measure", "measures", "Measure")
datasets: Registry[Callable[..., Dataset]] = Registry("dataset", "datasets", "Dataset", declares={"yields": None})
tasks: Registry[Callable[..., AnyTask]] = Registry(
    "task", "tasks", "AnyTask", declares={"takes": None, "trains": True, "initialized_by_lab": False},
)  # fmt: skip
launchers: Registry[Callable[..., Launcher]] = Registry(
    "launcher", "launchers", "Launcher", required={"workers": int, "threads": int}, complete=True
)
trackers: Registry[Callable[..., Tracker]] = Registry("tracker", "trackers", "Tracker", complete=True)

ALL: tuple[Registry[Any], ...] = (
    backbones, masking_strategies, samplers, objectives, generators, heads, corpora, tokenizers, packings, optimizers,
    schedules, measures, datasets, tasks, launchers, trackers,
)  # fmt: skip

__all__ = [
    "ALL", "LONGEST", "Accumulator", "Answer", "AnyTask", "Backbone", "Batch", "BatchSizes", "Batches", "Choice",
    "Command", "Corpus", "Dataset", "Detection", "Document", "EmbeddingSizes", "Encoded", "Encoder", "Ended", "Entry",
    "Example", "Flops", "Generator", "Head", "Heads", "Judgement", "LabError", "Launcher", "Listing", "Losses",
    "Masked", "MaskingStrategy", "Measure", "Metric", "MetricWithDocuments", "Needs", "Network", "Objective",
    "Optimizer", "Outcome", "Packed", "Packing", "PairExample", "Plugin", "Prediction", "Pretrained", "Price",
    "QuestionExample", "Random", "Registry", "Results", "Row", "Sampler", "Schedule", "Setup", "Skipped", "Split",
    "Streams", "Table", "Task", "Term", "TextExample", "TokenizerTrainer", "Tokens", "Tracked", "Tracker", "Trained",
    "Vocabulary", "WordsExample", "backbones", "blame", "corpora", "count", "datasets", "generators", "heads",
    "launchers", "load_plugin", "masking_strategies", "measures", "objectives", "optimizers", "packings", "samplers",
    "schedules", "tasks", "tokenizers", "trackers", "using",
]  # fmt: skip
