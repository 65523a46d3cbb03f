"""The folder of an ablation as values: the plan, and the result of each cell."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from electra_lab.analysis.comparisons import Claims, claims
from electra_lab.analysis.records import last_number, training_seconds
from electra_lab.analysis.statistics import Difference, Layers, difference
from electra_lab.storage.ablation_folder import TRAINING, AblationFolder, State, Status
from electra_lab.storage.plan import Plan, PlannedCell
from electra_lab.storage.provenance import Provenance
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError


@dataclass(frozen=True)
class CellResult:
    """A planned cell with its state and its run."""

    plan: PlannedCell
    state: State
    run: RunDirectory

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        with self._curable():
            return self.run.records()

    @cached_property
    def provenance(self) -> Provenance | None:
        if not (self.run.path / "provenance.json").is_file():
            return None
        with self._curable():
            return self.run.provenance()

    @contextmanager
    def _curable(self) -> Iterator[None]:
        """Add the cure to an error of a damaged file."""
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{error} Remove {self.run.path}, and `electra-lab ablate` recreates it.") from None

    @property
    def costs(self) -> Provenance | PlannedCell:
        """Steps, FLOPs and parameters of the run; of the plan before it has begun, when the vocabulary is not known."""
        return self.provenance or self.plan

    @property
    def trained(self) -> bool:
        return TRAINING not in self.state.missing

    @property
    def tokens(self) -> float | None:
        return last_number(self.records, "train", "tokens") if self.trained else None

    @property
    def seconds(self) -> float | None:
        return training_seconds(self.records) if self.trained else None


@dataclass(frozen=True)
class Results:
    folder: Path
    plan: Plan
    cells: list[CellResult]
    failed_references: dict[str, str]  # by id, why a run that measures need is not there

    def of(self, variant: str) -> list[CellResult]:
        return [cell for cell in self.cells if cell.plan.variant == variant]

    def values(self, metric: str) -> dict[str, dict[int, float]]:
        """Return the metric by variant and by seed, of the cells that have it."""
        return {
            v.label: {c.plan.seed: c.state.metrics[metric] for c in self.of(v.label) if metric in c.state.metrics}
            for v in self.plan.variants
        }

    def has(self, metric: str) -> bool:
        return any(metric in cell.state.metrics for cell in self.cells)

    @cached_property
    def claims(self) -> Claims:
        """All comparisons of the variants."""
        metrics = {name: metric for name, metric in self.plan.metrics.items() if self.has(name)}
        values = {name: self.values(name) for name in metrics if name not in self.plan.trivial}
        parts = [metric.parts for metric in metrics.values() if metric.parts]
        layers = {name: self._layers(name, metric.parts) for name, metric in metrics.items()}
        return claims(values, self.plan.metric, self.plan.baseline, parts, layers, self._over_trivial(layers))

    def _over_trivial(self, layers: Mapping[str, Layers]) -> dict[tuple[str, str], Difference]:
        """Return, by variant and baseline that needs no training, the leading metric minus that of the baseline."""
        found, leading, here = {}, self.plan.metric, layers.get(self.plan.metric, {})
        for baseline in filter(self.has, self.plan.metrics[leading].baselines):
            theirs, there = self.values(baseline), layers[baseline]
            for label, ours in self.values(leading).items():
                units = {name: (here[name].get(label, {}), there[name].get(label, {})) for name in here.keys() & there}
                found[label, self.plan.metrics[baseline].title or baseline] = difference(ours, theirs[label], units)
        return found

    def trivial(self, metric: str) -> dict[str, float]:
        """Return, by its title, the mean over all cells of each baseline of a metric that needs no training."""
        found = {}
        for name in filter(self.has, self.plan.metrics[metric].baselines):
            numbers = [cell.state.metrics[name] for cell in self.cells if name in cell.state.metrics]
            found[self.plan.metrics[name].title or name] = sum(numbers) / len(numbers)
        return found

    def _layers(self, metric: str, parts: Sequence[str]) -> Layers:
        """Return what a metric's numbers would differ by if it were drawn again: the documents, its references."""
        measured = {cell.plan.id: cell.state.metrics for cell in self.cells if metric in cell.state.metrics}
        documents = {id: self._documents[id][metric] for id in measured if metric in self._documents[id]}
        sizes = Counter(len(each) for each in documents.values())
        if len(sizes) > 1:  # some are of other text, by an older version
            usual = max(sizes, key=lambda size: (sizes[size], size))
            documents = {id: each for id, each in documents.items() if len(each) == usual}
        references = {id: [found[part] for part in parts if part in found] for id, found in measured.items()}
        references = {id: each for id, each in references.items() if len(each) == len(parts) > 1}
        known = {"documents": documents, "references": references}
        return {name: self._by_variant(each) for name, each in known.items() if each}

    @cached_property
    def _documents(self) -> dict[str, dict[str, list[float]]]:
        folder = AblationFolder(self.folder)
        return {cell.plan.id: folder.by_document(cell.plan.id, self.plan) for cell in self.cells}

    def _by_variant(self, units: Mapping[str, Sequence[float]]) -> dict[str, dict[int, Sequence[float]]]:
        return {
            v.label: {c.plan.seed: units[c.plan.id] for c in self.of(v.label) if c.plan.id in units}
            for v in self.plan.variants
        }

    def count(self, status: Status) -> int:
        return sum(cell.state.status == status for cell in self.cells)

    @property
    def lacking(self) -> dict[str, list[CellResult]]:
        """By metric, the measured cells that do not have it."""
        done = [cell for cell in self.cells if cell.state.status == "done"]
        lacking = {name: [cell for cell in done if name not in cell.state.metrics] for name in self.plan.metrics}
        return {name: cells for name, cells in lacking.items() if cells and name not in self.plan.trivial}


def read(path: Path) -> Results:
    """Read the folder of an ablation. Raises CheckpointError, which names the damaged file."""
    folder = AblationFolder(path)
    plan = folder.plan
    cells = [CellResult(planned, folder.state(planned.id, plan), folder.run(planned.id)) for planned in plan.cells]
    references = {id: folder.state(id, plan) for id in plan.references}
    failed = {id: within(path, state.error) for id, state in references.items() if state.status == "failed"}
    return Results(path, plan, cells, failed)


def within(folder: Path, text: str) -> str:
    """Shorten the names of files in the folder, so that the page can be read anywhere."""
    for above in sorted({str(folder.absolute()), str(folder.resolve())}):
        text = text.replace(f"{above}/", "").replace(above, ".") if len(above) > 1 else text
    return text


def shown(value: Any) -> str:
    """Format a value of a config as YAML would."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
