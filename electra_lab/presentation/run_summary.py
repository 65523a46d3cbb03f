"""Terminal output of a run: its parts at the start, its needs in a dry run, its findings at the end."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from electra_lab.analysis.findings import advice, findings, number, own_task, verdicts
from electra_lab.analysis.records import last_evaluation
from electra_lab.assembly.build import BERT_VOCABULARY
from electra_lab.assembly.experiment import Experiment
from electra_lab.config.load import Loaded
from electra_lab.config.schema import ExperimentConfig
from electra_lab.jobs.provenance import data_of
from electra_lab.planning.forecast import Forecast
from electra_lab.presentation.data_summary import compute, data_facts
from electra_lab.storage.provenance import Start
from electra_lab.storage.run_directory import RunDirectory
from registry import (
    Batches,
    Example,
    Split,
    backbones,
    generators,
    masking_strategies,
    objectives,
    optimizers,
    samplers,
    tokenizers,
)

EXCERPT = 28  # tokens of a row that are shown


def opening(loaded: Loaded, experiment: Experiment, path: Path) -> str:
    """Describe the training that begins, with the file behind each name."""
    config, settings, facts = loaded.config, experiment.settings, dict(data_facts(data_of(experiment)))
    parts = {
        "discriminator": (backbones, config.discriminator),
        "generator": (backbones if config.generator and config.generator.sizes else generators, config.generator),
        "masking": (masking_strategies, config.masking),
        "sampler": (samplers, config.sampler),
        "objective": (objectives, config.objective),
        "optimizer": (optimizers, config.optimizer),
    }
    rows = f"{settings.batch_size} x {config.data.sequence_length} tokens"
    number, how = experiment.run.learner.world.size, config.train.parallel.replace("auto", "ddp")
    where = f"{experiment.device.type} in {number} processes ({how})" if number > 1 else experiment.device
    lines = [f"{config.name}: {settings.steps:,} steps of {rows} on {where}, {settings.precision}, into {path}"]
    for key, (registry, component) in parts.items():
        if component is None:
            continue
        size = f"  {experiment.parameters[key]:,} parameters" if key in experiment.parameters else ""
        lines.append(f"  {key:<14}{component.type + '  ':<14}{registry.get(component.type).place}{size}")
    lines += [*weights(experiment.weights), *_choices(experiment)]
    lines += [f"  init.{network}: {_account(start)}" for network, start in experiment.init.items()]
    lines += [
        f"  data          {facts['data']}; vocabulary {experiment.vocabulary.size:,}",
        f"                {facts['overlap']}",
        f"  evaluation    {_evaluation(config, settings.steps, *_read(config, experiment))}",
        f"  compute       {compute(settings.flops.total(settings.steps), experiment.paper_flops)}",
    ]
    if (best := config.checkpoint.best) and not experiment.accumulate(()).metrics[best].comparable:
        lines.append(f"  note          checkpoint.best: a better generator worsens {best}; see docs/resuming.md")
    return "\n".join(lines)


def weights(origins: Mapping[str, str]) -> list[str]:
    """Say where weights come from; the parts of a network are named where they differ."""
    shown: dict[str, dict[str, None]] = {}
    for part, origin in origins.items():
        network = part.split(".")[0]
        whole = {others for name, others in origins.items() if name.split(".")[0] == network} == {origin}
        shown.setdefault(origin, {})[network if whole else part] = None
    lines = [f"{', '.join(parts)}: {origin}" for origin, parts in shown.items()]
    return [f"  {'' if number else 'weights':<14}{line}" for number, line in enumerate(lines)]


def _choices(experiment: Experiment) -> Iterator[str]:
    """Yield what `auto` means on this machine, with the reason."""
    chosen, settings = experiment.choices, experiment.settings
    for key, reason in chosen.reasons.items():
        yield f"  {key:<14}{getattr(chosen, key)}: {reason}"
    if settings.micro_batch_size < (batch := settings.batch_size // experiment.run.learner.world.size):
        yield f"  micro-batches {settings.micro_batch_size:,} of {batch:,} rows at a time"


def _read(config: ExperimentConfig, experiment: Experiment) -> tuple[str, str]:
    """Say how many tokens of validation and of the test are evaluated each time."""
    length, store = config.data.sequence_length, experiment.store

    def amount(split: Split, rows: Batches, most: float) -> str:
        whole = len(rows) * length < most
        return f"all {store.tokens[split]:,}" if whole else f"{len(rows) * length:,}"

    asked = config.evaluate
    return amount("validation", experiment.validation, asked.tokens), amount("test", experiment.test, asked.test_tokens)


def _evaluation(config: ExperimentConfig, steps: int, validation: str, test: str) -> str:
    every = config.evaluate.every
    if every is None or every >= steps:
        return f"at the end: validation {validation} tokens, test {test} tokens"
    return f"validation {validation} tokens every {every:,} steps; test {test} tokens at the end"


def _account(start: Start) -> str:
    """Describe where weights come from, with the parts that have no counterpart."""
    new, unused = (dict.fromkeys(name if name.endswith("]") else ".".join(name.split(".")[:-1][:2]) for name in names)
                   for names in (start.new, start.unused))  # fmt: skip
    facts = [f"new: {', '.join(new)}"] if new else []
    facts += [f"not used: {', '.join(unused)}"] if unused else []
    facts += [] if start.tokenizer else ["it has no tokenizer, so its tokens were not compared"]
    return ": ".join([start.source, *filter(None, ["; ".join(facts)])])


def forecast(loaded: Loaded, needs: Forecast, device: torch.device) -> str:
    """Describe the needs of a run: parameters of each part, compute, tokens, memory."""
    config, train = loaded.config, loaded.config.train
    tokens = config.tokens_per_step
    most = [f"at most {number:,}" for number in (config.evaluate.tokens, config.evaluate.test_tokens)]
    vocabulary = needs.vocabulary_size or BERT_VOCABULARY
    if not tokenizers.get(config.tokenizer.type).declared["trained"]:
        known = "the tokenizer's"
    elif needs.vocabulary_size:
        known = "at most: a dry run does not read the tokenizer"
    else:
        known = "assumed: the tokenizer has no limit"
    lines = [f"{config.name}: {needs.steps:,} steps of {train.batch_size} x {config.data.sequence_length} tokens", "",
             f"  parameters, with a vocabulary of {vocabulary:,} ({known})"]  # fmt: skip
    for name in [name for name in ("discriminator", "generator") if name in needs.parts]:
        parts = "  ".join(f"{part} {size:,}" for part, size in needs.parts[name].items())
        lines.append(f"    {name:<14}{needs.parameters[name]:>14,}  {parts}".rstrip())
    prices = [
        f"{f'{flops.at_first:.4g}, later ' if flops.first else ''}{flops.per_step:.4g} FLOPs per step, "
        f"{flops.total(needs.steps):.4g} in total"
        for flops in (needs.flops, needs.paper_flops)
    ]
    shared, total = needs.parameters["shared"], needs.parameters["total"]
    lines += [f"    {'shared':<14}{shared:>14,}  counted in both", f"    {'total':<14}{total:>14,}", "",
              f"  tokens          {tokens:,} per step, {needs.steps * tokens:.4g} in total",
              f"  compute         {prices[0]} (matrix products)",
              f"                  {prices[1]} (as the ELECTRA paper counts)",
              f"  evaluation      {_evaluation(config, needs.steps, *most)}"]  # fmt: skip
    state, rows = f"{_bytes(needs.state_bytes)} of weights and optimizer", needs.rows
    if needs.working_bytes is None or needs.evaluation_bytes is None:
        memory = f"{state}; the memory of a step cannot be predicted from shapes, as a component reads numbers"
    else:
        peak = max(needs.working_bytes, needs.evaluation_bytes)
        needed, step, look = map(_bytes, (needs.state_bytes + peak, needs.working_bytes, needs.evaluation_bytes))
        memory = (
            f"about {needed} on {device.type} in {needs.precision}: {state}, and at the peak\n"
            f"{'':18}{step} of a step, {rows:,} rows at a time (train.micro_batch_size), or\n"
            f"{'':18}{look} of evaluation, {config.evaluate.batch_size:,} rows at a time (evaluate.batch_size);\n"
            f"{'':18}the program and its libraries are not included"
        )
    lines.append(f"  memory          {memory}")
    return "\n".join(lines)


def _bytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def readable(examples: list[Example], experiment: Experiment) -> list[list[dict[str, Any]]]:
    """Turn examples into words: an excerpt of each row, around its first replacement."""
    name = experiment.store.tokenizer.id_to_token
    shown: list[list[dict[str, Any]]] = []
    for e in examples:
        replaced = [i for i, (a, b) in enumerate(zip(e.originals, e.inputs, strict=True)) if a != b]
        start = max(0, min((replaced[0] if replaced else 0) - 6, len(e.inputs) - EXCERPT))
        tokens = list(zip(e.inputs, e.originals, e.probabilities, strict=True))[start : start + EXCERPT]
        shown.append([{"token": name(token), "original": name(original), "replaced": token != original,
                       "probability": round(p, 4)} for token, original, p in tokens])  # fmt: skip
    return shown


def closing(directory: RunDirectory, report: Path, seconds: float | None) -> str:
    """Summarize the findings, with the place of the rest; `seconds` are those of all steps, None if not known."""
    last, provenance = last_evaluation(directory.records()), directory.provenance()
    lines = ["", f"after step {last['step']:,}, on {last['split']} text" if last else "no evaluation"]
    if last and (judged := verdicts(last, provenance)):
        lines += [f"  {line}" for line in (*judged, advice(judged)) if str(line)] + [""]
    for finding in findings(last, provenance.metrics) if last else []:
        lines.append(f"  {finding.title:<24}{number(finding.value)}  {finding.meaning}")
    if last and (said := own_task(last, provenance.metrics)):
        lines.append(f"  {said}")
    examples = directory.read_json("examples.json") if (directory.path / "examples.json").is_file() else []
    if examples:
        lines += ["", "test text as the discriminator saw it: [original > replacement, probability of replaced];",
                  "a bare (probability) follows an original token that it wrongly suspects"]  # fmt: skip
        lines += [f"  {sentence(tokens)}" for tokens in examples]
    lines += ["", f"{f'trained in {seconds:,.0f} s; ' if seconds else ''}report {report}"]
    return "\n".join(lines)


def sentence(tokens: list[dict[str, Any]]) -> str:
    """Return one excerpt as plain text."""
    words: list[str] = []
    for t in tokens:
        word, glued = t["token"].removeprefix("##"), t["token"].startswith("##")
        if t["replaced"]:
            word = f"[{t['original']} > {t['token']}, {t['probability']:.2f}]"
            glued = False
        elif t["probability"] > 0.5:
            word = f"{word} ({t['probability']:.2f})"
        words.append(word if glued else f" {word}")
    return "".join(words).strip()
