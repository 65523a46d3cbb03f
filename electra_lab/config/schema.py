"""The words of an experiment file. Defaults follow google-research/electra's code unless a comment says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from electra_lab.config.generator import scaled_generator, without_scale
from electra_lab.config.problems import problem
from registry import backbones, corpora, masking_strategies, objectives, samplers, tokenizers
from registry.core import Registry
from registry.errors import LabError
from registry.signature import Strict, validate

Positive = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]


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

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(Component.dump),
        )

    def _validate(self, values: Any, info: ValidationInfo) -> Component:
        singular = self.registry.singular
        if not isinstance(values, dict):
            raise problem((), f"must be a mapping such as {{type: {self.registry.names()[0]}}}.", values)
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


def _sized(schema: type[Strict]) -> type[Strict]:
    """Sizes and a backbone's options as one model, so that all errors and suggestions come at once."""
    return type(schema.__name__, (schema, Sizes), {"__module__": __name__})


class Data(Strict):
    sequence_length: Annotated[int, Field(ge=8)] = 128
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.05
    store: Path = Path("runs/.store")


class Embedding(Strict):
    dim: Annotated[int, Field(gt=0, le=65_536)] = 128
    max_length: Annotated[int, Field(gt=0, le=1 << 24)] = 512
    tie: Literal["none", "tokens", "embeddings"] = "embeddings"
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
    generator: Annotated[Component, Of(backbones, sized=True, scaled=True)]
    masking: Annotated[Component, Of(masking_strategies)]
    sampler: Annotated[Component, Of(samplers)]
    objective: Annotated[Component, Of(objectives)]
    train: Train
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        length, longest = self.data.sequence_length, self.embedding.max_length
        if length > longest:
            raise problem(("data", "sequence_length"), f"{length} is above embedding.max_length {longest}.", length)
        options = self.masking.keywords()
        total = options["replace_prob"] + options["random_prob"]
        if total > 1 + 1e-9:
            raise problem(
                ("masking", "random_prob"), f"replace_prob + random_prob is {total:g}; it may be at most 1.", options
            )
        return self
