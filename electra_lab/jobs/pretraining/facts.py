"""The facts of a training that begins or is planned, for the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from electra_lab.assembly.build import BERT_VOCABULARY
from electra_lab.assembly.experiment import Experiment
from electra_lab.config.load import Loaded
from electra_lab.config.schema import ExperimentConfig
from electra_lab.data.vocabulary import readable_token
from electra_lab.jobs.provenance import data_of
from electra_lab.planning.forecast import UNCOUNTED, Duration, Forecast
from electra_lab.presentation.run_page import Token
from electra_lab.presentation.text import Facts, compute, data_facts, epochs, fact_lines, seconds
from electra_lab.storage.provenance import Start
from registry import (
    BatchSizes,
    Example,
    Flops,
    backbones,
    generators,
    masking_strategies,
    objectives,
    optimizers,
    samplers,
    tokenizers,
)
from registry.errors import guide

EXCERPT = 28  # tokens of an example that are shown


def opening(loaded: Loaded, experiment: Experiment, path: Path) -> str:
    """Describe the training that begins, with the file behind each name."""
    config, settings, data = loaded.config, experiment.settings, dict(data_facts(data_of(experiment)))
    rows = _batch(config)
    number, how = experiment.run.learner.world.size, config.train.parallel.replace("auto", "ddp")
    device = f"{experiment.device.type} in {number} processes ({how})" if number > 1 else experiment.device
    facts = [
        *_components(config, experiment),
        *weights(experiment.weights),
        *_choices(experiment),
        *((f"init.{network}", _account(start)) for network, start in experiment.init.items()),
        ("data", f"{data['data']}; vocabulary {experiment.vocabulary.size:,}"),
        ("", data["overlap"]),
        ("", experiment.store.unknown_text),
        ("epochs", epochs(settings.batches.before(settings.steps), len(experiment.train))),
        ("evaluation", _evaluation(config, settings.steps, settings.evaluate_at_start, *_read(config, experiment))),
        ("compute", compute(settings.flops.total(settings.steps), experiment.paper_flops)),
    ]
    chosen = config.checkpoint.best
    if (best := experiment.accumulate(()).metrics.get(chosen)) and not best.comparable:
        facts.append(("note", f"checkpoint.best: a better generator worsens {chosen}; see {guide('resuming')}"))
    title = f"{config.name}: {settings.steps:,} steps of {rows} on {device}, {settings.precision}, into {path}"
    return fact_lines(title, facts)


def _components(config: ExperimentConfig, experiment: Experiment) -> Iterator[tuple[str, str]]:
    with_backbone = config.generator and config.generator.sizes
    for key, registry, component in (
        ("discriminator", backbones, config.discriminator),
        ("generator", backbones if with_backbone else generators, config.generator),
        ("masking", masking_strategies, config.masking),
        ("sampler", samplers, config.sampler),
        ("objective", objectives, config.objective),
        ("optimizer", optimizers, config.optimizer),
    ):
        if component is not None:
            size = f"  {experiment.parameters[key]:,} parameters" if key in experiment.parameters else ""
            yield key, f"{component.type + '  ':<14}{registry.get(component.type).place}{size}"


def weights(origins: Mapping[str, str]) -> Facts:
    """Say where weights come from; the parts of a network are named where they differ."""
    networks: dict[str, set[str]] = {}
    for part, origin in origins.items():
        networks.setdefault(part.split(".")[0], set()).add(origin)
    shown: dict[str, dict[str, None]] = {}
    for part, origin in origins.items():
        network = part.split(".")[0]
        shown.setdefault(origin, {})[network if len(networks[network]) == 1 else part] = None
    lines = [f"{', '.join(parts)}: {origin}" for origin, parts in shown.items()]
    return [("" if number else "weights", line) for number, line in enumerate(lines)]


def _choices(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the meaning of `auto` on this machine, with the reason."""
    chosen, settings = experiment.choices, experiment.settings
    for key, reason in chosen.reasons.items():
        yield key, f"{getattr(chosen, key)}: {reason}"
    if settings.micro_batch_size < (batch := settings.batch_size // experiment.run.learner.world.size):
        yield "micro-batches", f"{settings.micro_batch_size:,} of {batch:,} rows at a time"


def _read(config: ExperimentConfig, experiment: Experiment) -> tuple[str, str]:
    """Return the number of tokens of validation and of the test that each evaluation reads."""
    limits = {"validation": config.evaluate.tokens, "test": config.evaluate.test_tokens}
    read = []
    for split, rows in (("validation", experiment.validation), ("test", experiment.test)):
        tokens = len(rows) * config.data.sequence_length
        read.append(f"all {experiment.store.tokens[split]:,}" if tokens < limits[split] else f"{tokens:,}")
    return read[0], read[1]


def _evaluation(config: ExperimentConfig, steps: int | None, at_start: bool, validation: str, test: str) -> str:
    every, before = config.evaluate.every, "; validation also before the first step" * at_start
    if every is None or (steps is not None and every >= steps):
        return f"at the end: validation {validation} tokens, test {test} tokens{before}"
    return f"validation {validation} tokens every {every:,} steps; test {test} tokens at the end{before}"


def _account(start: Start) -> str:
    """Describe where weights come from, with the parts that have no counterpart."""
    facts = [f"new: {_parts(start.new)}"] * bool(start.new) + [f"not used: {_parts(start.unused)}"] * bool(start.unused)
    facts += [] if start.tokenizer else ["it has no tokenizer, so its tokens were not compared"]
    return ": ".join([start.source, *filter(None, ["; ".join(facts)])])


def _parts(names: Sequence[str]) -> str:
    """Return the parts of a network that tensors belong to; `head [2 x 64]` stays whole."""
    return ", ".join(dict.fromkeys(n if n.endswith("]") else ".".join(n.split(".")[:-1][:2]) for n in names))


def planned(loaded: Loaded, needs: Forecast, device: torch.device, time: Duration | str) -> str:
    """Describe the needs of a run: parameters of each part, compute, tokens, epochs, memory; time, or why not."""
    config, tokens, steps = loaded.config, loaded.config.tokens_per_step, needs.steps
    in_total = "" if steps is None else f", {config.tokens_after(steps):.4g} in total"
    vocabulary = needs.vocabulary_size or BERT_VOCABULARY
    if not tokenizers.get(config.tokenizer.type).declared["trained"]:
        size_source = "the tokenizer's"
    elif needs.vocabulary_size:
        size_source = "at most: a dry run does not read the tokenizer"
    else:
        size_source = "assumed: the tokenizer has no limit"
    length = f"{config.train.epochs:g} epochs in steps" if steps is None else f"{steps:,} steps"
    lines = [f"{config.name}: {length} of {_batch(config)}", "",
             f"  parameters, with a vocabulary of {vocabulary:,} ({size_source})"]  # fmt: skip
    for network in ("discriminator", "generator"):
        if network in needs.parts:
            parts = "  ".join(f"{part} {size:,}" for part, size in needs.parts[network].items())
            lines.append(f"    {network:<14}{needs.parameters[network]:>14,}  {parts}".rstrip())
    most = [f"at most {number:,}" for number in (config.evaluate.tokens, config.evaluate.test_tokens)]
    shared, total = needs.parameters["shared"], needs.parameters["total"]
    took = time if isinstance(time, str) else time_of(time, counted=needs.epoch is not None)
    lines += [f"    {'shared':<14}{shared:>14,}  counted in both", f"    {'total':<14}{total:>14,}", "",
              f"  tokens          {tokens:,} per step{in_total}",
              f"  epochs          {_epochs(needs, config.train.batches)}",
              f"  compute         {_price(needs.flops, steps)} (matrix products)",
              f"                  {_price(needs.paper_flops, steps)} (as the ELECTRA paper counts)",
              f"  evaluation      {_evaluation(config, steps, needs.evaluates_at_start, *most)}",
              f"  memory          {_memory(needs, device, config.evaluate.batch_size)}",
              *_row_memory(needs, config.train.batches),
              f"  time            {took}"]  # fmt: skip
    return "\n".join(lines)


def _batch(config: ExperimentConfig) -> str:
    warmup = config.train.batch_warmup
    return f"{f'{warmup.start} to ' if warmup else ''}{config.train.batch_size} x {config.data.sequence_length} tokens"


def _epochs(needs: Forecast, batches: BatchSizes) -> str:
    if needs.steps is None or needs.epoch is None:
        return UNCOUNTED
    return epochs(batches.before(needs.steps), needs.epoch)


def _price(flops: Flops, steps: int | None) -> str:
    first = f"{flops.at_first:.4g}, later " if flops.first else ""
    total = "" if steps is None else f", {flops.total(steps):.4g} in total"
    return f"{first}{flops.per_step:.4g} FLOPs per step{total}"


def time_of(duration: Duration, *, counted: bool) -> str:
    """Word the time that a training takes here; `counted` is False if evaluations may be shorter."""
    most = "" if counted else "at most "
    parts = f"evaluations {most}{seconds(duration.evaluation)}, checkpoints {seconds(duration.saving)}"
    return f"about {seconds(duration.total)} on this machine: {duration.step:.2g} s per step on average; {parts}"


def _memory(needs: Forecast, device: torch.device, evaluated: int) -> str:
    state = f"{_bytes(needs.state_bytes)} of weights and optimizer"
    if needs.bytes is None or needs.working_bytes is None or needs.evaluation_bytes is None:
        return f"{state}; the memory of a step cannot be predicted from shapes, as a component reads numbers"
    peak, step, evaluation = _bytes(needs.bytes), _bytes(needs.working_bytes), _bytes(needs.evaluation_bytes)
    return (
        f"about {peak} on {device.type} in {needs.precision}: {state}, and at the peak\n"
        f"{'':18}{step} of a step, {needs.rows:,} rows at a time (train.micro_batch_size), or\n"
        f"{'':18}{evaluation} of evaluation, {evaluated:,} rows at a time (evaluate.batch_size);\n"
        f"{'':18}the program and its libraries are not included"
    )


def _row_memory(needs: Forecast, batches: BatchSizes) -> list[str]:
    """Describe the memory of training rows, if the objective has one."""
    if not needs.row_bytes:
        return []
    if needs.epoch is None:
        return [f"  row memory      {needs.row_bytes:,} bytes per row; rows are {UNCOUNTED}"]
    size = f"{_bytes(needs.memory_bytes)}, {needs.row_bytes:,} bytes for each of {needs.epoch:,} rows"
    unread = needs.steps is not None and batches.before(needs.steps) <= needs.epoch
    note = "; it is never read, as no row is visited twice" if unread else ""
    return [f"  row memory      {size}, also in each checkpoint{note}"]


def _bytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def readable(examples: Sequence[Example], experiment: Experiment) -> list[list[dict[str, Any]]]:
    """Decode examples: an excerpt of each row, around its first replacement."""
    tokenizer, shown = experiment.store.tokenizer, list[list[dict[str, Any]]]()
    for example in examples:
        replaced = [old != new for old, new in zip(example.originals, example.inputs, strict=True)]
        first = replaced.index(True) if any(replaced) else 0
        start = max(0, min(first - 6, len(replaced) - EXCERPT))
        tokens = []
        for i in range(start, min(start + EXCERPT, len(replaced))):
            token = Token(
                token=readable_token(tokenizer, example.inputs[i]),
                original=readable_token(tokenizer, example.originals[i]),
                replaced=replaced[i],
                probability=round(example.probabilities[i], 4),
            )
            tokens.append(token.model_dump())
        shown.append(tokens)
    return shown
