"""The ablation file, read: every variant with every seed, validated, with the lines that wrote them."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from electra_lab.analysis.results import AVERAGE
from electra_lab.assembly.build import Built
from electra_lab.config.ablation import AblationConfig
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import (
    Loaded,
    absolute,
    imports,
    kind_of,
    located,
    refuse_other_kind,
    sentences,
    validated_as,
    with_plugins,
)
from electra_lab.config.portable import Gathered, gathered
from electra_lab.config.schema import ExperimentConfig
from electra_lab.config.sections import Budget
from electra_lab.config.source import (
    Loc,
    Mark,
    Node,
    keys_of,
    laid_over,
    leaves,
    read_file,
    with_change,
    with_overrides,
)
from electra_lab.jobs.identity import NO_RESULT, SEEDS, content_of, identity_of
from electra_lab.jobs.sweeps.variants import (
    BASE,
    Problems,
    Variant,
    closed,
    overlay,
    probes,
    trial_variants,
    variants_of,
)
from electra_lab.storage.plan import Cell
from registry import Metric, Plugin, measures
from registry.component import Component
from registry.errors import ConfigError, LabError, did_you_mean
from registry.signature import validate

# The keys that an ablation sets for every cell.
OWN: dict[Loc, str] = {("name",): NO_RESULT["name",], **SEEDS}
SCHEMAS: dict[str, Any] = {"experiment": ExperimentConfig, "fine-tuning": FinetuningConfig}


@dataclass(frozen=True)
class Ablation:
    """A validated ablation: its variants, and its cells, seed by seed, so that early ones can be compared.

    files       copies of the file and of those that it needs
    overrides   changes of --set: of the file's own keys, and of the base
    bases       files that are varied, by task; an experiment has the task ""
    loaded      complete config of each cell and reference, by id
    references  runs that serve a measure alone, by measure and name
    sketches    experiments built from shapes, by variant or by the id of a reference
    gaps        reason for the lack of its data, by task
    absent      error that a run would raise for something missing on this machine
    """

    config: AblationConfig
    marks: Mapping[Loc, Mark]
    path: Path
    files: Gathered
    overrides: tuple[Sequence[str], Sequence[str]]
    plugins: tuple[Plugin, ...]
    bases: Mapping[str, Loaded[Any]]
    variants: tuple[Variant, ...]
    baseline: str
    cells: tuple[Cell, ...]
    loaded: dict[str, Loaded[Any]]
    references: dict[str, dict[str, Cell]] = field(default_factory=dict)
    sketches: dict[str, Built] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    absent: LabError | None = None

    @property
    def base(self) -> Loaded[Any]:
        return next(iter(self.bases.values()))

    @property
    def finetunes(self) -> bool:
        return "" not in self.bases

    @cached_property
    def firsts(self) -> dict[str, Cell]:
        """By variant, its first cell."""
        firsts = dict[str, Cell]()
        for cell in self.cells:
            firsts.setdefault(cell.variant, cell)
        return firsts

    @property
    def served(self) -> dict[str, Cell]:
        """The references of all measures by their ids."""
        references = dict[str, Cell]()
        for by_name in self.references.values():
            references |= {cell.id: cell for cell in by_name.values()}
        return references

    @property
    def pieces(self) -> list[Cell]:
        """Everything that has to be trained; references first, as every cell's measures wait for them."""
        return [*self.served.values(), *self.cells]


