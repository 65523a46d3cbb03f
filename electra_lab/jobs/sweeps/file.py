"""The ablation file: variants of one experiment over several seeds, each validated, with the lines that wrote them.

base: ../transformer_small.yaml
vary: {generator.scale: [0.25, 0.5, 1.0]}
seeds: [0, 1, 2]
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from electra_lab.config.budget import Budget
from electra_lab.config.component import Component, Of, default
from electra_lab.config.load import Loaded, absolute, imports, kind_of, kind_of_file, located, validated
from electra_lab.config.problems import problems, sentences
from electra_lab.config.schema import ExperimentConfig, Name, Seeds
from electra_lab.config.source import DEFAULTS, Loc, Mark, Node, mark_at, parse, read_file, with_change, with_overrides
from electra_lab.jobs.sweeps.sections import Power
from electra_lab.jobs.sweeps.variants import Problems, Variant, closed, keys_of, laid_over, leaves, overlay, variants_of
from registry import ALL, Metric, Plugin, launchers, measures
from registry.errors import ConfigError, command, did_you_mean
from registry.signature import Strict, validate

LONGEST_NAME = 80  # characters of a variant's name, which appears in tables and under charts
# The keys that an ablation sets for every cell, and those that it may change but not vary.
OWN: dict[Loc, str] = {
    ("name",): "is the ablation's own, for every cell",
    ("seed",): "cannot be changed here: list the seeds under `seeds`",
}
FIXED: dict[Loc, str] = OWN | {
    ("imports",): "cannot be varied: list plug-ins under the ablation's own `imports`",
    ("data", "store"): "cannot be varied: the place of token stores changes no result",
    ("trackers",): "cannot be varied: trackers change no result; write them under `set`",
}


def _varied(vary: dict[str, Any]) -> dict[str, Any]:
    wrong: dict[Loc, str] = {} if vary else {(): "is empty; write a key of the base and a list of values."}
    for key, values in vary.items():
        is_name = key == key.strip() and key.isprintable() and 0 < len(key) <= LONGEST_NAME
        if values == []:
            wrong[key,] = "has no values."
        elif not isinstance(values, dict | list):
            reason = "must be a list of values for this key, or a mapping of the changes of a variant of this name."
            wrong[key,] = reason
        elif isinstance(values, dict) and not is_name:
            reason = f"a variant's name is one line of at most {LONGEST_NAME} characters, without spaces around it."
            wrong[key,] = reason
    if len({type(values) for values in vary.values() if isinstance(values, list | dict)}) > 1:
        wrong[()] = "mixes keys with lists of values and names with changes; write one kind of them."
    if wrong:
        raise problems((loc, reason, None) for loc, reason in wrong.items())
    return vary


class AblationConfig(Strict):
    """An ablation file."""

    name: Name = Field(description="Name of the ablation; its default folder is `runs/<name>`.")
    question: str = Field("", description="The question that it is to answer; the headline of the report.")
    imports: list[Path] = Field(
        default_factory=list, description="Plug-in files. Those with parts of experiments are imported by every cell."
    )
    base: Path = Field(description="The experiment file that is varied, relative to this file.")
    set: dict[str, Any] = Field(default_factory=dict, description="Changes to the base that hold for every cell.")
    vary: Annotated[dict[str, Any], AfterValidator(_varied)] = Field(
        description="Keys and their values, all combinations of which are run; or names of variants and their changes."
    )
    seeds: Seeds = Field(description="Each variant is run with each of them. From five on, differences are tested.")
    budget: Budget | None = Field(None, description="The budget of every cell; without it, the base's `train` decides.")
    baseline: str | None = Field(
        None,
        description="The variant that others are compared to; without it, the one that equals the base, or the first.",
    )
    measure: Annotated[list[Annotated[Component, Of(measures)]], Field(min_length=1)] = Field(
        default_factory=lambda: [default(measures, "fixed_corruption"), default(measures, "pretraining")],
        description="The measures that cells are compared by.",
    )
    metric: str | None = Field(
        None,
        description="The primary metric, which the question is about; without it, the first of the first measure. All "
        "others are secondary.",
    )
    power: Power | None = Field(
        None,
        description="What the smallest difference that can be found is computed from, in the dry run and the report. "
        "It changes no cell.",
    )
    launcher: Annotated[Component, Of(launchers, default=DEFAULTS["launcher",])] = Field(
        default_factory=lambda: default(launchers, DEFAULTS["launcher",]), description="Where cells run."
    )
    retries: Annotated[int, Field(ge=0, le=10**9)] = Field(1, description="How often a failing cell is tried again.")


@dataclass(frozen=True)
class Cell:
    """A variant with a seed: one experiment. `id` is derived from its content, so that it is found again."""

    id: str
    variant: str
    seed: int
    loaded: Loaded

    @property
    def digest(self) -> str:
        """The part of the id that is equal for equal experiments, whatever their names."""
        return self.id.rpartition("-")[2]


@dataclass(frozen=True)
class LoadedAblation:
    """A validated ablation: variants in order, and the cells, seed by seed, so that early ones can be compared."""

    config: AblationConfig
    marks: Mapping[Loc, Mark]
    base: Loaded
    variants: tuple[Variant, ...]
    baseline: str
    cells: tuple[Cell, ...]
    source: str
    plugins: tuple[Plugin, ...]

    @cached_property
    def differences(self) -> dict[str, dict[str, tuple[Any, Any]]]:
        """By variant, the keys of its complete config that differ from the baseline's, with both values.

        Name, seed and budget are the same in all first cells.
        """
        base = self.configs[self.baseline]
        return {
            variant: {key: (base.get(key), own.get(key)) for key in base | own if base.get(key) != own.get(key)}
            for variant, own in self.configs.items()
        }

    @cached_property
    def beyond(self) -> dict[str, list[str]]:
        """By variant, those of these keys that the baseline has, too, and that no change of either names.

        The base's value is no surprise; nor is what a change makes that is not a key of a complete config, such as
        `generator.scale`.
        """
        base, unnamed = _flat(self.base.config.model_dump(mode="json")), dict[str, set[str]]()
        for variant in self.variants:
            own = self.configs[variant.label]
            named = [*_flat(variant.changes)]
            named += [each.rpartition(".")[0] for each in named if not any(_is_below(key, each) for key in own)]
            changed = {key for key in own if own[key] != base.get(key)}
            unnamed[variant.label] = {key for key in changed if not any(_is_below(key, each) for each in named)}
        return {
            label: [
                key
                for key, both in self.differences[label].items()
                if None not in both and key in unnamed[label] | unnamed[self.baseline]
            ]
            for label in unnamed
        }

    @cached_property
    def configs(self) -> dict[str, dict[str, Any]]:
        """By variant, its complete config with keys such as `generator.dim`."""
        return {label: _flat(cell.loaded.config.model_dump(mode="json")) for label, cell in self.firsts.items()}

    @cached_property
    def firsts(self) -> dict[str, Cell]:
        """By variant, its first cell."""
        return {v.label: next(cell for cell in self.cells if cell.variant == v.label) for v in self.variants}

    def beside(self, sections: Mapping[str, Any], label: str, place: str) -> Cell:
        """Return the base with `sections` of its complete config replaced. Raises ConfigError, led by `place`."""
        # What serves a measure starts from no weights of the base.
        values = {**self.base.config.model_dump(mode="json"), "name": self.config.name, **sections}
        values["init"] = {"distribution": self.base.config.init.distribution} | sections.get("init", {})
        loaded = validated(parse(json.dumps(values), place, Path.cwd(), one_line=True))
        seed = loaded.config.seed
        return Cell(_identity(label, seed, loaded), label, seed, loaded)


def load_ablation(path: Path, overrides: Sequence[str] = ()) -> LoadedAblation:
    """Read an ablation and validate every cell. Raises ConfigError with all problems.

    overrides  of the ablation's own keys, such as `seeds`; keys of experiments change the base of all cells
    """
    root = read_file(path)
    if kind_of(root) != "ablation":
        reason = "is not an ablation: it has neither `base` nor `vary`. To run an experiment:"
        raise ConfigError(f"{path}: {reason} {command('run', path)}")
    own = [each for each in overrides if re.split("[.=]", each)[0].strip() in AblationConfig.model_fields]
    root, overrides = with_overrides(root, own), [each for each in overrides if each not in own]
    marks = dict(root.marks())
    plugins = tuple(imports(root))
    config = _config(root, marks)
    variants = variants_of(keys_of(root)["vary"], len(config.seeds))
    base = _with_plugins(_base(config, marks), root, plugins)
    base, nodes = _changed(base, root, variants, overrides, config, marks)

    found, cells, loaded = Problems(), list[Cell](), None
    try:
        loaded = validated(base)
    except ConfigError as error:
        found.add(error)
    for variant, node in zip(variants, nodes, strict=True):
        named = with_change(laid_over(node, base), "name", Node(config.name, marks["name",]))
        try:
            for i, seed in enumerate(config.seeds):
                one = validated(with_change(named, "seed", Node(seed, marks["seeds", i])))
                cells.append(Cell(_identity(variant.words, seed, one), variant.label, seed, one))
        except ConfigError as error:
            found.add(error, variant.label)
    for line in (*_alike(variants, cells), *_unknown(config, variants, marks)):
        found.add(line)
    found.refuse()
    assert loaded is not None
    cells.sort(key=lambda cell: config.seeds.index(cell.seed))
    baseline = config.baseline
    if baseline is None:
        same = [cell.variant for cell in cells if _content(cell.loaded) == _content(loaded)]
        baseline = same[0] if same else variants[0].label
    source = path.read_text("utf-8-sig")
    return LoadedAblation(config, marks, loaded, tuple(variants), baseline, tuple(cells), source, plugins)


def _config(root: Node, marks: Mapping[Loc, Mark]) -> AblationConfig:
    """Validate the file by its own schema. Raises ConfigError."""
    values, lines = root.plain(), list[str]()
    assert isinstance(values, dict)
    for key in [k for k in values if k in ExperimentConfig.model_fields and k not in AblationConfig.model_fields]:
        lines.append(f"{marks[key,]}: {key}: is a key of experiments. To change it for every cell, put it under `set`.")
        del values[key]
    try:
        config = validate(AblationConfig, values)
    except ValidationError as error:
        lines.append(str(sentences(error, marks)))
    if lines:
        raise ConfigError("\n".join(lines))
    # The other paths are completed where they are used, and named as they were written.
    return config.model_copy(update={"measure": located(config.measure, ("measure",), marks)})


def _base(config: AblationConfig, marks: Mapping[Loc, Mark]) -> Node:
    mark = marks["base",]
    file = absolute(config.base, ("base",), mark)
    if not os.path.isfile(file):
        raise ConfigError(f"{mark}: base: the file {file} does not exist.")
    if kind_of_file(file) == "ablation":
        raise ConfigError(f"{mark}: base: {file} is itself an ablation; name the experiment that is to be varied.")
    return read_file(file, (Path(mark.file),))  # as one that it extends


def _with_plugins(base: Node, root: Node, plugins: Sequence[Plugin]) -> Node:
    """Add the plug-ins with parts of experiments to the base's imports, so that a cell finds them in its own process.

    A plug-in with only measures or launchers is not part of a cell: changing it is no reason to train again.
    """
    others = [each for each in ALL if each not in (measures, launchers)]
    parts = {entry.file.resolve() for each in others for entry in each.plugged_in()}
    mine, theirs = keys_of(root).get("imports"), keys_of(base).get("imports")
    known = theirs.value if theirs else []
    if mine is None or not isinstance(mine.value, list) or not isinstance(known, list):
        return base
    there = {plugin.file for plugin in imports(base)}
    wanted = zip(mine.value, plugins, strict=True)
    added = [node for node, plugin in wanted if plugin.file in parts and plugin.file not in there]
    return with_change(base, "imports", Node([*known, *added], mine.mark)) if added else base


def _changed(
    base: Node, root: Node, variants: Sequence[Variant], overrides: Sequence[str], config: AblationConfig,
    marks: Mapping[Loc, Mark],
) -> tuple[Node, list[Node]]:  # fmt: skip
    """Return the base with the changes for every cell, and the changes of each variant. Raises ConfigError."""
    found, nodes = Problems(), list[Node]()
    budgets = tuple(Budget.model_fields) if config.budget else ()
    spent: dict[Loc, str] = {("train", name): "is set by `budget`; keep one of them" for name in budgets}
    for variant in variants:
        try:
            nodes.append(overlay(variant.nodes, "vary"))
            found.add(closed(nodes[-1], "vary: ", FIXED | spent))
        except ConfigError as error:
            found.add(error)
    try:
        changed = overlay(keys_of(keys_of(root).get("set")), "set")
        found.add(closed(changed, "set: ", OWN | spent))
        varied: dict[Loc, str] = {loc: "is changed by `vary`" for node in nodes for loc, _ in leaves(node)}
        found.add(closed(with_overrides(Node({}, root.mark), overrides), "", varied | OWN | spent))
    except ConfigError as error:
        found.add(error)
    found.refuse()
    base = with_overrides(laid_over(changed, base), overrides)
    for name in budgets:
        mark = marks.get(("budget", name), marks["budget",])
        base = with_change(base, f"train.{name}", Node(getattr(config.budget, name), mark))
    return base, nodes


def _content(loaded: Loaded) -> dict[str, Any]:
    """Return everything that the outcome of a run depends on, except for the seed."""
    excluded: Any = {"name": True, "seed": True, "imports": True, "trackers": True, "data": {"store"}}
    values = loaded.config.model_dump(mode="json", exclude=excluded)
    return {**values, "plugins": sorted({plugin.sha256 for plugin in loaded.plugins})}


def digest(loaded: Loaded) -> str:
    """Return a hash that is equal for equal experiments, whatever their names and places."""
    content = json.dumps([_content(loaded), loaded.config.seed], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def _identity(words: str, seed: int, loaded: Loaded) -> str:
    ascii_words = re.findall(r"[a-z0-9_.=+]+", words.lower())
    readable = "-".join(ascii_words)[:48].strip("-.=+") or "variant"
    return f"{readable}-s{seed}-{digest(loaded)}"


def _alike(variants: Sequence[Variant], cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a line for each variant that equals another one, by its label or by its content."""
    labels, contents = dict[str, Mark](), dict[str, str]()
    first = {cell.variant: cell for cell in reversed(cells)}
    for variant in variants:
        label, mark = variant.label, variant.mark
        if label in labels:
            yield f"{mark}: vary: {label} appears twice, first at {labels[label]}; remove one of them."
        elif label in first:
            content = json.dumps(_content(first[label].loaded), sort_keys=True)
            if (other := contents.setdefault(content, label)) != label:
                yield f"{mark}: vary: {other} and {label} are the same experiment; remove one of them."
        labels.setdefault(label, mark)


