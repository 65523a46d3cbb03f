"""Sections of files: components, and those with fixed keys."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from electra_lab.config.source import BUDGETS
from registry import component, schedules, using
from registry.component import Component, Sizes
from registry.core import Entry, Registry
from registry.signature import Strict, problem, validate

DEFAULT_SCALE = 0.25  # generator_hidden_size of google-research/electra, a quarter of the width
M = TypeVar("M", bound=Strict)


def default(registry: Registry[Any], name: str) -> Component:
    """Return a component with its default options."""
    return Component(name, validate(registry.get(name).schema, {}))


@dataclass(frozen=True)
class Of(component.Of):
    """Marks a field of a schema as a component of a registry."""

    sized: bool = False  # it has Sizes next to its options
    scaled: bool = False  # the generator: sizes and options may come from the discriminator
    also: Registry[Any] | None = None  # a second registry whose names are allowed there, without sizes

    def _registries(self) -> tuple[Registry[Any], ...]:
        return (self.registry, self.also) if self.also else (self.registry,)

    def _model(self, entry: Entry[Any]) -> type[Strict]:
        main = entry.kind == self.registry.singular
        bases: tuple[type, ...] = (entry.schema, *[Sizes] * (self.sized and main), *[_Scaled] * (self.scaled and main))
        return type(entry.name, bases, {"__annotations__": {"type": str}, "__module__": __name__})

    def _chosen(self, values: dict[str, Any], info: ValidationInfo) -> Component:
        if self.also and values.get("type") in self.also.names():
            return self._named(self.also, values)
        if self.scaled and "discriminator" in info.data:
            values = scaled_generator(values, info.data["discriminator"].dump())
        elif self.scaled:  # the discriminator's own errors are reported; what would follow from them is not
            values = without_scale(values)
            if "type" not in values:
                return Component("", Strict())
        return self._named(self.registry, values)

    def _with_options(
        self, registry: Registry[Any], name: str, schema: type[Strict], values: dict[str, Any]
    ) -> Component:
        if not self.sized or registry is self.also:
            return super()._with_options(registry, name, schema, values)
        both = validate(_sizes_and_options(schema, self.scaled), values)
        sizes, options = _part(both, Sizes), _part(both, schema)
        if sizes.dim % sizes.heads:
            raise problem(("heads",), f"{sizes.heads} heads do not divide dim {sizes.dim}.", sizes.heads)
        return Component(name, options, sizes)


@lru_cache(maxsize=64)  # making a model takes as long as checking a hundred
def _sizes_and_options(schema: type[Strict], scaled: bool) -> type[Strict]:
    """Return one model of both, so that all errors and suggestions come at once."""
    bases: tuple[type, ...] = (schema, Sizes, *[_Scaled] * scaled)
    return type(schema.__name__, bases, {"__module__": __name__})


def _part(values: Strict, model: type[M]) -> M:
    return model.model_construct(**{key: getattr(values, key) for key in model.model_fields})


class _Scaled(Strict):
    """The key that only a generator has; scaled_generator removes it before validation."""

    scale: Annotated[float, Field(gt=0, le=8)] | None = Field(
        None,
        description=f"Width and heads relative to the discriminator's; {DEFAULT_SCALE} if none of the three is given.",
    )


def scaled_generator(values: dict[str, Any], discriminator: dict[str, Any]) -> dict[str, Any]:
    """Complete the generator's values from the discriminator's.

    A generator of the same type takes over all options. Width and heads are scaled, depth is not (the feed-forward
    width is a multiple of the width, so it scales as well). Explicit sizes are not scaled.
    """
    values = {"type": discriminator["type"], **values}
    scale = values.pop("scale", None)
    explicit = [name for name in ("dim", "heads") if name in values]
    if scale is not None and explicit:
        raise problem(("scale",), f"scale and {explicit[0]} exclude each other; keep one of them.", scale)
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale <= 8):
        raise problem(("scale",), "must be a number above 0 and at most 8.", scale)
    sizes = {name: discriminator[name] for name in ("dim", "depth", "heads")}
    completed = (discriminator if values["type"] == discriminator["type"] else sizes) | values
    if explicit:
        return completed
    factor = DEFAULT_SCALE if scale is None else scale
    dim, heads = _sizes(factor, discriminator)
    if dim < 1 or dim % heads:
        raise problem(
            ("scale",) if scale is not None else (),
            f"scale {factor:g} gives dim {dim} and {heads} heads, which do not divide it. "
            f"The nearest scale that works is {_nearest(factor, discriminator):g}.",
            factor,
        )
    return completed | {"dim": dim, "heads": heads}


def without_scale(values: dict[str, Any]) -> dict[str, Any]:
    """Complete the generator's values with placeholders, for an unknown discriminator."""
    heads = values.get("heads", 1)
    return {"depth": 1, "heads": heads, "dim": heads} | {k: v for k, v in values.items() if k != "scale"}


