"""The keys of an experiment file; docs/official.yaml lists the defaults that differ from google-research/electra."""

import sys
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

import registry
from electra_lab.config.sections import (
    BatchWarmup,
    Budget,
    Checkpoint,
    Data,
    Of,
    Rows,
    Tie,
    default,
    milestone_name,
    rate_problem,
    refuse_uneven,
    value_of,
)
from electra_lab.config.source import DEFAULTS, Loc
from registry import BatchSizes, Needs, Setup, using
from registry.component import Component
from registry.contracts.training import options_by_name
from registry.errors import BadResult, UnknownName, did_you_mean, guide
from registry.signature import FolderOrName, Strict, problem, problems, validate

Positive = Annotated[int, Field(gt=0, le=10**9)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Wrong: TypeAlias = tuple[Loc, str, Any]  # the key, the reason, its value

TRACKERS = f"Programs and services that also receive the records of metrics.jsonl ({guide('trackers')})."


def distinct(seeds: list[int]) -> list[int]:
    """Refuse a seed that appears twice."""
    if repeated := [seed for i, seed in enumerate(seeds) if seed in seeds[:i]]:
        raise problem((), f"{repeated[0]} appears twice.")
    return seeds


Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(distinct)]


class Embedding(Strict):
    """The embeddings of both networks."""

    dim: Annotated[int, Field(gt=0, le=65_536)] = Field(
        128, description="Width of the embeddings. A network of a different width projects them."
    )
    max_length: Annotated[int, Field(gt=0, le=1 << 24)] = Field(512, description="Maximum length of a row.")
    tie: Tie = Field("embeddings", description=f"Parameters that both networks share ({guide('objectives')}).")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.1, description="Dropout of the embeddings.")


class Init(Strict):
    """Initial weights: random, or those of other models."""

    distribution: Literal["official", "normal"] = Field(
        "official",
        description="Distribution of random weights. official: as in google-research/electra, normal(0, 0.02) "
        "truncated at two standard deviations, and Glorot uniform for the embedding projection and the last layer of "
        "the detection head. normal: normal(0, 0.02) everywhere.",
    )
    discriminator: FolderOrName | None = Field(
        None,
        description="Initial weights of the discriminator: a model in Hugging Face format (a folder "
        "relative to this file, or a name on the hub) or a run directory.",
    )
    generator: FolderOrName | None = Field(None, description="Initial weights of the generator, in the same form.")

    @property
    def models(self) -> dict[str, FolderOrName]:
        """The source of the weights, by network."""
        named = {"discriminator": self.discriminator, "generator": self.generator}
        return {network: source for network, source in named.items() if source is not None}


