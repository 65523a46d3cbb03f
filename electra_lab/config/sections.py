"""Sections of experiment files that are no components: data, checkpoints, batch sizes, budgets, shared parameters."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from electra_lab.config.source import BUDGETS
from registry.signature import Strict, problem, validate


class Data(Strict):
    """The rows that are cut from the corpus."""

    sequence_length: Annotated[int, Field(ge=8)] = Field(128, description="Tokens per row, [CLS] and [SEP] included.")
    held_out: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05,
        description="Share of the documents that are held out: half for validation, half for the test. Ignored if the "
        "corpus has its own splits.",
    )
    split: Literal["by_order"] | None = Field(
        None,
        description="How held-out documents are chosen. If null, by a hash of their keys. by_order: the last "
        "documents, for text in chronological order.",
    )
    overlap: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="Drop a training document if held-out text contains more than this share of its 13-grams."
    )
    unknown: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="Stop if a larger share of the training tokens, or of their characters, is unknown text."
    )
    tokenizer_characters: Annotated[float, Field(ge=1000)] = Field(
        3e7, description="Maximum number of training characters that the tokenizer is trained on."
    )
    group_by_length: bool = Field(
        False, description="Batch rows of similar lengths together, and cut each batch to its longest row. For "
        "packings with padded rows: documents, segments.",
    )  # fmt: skip
    engine: Literal["auto", "tokenizers"] = Field(
        "auto", description="No effect; accepted for older files. The tokenizers library tokenizes all text."
    )
    store: Path = Field(Path("runs/.store"), description="Folder of the tokenized corpora. Runs share it.")


Count = Annotated[int, Field(gt=0, le=10**9)]
Amounts = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
MILESTONES = "Points of training at which a checkpoint is kept permanently, in addition to step 0."


class Milestones(Strict):
    __doc__ = MILESTONES

    tokens: Amounts | None = Field(
        None, description="Numbers of training tokens, padding included. The first step that reaches a number is kept."
    )
    words: Amounts | None = Field(
        None,
        description="Numbers of words read, as in BabyLM's rules: words of the raw text, separated by white space, and "
        "counted again in each epoch. The words of a document are spread evenly over its tokens.",
    )

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.tokens is None and self.words is None:
            raise problem((), "set tokens, words, or both.")
        return self


def milestone_name(unit: str, number: float) -> str:
    """Return the name of a milestone, such as `tokens-10M`, `words-1.5B`, `tokens-300`."""
    for letter, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{unit}-{number / size:.12g}{letter}"
    return f"{unit}-{number:.12g}"


def _off_if_null(given: Any) -> Any:
    return "off" if given is None else given


class Checkpoint(Strict):
    """Checkpoints."""

    every: Count = Field(1000, description="Steps between checkpoints. The end of training is always saved.")
    keep: Count = Field(5, description="Number of newest checkpoints to keep, milestones not included.")
    minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Maximum number of minutes between checkpoints, in addition to `every`."
    )
    best: Annotated[str, BeforeValidator(_off_if_null, json_schema_input_type=str | None)] = Field(
        "auto",
        description="Metric on validation data. The checkpoint with its best value is also saved and kept. auto: keep "
        "the best saved checkpoint by the objective's first metric that can compare steps, such as "
        "generator_mask_loss. off: keep none.",
    )
    milestones: Milestones | None = Field(None, description=MILESTONES)
    asynchronous: bool = Field(
        False, description="Write checkpoints in the background, from a copy in CPU memory, while training continues."
    )


Rows = Annotated[int, Field(gt=0, le=1 << 20)]  # of a batch: larger values are typos and would exhaust memory


class BatchWarmup(Strict):
    """A batch size that rises over the first steps."""

    start: Rows = Field(description="Rows of the first step, fewer than train.batch_size.")
    increment: Rows = Field(description="Rows to add after each stage, up to train.batch_size.")
    every: Annotated[int, Field(gt=0, le=10**8)] = Field(description="Steps of each stage.")

    def refuse_large(self, batch_size: int) -> None:
        """Raise ValidationError if batches do not begin smaller."""
        if self.start >= batch_size:
            raise problem(("batch_warmup", "start"), f"is not below train.batch_size, {batch_size}.", self.start)


def refuse_uneven(batch_size: int, micro_batch_size: int | str | None) -> None:
    """Raise ValidationError if micro-batches are not of one size."""
    if isinstance(micro_batch_size, int) and batch_size % micro_batch_size:
        raise problem(("micro_batch_size",), f"must divide batch_size {batch_size}.", micro_batch_size)


class Budget(Strict):
    """The budget of every cell: exactly one of steps, epochs, tokens, FLOPs, and FLOPs as the paper counts them."""

    steps: Annotated[int, Field(gt=0, le=10**9)] | None = Field(None, description="Number of optimizer steps.")
    epochs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Number of passes over the training rows, such as 0.3; rounded to whole steps."
    )
    tokens: Annotated[float, Field(gt=0)] | None = Field(None, description="Tokens, padding included.")
    flops: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Floating point operations of matrix products; see electra_lab/model/flops.py."
    )
    paper_flops: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Floating point operations counted as in Clark et al. (2020) and google-research/electra."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        named = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(named) == 1:
            return self
        given = f"{' and '.join(named)} are" if named else "none is"
        raise problem((), f"set one of {', '.join(BUDGETS)}; {given} set.")


TieName = Literal["none", "tokens", "embeddings", "all", "gradient_disentangled"]


class TieLayers(Strict):
    """The embeddings, their projection, and the lowest layers of both networks."""

    layers: Annotated[int, Field(ge=1, le=1000)] = Field(description="Number of layers that both networks share.")

    def __str__(self) -> str:
        """As YAML has it."""
        return f"{{layers: {self.layers}}}"


def one_of_both(value: Any) -> Any:
    """Validate what was written, a name or a mapping, so that errors are about that alone."""
    if isinstance(value, dict):
        return validate(TieLayers, value)
    if not isinstance(value, TieLayers) and value not in get_args(TieName):
        raise problem((), f"must be one of {', '.join(get_args(TieName))}, or {{layers: ...}}; is {value!r}.", value)
    return value


Tie = Annotated[TieName | TieLayers, BeforeValidator(one_of_both)]