def _sizes(scale: float, discriminator: dict[str, Any]) -> tuple[int, int]:
    return round(scale * discriminator["dim"]), max(1, round(scale * discriminator["heads"]))


def _nearest(scale: float, discriminator: dict[str, Any]) -> float:
    width: int = discriminator["dim"]
    scales = [float(f"{dim / width:g}") for dim in range(1, 8 * width + 1)]  # as printed
    works = [candidate for candidate in scales if (sizes := _sizes(candidate, discriminator))[0] % sizes[1] == 0]
    return min(works, key=lambda candidate: (abs(candidate - scale), candidate))


def value_of(schedule: Component) -> Callable[..., float]:
    """Return the function from the arguments of the schedule, such as a progress of 0 to 1, to the number."""
    entry, options = schedules.get(schedule.type), schedule.keywords()
    if entry.built_in:
        return partial(entry.component, **options)

    def number(*progress: float) -> float:
        with using(entry):
            if isinstance(value := entry.component(*progress, **options), Real):
                return value
            raise TypeError(f"it returned {value!r:.80}, must be a number.")

    return number


def rate_of(schedule: Component) -> Callable[[int, int], float]:
    """Return the function from a step, which counts from 0, and the number of steps to the factor of the learning rate.

    It may raise ValueError.
    """
    factor, by_progress = value_of(schedule), schedules.get(schedule.type).lead == ("progress",)
    return (lambda step, steps: factor(step / max(steps - 1, 1))) if by_progress else factor


def rate_problem(schedule: Component, steps: int) -> str | None:
    """Return the reason why a schedule cannot be used for the learning rate of `steps` steps, if there is one."""
    rate = rate_of(schedule)
    try:
        for step in sorted({0, steps // 4, steps // 2, 3 * steps // 4, steps - 1}):
            factor = rate(step, steps)
            if not (math.isfinite(factor) and factor >= 0):
                return f"gives the factor {factor:g} at step {step:,}; it must be 0 or more."
    except ValueError as error:
        return str(error)
    return None


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


def _off_if_null(value: Any) -> Any:
    return "off" if value is None else value


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
        number = f"{' and '.join(named)} are" if named else "none is"
        raise problem((), f"set one of {', '.join(BUDGETS)}; {number} set.")


TieName = Literal["none", "tokens", "embeddings", "all", "gradient_disentangled"]


class TieLayers(Strict):
    """The embeddings, their projection, and the lowest layers of both networks."""

    layers: Annotated[int, Field(ge=1, le=1000)] = Field(description="Number of layers that both networks share.")

    def __str__(self) -> str:
        """As YAML has it."""
        return f"{{layers: {self.layers}}}"


def one_of_both(value: Any) -> Any:
    """Validate the name or the mapping that was written, so that errors are about that form alone."""
    if isinstance(value, dict):
        return validate(TieLayers, value)
    if not isinstance(value, TieLayers) and value not in get_args(TieName):
        raise problem((), f"must be one of {', '.join(get_args(TieName))}, or {{layers: ...}}; is {value!r}.", value)
    return value


Tie = Annotated[TieName | TieLayers, BeforeValidator(one_of_both)]
