"""From a validated ablation to its plan: the needs and costs of every cell, known before the first one starts."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from electra_lab.analysis.results import AVERAGE, CONSTANT, expected
from electra_lab.analysis.run_comparison import TEST
from electra_lab.assembly.budget import count_parameters
from electra_lab.assembly.build import sketch
from electra_lab.assembly.experiment import absent_data, absent_tracker
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, absolute, dump, load_finetuning, validated
from electra_lab.config.source import BUDGETS, Node, mark_at, parse, read_file, to_yaml, with_overrides
from electra_lab.jobs.finetuning.experiment import absent_examples, declared, identity
from electra_lab.jobs.finetuning.experiment import check as check_finetuning
from electra_lab.jobs.identity import digest, identity_of, rows_of, seed_of
from electra_lab.jobs.measured import declared_alone, reference
from electra_lab.jobs.provenance import codes_of, with_copies
from electra_lab.jobs.sweeps.file import Ablation, metrics_of, unknown_metric
from electra_lab.jobs.sweeps.variants import Problems
from electra_lab.metrics import accumulator_of
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.files import disk, new_folder, read_text
from electra_lab.storage.plan import Cell, Plan, PlannedMeasure, PlannedSearch, PlannedVariant
from electra_lab.storage.provenance import flat
from registry import Metric, measures
from registry.component import Component
from registry.errors import ConfigError, LabError

FILES, PLUGINS = "files", "plugins"  # in the folder of an ablation
HEAD = "# The file in files/, with the changes of --set. To continue: electra-lab ablate ablation.yaml\n"
CONFIRMS = "# The file of the search, for the seeds of `confirm`. To continue: electra-lab ablate ../../ablation.yaml\n"


def checked(ablation: Ablation) -> Ablation:
    """Find every problem that does not require reading a corpus or trying a step. Raises ConfigError with all."""
    return _checked_finetunings(ablation) if ablation.finetunes else _checked_experiments(ablation)


def _checked_finetunings(ablation: Ablation) -> Ablation:
    """Raises ConfigError. A task without data is a gap, unless no task has any."""
    problems, gaps, others = Problems(), dict[str, LabError](), list[LabError]()
    firsts = {(cell.variant, cell.task): cell for cell in reversed(ablation.cells)}
    for cell in reversed(firsts.values()):
        loaded = ablation.loaded[cell.id]
        try:
            absent = check_finetuning(loaded)
            if data := absent_examples(loaded):
                gaps[cell.task] = data
            elif absent:
                others.append(absent)
        except ConfigError as error:
            problems.add(error, cell.variant)
    tasks = [*ablation.bases, *[AVERAGE] * (len(ablation.bases) > 1)]
    for line in unknown_metric(ablation.config, ablation.marks, dict.fromkeys(tasks)):
        problems.add(line)
    problems.refuse()
    if len(gaps) == len(ablation.bases):
        others += gaps.values()
    reasons = {task: str(error) for task, error in gaps.items()}
    return replace(ablation, gaps=reasons, absent=next(iter(others), None))


def _checked_experiments(ablation: Ablation) -> Ablation:
    problems, absent = Problems(), list[LabError | None]()
    ablation = replace(ablation, references={}, sketches={})

    def build(cells: dict[str, Cell]) -> None:
        for label, cell in cells.items():
            loaded = ablation.loaded[cell.id]
            try:
                ablation.sketches[label] = sketch(loaded)
                absent.append(absent_data(loaded, ablation.sketches[label]))
            except ConfigError as error:
                # The error of a reference says itself where it comes from.
                problems.add(error, cell.variant if label in ablation.firsts else None)

    build(ablation.firsts)
    for i, measure in enumerate(ablation.config.measure):
        try:
            ablation.references[measure.type] = _references(ablation, i, measure)
        except ConfigError as error:
            problems.add(error)
        try:
            for loaded in _finetunings(measure):
                absent.append(absent_examples(loaded) or absent_tracker(loaded))
        except ConfigError as error:
            problems.add(f"{mark_at(ablation.marks, ('measure', i))}: measure.{i}: {error}")
    build(ablation.served)
    for line in (*_other_rows(ablation), *_metric_problems(ablation)):
        problems.add(line)
    problems.refuse()
    return replace(ablation, absent=next(filter(None, absent), None))


def _references(ablation: Ablation, number: int, chosen: Component) -> dict[str, Cell]:
    """Return, by name, the experiments that a measure needs for itself alone. Raises ConfigError with all problems."""
    cells, problems, mark = dict[str, Cell](), Problems(), mark_at(ablation.marks, ("measure", number))
    base, folder = ablation.base.portable.model_dump(mode="json"), ablation.base.marks[()].folder
    sections_by_name = measures.get(chosen.type).component(**chosen.keywords()).references(base)
    length = base["train"]
    if sections_by_name and length["steps"] is None and length["epochs"] is None:
        # For equal FLOPs, a small network would train for ever.
        base["train"] |= {**dict.fromkeys(BUDGETS), "steps": sketch(ablation.base).steps}
    contents = {cell.id.rpartition("-")[2] for cell in ablation.cells}
    for name, sections in sections_by_name.items():
        label = f"reference of {chosen.type} ({name})"
        values = reference(base, ablation.config.name, sections)
        try:
            loaded = validated(parse(json.dumps(values), f"{mark}: the {label}", folder, one_line=True))
        except ConfigError as error:
            problems.add(error)
            continue
        if digest(loaded) in contents:
            reason = f"the {label} is also a cell, which would be measured against itself. Give it another seed."
            problems.add(f"{mark}: measure.{number}: {reason}")
        cells[name] = Cell(id=identity_of(label, loaded), variant=label, seed=seed_of(loaded))
        ablation.loaded[cells[name].id] = loaded
    problems.refuse()
    return cells


def _other_rows(ablation: Ablation) -> Iterator[str]:
    """Yield a line for each variant whose rows are not the base's, which references read, if a measure needs that."""
    kinds = dict[str, Any]()
    for measure in ablation.config.measure:
        kinds[measure.type] = measures.get(measure.type).component
    wanting = " and ".join(name for name, kind in kinds.items() if kind.same_rows)
    base = rows_of(ablation.base)
    for variant in ablation.variants if wanting else ():
        rows = rows_of(ablation.loaded[ablation.firsts[variant.label].id])
        if other := next((key for key in base if base[key] != rows[key]), None):
            yield (
                f"{variant.mark}: vary: {variant.label} reads other rows than the base ({other} differs), so {wanting} "
                f"cannot measure all cells on the same rows. Remove {wanting} from `measure`, or change {other} under "
                "`set`."
            )