def _unknown(config: AblationConfig, variants: Sequence[Variant], marks: Mapping[Loc, Mark]) -> Iterator[str]:
    """Yield a line for each name of a variant or a metric that does not exist."""
    labels = [variant.label for variant in variants]
    if config.baseline is not None and config.baseline not in labels:
        close = get_close_matches(config.baseline, labels, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        reason = f"no variant is called {config.baseline!r}.{hint} There are: {'; '.join(labels)}."
        yield f"{marks['baseline',]}: baseline: {reason}"
    by: dict[str, str] = {}
    for i, each in enumerate(config.measure):
        for name in metrics_of(each):
            if name in by:
                mark = mark_at(marks, ("measure", i))
                yield f"{mark}: measure.{i}: {by[name]} and {each.type} both compute {name}; keep one of them."
                break
            by[name] = each.type
    if config.metric is not None and config.metric not in by:
        reason = f"no measure computes {config.metric!r}.{did_you_mean(config.metric, by)}"
        yield f"{marks['metric',]}: metric: {reason}"


def metrics_of(measure: Component) -> dict[str, Metric]:
    """Return the metrics that a measure declares."""
    return dict(measures.get(measure.type).component(**measure.keywords()).metrics)


def _is_below(key: str, above: str) -> bool:
    return f"{key}.".startswith(f"{above}.")


def _flat(values: Any, above: str = "") -> dict[str, Any]:
    """Turn `{a: {b: 1}}` into `{a.b: 1}`; an empty mapping is a value."""
    if not isinstance(values, dict) or not values:
        return {above: values}
    parts = (_flat(value, f"{above}.{key}" if above else str(key)) for key, value in values.items())
    return {key: value for part in parts for key, value in part.items()}
