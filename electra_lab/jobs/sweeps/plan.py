"""From a validated ablation to its plan: the needs and costs of every cell, known before the first one starts."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from electra_lab.analysis.power import spread
from electra_lab.analysis.results import read
from electra_lab.assembly.budget import count_parameters
from electra_lab.assembly.build import Built, sketch
from electra_lab.assembly.experiment import absent_data
from electra_lab.assembly.trackers import absent_tracker
from electra_lab.config.component import Component
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, absolute, dump, load_finetuning
from electra_lab.config.source import BUDGETS, mark_at
from electra_lab.jobs.finetuning.experiment import absent_examples, identity
from electra_lab.jobs.sweeps.file import Cell, LoadedAblation, metrics_of
from electra_lab.jobs.sweeps.variants import Problems
from electra_lab.planning.forecast import Forecast, forecast, trial_seconds
from electra_lab.storage.ablation_folder import AblationFolder, is_ablation_folder
from electra_lab.storage.plan import FORMAT, Expected, Plan, PlannedCell, PlannedMeasure, PlannedVariant
from registry import Metric, measures
from registry.errors import CheckpointError, ConfigError, LabError

# What decides the test of a run: with another of them, its losses are those of another task.
TEST = "corpus.", "tokenizer.", "data.", "packing.", "masking.", "schedules.masking.", "objective.type", "evaluate."
References = dict[str, dict[str, Cell]]  # by measure and by name, the experiments that serve it alone


@dataclass(frozen=True)
class Checked:
    """An ablation whose experiments have all been built from shapes."""

    ablation: LoadedAblation
    references: References
    firsts: dict[str, Cell]  # one cell of each variant, by its label, and the references, by their ids
    sketches: dict[str, Built]  # of `firsts`
    absent: LabError | None  # what a run would raise for what is not on this machine

    @property
    def pieces(self) -> list[Cell]:
        """Everything that has to be trained; references first, as every cell's measures wait for them."""
        return [*by_id(self.references).values(), *self.ablation.cells]

    def texts(self) -> dict[str, list[Cell]]:
        """Return the pieces by the text that they read."""
        found: dict[str, list[Cell]] = {}
        for cell in self.pieces:
            found.setdefault(json.dumps([_rows(cell.loaded), str(cell.loaded.config.data.store)]), []).append(cell)
        return found

    def forecasts(self, device: torch.device) -> dict[str, Forecast]:
        """Return the needs of each variant and reference."""
        return {label: forecast(cell.loaded, self.sketches[label], device) for label, cell in self.firsts.items()}

    def seconds(self, forecasts: dict[str, Forecast], device: torch.device) -> dict[str, float | None]:
        """Return the training time of each variant and reference here, from a few steps; None if too large to try."""
        return {label: trial_seconds(cell.loaded, forecasts[label], device) for label, cell in self.firsts.items()}

    @property
    def metric(self) -> str:
        """The one that the report leads with."""
        config = self.ablation.config
        return config.metric or next(iter(metrics_of(config.measure[0])))

    def plan(self, folder: AblationFolder | None = None) -> Plan:
        """Return the plan as it is stored. Raises ConfigError if the pilot does not have the metric.

        folder  where the ablation may have begun: what its pilot said then stands, whatever has become of the pilot
        """
        config = self.ablation.config
        costs: dict[str, dict[str, Any]] = {
            label: {
                "steps": b.steps,
                "flops": b.flops.total(b.steps),
                "paper_flops": b.paper_flops.total(b.steps),
                "parameters": count_parameters(b.networks),
            }
            for label, b in self.sketches.items()
        }
        references = {type: {name: c.id for name, c in each.items()} for type, each in self.references.items()}
        return Plan(
            format=FORMAT,
            name=config.name,
            question=config.question,
            base=str(config.base),
            imports=[str(plugin.file) for plugin in self.ablation.plugins],
            budget=config.budget.model_dump(exclude_none=True) if config.budget else None,
            keys=[key for key, values in config.vary.items() if isinstance(values, list)],
            variants=[
                PlannedVariant(
                    label=v.label,
                    changes=v.changes,
                    differs=self.ablation.differences[v.label],
                    beyond=self.ablation.beyond[v.label],
                )
                for v in self.ablation.variants
            ],
            baseline=self.ablation.baseline,
            seeds=config.seeds,
            measures=[
                PlannedMeasure(
                    type=each.type,
                    key=self._key(each, references[each.type]),
                    options=each.options.model_dump(mode="json"),
                    metrics=self._metrics(each),
                    references=references[each.type],
                )
                for each in config.measure
            ],
            metric=self.metric,
            expected=_expected(self.ablation, self.metric, folder),
            cells=[
                PlannedCell(id=c.id, variant=c.variant, seed=c.seed, **costs[c.variant]) for c in self.ablation.cells
            ],
        )

    def _metrics(self, measure: Component) -> dict[str, Metric]:
        """Return the metrics of a measure; of a run's own test, where the variants' tests differ."""
        own = measure.type == "pretraining"
        own &= any(key.startswith(TEST) for keys in self.ablation.differences.values() for key in keys)
        return {name: replace(each, own_task=own or each.own_task) for name, each in metrics_of(measure).items()}

    def _key(self, measure: Component, references: dict[str, str]) -> str:
        """Return the measure's name with a hash of everything that its numbers depend on."""
        file = measures.get(measure.type).file
        code = [plugin.sha256 for plugin in self.ablation.plugins if plugin.file == file]
        files = [identity(finetuning) for finetuning in _finetunings(measure)]
        content = json.dumps([measure.dump(), references, _rows(self.ablation.base), code, *files], sort_keys=True)
        return f"{measure.type}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"