def load_ablation(
    path: Path,
    overrides: Sequence[str] = (),
    trials: Mapping[str, Mapping[str, Node]] | None = None,
    *,
    confirms: bool = False,
) -> Ablation:
    """Read an ablation and validate every cell. Raises ConfigError with all problems.

    overrides  changes of the ablation's keys, such as `seeds`; other keys change the base of all cells
    trials     of a search: names and changes of trials; by default, all ends of its ranges, one at a time
    confirms   True for the confirmation of a search, with its seeds
    """
    root, of_ablation, overrides = read_ablation(path, overrides)
    marks = dict(root.marks())
    plugins = tuple(imports(root))
    config = _config(root, marks)
    nodes, kind = _read_bases(config, marks)
    nodes = [with_plugins(node, root, plugins) for node in nodes]
    vary = keys_of(root)["vary"]
    if config.search:
        variants = trial_variants(vary, probes(vary) if trials is None else trials)
        if confirms and config.search.confirm:
            config = config.model_copy(update={"seeds": config.search.confirm})
            marks |= {("seeds", i): marks["search", "confirm", i] for i in range(len(config.seeds))}
    else:
        variants = variants_of(vary, len(config.seeds) * len(nodes))

    # The bases, with the changes for every cell
    budgets = tuple(Budget.model_fields) if config.budget and kind == "experiment" else ()
    spent: dict[Loc, str] = {("train", name): "is set by `budget`; keep one of them" for name in budgets}
    changed, varied = _changes(root, variants, overrides, spent)
    bases = []
    for node in nodes:
        node = with_overrides(laid_over(changed, node), overrides)
        for name in budgets:
            mark = marks.get(("budget", name), marks["budget",])
            node = with_change(node, f"train.{name}", Node(getattr(config.budget, name), mark))
        bases.append(node)

    # Each base unchanged, and with every variant and seed
    problems, cells, loaded = Problems(), list[Cell](), dict[str, Loaded[Any]]()
    by_task = dict[str, Loaded[Any]]()
    for i, base in enumerate(bases):
        task = ""
        try:
            whole = validated_as(SCHEMAS[kind], base)
            task = whole.config.name if kind == "fine-tuning" else ""
            if task in by_task or (task == AVERAGE and len(bases) > 1):
                problems.add(
                    f"{marks['base', i]}: base.{i}: another task is called {task!r} too; give it another name."
                )
            by_task[task] = whole
        except ConfigError as error:
            problems.add(error)
        for variant, changes in zip(variants, varied, strict=True):
            node = laid_over(changes, base)
            if kind == "experiment":
                node = with_change(node, "name", Node(config.name, marks["name",]))
            try:
                for cell, complete in _cells(variant, task, node, config.seeds, marks, kind):
                    cells.append(cell)
                    loaded[cell.id] = complete
            except ConfigError as error:
                problems.add(error, variant.label)
    contents = {cell.variant: content_of(loaded[cell.id]) for cell in reversed(cells)}
    repeated = () if config.search else _repeated(variants, contents)
    for line in (*repeated, *_unknown(config, variants, marks, kind)):
        problems.add(line)
    problems.refuse()
    cells.sort(key=lambda cell: config.seeds.index(cell.seed))
    base_content = content_of(next(iter(by_task.values())))
    same = [variant.label for variant in variants if contents[variant.label] == base_content]
    baseline = BASE if config.search else config.baseline or (same or [variants[0].label])[0]
    files = gathered(path)  # now: they may be edited while the corpus is read
    return Ablation(
        config, marks, path, files, (of_ablation, overrides), plugins, by_task, tuple(variants), baseline, tuple(cells),
        loaded,
    )  # fmt: skip


def read_ablation(path: Path, overrides: Sequence[str]) -> tuple[Node, list[str], list[str]]:
    """Return the file with the overrides of its keys, these, and the other overrides. Raises ConfigError."""
    root = read_file(path)
    refuse_other_kind(root, "ablation")
    of_ablation = [change for change in overrides if re.split("[.=]", change)[0].strip() in AblationConfig.model_fields]
    others = [change for change in overrides if change not in of_ablation]
    return with_overrides(root, of_ablation), of_ablation, others


def _cells(
    variant: Variant, task: str, node: Node, seeds: Sequence[int], marks: Mapping[Loc, Mark], kind: str
) -> Iterator[tuple[Cell, Loaded[Any]]]:
    """Yield a variant of a base with each seed. Raises ConfigError."""
    for i, seed in enumerate(seeds):
        value = Node(seed, marks["seeds", i])
        if kind == "fine-tuning":
            loaded: Loaded[Any] = validated_as(FinetuningConfig, with_change(node, "seeds", Node([value], value.mark)))
        else:
            loaded = validated_as(ExperimentConfig, with_change(node, "seed", value))
        words = f"{task} {variant.words}".strip()
        yield Cell(id=identity_of(words, loaded), variant=variant.label, seed=seed, task=task), loaded
        if task and not loaded.config.trains and loaded.config.init == "pretrained":
            return  # without training and random weights, every seed gives the same


def _config(root: Node, marks: Mapping[Loc, Mark]) -> AblationConfig:
    """Validate the file by its own schema. Raises ConfigError."""
    values, lines = root.plain(), list[str]()
    assert isinstance(values, dict)
    for kind, schema in SCHEMAS.items():
        for key in [key for key in values if key in schema.model_fields and key not in AblationConfig.model_fields]:
            lines.append(f"{marks[key,]}: {key}: is a key of {kind}s. To change it for every cell, put it under `set`.")
            del values[key]
    try:
        config = validate(AblationConfig, values)
    except ValidationError as error:
        lines.append(str(sentences(error, marks)))
    if lines:
        raise ConfigError("\n".join(lines))
    # The other paths are completed where they are used, and named as they were written.
    return config.model_copy(update={"measure": located(config.measure, ("measure",), marks)})