class Train(Budget):
    """Training. Set its length by exactly one of steps, epochs, tokens, flops and paper_flops."""

    batch_size: Rows = Field(128, description="Rows per optimizer step.")
    micro_batch_size: Rows | Literal["auto"] | None = Field(
        None,
        description="Rows per forward pass, if a batch does not fit into memory. auto halves the batch until it fits. "
        "Masks and draws do not depend on it.",
    )
    batch_warmup: BatchWarmup | None = Field(
        None, description="Begin with smaller batches. Schedules count steps. Training must be longer than the warm-up."
    )
    parallel: Literal["auto", "ddp", "fsdp"] = Field(
        "auto",
        description="Division of work among processes started by torchrun or accelerate. With ddp (auto) each process "
        "holds all parameters. With fsdp each holds a shard of the parameters and of the optimizer state. Masks and "
        "draws do not depend on it.",
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto",
        description="Precision of matrix products. auto is bf16 on GPUs, and on CPUs with AVX-512 BF16 or AMX if the "
        "discriminator is at least 128 wide; otherwise fp32. GPUs without bf16 use fp16, with an adaptive loss scale.",
    )
    attention: Literal["auto", "fused", "products"] = Field(
        "auto",
        description="Computation of exact attention. fused: torch's fused kernels. products: two batched matrix "
        "products. auto is products in bf16 for rows of up to 512 tokens with AVX-512 BF16, 128 with AMX, else fused.",
    )
    compile: Literal["auto", "off", "layers", "full"] = Field(
        "auto",
        description="Use of torch.compile. layers: for each layer of the backbones. full: for the whole objective, "
        "which takes minutes. auto is layers for long trainings on GPUs and on CPUs in bf16, otherwise off.",
    )
    graph: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Record the device's part of a step as a CUDA graph, which the host launches at once. The numbers "
        "are those of eager steps: the first two steps of each graph are compared with them. auto: on a GPU, in one "
        "process, for at least 100 steps. Where a step cannot be recorded, a run says why and goes on without.",
    )
    activation_checkpointing: bool = Field(
        False,
        description="Recompute the activations of each layer in the backward pass. This needs less memory and about a "
        "third more time, and gives the same numbers.",
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        5e-4, description="Peak learning rate; `schedules.learning_rate` multiplies it."
    )
    generator_rate: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        None, description="Factor of learning_rate for the generator. If null, both networks have the same rate."
    )
    clip_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Maximum norm of the gradient.")
    clip: Literal["per_network"] | None = Field(
        None,
        description="Gradients that clip_norm limits. If null, all gradients together. per_network: those of each "
        "network separately, as with two optimizers.",
    )
    log_every: Positive = Field(50, description="Steps between log lines. A shorter run logs its first and last step.")
    on_non_finite: Literal["stop", "skip"] = Field(
        "stop", description=f"Action at a step with a non-finite loss or gradient ({guide('trouble')})."
    )
    skip_limit: Positive = Field(100, description="With skip: maximum number of skipped steps before the run stops.")
    spike: Annotated[float, Field(gt=1)] | None = Field(
        None, description="Treat a gradient as non-finite if its norm exceeds this multiple of its running average."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        refuse_uneven(self.batch_size, self.micro_batch_size)
        if self.batch_warmup:
            self.batch_warmup.refuse_large(self.batch_size)
        return self

    @property
    def batches(self) -> BatchSizes:
        """The rows of each step."""
        return BatchSizes.of(self.model_dump(include={"batch_size", "batch_warmup"}))


class Evaluate(Strict):
    """Evaluation on held-out documents: validation while training, a test at the end."""

    every: Positive | None = Field(
        None, description="Steps between evaluations. The end of training is always evaluated."
    )
    at_start: Literal["auto"] | bool = Field(
        "auto",
        description="Evaluate before the first step, to compare with the end of training. auto: only if weights were "
        "loaded, as in continued pre-training.",
    )
    batch_size: Rows = Field(32, description="Rows per batch. Affects only speed and memory.")
    tokens: Positive = Field(65_536, description="Approximate number of tokens of the fixed validation sample.")
    test_tokens: Positive = Field(262_144, description="Approximate number of tokens of the fixed test sample.")
    examples: Annotated[int, Field(ge=0, le=1000)] = Field(3, description="Number of test rows to show at the end.")


class Process(Strict):
    """The process that trains."""

    max_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Minutes after which `run` or `resume` saves and stops with exit code 75. Resume it later. For "
        "clusters with a time limit.",
    )


RATE, GENERATOR_RATE = DEFAULTS["schedules", "learning_rate"], "train.generator_rate"


def with_learning_rate(values: Any) -> Any:
    """Add the default schedule of the learning rate, or its type."""
    if not isinstance(values, dict):
        return values
    rate = values.get("learning_rate", {})
    rate = {"type": RATE, **rate} if isinstance(rate, dict) else rate
    return {"learning_rate": None} | values | {"learning_rate": rate}  # the first of them, wherever it was


