"""From a validated ablation to its plan: what every cell needs and costs, known before the first one starts."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from electra_lab.assemble import build_objective, build_pair, check, without_memory
from electra_lab.budget import budgeted_steps, price
from electra_lab.config.ablation import Cell, LoadedAblation
from electra_lab.config.load import Loaded, dump
from electra_lab.config.schema import Component
from electra_lab.config.source import mark_at
from electra_lab.config.variants import Problems
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.forecast import UNKNOWN_VOCABULARY, Forecast, forecast
from electra_lab.training.memory import shapes_only
from electra_lab.training.optimizer import make_optimizer
from electra_lab.training.step import training_step
from registry import Batch, measures
from registry.errors import ConfigError, DataError

SHORT = 3e11  # FLOPs of a step that may be tried out
SMALL = 4e9  # bytes of an experiment that may be


@dataclass(frozen=True)
class Plan:
    """An ablation with all that is run for it.

    forecasts   by variant, and by the id of each reference
    references  by measure, an experiment that serves it alone
    """

    ablation: LoadedAblation
    forecasts: dict[str, Forecast]
    references: dict[str, Cell]

    @property
    def pieces(self) -> list[Cell]:
        """All that has to be trained; references first, as every cell's measures wait for them."""
        return [*self.references.values(), *self.ablation.cells]

    def texts(self) -> dict[str, list[Cell]]:
        """What is run, by the text that it reads."""
        found: dict[str, list[Cell]] = {}
        for cell in self.pieces:
            found.setdefault(json.dumps([_rows(cell.loaded), str(cell.loaded.config.data.store)]), []).append(cell)
        return found

    def as_json(self) -> dict[str, Any]:
        config, told = self.ablation.config, self.forecasts
        chosen: list[tuple[Component, Any]] = [(each, measures.get(each.type).component) for each in config.measure]
        return {
            "name": config.name,
            "question": config.question,
            "base": str(config.base),
            "imports": [str(plugin.file) for plugin in self.ablation.plugins],
            "budget": config.budget.model_dump(exclude_none=True) if config.budget else None,
            "keys": [key for key, values in config.vary.items() if isinstance(values, list)],
            "variants": [{"label": v.label, "changes": v.changes} for v in self.ablation.variants],
            "baseline": self.ablation.baseline,
            "seeds": config.seeds,
            "measures": [
                {
                    "type": each.type,
                    "options": each.options.model_dump(mode="json"),
                    "quantities": {name: asdict(q) for name, q in kind.quantities.items()},
                    "reference": self.references[each.type].id if each.type in self.references else None,
                    "folder": self._shared(each.type, each.dump()),
                }
                for each, kind in chosen
            ],
            "leading": config.quality or next(iter(chosen[0][1].quantities)),
            "cells": [
                {
                    "id": cell.id,
                    "variant": cell.variant,
                    "seed": cell.seed,
                    "steps": told[cell.variant].steps,
                    "flops": told[cell.variant].flops.total(told[cell.variant].steps),
                    "parameters": told[cell.variant].parameters,
                }
                for cell in self.ablation.cells
            ],
        }

    def _shared(self, measure: str, options: dict[str, Any]) -> str:
        reference = self.references[measure].id if measure in self.references else None
        file = measures.get(measure).file
        code = [plugin.sha256 for plugin in self.ablation.plugins if plugin.file == file]
        content = json.dumps([options, reference, _rows(self.ablation.base), code], sort_keys=True)
        return f"{measure}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"


def make_plan(ablation: LoadedAblation, device: torch.device) -> Plan:
    """Check every variant as a run would, and tell what it needs. Raises ConfigError with all problems, DataError."""
    references, absent = checked(ablation)
    if absent is not None:
        raise absent
    problems, forecasts = Problems(), dict[str, Forecast]()
    for label, cell in _firsts(ablation, references).items():
        try:
            forecasts[label] = forecast(cell.loaded, device)
        except ConfigError as error:
            problems.add(error, _variant(cell, references))
    problems.refuse()
    return Plan(ablation, forecasts, references)


def checked(ablation: LoadedAblation) -> tuple[dict[str, Cell], DataError | None]:
    """The references, by measure, and what a run would miss on this machine: all that can be found out without reading
    a corpus or trying a step. Raises ConfigError with all problems."""
    problems, references, absent = Problems(), dict[str, Cell](), None
    for i, each in enumerate(ablation.config.measure):
        try:
            if found := _reference(ablation, i, each):
                references[each.type] = found
        except ConfigError as error:
            problems.add(error)
    for cell in _firsts(ablation, references).values():
        try:
            absent = check(cell.loaded) or absent
            if cell.loaded.config.train.flops is not None:
                _steps(cell.loaded)
        except ConfigError as error:
            problems.add(error, _variant(cell, references))
    for line in _other_rows(ablation):
        problems.add(line)
    problems.refuse()
    return references, absent