def _metric_problems(ablation: Ablation) -> Iterator[str]:
    """Yield a line for each metric that is computed twice, or in two directions, and for one that does not exist."""
    by = dict[str, str]()
    for i, measure in enumerate(ablation.config.measure):
        for name in _metrics(ablation, measure):
            if name in by:
                mark = mark_at(ablation.marks, ("measure", i))
                yield f"{mark}: measure.{i}: {by[name]} and {measure.type} both compute {name}; keep one of them."
                break
            by[name] = measure.type
    directions = dict[str, bool]()
    for variant in ablation.variants:
        for name, metric in _declared(ablation, variant.label).items():
            if directions.setdefault(name, metric.higher_is_better) != metric.higher_is_better:
                reason = f"another objective declares {name} with the other direction; rename one of them"
                yield f"{variant.mark}: vary: {variant.label}: {reason}."
    if ablation.firsts.keys() <= ablation.sketches.keys():
        yield from unknown_metric(ablation.config, ablation.marks, by)


def _metrics(ablation: Ablation, measure: Component) -> dict[str, Metric]:
    """Return the metrics that a measure declares and, for `pretraining`, those that the variants' objectives do."""
    metrics = metrics_of(measure)
    for label in ablation.firsts if measure.type == "pretraining" else ():
        metrics |= _declared(ablation, label)
    return metrics


def _declared(ablation: Ablation, label: str) -> dict[str, Metric]:
    built = ablation.sketches.get(label)
    return declared_alone(accumulator_of(built.learner.objective, built.vocabulary)) if built else {}


def _finetunings(measure: Component) -> list[Loaded[FinetuningConfig]]:
    """Read the fine-tuning files that a measure uses. Raises ConfigError."""
    component = measures.get(measure.type).component(**measure.keywords())
    return [load_finetuning(file) for file in getattr(component, "finetunings", ())]


