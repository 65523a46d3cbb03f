"""What a run says in words: what it is at the start, what it found at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from electra_lab.assemble import Experiment
from electra_lab.config.load import Loaded
from electra_lab.forecast import UNKNOWN_VOCABULARY, Forecast
from electra_lab.runs.directory import RunDirectory
from electra_lab.training.evaluation import Example
from registry import backbones, generators, masking_strategies, objectives, samplers

EXCERPT = 28  # tokens of a row that are shown


def opening(loaded: Loaded, experiment: Experiment, path: Path) -> str:
    """What is about to be trained, with the file behind each name."""
    config, plan, store = loaded.config, experiment.plan, experiment.store
    parts = {
        "discriminator": (backbones, config.discriminator),
        "generator": (backbones if config.generator and config.generator.sizes else generators, config.generator),
        "masking": (masking_strategies, config.masking),
        "sampler": (samplers, config.sampler),
        "objective": (objectives, config.objective),
    }
    lines = [f"{config.name}: {plan.steps:,} steps of {plan.batch_size} x {config.data.sequence_length} tokens on "
             f"{experiment.device}, {plan.precision}, into {path}"]  # fmt: skip
    for key, (registry, component) in parts.items():
        if component is None:
            continue
        size = f"  {experiment.parameters[key]:,} parameters" if key in experiment.parameters else ""
        lines.append(f"  {key:<14}{component.type + '  ':<14}{registry.get(component.type).place}{size}")
    lines.append(
        f"  data          {store.documents['train']:,} documents, {len(store.train):,} tokens to train; "
        f"{store.documents['held_out']:,} and {len(store.held_out):,} held out; "
        f"vocabulary {experiment.vocabulary.size:,}"
    )
    lines.append(f"  compute       {plan.flops.total(plan.steps):.3g} FLOPs in all")
    return "\n".join(lines)


def forecast(loaded: Loaded, forecast: Forecast, device: torch.device) -> str:
    """What a run would do and need: parameters of each part, compute, tokens, memory."""
    config, train, f = loaded.config, loaded.config.train, forecast
    tokens = train.batch_size * config.data.sequence_length
    vocabulary = f.vocabulary_size or UNKNOWN_VOCABULARY
    known = "at most, as the tokenizer is not trained yet" if f.vocabulary_size else "assumed: the tokenizer tells none"
    lines = [f"{config.name}: {f.steps:,} steps of {train.batch_size} x {config.data.sequence_length} tokens", "",
             f"  parameters, with a vocabulary of {vocabulary:,} ({known})"]  # fmt: skip
    for name in [name for name in ("discriminator", "generator") if name in f.parts]:
        parts = "  ".join(f"{part} {number:,}" for part, number in f.parts[name].items())
        lines.append(f"    {name:<14}{f.parameters[name]:>14,}  {parts}".rstrip())
    price = f"{f.flops.at_first:.4g}, later " * bool(f.flops.first) + f"{f.flops.per_step:.4g}"
    shared, total = f.parameters["shared"], f.parameters["total"]
    lines += [f"    {'shared':<14}{shared:>14,}  counted in both", f"    {'in all':<14}{total:>14,}", "",
              f"  tokens          {tokens:,} a step, {f.steps * tokens:.4g} in all",
              f"  compute         {price} FLOPs a step, {f.flops.total(f.steps):.4g} in all"]  # fmt: skip
    state, rows = f"{_bytes(f.state_bytes)} of weights and optimizer", train.micro_batch_size or train.batch_size
    if f.working_bytes is None or f.evaluation_bytes is None:
        memory = f"{state}; what a step adds cannot be told from shapes, as a component reads numbers"
    else:
        peak = max(f.working_bytes, f.evaluation_bytes)
        memory = (f"about {_bytes(f.state_bytes + peak)} on {device.type} in {f.precision}: {state}, and at the peak\n"
                  f"{'':18}{_bytes(f.working_bytes)} of a step, {rows:,} at a time (train.micro_batch_size), or\n"
                  f"{'':18}{_bytes(f.evaluation_bytes)} of evaluation, {config.evaluate.batch_size:,} rows at a time "
                  "(evaluate.batch_size);\n"
                  f"{'':18}the program and its libraries come on top")  # fmt: skip
    lines.append(f"  memory          {memory}")
    return "\n".join(lines)


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"


def readable(examples: list[Example], experiment: Experiment) -> list[list[dict[str, Any]]]:
    """Examples as words: an excerpt of each row, around its first replacement."""
    name = experiment.tokenizer.id_to_token
    shown: list[list[dict[str, Any]]] = []
    for e in examples:
        replaced = [i for i, (a, b) in enumerate(zip(e.originals, e.inputs, strict=True)) if a != b]
        start = max(0, min((replaced[0] if replaced else 0) - 6, len(e.inputs) - EXCERPT))
        shown.append(
            [
                {
                    "token": name(e.inputs[i]),
                    "original": name(e.originals[i]),
                    "replaced": e.originals[i] != e.inputs[i],
                    "probability": round(e.probabilities[i], 4),
                }
                for i in range(start, min(start + EXCERPT, len(e.inputs)))
            ]
        )
    return shown


def findings(held_out: dict[str, Any]) -> list[tuple[str, float | None, str]]:
    """The last held-out evaluation against its baselines: (what, value, what it means)."""
    h = held_out
    rows: list[tuple[str, float | None, str]] = []
    if "discriminator_auc" in h:
        rows += [
            (
                "discriminator AUC",
                h["discriminator_auc"],
                "chance that a replaced token looks more suspicious than an original one; "
                f"always 'original' {h['always_original_auc']:.3f}, "
                f"rare-token detector {_number(h['unigram_auc']).strip()}",
            ),
            (
                "discriminator accuracy",
                h["discriminator_accuracy"],
                f"always 'original' has {h['always_original_accuracy']:.3f}, as {h['replaced_share']:.1%} are replaced",
            ),
            ("precision", h["discriminator_precision"], "of the tokens called replaced, the share that is"),
            ("recall", h["discriminator_recall"], "of the replaced tokens, the share called so"),
        ]
    for who, name in (("generator", "generator"), ("discriminator", "discriminator_token")):
        if f"{name}_accuracy" not in h:
            continue
        rows += [
            (
                f"{who}{' token' if name != who else ''} loss",
                h[f"{name}_loss"],
                f"nats a masked token; word frequencies alone give {h['unigram_entropy']:.3f}",
            ),
            (f"{who}{' token' if name != who else ''} accuracy", h[f"{name}_accuracy"],
             "of the masked tokens, the share it puts first"),
        ]  # fmt: skip
        if f"{name}_mask_loss" in h:
            meaning = (
                f"word frequencies alone give {_number(h.get('unigram_mask_entropy')).strip()}; at the other masked "
                "positions it saw a token that it may copy"
            )
            rows.insert(-1, (f"{who} loss at [MASK]", h[f"{name}_mask_loss"], meaning))
    return rows


def closing(directory: RunDirectory, report: Path, seconds: float) -> str:
    """The findings, a few sentences, and where the rest is."""
    held_out = next((r for r in reversed(directory.records()) if r["split"] == "held_out"), None)
    lines = ["", f"after step {held_out['step']:,}, on held-out text" if held_out else "no held-out evaluation"]
    for what, value, meaning in findings(held_out) if held_out else []:
        lines.append(f"  {what:<24}{_number(value)}  {meaning}")
    examples = directory.read_json("examples.json") if (directory.path / "examples.json").is_file() else []
    if examples:
        lines += ["", "held-out text as the discriminator saw it: [original > replacement, probability of replaced];",
                  "a bare (probability) follows an original token that it wrongly suspects"]  # fmt: skip
        lines += [f"  {sentence(tokens)}" for tokens in examples]
    lines += ["", f"trained in {seconds:,.0f} s; report {report}"]
    return "\n".join(lines)


def sentence(tokens: list[dict[str, Any]]) -> str:
    """One excerpt in plain text."""
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


def _number(value: float | None) -> str:
    return f"{value:7.3f}" if value is not None else "      -"
