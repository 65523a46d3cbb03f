"""The keys of a fine-tuning file: a pre-trained model, a task, and the data of the task."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

import registry
from electra_lab.config.component import Component, Of, default
from electra_lab.config.problems import problems
from electra_lab.config.schema import TRACKERS, Name, Positive, Rows, Seeds, Wrong, refuse_uneven, with_learning_rate
from electra_lab.config.source import DEFAULTS
from registry.folder_or_name import FolderOrName
from registry.signature import Strict

OF_TRAINING = ("optimizer", "schedules", "train", "checkpoint", "trackers")  # keys
WARMUP = 0.1  # share of the steps; warmup_proportion of google-research/electra


class FinetuningData(Strict):
    """The rows that are made of the examples."""

    max_length: Annotated[int, Field(ge=8)] | None = Field(
        None,
        description="Longest row in tokens, [CLS] and [SEP] included; by default that of the rows of pre-training. "
        "What happens to longer examples depends on the task.",
    )
    group_by_length: bool = Field(
        True, description="Put rows of similar lengths into one batch. Batches are cut to their longest row anyway."
    )
    train_examples: Positive | None = Field(
        None, description="Train on so many examples, drawn by the seed, instead of on all."
    )


class FinetuningTrain(Strict):
    """How to fine-tune."""

    epochs: Annotated[float, Field(gt=0)] = Field(3.0, description="How often every training example is read.")
    batch_size: Rows = Field(32, description="Rows per optimizer step.")
    micro_batch_size: Rows | None = Field(None, description="Rows at a time, if a batch does not fit into memory.")
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto", description="Precision of matrix products; auto is bf16 on CUDA, or fp16 without it, otherwise fp32."
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        1e-4, description="Peak learning rate of the task's own layers; `schedules.learning_rate` multiplies it."
    )
    layer_decay: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8,
        description="The learning rate of each layer, relative to that of the layer above it. The embeddings are the "
        "lowest layer, the task's own layers the highest.",
    )
    layer_decay_rule: Literal["exact", "official"] = Field(
        "exact",
        description="official: all but the task's own layers learn slower by one more factor, as in "
        "google-research/electra, whose count of layers is off by one.",
    )
    frozen: bool = Field(
        False, description="Train the task's own layers alone, on the states of the model as it is: probing."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.1, description="Dropout before the task's output layer.")
    clip_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Largest norm of the gradient.")
    log_every: Positive = Field(50, description="Steps between two log lines; a shorter run has its first and last.")
    on_non_finite: Literal["stop", "skip"] = Field(
        "stop", description="What to do at a step whose loss or gradient is not finite. It is never taken."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        refuse_uneven(self.batch_size, self.micro_batch_size)
        return self


class FinetuningEvaluate(Strict):
    """Evaluation on validation data while training, and on all held-out data at the end."""

    every: Positive | None = Field(
        None, description="Steps between two evaluations on validation data. The end of training is always evaluated."
    )
    batch_size: Rows = Field(32, description="Rows at a time, which affects only speed and memory.")
    select: Literal["last", "best"] = Field(
        "last",
        description="The weights that are kept and judged: those after the last step, or those with the best `metric` "
        "on validation data. A best one is chosen on the data that it is then judged by, so its number is too good.",
    )
    metric: str | None = Field(None, description="The metric that reports lead with; by default the first of the task.")
    errors: Annotated[int, Field(ge=0, le=1000)] = Field(
        10, description="Number of wrong predictions that the report shows."
    )


class FinetuningCheckpoint(Strict):
    """Checkpoints."""

    every: Positive = Field(1000, description="Steps between two checkpoints. The end of training is always saved.")
    keep: Positive = Field(1, description="Number of newest checkpoints to keep.")


def _with_warmup(values: Any) -> Any:
    """Complete the schedule of the learning rate; its warm-up is a share of the steps unless something else is said."""
    values = with_learning_rate(values)
    rate = values["learning_rate"] if isinstance(values, dict) else None
    if isinstance(rate, dict) and rate.get("type") == DEFAULTS["schedules", "learning_rate"]:
        if "warmup_steps" not in rate:
            rate = {"warmup_share": WARMUP, **rate}
        values = {**values, "learning_rate": rate}
    return values


class FinetuningConfig(Strict):
    """A fine-tuning file."""

    name: Name = Field(description="Name of the fine-tuning: lower-case letters, digits, `.`, `_` and `-`.")
    seeds: Seeds = Field(
        default_factory=lambda: [0],
        description="The model is fine-tuned once with each. A seed decides the task's own layers, the order of "
        "the data and dropout, and all weights with init: random.",
    )
    imports: list[Path] = Field(default_factory=list, description="Plug-in files, relative to this file.")
    model: FolderOrName = Field(
        description="The pre-trained model: a run directory, an export, or an ELECTRA or BERT in Hugging Face format, "
        "a folder relative to this file or a name on the hub."
    )
    network: Literal["discriminator", "generator"] = Field(
        "discriminator", description="The network of the pre-trained pair that is fine-tuned."
    )
    init: Literal["pretrained", "random"] = Field(
        "pretrained",
        description="random: the same network with random weights, which shows what pre-training is worth.",
    )
    task: Annotated[Component, Of(registry.tasks)] = Field(description="The task.")
    dataset: Annotated[Component, Of(registry.datasets)] = Field(description="The examples.")
    data: FinetuningData = Field(
        FinetuningData.model_validate({}), description="The rows that are made of the examples."
    )
    optimizer: Annotated[Component, Of(registry.optimizers, default=DEFAULTS["optimizer",])] = Field(
        default_factory=lambda: default(registry.optimizers, DEFAULTS["optimizer",]), description="The optimizer."
    )
    schedules: Annotated[
        dict[Literal["learning_rate"], Annotated[Component, Of(registry.schedules)]], BeforeValidator(_with_warmup)
    ] = Field(
        default_factory=lambda: _with_warmup({}),
        validate_default=True,
        description=f"The learning rate; by default its warm-up takes {WARMUP:.0%} of the steps.",
    )
    train: FinetuningTrain = Field(FinetuningTrain.model_validate({}), description="How to fine-tune.")
    evaluate: FinetuningEvaluate = Field(
        FinetuningEvaluate.model_validate({}),
        description="Evaluation on validation data while training, and on all held-out data at the end.",
    )
    checkpoint: FinetuningCheckpoint = Field(FinetuningCheckpoint.model_validate({}), description="Checkpoints.")
    trackers: list[Annotated[Component, Of(registry.trackers)]] = Field(default_factory=list, description=TRACKERS)

    @property
    def trains(self) -> bool:
        """The task trains a model; otherwise it judges one as it is."""
        return bool(registry.tasks.get(self.task.type).declared["trains"])

    @model_serializer(mode="wrap")
    def _without_what_is_not_used(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        return values if self.trains else {key: each for key, each in values.items() if key not in OF_TRAINING}

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if wrong := list(self._wrong()):
            raise problems(wrong)
        return self

    def _wrong(self) -> Iterator[Wrong]:
        task, dataset = registry.tasks.get(self.task.type), registry.datasets.get(self.dataset.type)
        takes, yields = task.declared["takes"], dataset.declared["yields"]
        if takes is not yields:
            theirs, ours = (getattr(each, "__name__", str(each)) for each in (yields, takes))
            fitting = [name for name in registry.datasets.names()
                       if registry.datasets.get(name).declared["yields"] is takes]  # fmt: skip
            reason = f"yields {theirs}, but the task {self.task.type} takes {ours}. Use {' or '.join(fitting) or '?'}."
            yield ("dataset", "type"), f"{self.dataset.type} {reason}", None
        if not self.trains:
            for key in OF_TRAINING:
                if key in self.model_fields_set:
                    yield (key,), f"{self.task.type} trains nothing; remove this key.", None
            if len(self.seeds) > 1 and self.init == "pretrained":
                yield ("seeds",), f"{self.task.type} trains nothing, so every seed gives the same. Keep one.", None
        if self.trains and self.evaluate.select == "best" and self.evaluate.every is None:
            yield ("evaluate", "select"), "best needs several evaluations; set evaluate.every.", None
        if self.init == "random" and self.train.frozen:
            yield ("train", "frozen"), "would probe states of random weights; write init: pretrained.", None
