"""An ablation file: variants of one experiment over several seeds, each validated, with the lines that wrote them.

base: ../transformer_small.yaml
vary: {generator.scale: [0.25, 0.5, 1.0]}
seeds: [0, 1, 2]
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from electra_lab.config.load import Loaded, absolute, describes_ablation, imports, validated
from electra_lab.config.problems import problem, sentences
from electra_lab.config.schema import Component, Experiment, Of
from electra_lab.config.source import Loc, Mark, Node, mark_at, read_file, with_change, with_overrides
from electra_lab.config.variants import Problems, Variant, closed, keys_of, laid_over, leaves, overlay, variants_of
from registry import ALL, Plugin, launchers, measures
from registry.errors import ConfigError, did_you_mean
from registry.signature import Strict, validate

BUDGETS = ("steps", "tokens", "flops")
LONGEST_NAME = 80  # of a variant: it stands in tables and under charts
# What an ablation sets itself, for every cell, and what it may do but not vary.
OWN: dict[Loc, str] = {
    ("name",): "is that of the ablation, for every cell",
    ("seed",): "is no key to change here: the seeds stand under `seeds`",
}
FIXED: dict[Loc, str] = OWN | {
    ("imports",): "cannot be varied: list plug-ins under the ablation's own `imports`",
    ("data", "store"): "cannot be varied: where token stores lie changes no result",
}


class Budget(Strict):
    """What every cell may spend: exactly one of steps, tokens, FLOPs."""

    steps: Annotated[int, Field(gt=0)] | None = None
    tokens: Annotated[float, Field(gt=0)] | None = None
    flops: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Budget:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            what = "none is" if not given else f"{' and '.join(given)} are"
            raise problem((), f"set one of steps, tokens, flops; {what} set.")
        return self


def _distinct(seeds: list[int]) -> list[int]:
    if twice := [seed for i, seed in enumerate(seeds) if seed in seeds[:i]]:
        raise problem((), f"{twice[0]} stands twice.")
    return seeds


def _varied(vary: dict[str, Any]) -> dict[str, Any]:
    wrong: dict[Loc, str] = {} if vary else {(): "has nothing in it; write a key of the base and a list of values."}
    for key, values in vary.items():
        if not isinstance(values, list | dict):
            wrong[key,] = "must be a list of values for this key, or the mapping of changes of a variant of this name."
        elif values == []:
            wrong[key,] = "has no values."
        elif isinstance(values, dict) and not (
            key == key.strip() and key.isprintable() and 0 < len(key) <= LONGEST_NAME
        ):
            wrong[key,] = (
                f"a variant's name is one line of at most {LONGEST_NAME} characters, without blanks around it."
            )
    if len({type(values) for values in vary.values() if isinstance(values, list | dict)}) > 1:
        wrong[()] = "mixes keys with lists of values and names with changes; write one kind of them."
    if wrong:
        kinds = {loc: PydanticCustomError("lab", "{reason}", {"reason": reason}) for loc, reason in wrong.items()}
        raise ValidationError.from_exception_data(
            "vary", [InitErrorDetails(type=kind, loc=loc, input=None) for loc, kind in kinds.items()]
        )
    return vary


class Ablation(Strict):
    """One ablation file.

    question  what it is to answer; the report's headline
    imports   plug-ins; those that bring parts of an experiment are imported by every cell
    base      the experiment that is varied
    set       changes to the base that hold for every cell
    vary      keys and their values, all combinations of which are run; or names and their changes
    budget    what every cell spends; without, what the base's `train` says
    baseline  the label of the variant that others are compared to; without, the one that equals the base, or the first
    measure   what cells are compared by
    quality   the quantity that the report leads with; without, the first of the first measure
    retries   how often a cell that fails is tried again
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    question: str = ""
    imports: list[Path] = Field(default_factory=list)
    base: Path
    set: dict[str, Any] = Field(default_factory=dict)
    vary: Annotated[dict[str, Any], AfterValidator(_varied)]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1), AfterValidator(_distinct)]
    budget: Budget | None = None
    baseline: str | None = None
    measure: Annotated[list[Annotated[Component, Of(measures)]], Field(min_length=1)] = Field(
        default_factory=lambda: [_component(measures, "fixed_corruption"), _component(measures, "pretraining")]
    )
    quality: str | None = None
    launcher: Annotated[Component, Of(launchers)] = Field(default_factory=lambda: _component(launchers, "local"))
    retries: Annotated[int, Field(ge=0)] = 1


def _component(registry: Any, name: str) -> Component:
    return Component(name, validate(registry.get(name).schema, {}))