def _expected(ablation: LoadedAblation, metric: str, begun: AblationFolder | None) -> Expected | None:
    """Return what the file, or its pilot, says about the spread of the leading metric. Raises ConfigError."""
    power, loc = ablation.config.power, ("power", "pilot")
    if power is None or power.pilot is None:
        return Expected(sd=power.sd, source="by the file") if power and power.sd else None
    mark, source = mark_at(ablation.marks, loc), f"by the pilot {power.pilot}"
    with suppress(CheckpointError):
        if begun and (then := begun.plan.expected) and then.source == source:
            return then
    folder = absolute(power.pilot, loc, mark)
    if not is_ablation_folder(folder):
        raise ConfigError(f"{mark}: power.pilot: {folder} is not the folder of an ablation.")
    try:
        if found := spread(read(folder).claims.against(metric).values(), source):
            return found
    except CheckpointError as error:
        raise ConfigError(f"{mark}: power.pilot: {error}") from None
    reason = f"{folder} does not have {metric} of two variants with two seeds that both have"
    raise ConfigError(f"{mark}: power.pilot: {reason}, or their difference does not vary.")


def checked(ablation: LoadedAblation) -> Checked:
    """Find every problem that does not require reading a corpus or trying a step. Raises ConfigError with all."""
    problems, references, sketches = Problems(), References(), dict[str, Built]()
    absent = list[LabError | None]()

    def build(cells: dict[str, Cell]) -> None:
        for label, cell in cells.items():
            try:
                sketches[label] = sketch(cell.loaded)
                absent.append(absent_data(cell.loaded, sketches[label]))
            except ConfigError as error:
                # The error of a reference says itself where it comes from.
                problems.add(error, cell.variant if label in ablation.firsts else None)

    build(ablation.firsts)
    for i, each in enumerate(ablation.config.measure):
        try:
            references[each.type] = _references(ablation, i, each)
        except ConfigError as error:
            problems.add(error)
        try:
            absent += [absent_examples(one) or absent_tracker(one) for one in _finetunings(each)]
        except ConfigError as error:
            problems.add(f"{mark_at(ablation.marks, ('measure', i))}: measure.{i}: {error}")
    build(by_id(references))
    for line in _other_rows(ablation):
        problems.add(line)
    problems.refuse()
    firsts = ablation.firsts | by_id(references)
    return Checked(ablation, references, firsts, sketches, next(filter(None, absent), None))


def by_id(references: References) -> dict[str, Cell]:
    """Return the references of all measures by their ids."""
    return {cell.id: cell for each in references.values() for cell in each.values()}


def _references(ablation: LoadedAblation, number: int, chosen: Component) -> dict[str, Cell]:
    """Return, by name, the experiments that a measure needs for itself alone. Raises ConfigError with all problems."""
    found, problems, mark = dict[str, Cell](), Problems(), mark_at(ablation.marks, ("measure", number))
    base = ablation.base.config.model_dump(mode="json")
    wanted = measures.get(chosen.type).component(**chosen.keywords()).references(base)
    if wanted and base["train"]["steps"] is None:  # for equal FLOPs, a small network would train for ever
        base["train"] |= {**dict.fromkeys(BUDGETS), "steps": sketch(ablation.base).steps}
    for name, sections in wanted.items():
        label = f"reference of {chosen.type} ({name})"
        try:
            found[name] = ablation.beside({"train": base["train"], **sections}, label, f"{mark}: the {label}")
        except ConfigError as error:
            problems.add(error)
            continue
        if found[name].digest in {cell.digest for cell in ablation.cells}:
            reason = f"the {label} is one of the cells, and would be measured by itself. Give it another seed."
            problems.add(f"{mark}: measure.{number}: {reason}")
    problems.refuse()
    return found


def _rows(loaded: Loaded) -> dict[str, Any]:
    """Return everything that the rows of text depend on."""
    return loaded.config.model_dump(mode="json", include={"corpus", "tokenizer", "data"}, exclude={"data": {"store"}})


def _other_rows(ablation: LoadedAblation) -> Iterator[str]:
    """Yield a line for each variant whose rows are not the base's, which references read, if a measure needs that."""
    kinds: list[tuple[str, Any]] = [(each.type, measures.get(each.type).component) for each in ablation.config.measure]
    wanting = " and ".join(name for name, kind in kinds if kind.same_rows)
    base = _rows(ablation.base)
    for variant in ablation.variants if wanting else ():
        theirs = _rows(ablation.firsts[variant.label].loaded)
        if other := next((key for key in base if base[key] != theirs[key]), None):
            yield (
                f"{variant.mark}: vary: {variant.label} reads other rows than the base ({other} differs), so {wanting} "
                f"cannot show all cells the same. Remove {wanting} from `measure`, or change {other} under `set`."
            )


def _finetunings(measure: Component) -> list[Loaded[FinetuningConfig]]:
    """Read the fine-tuning files that a measure uses. Raises ConfigError."""
    made = measures.get(measure.type).component(**measure.keywords())
    return [load_finetuning(file) for file in getattr(made, "finetunings", ())]


def write_plan(checked: Checked, folder: AblationFolder) -> Plan:
    """Write the plan, and the complete experiment of each piece, to its folder."""
    plan = checked.plan(folder)
    for cell in checked.pieces:
        folder.write(f"plan/{cell.id}.yaml", dump(cell.loaded.config))
    folder.write("ablation.yaml", checked.ablation.source)
    folder.write("plan.json", plan.model_dump_json(indent=1) + "\n")
    return plan
