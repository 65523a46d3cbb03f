"""The words of an experiment file. Defaults follow google-research/electra's code unless a comment says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, GetCoreSchemaHandler, ValidationError, ValidationInfo, model_validator
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from electra_lab.config.generator import scaled_generator, without_scale
from electra_lab.config.problems import problem
from electra_lab.config.source import Loc
from registry import (
    Needs,
    backbones,
    corpora,
    generators,
    masking_strategies,
    objectives,
    samplers,
    schedules,
    tokenizers,
)
from registry.core import Registry
from registry.errors import LabError, did_you_mean
from registry.signature import Strict, validate

Positive = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Wrong: TypeAlias = tuple[Loc, str, Any]  # the key, what is wrong with it, its value


class Sizes(Strict):
    """What every backbone has, set beside its own options."""

    dim: Annotated[int, Field(gt=0, le=65_536)]
    depth: Annotated[int, Field(gt=0, le=1_000)]
    heads: Annotated[int, Field(gt=0, le=65_536)]


@dataclass(frozen=True)
class Component:
    """A registered name with its validated options: still data, assemble makes it an object."""

    type: str
    options: Strict
    sizes: Sizes | None = None

    def dump(self) -> dict[str, Any]:
        sizes = self.sizes.model_dump(mode="json") if self.sizes else {}
        return {"type": self.type, **sizes, **self.options.model_dump(mode="json")}

    def keywords(self) -> dict[str, Any]:
        """The options as Python values, ready to be passed on."""
        return {name: getattr(self.options, name) for name in type(self.options).model_fields}


@dataclass(frozen=True)
class Of:
    """Marks a field as a component of a registry: `{type: name, option: value, ...}`."""

    registry: Registry[Any]
    sized: bool = False
    scaled: bool = False  # the generator: sizes and options may come from the discriminator
    optional: bool = False  # the objective may do without it, and says so
    also: Registry[Any] | None = None  # names that may stand there too, without sizes

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda c: c and c.dump()),
        )

    def _validate(self, values: Any, info: ValidationInfo) -> Component | None:
        if values is None and self.optional:
            return None
        singular = self.registry.singular
        if not isinstance(values, dict):
            raise problem((), f"must be a mapping such as {{type: {self.registry.names()[0]}}}.", values)
        if self.also and values.get("type") in self.also.names():
            return self._named(self.also, dict(values))
        if self.scaled:
            if "discriminator" not in info.data:  # its own errors are reported; what would follow from them is not
                values = without_scale(values)
                if "type" not in values:
                    return Component("", Strict())
            else:
                values = scaled_generator(values, info.data["discriminator"].dump())
        values = dict(values)
        name = values.pop("type", None)
        if name is None:
            raise problem(("type",), f"is required: it names the {singular}.", values)
        if not isinstance(name, str):
            raise problem(("type",), f"must be a word, it names the {singular}.", name)
        try:
            entry = self.registry.get(name)
        except LabError as error:
            raise problem(("type",), str(error), name) from None
        if not self.sized:
            return Component(name, validate(entry.schema, values))
        both = _sized(entry.schema)
        checked = validate(both, values)
        sizes = Sizes(**{key: getattr(checked, key) for key in Sizes.model_fields})
        if sizes.dim % sizes.heads:
            raise problem(("heads",), f"{sizes.heads} heads do not divide dim {sizes.dim}.", sizes.heads)
        options = {
            key: value for key, value in checked.model_dump(mode="json").items() if key not in Sizes.model_fields
        }
        return Component(name, validate(entry.schema, options), sizes)

    @staticmethod
    def _named(registry: Registry[Any], values: dict[str, Any]) -> Component:
        """A component that has nothing but its own options."""
        name = values.pop("type")
        try:
            entry = registry.get(name)
        except LabError as error:
            raise problem(("type",), str(error), name) from None
        return Component(name, validate(entry.schema, values))


def _sized(schema: type[Strict]) -> type[Strict]:
    """Sizes and a backbone's options as one model, so that all errors and suggestions come at once."""
    return type(schema.__name__, (schema, Sizes), {"__module__": __name__})


OF_SCHEDULE = Of(schedules)
OF_GENERATOR = Of(backbones, sized=True, scaled=True, optional=True, also=generators)


class Data(Strict):
    sequence_length: Annotated[int, Field(ge=8)] = 128
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.05
    store: Path = Path("runs/.store")


class Embedding(Strict):
    dim: Annotated[int, Field(gt=0, le=65_536)] = 128
    max_length: Annotated[int, Field(gt=0, le=1 << 24)] = 512
    tie: Literal["none", "tokens", "embeddings", "all", "gradient_disentangled"] = "embeddings"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1


class Train(Strict):
    """Exactly one of steps, tokens, flops says when training ends."""

    steps: Positive | None = None
    tokens: Annotated[float, Field(gt=0)] | None = None
    flops: Annotated[float, Field(gt=0)] | None = None
    batch_size: Positive = 128
    micro_batch_size: Positive | None = None
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    warmup_steps: Annotated[int, Field(ge=0)] = 10_000
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    log_every: Positive = 50
    on_non_finite: Literal["stop", "skip"] = "stop"

    @model_validator(mode="after")
    def _one_budget(self) -> Train:
        given = [name for name in ("steps", "tokens", "flops") if getattr(self, name) is not None]
        if len(given) != 1:
            what = "none is" if not given else f"{' and '.join(given)} are"
            raise PydanticCustomError("lab", "{reason}", {"reason": f"set one of steps, tokens, flops; {what} set."})
        if self.micro_batch_size and self.batch_size % self.micro_batch_size:
            raise problem(("micro_batch_size",), f"must divide batch_size {self.batch_size}.", self.micro_batch_size)
        return self