@dataclass(frozen=True)
class Cell:
    """A variant with a seed: one experiment. `id` is made of its content, so that it is found again."""

    id: str
    variant: str
    seed: int
    loaded: Loaded

    @property
    def digest(self) -> str:
        """Equal for equal experiments, whatever they are called."""
        return self.id.rpartition("-")[2]


@dataclass(frozen=True)
class LoadedAblation:
    """A validated ablation: variants in order, and the cells, seed by seed, so that early ones can be compared."""

    config: Ablation
    marks: Mapping[Loc, Mark]
    base: Loaded
    variants: tuple[Variant, ...]
    baseline: str
    cells: tuple[Cell, ...]
    source: str
    plugins: tuple[Plugin, ...]

    def problem(self, loc: Loc, reason: str) -> ConfigError:
        return ConfigError(f"{mark_at(self.marks, loc)}: {'.'.join(map(str, loc))}: {reason}")

    def cells_of(self, variant: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.variant == variant]

    def beside(self, sections: Mapping[str, Any], label: str, place: str) -> Cell:
        """The base with `sections` of its filled-in config written anew: an experiment beside the cells.

        `place` is what its errors begin with. Raises ConfigError.
        """
        values = {**self.base.config.model_dump(mode="json"), "name": self.config.name, **sections}
        loaded = validated(_node(values, Mark(place, Path.cwd())))
        seed = loaded.config.seed
        return Cell(_identity(label, seed, loaded), label, seed, loaded)


def is_ablation(path: Path) -> bool:
    """Whether the file is one, not an experiment. What cannot be read is none: who loads it hears why."""
    try:
        return describes_ablation(read_file(path))
    except ConfigError:
        return False


def load_ablation(path: Path, overrides: Sequence[str] = ()) -> LoadedAblation:
    """Read an ablation and validate every cell; `overrides` hold for all. Raises ConfigError with all problems."""
    root = read_file(path)
    if not is_ablation(path):
        reason = "is no ablation: it has neither `base` nor `vary`. An experiment is trained by"
        raise ConfigError(f"{path}: {reason} electra-lab run {path}.")
    marks = dict(root.marks())
    plugins = tuple(imports(root))
    config = _words(root, marks)
    variants = variants_of(keys_of(root)["vary"], len(config.seeds))
    base = _with_plugins(_base(config, marks), root, plugins)
    base, nodes = _changed(base, root, variants, overrides, config, marks)

    problems, cells, loaded = Problems(), list[Cell](), None
    try:
        loaded = validated(base)
    except ConfigError as error:
        problems.add(error)
    for variant, node in zip(variants, nodes, strict=True):
        named = with_change(laid_over(node, base), "name", Node(config.name, marks["name",]))
        try:
            for i, seed in enumerate(config.seeds):
                one = validated(with_change(named, "seed", Node(seed, marks["seeds", i])))
                cells.append(Cell(_identity(variant.words, seed, one), variant.label, seed, one))
        except ConfigError as error:
            problems.add(error, variant.label)
    for line in (*_alike(variants, cells), *_unknown(config, variants, marks)):
        problems.add(line)
    problems.refuse()
    assert loaded is not None
    cells.sort(key=lambda cell: config.seeds.index(cell.seed))
    same = [cell.variant for cell in cells if _content(cell.loaded) == _content(loaded)]
    baseline = config.baseline if config.baseline is not None else [*same, variants[0].label][0]
    source = path.read_text("utf-8-sig")
    return LoadedAblation(config, marks, loaded, tuple(variants), baseline, tuple(cells), source, plugins)


def _words(root: Node, marks: Mapping[Loc, Mark]) -> Ablation:
    """The file by its own schema. Raises ConfigError."""
    values, lines = root.plain(), list[str]()
    assert isinstance(values, dict)
    for key in [key for key in values if key in Experiment.model_fields and key not in Ablation.model_fields]:
        lines.append(
            f"{marks[key,]}: {key}: is a word of experiments. To change it for every cell, put it under `set`."
        )
        del values[key]
    try:
        config = validate(Ablation, values)
    except ValidationError as error:
        lines.append(str(sentences(error, marks)))
    if lines:
        raise ConfigError("\n".join(lines))
    return config


def _base(config: Ablation, marks: Mapping[Loc, Mark]) -> Node:
    mark = marks["base",]
    file = absolute(config.base, ("base",), mark)
    if not os.path.isfile(file):
        raise ConfigError(f"{mark}: base: there is no file {file}.")
    if is_ablation(file):
        raise ConfigError(f"{mark}: base: {file} is itself an ablation; name the experiment that is to be varied.")
    return read_file(file)