def plan_of(ablation: Ablation) -> Plan:
    """Return the plan for plan.json. Raises ConfigError if the pilot does not show the spread of the metric."""
    config, variants = ablation.config, planned_variants(ablation)
    cells = [cell.model_copy(update=_costs(ablation, cell.variant)) for cell in ablation.cells]
    planned = _measures(ablation, variants)
    metric = config.metric or (AVERAGE if len(ablation.bases) > 1 else next(iter(planned[0].metrics)))
    power, mark = config.power, mark_at(ablation.marks, ("power", "pilot"))
    pilot = str(absolute(power.pilot, ("power", "pilot"), mark)) if power and power.pilot else ""
    plan = Plan(
        name=config.name,
        question=config.question,
        base=", ".join(map(str, config.bases)),
        imports=[f"{PLUGINS}/{code.copy_name}" for code in codes_of(ablation.plugins)],
        budget=config.budget.model_dump(exclude_none=True) if config.budget else None,
        keys=[key for key, values in config.vary.items() if config.search or isinstance(values, list)],
        variants=variants,
        baseline=ablation.baseline,
        seeds=config.seeds,
        measures=planned,
        metric=metric,
        sd=power.sd if power else None,
        pilot=pilot,
        cells=cells,
        gaps=ablation.gaps,
    )
    if pilot and not expected(plan):
        reason = (
            f"is not an ablation that has {metric} of two variants with two seeds that both have, or it does not vary"
        )
        raise ConfigError(f"{mark}: power.pilot: {pilot} {reason}.")
    return plan


def planned_variants(ablation: Ablation) -> list[PlannedVariant]:
    """Return the variants, with the keys of their complete configs that differ from the baseline's.

    Name, seed and budget are the same in all first cells. `beyond` has the keys that the baseline has too and that no
    change names. The base's values are no surprise; nor are consequences of a change that is not a key of a complete
    config, such as `generator.scale`.
    """
    base, configs, unnamed = flat(ablation.base.config.model_dump(mode="json")), {}, {}
    for variant in ablation.variants:
        values = flat(ablation.loaded[ablation.firsts[variant.label].id].config.model_dump(mode="json"))
        named = list(flat(variant.changes))
        named += [key.rpartition(".")[0] for key in named if not _leads_to(values, key)]
        configs[variant.label] = values
        changed = [key for key in values if values[key] != base.get(key)]
        unnamed[variant.label] = {key for key in changed if not _is_named(key, named)}
    planned, baseline = [], configs[ablation.baseline]
    for variant in ablation.variants:
        label, values = variant.label, configs[variant.label]
        differing = [key for key in baseline | values if baseline.get(key) != values.get(key)]
        differs = {key: (baseline.get(key), values.get(key)) for key in differing}
        surprising = unnamed[label] | unnamed[ablation.baseline]
        beyond = [key for key, both in differs.items() if None not in both and key in surprising]
        planned.append(PlannedVariant(label=label, changes=variant.changes, differs=differs, beyond=beyond))
    return planned


def _is_named(key: str, named: Sequence[str]) -> bool:
    return any(f"{key}.".startswith(f"{above}.") for above in named)


def _leads_to(config: Mapping[str, Any], key: str) -> bool:
    return any(_is_named(name, [key]) for name in config)


def _costs(ablation: Ablation, label: str) -> dict[str, Any]:
    """Return the known costs of a cell of a variant before it runs."""
    if label not in ablation.sketches:
        return {}
    built, steps = ablation.sketches[label], ablation.sketches[label].steps
    return {
        "steps": steps,
        "flops": None if steps is None else built.flops.total(steps),
        "paper_flops": None if steps is None else built.paper_flops.total(steps),
        "parameters": count_parameters(built.networks),
    }


def _measures(ablation: Ablation, variants: Sequence[PlannedVariant]) -> list[PlannedMeasure]:
    planned = list[PlannedMeasure]()
    if ablation.finetunes:
        for task in ablation.bases:
            cell = next(cell for cell in ablation.cells if cell.task == task)
            metrics = declared(ablation.loaded[cell.id])
            name, metric = next(iter(metrics.items()))
            trivial = {f"{task}_{name}": metrics[name] for name in metric.baselines if name in metrics}
            leading = replace(metric, summary=metric.summary or metric.title or name, title=task, chart=False)
            of_measure = {task: replace(leading, baselines=tuple(trivial)), **trivial}
            planned.append(PlannedMeasure(type="fine-tuning", key=task, metrics=of_measure))
        if len(planned) > 1:
            average = Metric(f"mean over the tasks: {', '.join(ablation.bases)}", baselines=(CONSTANT,))
            trivial = {CONSTANT: Metric("the same of constant answers", "constant answers")}
            planned.append(PlannedMeasure(type=AVERAGE, key=AVERAGE, metrics={AVERAGE: average, **trivial}))
        return planned
    for measure in ablation.config.measure:
        references = {name: cell.id for name, cell in ablation.references.get(measure.type, {}).items()}
        options, tuned = measure.options.model_dump(mode="json"), [*map(identity, _finetunings(measure))]
        key = _key(ablation, measure, references, tuned)
        metrics = _metrics(ablation, measure)
        differing = chain.from_iterable(variant.differs for variant in variants)
        if measure.type == "pretraining" and any(key.startswith(TEST) for key in differing):
            metrics = {name: replace(metric, comparable=False) for name, metric in metrics.items()}
        used: dict[str, Any] = {"references": references, "finetunings": tuned}
        planned.append(PlannedMeasure(type=measure.type, key=key, options=options, metrics=metrics, **used))
    return planned