class ExperimentConfig(Strict):
    """An experiment file."""

    name: Name = Field(description="Name of the experiment: lower-case letters, digits, `.`, `_` and `-`.")
    seed: Seed = Field(0, description="Seed of initial weights, data order, masks, draws and dropout.")
    imports: list[Path] = Field(default_factory=list, description="Plug-in files, relative to this file.")
    corpus: Annotated[Component, Of(registry.corpora)] = Field(description="The text.")
    tokenizer: Annotated[Component, Of(registry.tokenizers)] = Field(
        description="The tokenizer, trained on the training split or read from files."
    )
    data: Data = Field(Data.model_validate({}), description="Splits, and the rows that are cut from the corpus.")
    packing: Annotated[Component, Of(registry.packings, default=DEFAULTS["packing",])] = Field(
        default_factory=lambda: default(registry.packings, DEFAULTS["packing",]),
        description="How documents become rows.",
    )
    embedding: Embedding = Field(Embedding.model_validate({}), description="The embeddings of both networks.")
    discriminator: Annotated[Component, Of(registry.backbones, sized=True)] = Field(
        description="The discriminator, the network that is evaluated and exported."
    )
    generator: Annotated[
        Component | None, Of(registry.backbones, sized=True, scaled=True, optional=True, also=registry.generators)
    ] = Field(None, description="The network that fills in masked tokens, or a generator without training.")
    init: Annotated[Init, BeforeValidator(lambda init: {} if init is None else init)] = Field(
        Init.model_validate({}), description="Initial weights."
    )
    masking: Annotated[Component, Of(registry.masking_strategies)] = Field(description="How masked tokens are chosen.")
    sampler: Annotated[Component | None, Of(registry.samplers, optional=True)] = Field(
        None, description="How replacements are drawn from the generator."
    )
    objective: Annotated[Component, Of(registry.objectives)] = Field(description="The task that the networks learn.")
    optimizer: Annotated[Component, Of(registry.optimizers, default=DEFAULTS["optimizer",])] = Field(
        default_factory=lambda: default(registry.optimizers, DEFAULTS["optimizer",]), description="The optimizer."
    )
    schedules: Annotated[
        dict[str, Annotated[Component, Of(registry.schedules)]], BeforeValidator(with_learning_rate)
    ] = Field(
        default_factory=lambda: {"learning_rate": default(registry.schedules, RATE)},
        description="Numbers that change during training: learning_rate, train.generator_rate, masking.mask_prob, and "
        "numeric options of the sampler and the objective. Keys are dotted, as in sampler.temperature.",
    )
    train: Train = Field(description="Length and settings of the training.")
    evaluate: Evaluate = Field(Evaluate.model_validate({}), description="Evaluation on held-out documents.")
    checkpoint: Checkpoint = Field(Checkpoint.model_validate({}), description="Checkpoints.")
    run: Process = Field(Process.model_validate({}), description="The process that trains.")
    trackers: list[Annotated[Component, Of(registry.trackers)]] = Field(default_factory=list, description=TRACKERS)

    @property
    def needs(self) -> Needs:
        """The inputs and heads that the objective asks for. Raises BadResult."""
        entry = registry.objectives.get(self.objective.type)
        with using(entry):
            needs = Needs.of(entry.component, self.objective.keywords())
        if not isinstance(needs, Needs):
            raise BadResult(f"{entry.place}: objective '{entry.name}' has needs that are not registry.Needs.")
        for name, options in needs.all_heads:
            try:
                validate(registry.heads.get(name).schema, options)
            except UnknownName as error:
                raise BadResult(f"{entry.place}: objective '{entry.name}': {error}") from None
            except ValidationError as error:
                reason = f"{error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}"
                raise BadResult(f"{entry.place}: objective '{entry.name}': head '{name}': {reason}") from None
        return needs

    @property
    def tokens_per_step(self) -> int:
        return self.train.batch_size * self.data.sequence_length

    def tokens_after(self, steps: int) -> int:
        """Return the number of tokens that a number of steps reads, padding included."""
        return self.train.batches.before(steps) * self.data.sequence_length

    @property
    def milestones(self) -> list[int]:
        """The steps of `milestones_of_tokens`, step 0 first; none without `checkpoint.milestones`."""
        return sorted({0, *self.milestones_of_tokens.values()}) if self.checkpoint.milestones else []

    @property
    def milestones_of_tokens(self) -> dict[str, int]:
        """The step of each milestone in tokens, by its name. Those in words depend on the text."""
        milestones = self.checkpoint.milestones
        amounts = (milestones.tokens if milestones else None) or []
        steps = [bisect_left(range(sys.maxsize), tokens, key=self.tokens_after) for tokens in amounts]
        return {milestone_name("tokens", tokens): step for tokens, step in zip(amounts, steps, strict=True)}

    def conflicts(self, steps: int | None) -> Iterator[Wrong]:
        """Yield conflicts between keys for a training of `steps`, None if the number is not known yet."""
        generator, unbiased = self.generator, None
        if self.sampler is not None:
            exact = self.sampler.declared(registry.samplers, "unbiased")
            unbiased = bool(exact) and not any(key.startswith("sampler.") for key in self.schedules)
        named: Literal["network", "fixed"] = "network" if generator and generator.sizes else "fixed"
        components = registry.backbones if named == "network" else registry.generators
        masked_lm = bool(generator and components.get(generator.type).declared["cloze"])
        kind = named if generator else None
        separates = bool(self.packing.declared(registry.packings, "separates_documents"))
        setup = Setup(kind, str(self.embedding.tie), unbiased, steps, frozenset(self.init.models), separates, masked_lm)
        objective: Any = registry.objectives.get(self.objective.type)
        with using(objective):
            for key, reason in objective.component.conflicts(setup, self.objective.keywords()):
                yield tuple(key.split(".")), reason, None
        if steps is not None and (late := [s for s in self.milestones if s > steps]):
            tokens, end = self.tokens_after(late[0]), self.tokens_after(steps)
            reason = f"{tokens:,} tokens are never reached: training ends after {end:,}."
            yield ("checkpoint", "milestones", "tokens"), reason, None
        if steps is not None and steps < (warmup := self.train.batches.warmup):
            reason = f"a warm-up of {warmup:,} steps does not fit into {steps:,} steps. Lower train.batch_warmup.every."
            yield ("train", "batch_warmup"), reason, None
        rate = self.schedules["learning_rate"]
        if steps is not None and (reason := rate_problem(rate, steps)):
            yield ("schedules", "learning_rate"), reason, None

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        """Report all conflicts at once, except those that follow from a missing part."""
        wrong = [*self._unlike_the_objectives_needs(), *self._wrong_schedules(), *self._does_not_fit()]
        missing = self.needs.generator and self.generator is None
        if wrong := wrong + ([] if missing else list(self.conflicts(self.train.steps))):
            raise problems(wrong)
        return self

    def _unlike_the_objectives_needs(self) -> Iterator[Wrong]:
        name, needs = self.objective.type, self.needs
        for key, needed in (("generator", needs.generator), ("sampler", needs.sampler)):
            component = getattr(self, key)
            if needed and component is None:
                yield (key,), f"is required: {name} needs a {key}.", None
            if component is not None and not needed:
                reason = f"{name} does not use a {key}; remove this key (to override a parent's, write {key}: null)."
                yield (key,), reason, None

    def _numbers(self) -> dict[str, Strict]:
        """Return the options that hold each number that may change, by its dotted key."""
        numbers: dict[str, Strict] = {GENERATOR_RATE: self.train}
        for section in ("sampler", "masking", "objective"):
            component = getattr(self, section)
            for option, field in type(component.options).model_fields.items() if component else ():
                if field.annotation is float and (section != "masking" or option == "mask_prob"):
                    numbers[f"{section}.{option}"] = component.options
        return numbers

    def _wrong_schedules(self) -> Iterator[Wrong]:
        """Yield schedules of keys that cannot change, and those that leave the bounds of their number."""
        numbers = self._numbers()
        if GENERATOR_RATE in self.schedules and self.train.generator_rate is not None:
            yield ("train", "generator_rate"), f"schedules.{GENERATOR_RATE} takes its place. Remove one of them.", None
        for key, schedule in self.schedules.items():
            if key == "learning_rate":
                continue
            if key not in numbers:
                if not (key.startswith("sampler.") and self.sampler is None and self.needs.sampler):
                    hint = did_you_mean(key, [*numbers, "learning_rate"])
                    yield ("schedules", key), f"cannot be scheduled.{hint}", key
                continue
            if registry.schedules.get(schedule.type).lead != ("progress",):
                yield ("schedules", key, "type"), f"{schedule.type} can schedule only the learning rate.", None
                continue
            options, option, value = numbers[key], key.split(".")[1], value_of(schedule)
            for progress in (0.0, 0.25, 0.5, 0.75, 1.0):
                try:
                    validate(type(options), options.model_dump(mode="json") | {option: value(progress)})
                except ValidationError as error:
                    reason = error.errors()[0]["msg"]
                    yield ("schedules", key), f"at {progress:.0%} of training {key} {reason}", None
                    break

    def _does_not_fit(self) -> Iterator[Wrong]:
        others = options_by_name(self.needs.generator_heads).keys() - {"tokens"}
        if others and self.generator is not None and not self.generator.sizes:
            reason = f"{self.objective.type} needs a network as generator, with the head '{min(others)}'."
            yield ("generator", "type"), reason, None
        if self.init.generator and (self.generator is None or not self.generator.sizes):
            reason = f"{self.generator.type} learns nothing" if self.generator else "there is no generator"
            yield ("init", "generator"), f"{reason}, so there is nothing to initialize. Remove this key.", None
        if self.train.parallel == "fsdp" and not registry.optimizers.get(self.optimizer.type).declared["elementwise"]:
            reason = f"{self.optimizer.type} needs whole parameters. Use adamw, or train.parallel: ddp."
            yield ("optimizer", "type"), reason, None
        judges = options_by_name(self.needs.heads).keys() - {"tokens"}
        if judges and registry.backbones.get(self.discriminator.type).declared["cloze"]:
            reason = f"{self.discriminator.type} does not see the token at a position, so it cannot judge it. Use bert."
            yield ("discriminator", "type"), reason, None
        length, longest = self.data.sequence_length, self.embedding.max_length
        if length > longest:
            yield ("data", "sequence_length"), f"{length} is above embedding.max_length {longest}.", length
        options = self.masking.keywords()
        total = options["replace_prob"] + options["random_prob"]
        if total > 1 + 1e-9:
            yield ("masking", "random_prob"), f"replace_prob + random_prob is {total:g}; it may be at most 1.", options