def _with_plugins(base: Node, root: Node, plugins: Sequence[Plugin]) -> Node:
    """The base importing what brings parts of experiments, so that a cell knows them in a process of its own.

    A plug-in of measures or launchers alone is no part of a cell: to change it is no reason to train anew.
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
    base: Node, root: Node, variants: Sequence[Variant], overrides: Sequence[str], config: Ablation,
    marks: Mapping[Loc, Mark],
) -> tuple[Node, list[Node]]:  # fmt: skip
    """The base with all that holds for every cell, and what each variant lays over it. Raises ConfigError."""
    problems, nodes = Problems(), list[Node]()
    budgets = BUDGETS if config.budget else ()
    spent: dict[Loc, str] = {("train", name): "is what `budget` sets; keep one of them" for name in budgets}
    for variant in variants:
        try:
            nodes.append(overlay(variant.nodes, "vary"))
            problems.add(closed(nodes[-1], "vary: ", FIXED | spent))
        except ConfigError as error:
            problems.add(error)
    try:
        changed = overlay(keys_of(keys_of(root).get("set")), "set")
        problems.add(closed(changed, "set: ", OWN | spent))
        varied: dict[Loc, str] = {loc: "is what `vary` changes" for node in nodes for loc, _ in leaves(node)}
        problems.add(closed(with_overrides(Node({}, root.mark), overrides), "", varied | OWN | spent))
    except ConfigError as error:
        problems.add(error)
    problems.refuse()
    base = with_overrides(laid_over(changed, base), overrides)
    for name in budgets:
        mark = marks.get(("budget", name), marks["budget",])
        base = with_change(base, f"train.{name}", Node(getattr(config.budget, name), mark))
    return base, nodes


def _node(value: Any, mark: Mark) -> Node:
    if isinstance(value, dict):
        return Node({key: _node(each, mark) for key, each in value.items()}, mark)
    return Node([_node(each, mark) for each in value] if isinstance(value, list) else value, mark)


def _content(loaded: Loaded) -> dict[str, Any]:
    """What a run's outcome depends on, but for the seed."""
    values = loaded.config.model_dump(
        mode="json", exclude={"name": True, "seed": True, "imports": True, "data": {"store"}}
    )
    return {**values, "plugins": sorted({plugin.sha256 for plugin in loaded.plugins})}


def digest(loaded: Loaded) -> str:
    """Of an experiment: equal for equal ones, whatever they are called and wherever they lie."""
    content = json.dumps([_content(loaded), loaded.config.seed], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def _identity(words: str, seed: int, loaded: Loaded) -> str:
    ascii_words = re.findall(r"[a-z0-9_.=+]+", words.lower())
    readable = "-".join(ascii_words)[:48].strip("-.=+") or "variant"
    return f"{readable}-s{seed}-{digest(loaded)}"


def _alike(variants: Sequence[Variant], cells: Sequence[Cell]) -> Iterator[str]:
    """A line for each variant that is another one too, by its label or by its content."""
    labels: dict[str, Mark] = {}
    contents: dict[str, str] = {}
    first = {cell.variant: cell for cell in reversed(cells)}
    for variant in variants:
        label, mark = variant.label, variant.mark
        if label in labels:
            yield f"{mark}: vary: {label} stands twice, first at {labels[label]}; remove one of them."
        elif label in first:
            content = json.dumps(_content(first[label].loaded), sort_keys=True)
            other = contents.setdefault(content, label)
            if other != label:
                yield f"{mark}: vary: {other} and {label} are the same experiment; remove one of them."
        labels.setdefault(label, mark)


def _unknown(config: Ablation, variants: Sequence[Variant], marks: Mapping[Loc, Mark]) -> Iterator[str]:
    """Names of variants and quantities that nothing has."""
    labels = [variant.label for variant in variants]
    if config.baseline is not None and config.baseline not in labels:
        close = get_close_matches(config.baseline, labels, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        reason = f"no variant is called {config.baseline!r}.{hint} There are: {'; '.join(labels)}."
        yield f"{marks['baseline',]}: baseline: {reason}"
    kinds: list[Any] = [measures.get(each.type).component for each in config.measure]
    by: dict[str, str] = {}
    for i, (each, kind) in enumerate(zip(config.measure, kinds, strict=True)):
        for name in kind.quantities:
            if name in by:
                mark = mark_at(marks, ("measure", i))
                yield f"{mark}: measure.{i}: {by[name]} and {each.type} both give {name}; keep one of them."
                break
            by[name] = each.type
    if config.quality is not None and config.quality not in by:
        reason = f"no measure gives {config.quality!r}.{did_you_mean(config.quality, by)}"
        yield f"{marks['quality',]}: quality: {reason}"