def _key(ablation: Ablation, measure: Component, references: dict[str, str], tuned: Sequence[str]) -> str:
    """Return the measure's name with a hash of everything that its numbers depend on."""
    file = measures.get(measure.type).file
    options = {key: value.name if isinstance(value, Path) else value for key, value in measure.keywords().items()}
    code = [plugin.sha256 for plugin in ablation.plugins if plugin.file == file]
    content = json.dumps([measure.type, options, references, rows_of(ablation.base), code, *tuned], sort_keys=True)
    return f"{measure.type}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"


def as_planned(loaded: Loaded[Any], folder: AblationFolder) -> Any:
    """Return the complete config of a piece as plan/ has it."""
    return with_copies(loaded, folder.path / "plan", codes_of(loaded.plugins), Path("..", PLUGINS))


def write_plan(
    ablation: Ablation, folder: AblationFolder, earlier: Plan | None = None, search: PlannedSearch | None = None
) -> Plan:
    """Write the plan, after the cells of an earlier one, the complete file of each piece, and all that these need.

    search  state of the search whose trials are the variants
    """
    plan = plan_of(ablation)
    plan.search = search
    for cell in ablation.pieces:
        loaded = ablation.loaded[cell.id]
        imported = loaded.plugins[: len(loaded.config.imports)]
        for plugin, code in zip(imported, codes_of(imported), strict=True):
            folder.write_bytes(f"{PLUGINS}/{code.copy_name}", plugin.source)
        config = as_planned(loaded, folder)
        plan.seals[cell.id] = digest(loaded, config)
        folder.write(f"plan/{cell.id}.yaml", dump(config))
    for plugin, code in zip(ablation.plugins, codes_of(ablation.plugins), strict=True):
        folder.write_bytes(f"{PLUGINS}/{code.copy_name}", plugin.source)
    if earlier:
        plan = plan.after(earlier)
    _write_file(ablation, folder, plan)
    folder.write_plan(plan)
    return plan


def _write_file(ablation: Ablation, folder: AblationFolder, plan: Plan) -> None:
    """Write ablation.yaml, from which the folder can be continued anywhere, and the files that it needs."""
    # The file as written, unless this is the file of the folder itself.
    here, inside = folder.path.resolve(), ablation.path.resolve()
    if not inside.is_relative_to(here):
        with disk(here), new_folder(here / FILES) as copies:
            for place, content in ablation.files.files.items():
                (copies / place).parent.mkdir(parents=True, exist_ok=True)
                (copies / place).write_bytes(content)
        inside = here / FILES / ablation.files.main
    file = here / "ablation.yaml"
    root = read_file(inside)
    extending: Any = {"extends": inside.relative_to(here).as_posix()}
    if inside == file:
        extending = parse(read_text(file), str(file), here).plain()
    # The changes of --set.
    of_ablation, of_base = ablation.overrides
    changes: Any = with_overrides(Node({}, root.mark), of_ablation).plain()
    if of_base:
        changes["set"] = changes.get("set") or root.plain().get("set", {})  # type: ignore[union-attr]
    for override in of_base:
        dotted, _, text = override.partition("=")
        _put(changes["set"], dotted.strip(), parse(text, f"--set {override}", here, one_line=True).plain())
    if plan.pilot:  # which is not part of the folder
        changes["power"] = {"pilot": None, "sd": expected(plan).sd}  # type: ignore[union-attr]
    head = CONFIRMS if ablation.config.search and not plan.search else HEAD
    folder.write("ablation.yaml", head + to_yaml(extending | changes))


def _put(changes: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a key in the form in which it, or a section around it, is there already."""
    for key, section in changes.items():
        if dotted.startswith(f"{key}.") and isinstance(section, dict):
            _put(section, dotted.removeprefix(f"{key}."), value)
            return
    inside = [key for key in changes if key.startswith(f"{dotted}.")]
    if inside and isinstance(value, dict) and "type" not in value:  # merged, as on the command line
        for key, inner in value.items():
            _put(changes, f"{dotted}.{key}", inner)
        return
    for key in inside:
        del changes[key]
    changes[dotted] = value
