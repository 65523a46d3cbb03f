"""The variants of an ablation: their labels and their changes, as one mapping over the base."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra_lab.config.source import Loc, Mark, Node, keys_of, leaves, parse, rivals, with_change
from registry.component import without_secrets
from registry.errors import ConfigError

MAX_CELLS = 1000
BASE = "base"  # the variant of a search that changes nothing


@dataclass(frozen=True)
class Variant:
    """A variant: `label` is its name, `changes` are the keys that it sets."""

    label: str
    words: str  # the label in ids, in an order that does not depend on the file
    nodes: Mapping[str, Node]
    mark: Mark

    @property
    def changes(self) -> dict[str, Any]:
        return {key: node.plain() for key, node in self.nodes.items()}


@dataclass
class Problems:
    """All errors of an ablation. An error of several variants is reported once."""

    _found: dict[str, tuple[str, list[str] | None]] = field(default_factory=dict)

    def add(self, error: ConfigError | str, variant: str | None = None) -> None:
        """Add an error; without `variant` it concerns all of them."""
        for line in str(error).splitlines():
            # A key that may not be used is one mistake, on however many lines its values are.
            same = re.sub(r"^.*?:\d+: (?=vary: |.*: unknown parameter)", "", line)
            _, variants = self._found.setdefault(same, (line, [] if variant else None))
            if variants is not None and variant:
                variants.append(variant)

    def refuse(self) -> None:
        """Raise ConfigError with all errors, if there are any."""
        if self._found:
            raise ConfigError("\n".join(f"{line}{_where(variants or [])}" for line, variants in self._found.values()))


def _where(variants: Sequence[str]) -> str:
    if not variants:
        return ""
    more = f" and {len(variants) - 3} more" if len(variants) > 3 else ""
    return f" (in the variant{'s' * (len(variants) > 1)} {without_secrets('; '.join(variants[:3]))}{more})"


def variants_of(vary: Node, seeds: int) -> list[Variant]:
    """Return the variants of the section `vary`, in order. Raises ConfigError if there are too many."""
    items = keys_of(vary)
    lists = [node.value for node in items.values() if isinstance(node.value, list)]
    number = seeds * (math.prod(map(len, lists)) if lists else len(items))
    if number > MAX_CELLS:
        raise ConfigError(f"{vary.mark}: vary: has {number} cells; an ablation may have at most {MAX_CELLS}.")
    if not lists:
        return [Variant(name, name, keys_of(node), node.mark) for name, node in items.items()]
    variants = []
    for values in itertools.product(*lists):
        changes = dict(zip(items, values, strict=True))
        parts = [f"{key}={short(node.plain())}" for key, node in changes.items()]
        variants.append(Variant(", ".join(parts), ", ".join(sorted(parts)), changes, values[-1].mark))
    return variants


def probes(vary: Node) -> dict[str, dict[str, Node]]:
    """Return trials that try each value of a list, and both ends of a range, with all else as in the base."""
    trials = dict[str, dict[str, Node]]()
    for key, node in keys_of(vary).items():
        values = node.value if isinstance(node.value, list) else [keys_of(node)["low"], keys_of(node)["high"]]
        trials |= {f"{key}={short(value.plain())}": {key: value} for value in values}
    return trials


def trial_variants(vary: Node, trials: Mapping[str, Mapping[str, Node]]) -> list[Variant]:
    """Return the variants of a search: the base, and its trials."""
    variants = [Variant(BASE, BASE, {}, vary.mark)]
    for label, changes in trials.items():
        parts = sorted(f"{key}={short(node.plain())}" for key, node in changes.items())
        variants.append(Variant(label, ", ".join(parts), changes, vary.mark))
    return variants


def short(value: Any) -> str:
    """Format a value in a label: a component by its name and options, text in quotes if it could be mistaken."""
    if isinstance(value, dict) and value:
        named = isinstance(value.get("type"), str)
        parts = [f"{short(key)}={short(option)}" for key, option in value.items() if not (named and key == "type")]
        return (short(value["type"]) if named else "") + (f"({', '.join(parts)})" if parts else "")
    if isinstance(value, list):
        return f"[{', '.join(map(short, value))}]"
    if isinstance(value, int | float) and not isinstance(value, bool):  # 1e+12, not 1000000000000.0
        return f"{value:g}" if float(f"{value:g}") == value and len(repr(value)) > 8 else repr(value)
    if isinstance(value, str) and re.fullmatch(r"[\w./~-]([\w ./~-]*[\w./~-])?", value) and not _scalar_like(value):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _scalar_like(text: str) -> bool:
    try:
        return parse(text, "", Path(), one_line=True).value != text
    except ConfigError:  # a mark of YAML, such as ---
        return True


def overlay(changes: Mapping[str, Node], where: str) -> Node:
    """Join changes into one mapping that is merged into an experiment at once, so that their order does not matter.

    One by one, a `sampler.type` would drop the `sampler.temperature` before it. Raises ConfigError.
    """
    whole, writers = Node({}, Mark("", Path())), dict[Loc, str]()
    for key, node in changes.items():
        if not all(key.split(".")):
            raise ConfigError(f"{node.mark}: {where}: {key!r} is not a key; write it as a.b.")
        change = with_change(Node({}, node.mark), key, node)
        for loc, _ in leaves(change):
            if earlier := next((by for at, by in writers.items() if _within(loc, at) or _within(at, loc)), None):
                raise ConfigError(f"{node.mark}: {where}: {earlier} and {key} set the same key; keep one of them.")
        writers |= {loc: key for loc, _ in leaves(change)}
        whole = change.over(whole, (where,))  # parts of one mapping: none of them replaces another
    return whole


def _within(loc: Loc, other: Loc) -> bool:
    return loc[: len(other)] == other


def closed(overlay: Node, where: str, closed: Mapping[Loc, str]) -> str:
    """Return a line for each change of a key that may not be changed there."""
    lines = []
    for loc, mark in leaves(overlay):
        of = (why for other, why in closed.items() if _within(loc, other) or other in rivals(loc))
        lines += [f"{mark}: {where}{'.'.join(map(str, loc))} {why}." for why in of]
    return "\n".join(lines)