def _read_bases(config: AblationConfig, marks: Mapping[Loc, Mark]) -> tuple[list[Node], str]:
    """Return the files that are varied, and their kind. Raises ConfigError."""
    nodes, kinds = list[Node](), dict[str, Path]()
    for i, path in enumerate(config.bases):
        loc: Loc = ("base", i) if isinstance(config.base, list) else ("base",)
        mark, key = marks[loc], ".".join(map(str, loc))
        file = absolute(path, loc, mark)
        if not os.path.isfile(file):
            raise ConfigError(f"{mark}: {key}: the file {file} does not exist.")
        nodes.append(read_file(file))
        kind = kind_of(nodes[-1])
        if kind == "ablation":
            raise ConfigError(f"{mark}: {key}: {file} is itself an ablation; name the file that is to be varied.")
        kinds[kind] = path
        if len(config.bases) > 1 and "experiment" in kinds:
            raise ConfigError(f"{mark}: {key}: a list names fine-tunings, and {kinds['experiment']} is an experiment.")
    return nodes, next(iter(kinds))


def _changes(
    root: Node, variants: Sequence[Variant], overrides: Sequence[str], spent: Mapping[Loc, str]
) -> tuple[Node, list[Node]]:
    """Return the changes for every cell, and those of each variant. Raises ConfigError."""
    problems, nodes, changed = Problems(), list[Node](), root
    for variant in variants:
        try:
            nodes.append(overlay(variant.nodes, "vary"))
            problems.add(closed(nodes[-1], "vary: ", {**NO_RESULT, **SEEDS, **spent}))
        except ConfigError as error:
            problems.add(error)
    varied = dict[Loc, str]()
    for node in nodes:
        varied |= {loc: "is changed by `vary`" for loc, _ in leaves(node)}
    try:
        changed = overlay(keys_of(keys_of(root).get("set")), "set")
        problems.add(closed(changed, "set: ", {**OWN, **spent}))
        problems.add(closed(with_overrides(Node({}, root.mark), overrides), "", {**varied, **OWN, **spent}))
    except ConfigError as error:
        problems.add(error)
    problems.refuse()
    return changed, nodes


def _repeated(variants: Sequence[Variant], contents: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variant that equals another one, by its label or by its content."""
    labels, first = dict[str, Mark](), dict[str, str]()
    for variant in variants:
        label, mark = variant.label, variant.mark
        if label in labels:
            yield f"{mark}: vary: {label} appears twice, first at {labels[label]}; remove one of them."
        elif label in contents and (other := first.setdefault(contents[label], label)) != label:
            yield f"{mark}: vary: {other} and {label} are the same; remove one of them."
        labels.setdefault(label, mark)


def _unknown(
    config: AblationConfig, variants: Sequence[Variant], marks: Mapping[Loc, Mark], kind: str
) -> Iterator[str]:
    """Yield a line for a baseline that does not exist, and for each key of another kind of base."""
    labels = [variant.label for variant in variants]
    if config.baseline is not None and config.baseline not in labels:
        reason = f"no variant is called {config.baseline!r}.{did_you_mean(config.baseline, labels)}"
        yield f"{marks['baseline',]}: baseline: {reason}"
    if kind == "fine-tuning":
        for key in ("budget", "measure"):
            if (key,) in marks and getattr(config, key) is not None:
                yield f"{marks[key,]}: {key}: is for experiments, and {config.bases[0]} is a fine-tuning; remove it."
        if config.search and config.search.prune:
            yield f"{marks['search', 'prune']}: search.prune: fine-tunings have no loss at [MASK]; remove it."


def unknown_metric(config: AblationConfig, marks: Mapping[Loc, Mark], metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the primary metric does not exist."""
    if config.metric is not None and config.metric not in metrics:
        reason = f"no measure computes {config.metric!r}.{did_you_mean(config.metric, metrics)}"
        yield f"{marks['metric',]}: metric: {reason}"


def metrics_of(measure: Component) -> dict[str, Metric]:
    """Return the metrics that a measure declares."""
    return dict(measures.get(measure.type).component(**measure.keywords()).metrics)