def _firsts(ablation: LoadedAblation, references: dict[str, Cell]) -> dict[str, Cell]:
    """One cell of each variant, by its label, and the references, by their ids."""
    firsts = {cell.variant: cell for cell in reversed(ablation.cells)}
    in_order = {variant.label: firsts[variant.label] for variant in ablation.variants}
    return in_order | {cell.id: cell for cell in references.values()}


def _variant(cell: Cell, references: dict[str, Cell]) -> str | None:
    """What an error is to name beside its own words; a reference's says where it comes from."""
    return None if cell.id in {each.id for each in references.values()} else cell.variant


def _steps(loaded: Loaded) -> int:
    """What a budget of FLOPs buys."""
    vocabulary = stand_in_vocabulary(getattr(loaded.config.tokenizer.options, "vocab_size", None) or UNKNOWN_VOCABULARY)
    return budgeted_steps(
        loaded, without_memory(shapes_only(), lambda: price(build_pair(loaded, vocabulary), loaded.config))
    )


def _reference(ablation: LoadedAblation, number: int, chosen: Component) -> Cell | None:
    """What a measure wants to be trained for it alone. Raises ConfigError."""
    measure = measures.get(chosen.type).component(**chosen.keywords())
    sections = measure.reference(ablation.base.config.model_dump(mode="json"))
    if sections is None:
        return None
    label = f"reference of {chosen.type}"
    found = ablation.beside(sections, label, f"{mark_at(ablation.marks, ('measure', number))}: the {label}")
    if found.digest in {cell.digest for cell in ablation.cells}:
        reason = f"the {label} is one of the cells, and would be measured by itself. Give it another seed."
        raise ablation.problem(("measure", number), reason)
    return found


def _rows(loaded: Loaded) -> dict[str, Any]:
    """What the rows of text depend on."""
    values = loaded.config.model_dump(mode="json")
    values["data"] = {key: value for key, value in values["data"].items() if key != "store"}
    return {key: values[key] for key in ("corpus", "tokenizer", "data")}


def _other_rows(ablation: LoadedAblation) -> Iterator[str]:
    """A line for each variant whose rows are not the base's, if a measure wants them equal: a reference reads the
    base's too."""
    kinds: list[tuple[str, Any]] = [(each.type, measures.get(each.type).component) for each in ablation.config.measure]
    wanting = " and ".join(name for name, kind in kinds if kind.same_rows)
    base = _rows(ablation.base)
    for variant in ablation.variants if wanting else ():
        theirs = _rows(ablation.cells_of(variant.label)[0].loaded)
        if other := next((key for key in base if base[key] != theirs[key]), None):
            yield (
                f"{variant.mark}: vary: {variant.label} reads other rows than the base ({other} differs), so {wanting} "
                f"cannot show all cells the same. Leave {wanting} out of `measure`, or change {other} under `set`."
            )


def write_plan(plan: Plan, write: Callable[[str, str], None]) -> None:
    """The plan, and the filled-in experiment of each piece, by `write(name, text)`."""
    for cell in plan.pieces:
        write(f"plan/{cell.id}.yaml", dump(cell.loaded.config))
    write("ablation.yaml", plan.ablation.source)
    write("plan.json", json.dumps(plan.as_json(), indent=1) + "\n")


def seconds(plan: Plan, device: torch.device) -> dict[str, float | None]:
    """How long each variant, and each reference, would train here, by a few steps of each; None where that is too much
    to try out."""
    firsts = _firsts(plan.ablation, plan.references)
    return {label: _tried(cell.loaded, plan.forecasts[label], device) for label, cell in firsts.items()}


def _tried(loaded: Loaded, told: Forecast, device: torch.device) -> float | None:
    """Seconds of the whole training, from the faster of two steps after one to warm up."""
    config, train = loaded.config, loaded.config.train
    absent = device.type == "cuda" and not torch.cuda.is_available()
    if absent or told.flops.per_step > SHORT or told.state_bytes + (told.working_bytes or 0) > SMALL:
        return None
    words = stand_in_vocabulary(told.vocabulary_size or UNKNOWN_VOCABULARY)
    with torch.random.fork_rng(devices=[]):
        pair = build_pair(loaded, words)
        objective = build_objective(loaded, pair, words)[0].to(device)
    optimizer = make_optimizer(objective, train.learning_rate, train.betas, train.epsilon, train.weight_decay)
    tokens = torch.randint(5, words.size, (train.batch_size, config.data.sequence_length), device=device)
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens),
                  torch.arange(train.batch_size, device=device))  # fmt: skip
    step = partial(training_step, objective.train(), optimizer, batch, seed=config.seed, learning_rate=1e-9,
                   clip_norm=train.clip_norm, precision=told.precision,
                   micro_batch_size=train.micro_batch_size or train.batch_size)  # fmt: skip
    total = 0.0
    stages = {0: told.flops.first, told.flops.first: told.steps - told.flops.first}
    for first, number in stages.items():
        times = []
        for _ in range(3):
            started = time.perf_counter()
            step(step=first)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        total += min(times[1:]) * number
    return total
