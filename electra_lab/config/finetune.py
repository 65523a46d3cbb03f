"""The keys of a fine-tuning file: a pre-trained model, a task, and the data of the task."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

import registry
from electra_lab.config.schema import TRACKERS, Name, Positive, Seeds, Wrong, with_learning_rate
from electra_lab.config.sections import Of, Rows, default, refuse_uneven
from electra_lab.config.source import DEFAULTS
from registry.component import Component
from registry.signature import FolderOrName, Strict, problems

OF_TRAINING = ("optimizer", "schedules", "train", "checkpoint", "trackers")  # keys
WARMUP = 0.1  # share of the steps; warmup_proportion of google-research/electra


class FinetuningData(Strict):
    """The rows that are made of the examples."""

    max_length: Annotated[int, Field(ge=8)] | None = Field(
        None,
        description="Maximum tokens per row, including [CLS] and [SEP]. If null, as in pre-training. The task decides "
        "how longer examples are cut.",
    )
    group_by_length: bool = Field(
        True, description="Batch rows of similar lengths together. Batches are cut to their longest row in any case."
    )
    train_examples: Positive | None = Field(
        None, description="Number of training examples, drawn by the seed. If null, all of them."
    )


class FinetuningTrain(Strict):
    """How to fine-tune."""

    epochs: Annotated[float, Field(gt=0)] = Field(3.0, description="Number of passes over the training examples.")
    batch_size: Rows = Field(32, description="Rows per optimizer step.")
    micro_batch_size: Rows | None = Field(
        None, description="Rows per forward pass, if a batch does not fit into memory."
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto",
        description="Precision of matrix products. auto is bf16 on GPUs, fp16 on GPUs without bf16, fp32 on CPUs.",
    )
    graph: Literal["auto", "on", "off"] = Field(
        "auto", description="Record the device's part of a step as a CUDA graph. See `train.graph` of an experiment."
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        1e-4, description="Peak learning rate of the task's head; `schedules.learning_rate` multiplies it."
    )
    layer_decay: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8,
        description="Learning rate of each layer relative to the layer above it. The embeddings are the lowest layer, "
        "the task's head is the highest.",
    )
    layer_decay_rule: Literal["exact", "official"] = Field(
        "exact",
        description="official: multiply the rates of all layers below the head by layer_decay once more. "
        "google-research/electra does this, because it counts layers off by one.",
    )
    frozen: bool = Field(False, description="Probing: train only the task's head, on the states of the frozen model.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.1, description="Dropout before the task's output layer.")
    clip_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Maximum norm of the gradient.")
    log_every: Positive = Field(50, description="Steps between log lines. A shorter run logs its first and last step.")
    on_non_finite: Literal["stop", "skip"] = Field(
        "stop", description="Action at a step with a non-finite loss or gradient. Such a step changes no weights."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        refuse_uneven(self.batch_size, self.micro_batch_size)
        return self


class FinetuningEvaluate(Strict):
    """Evaluation on validation data while training, and on all held-out data at the end."""

    every: Positive | None = Field(
        None, description="Steps between evaluations on validation data. The end of training is always evaluated."
    )
    batch_size: Rows = Field(32, description="Rows per batch. Affects only speed and memory.")
    select: Literal["last", "best"] = Field(
        "last",
        description="Weights to keep and evaluate. last: those of the last step. best: those with the best validation "
        "`metric`; their validation result is optimistic.",
    )
    metric: str | None = Field(None, description="Main metric of the reports; by default the first one of the task.")
    errors: Annotated[int, Field(ge=0, le=1000)] = Field(10, description="Number of wrong predictions in the report.")


class FinetuningCheckpoint(Strict):
    """Checkpoints."""

    every: Positive = Field(1000, description="Steps between checkpoints. The end of training is always saved.")
    keep: Positive = Field(1, description="Number of newest checkpoints to keep.")


def _with_warmup(values: Any) -> Any:
    """Complete the schedule of the learning rate. By default its warm-up is a share of the steps."""
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
        description="The model is fine-tuned once per seed. The seed sets the head's initial weights, data order and "
        "dropout; with init: random, all weights.",
    )
    imports: list[Path] = Field(default_factory=list, description="Plug-in files, relative to this file.")
    model: FolderOrName = Field(
        description="The pre-trained model: a run directory, an export, or a model in Hugging Face format, "
        "a folder relative to this file or a name on the hub."
    )
    step: Annotated[int, Field(ge=0)] | Literal["best"] | None = Field(
        None,
        description="Checkpoint of a run directory to start from: a step, or best (see checkpoint.best of "
        "experiments). If null, the newest.",
    )
    network: Literal["discriminator", "generator"] = Field(
        "discriminator", description="Network of the pre-trained pair to fine-tune."
    )
    init: Literal["pretrained", "random"] = Field(
        "pretrained", description="random: the same network with random weights, a baseline without pre-training."
    )
    task: Annotated[Component, Of(registry.tasks)] = Field(description="The task.")
    dataset: Annotated[Component, Of(registry.datasets)] = Field(description="The examples.")
    data: FinetuningData = Field(FinetuningData.model_validate({}), description="The rows made from the examples.")
    optimizer: Annotated[Component, Of(registry.optimizers, default=DEFAULTS["optimizer",])] = Field(
        default_factory=lambda: default(registry.optimizers, DEFAULTS["optimizer",]), description="The optimizer."
    )
    schedules: Annotated[
        dict[Literal["learning_rate"], Annotated[Component, Of(registry.schedules)]], BeforeValidator(_with_warmup)
    ] = Field(
        default_factory=lambda: _with_warmup({}),
        validate_default=True,
        description=f"The learning rate. By default, its warm-up takes {WARMUP:.0%} of the steps.",
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
        """The task trains a model; otherwise it evaluates one without training."""
        return bool(registry.tasks.get(self.task.type).declared["trains"])

    @model_serializer(mode="wrap")
    def _drop_unused_sections(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        return values if self.trains else {key: value for key, value in values.items() if key not in OF_TRAINING}

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if wrong := list(self._wrong()):
            raise problems(wrong)
        return self

    def _wrong(self) -> Iterator[Wrong]:
        task, dataset = registry.tasks.get(self.task.type), registry.datasets.get(self.dataset.type)
        takes, yields = task.declared["takes"], dataset.declared["yields"]
        if takes is not yields:
            yielded, taken = (getattr(kind, "__name__", str(kind)) for kind in (yields, takes))
            datasets = map(registry.datasets.get, registry.datasets.names())
            fitting = [entry.name for entry in datasets if entry.declared["yields"] is takes]
            reason = (
                f"yields {yielded}, but the task {self.task.type} takes {taken}. Use {' or '.join(fitting) or '?'}."
            )
            yield ("dataset", "type"), f"{self.dataset.type} {reason}", None
        if not self.trains:
            for key in OF_TRAINING:
                if key in self.model_fields_set:
                    yield (key,), f"{self.task.type} trains nothing; remove this key.", None
            if len(self.seeds) > 1 and self.init == "pretrained":
                yield ("seeds",), f"{self.task.type} trains nothing, so all seeds give the same result. Keep one.", None
        if self.trains and self.evaluate.select == "best" and self.evaluate.every is None:
            yield ("evaluate", "select"), "best needs several evaluations; set evaluate.every.", None
        if self.init == "random" and self.train.frozen:
            yield ("train", "frozen"), "does not work with init: random. Write init: pretrained.", None