class Evaluate(Strict):
    every: Positive | None = None  # steps; the end of training is always evaluated
    batch_size: Positive = 32  # decides speed and memory alone
    examples: Annotated[int, Field(ge=0)] = 3  # held-out sentences shown at the end


class Checkpoint(Strict):
    every: Positive = 1000
    keep: Positive = 5


class Experiment(Strict):
    """One experiment file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    imports: list[Path] = Field(default_factory=list)
    corpus: Annotated[Component, Of(corpora)]
    tokenizer: Annotated[Component, Of(tokenizers)]
    data: Data = Data()
    embedding: Embedding = Embedding()
    discriminator: Annotated[Component, Of(backbones, sized=True)]
    generator: Annotated[Component | None, OF_GENERATOR] = None
    masking: Annotated[Component, Of(masking_strategies)]
    sampler: Annotated[Component | None, Of(samplers, optional=True)] = None
    objective: Annotated[Component, Of(objectives)]
    schedules: dict[str, Annotated[Component, OF_SCHEDULE]] = Field(default_factory=dict)
    train: Train
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()

    @property
    def needs(self) -> Needs:
        """What the objective is handed."""
        entry = objectives.get(self.objective.type)
        needs: Needs = getattr(entry.component, "needs", Needs())
        for option in filter(None, (needs.first_stage, needs.frozen)):
            if option not in entry.schema.model_fields:
                reason = f"{entry.place}: {entry.name} needs its option {option!r}, which it does not have."
                raise problem(("objective", "type"), reason, entry.name)
        return needs

    @model_validator(mode="after")
    def _goes_together(self) -> Experiment:
        """All that is wrong comes at once, but for what follows from a part that is missing."""
        wrong = [*self._unlike_the_objectives_needs(), *self._no_numbers(), *self._does_not_fit()]
        if wrong:
            details = [
                InitErrorDetails(type=PydanticCustomError("lab", "{reason}", {"reason": reason}), loc=loc, input=value)
                for loc, reason, value in wrong
            ]
            raise ValidationError.from_exception_data("experiment", details)
        return self

    def _unlike_the_objectives_needs(self) -> Iterator[Wrong]:
        name, needs = self.objective.type, self.needs
        for key, needed in (("generator", needs.generator), ("sampler", needs.sampler)):
            given = getattr(self, key)
            if needed and given is None:
                yield (key,), f"is required: {name} needs a {key}.", None
            if given is not None and not needed:
                yield (key,), f"{name} needs no {key}; remove this key (over a parent's, write {key}: null).", None
        if needs.learning and self.generator and self.generator.sizes is None:
            reason = f"{self.generator.type} is no network, and {name} needs one. Write generator: {{scale: 0.5}}."
            yield ("generator", "type"), reason, self.generator.type
        if needs.untied and self.embedding.tie != "none":
            reason = f"must be none: {name} freezes the generator, so nothing of it may be shared."
            yield ("embedding", "tie"), reason, self.embedding.tie
        first, steps = getattr(self.objective.options, needs.first_stage) if needs.first_stage else 0, self.train.steps
        if steps is not None and first >= steps:
            reason = f"{first} steps of the first stage leave none for the second: train.steps is {steps}."
            yield ("objective", needs.first_stage or ""), f"{reason} Set it below {steps}, or raise train.steps.", first

    def _no_numbers(self) -> Iterator[Wrong]:
        """Schedules of what is no number that can change, or that lead out of its bounds."""
        sections = {"sampler": samplers, "masking": masking_strategies, "objective": objectives}
        numbers: dict[str, tuple[type[Strict], dict[str, Any]]] = {}
        for section, registry in sections.items():
            if (component := getattr(self, section)) is not None:
                schema = registry.get(component.type).schema
                for option, field in schema.model_fields.items():
                    if field.annotation is float and (section != "masking" or option == "mask_prob"):
                        numbers[f"{section}.{option}"] = schema, component.options.model_dump(mode="json")
        for key, schedule in self.schedules.items():
            if key not in numbers:
                if not (key.startswith("sampler.") and self.sampler is None and self.needs.sampler):
                    yield ("schedules", key), f"is no number that can change.{did_you_mean(key, numbers)}", key
                continue
            at = partial(schedules.get(schedule.type).component, **schedule.keywords())
            schema, options = numbers[key]
            for progress in (0.0, 0.25, 0.5, 0.75, 1.0):
                try:
                    validate(schema, options | {key.split(".")[1]: at(progress)})
                except ValidationError as error:
                    said = error.errors()[0]["msg"]
                    yield ("schedules", key), f"at {progress:.0%} of training {key} {said}", None
                    break

    def _does_not_fit(self) -> Iterator[Wrong]:
        length, longest = self.data.sequence_length, self.embedding.max_length
        if length > longest:
            yield ("data", "sequence_length"), f"{length} is above embedding.max_length {longest}.", length
        options = self.masking.keywords()
        total = options["replace_prob"] + options["random_prob"]
        if total > 1 + 1e-9:
            yield ("masking", "random_prob"), f"replace_prob + random_prob is {total:g}; it may be at most 1.", options
