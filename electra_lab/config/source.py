"""YAML 1.2 with line marks, `extends` and `--set`: from files to plain values, each with its place.

PyYAML scans and composes; its YAML 1.1 constructors, which read `1e-4` as text and `no` as false, are not used.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import yaml

from registry.component import without_secrets
from registry.errors import ConfigError, command

MAX_BYTES = 1 << 18  # PyYAML takes seconds to read them
MAX_NODES = 20_000  # when aliases are expanded
MAX_DEPTH = 50
LONGEST_PLACE = 300  # characters of a --set in an error

Scalar: TypeAlias = str | int | float | bool | None
Value: TypeAlias = "Scalar | list[Value] | dict[str, Value]"
Loc: TypeAlias = tuple[str | int, ...]

# Sections whose `type` may be left out, with their default type.
DEFAULTS: dict[Loc, str] = {
    ("packing",): "contiguous",
    ("optimizer",): "adamw",
    ("schedules", "learning_rate"): "warmup_linear",
    ("launcher",): "local",
}

BUDGETS = ("steps", "epochs", "tokens", "flops", "paper_flops")
# Keys of a section that exclude each other, in groups: a key of a child replaces its parent's keys of other groups.
EXCLUSIVE: dict[Loc, tuple[tuple[str, ...], ...]] = {
    ("generator",): (("scale",), ("dim", "heads")),
    ("train",): tuple((name,) for name in BUDGETS),
    ("budget",): tuple((name,) for name in BUDGETS),
}

_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_NULL = re.compile(r"~|null|Null|NULL|")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NON_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class _Loader(yaml.SafeLoader):
    """Adds no tags, so that every written tag can be seen."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: object) -> str:
        return ""


@dataclass(frozen=True)
class Mark:
    """The place where a value was written: a line of a file, or a `--set`.

    reached  reason why a file is read that the user has not named, for the end of an error
    """

    place: str
    folder: Path
    reached: str = ""

    def __str__(self) -> str:
        return self.place

    @property
    def file(self) -> str:
        return self.place.rpartition(":")[0] if self.line else self.place

    @property
    def line(self) -> int:
        """The number of the line; 0 for a `--set`, which may end in a number too."""
        number = self.place.rpartition(":")[2]
        return int(number) if number.isdecimal() and not self.place.startswith("--set ") else 0


@dataclass(frozen=True)
class Node:
    """A value with its mark; mappings and lists hold nodes."""

    value: Scalar | list[Node] | dict[str, Node]
    mark: Mark

    def plain(self) -> Value:
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def marks(self, loc: Loc = ()) -> Iterator[tuple[Loc, Mark]]:
        yield loc, self.mark
        nodes = self.value if isinstance(self.value, dict | list) else []
        for key, node in nodes.items() if isinstance(nodes, dict) else enumerate(nodes):
            yield from node.marks((*loc, key))

    def over(self, base: Node, loc: Loc = ()) -> Node:
        """Merge this node into `base`, at `loc` of a file: mappings merge by key, everything else is replaced.

        If `type` changes, the whole mapping is replaced: the options belong to another component. A key also replaces
        those that it excludes.
        """
        if not (isinstance(self.value, dict) and isinstance(base.value, dict)):
            return self
        before = base.value["type"].value if "type" in base.value else DEFAULTS.get(loc)
        if "type" in self.value and before not in (None, self.value["type"].value):
            return self
        merged = dict(base.value)
        for key in [key for key, node in self.value.items() if node.value is not None]:
            for rival in rivals((*loc, key)):
                merged.pop(str(rival[-1]), None)
        for key, node in self.value.items():
            merged[key] = node.over(merged[key], (*loc, key)) if key in merged else node
        return Node(merged, self.mark)


def rivals(loc: Loc) -> list[Loc]:
    """Return the keys that exclude this one."""
    groups = EXCLUSIVE.get(loc[:-1], ())
    others = [group for group in groups if loc[-1] not in group]
    return [(*loc[:-1], key) for key in chain.from_iterable(others)] if len(others) < len(groups) else []


def read_file(path: Path, children: tuple[Path, ...] = ()) -> Node:
    """Return the mapping in a YAML file, merged into the files that it extends. Raises ConfigError.

    children  files that extend this one
    """
    try:
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder, not an experiment file.")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason}).{_instead_of(path)}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_BYTES} bytes; that is not an experiment file.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8 text (byte {error.start}).") from None
    root = parse(text, str(path), path.parent, f" ({children[-1]} extends this file.)" if children else "")
    if not isinstance(root.value, dict):
        raise ConfigError(f"{path}:1: an experiment file is a mapping of keys to values.")
    if "extends" not in root.value:
        return root
    parent = root.value["extends"]
    if not isinstance(parent.value, str):
        raise ConfigError(f"{parent.mark}: extends: must be the path of one file.")
    parent_path = path.parent / parent.value
    chain = (*children, path)
    if len(chain) > MAX_DEPTH:
        raise ConfigError(f"{parent.mark}: extends: more than {MAX_DEPTH} files extend one another.")
    if not os.path.isfile(parent_path):
        raise ConfigError(f"{parent.mark}: extends: the file {parent_path} does not exist.{_instead_of(parent_path)}")
    if parent_path.resolve() in {p.resolve() for p in chain}:
        raise ConfigError(f"{parent.mark}: extends: forms a circle through {parent_path}.")
    changes = Node({key: node for key, node in root.value.items() if key != "extends"}, root.mark)
    return changes.over(read_file(parent_path, chain))


def _instead_of(path: Path) -> str:
    """Return a hint at a file of a similar name, or at the command that copies a shipped file of this name."""
    if os.path.lexists(path):
        return ""
    with suppress(OSError):
        if close := get_close_matches(path.name, [file.name for file in path.parent.iterdir()], n=1, cutoff=0.8):
            return f" Did you mean {path.parent / close[0]}?"
    if path.suffix not in ("", ".yaml", ".yml"):
        return ""
    for name in (Path(*path.parts[-2:]), Path(path.name)):
        name = name.with_suffix("")
        if os.path.isfile(shipped() / f"{name}.yaml"):  # also False for a name that is too long
            return f" To copy the shipped one: {command('new', name.as_posix())}"
    return ""


def shipped() -> Path:
    """Return the folder of experiments: inside the installed package, or next to it in the repository."""
    package = Path(__file__).parents[1]
    inside = package / "experiments"
    return inside if inside.is_dir() else package.parent / "experiments"


def with_overrides(root: Node, overrides: Iterable[str]) -> Node:
    """Return `root` with each `a.b=c` merged into it in turn; c is read as YAML. Raises ConfigError."""
    for override in overrides:
        dotted, separator, text = override.partition("=")
        shown = without_secrets(override)
        place = f"--set {shown}" if len(shown) <= LONGEST_PLACE else f"--set {shown[:LONGEST_PLACE]}…"
        if not separator or not all(dotted.strip().split(".")):
            raise ConfigError(f"{place}: write it as a.b=value.")
        root = with_change(root, dotted.strip(), parse(text, place, Path.cwd(), one_line=True))
    return root


def with_change(root: Node, dotted: str, value: Node) -> Node:
    """Return `root` with `value` merged into it at the key `a.b`. Raises ConfigError."""
    keys = dotted.split(".")
    if len(keys) > MAX_DEPTH:
        raise ConfigError(f"{value.mark}: is nested more than {MAX_DEPTH} deep.")
    if keys[0] == "schedules" and keys[1:2] != ["learning_rate"]:  # the others are dotted: sampler.temperature
        keys = [keys[0], *filter(None, [".".join(keys[1:3])]), *keys[3:]]
    for key in reversed(keys):
        value = Node({key: value}, value.mark)
    return laid_over(value, root)


def laid_over(node: Node, base: Node) -> Node:
    """Return `node` merged into `base`, with the mark of `base`: a key that it lacks is missing there."""
    return Node(node.over(base).value, base.mark)


def keys_of(node: Node | None) -> dict[str, Node]:
    return node.value if node and isinstance(node.value, dict) else {}


def leaves(node: Node, loc: Loc = ()) -> Iterator[tuple[Loc, Mark]]:
    """Yield everything that is not a mapping of other values, and where it was written."""
    if isinstance(node.value, dict) and (node.value or not loc):
        for key, inner in node.value.items():
            yield from leaves(inner, (*loc, key))
    else:
        yield loc, node.mark


@lru_cache(maxsize=16)  # a command reads the same file several times
def _deepest(text: str) -> int:
    """Return the depth of the brackets in a text; those within quotes count, too."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _composed(text: str) -> yaml.Node | None:
    """Return the nodes of YAML text, not to be changed."""
    return yaml.compose(text, Loader=_Loader)


def parse(text: str, place: str, folder: Path, reached: str = "", *, one_line: bool = False) -> Node:
    """Parse YAML text into nodes. Raises ConfigError with the line for everything that YAML or this reader refuses."""

    def mark(position: yaml.Mark | None) -> Mark:
        return Mark(place if one_line else f"{place}:{position.line + 1 if position else 1}", folder, reached)

    try:
        if _deepest(text) > 10 * MAX_DEPTH:  # PyYAML would take seconds
            raise RecursionError
        composed = _composed(text)
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        where = place if one_line else f"{place}:{line}"
        character = repr(chr(error.character))
        raise ConfigError(f"{where}: the character {character} is not allowed in YAML.") from None
    except yaml.MarkedYAMLError as error:
        at, problem = mark(error.problem_mark or error.context_mark), error.problem or error.context or ""
        raise ConfigError(f"{at}: is not valid YAML: {problem}.") from None
    except (ValueError, OverflowError):  # PyYAML does not check the range of \U escapes and of %YAML versions
        raise ConfigError(f"{place}: is not valid YAML: an escape or a version number is out of range.") from None
    except RecursionError:
        raise ConfigError(f"{place}: is nested more than {MAX_DEPTH} deep.") from None
    if composed is None:
        raise ConfigError(f"{place}: {'has no value' if one_line else 'is empty'}.")

    count = 0

    def convert(node: yaml.Node, depth: int) -> Node:
        nonlocal count
        count += 1
        at = mark(node.start_mark)
        if count > MAX_NODES:
            raise ConfigError(f"{at}: has more than {MAX_NODES} values, those of aliases counted each time.")
        if depth > MAX_DEPTH:
            raise ConfigError(f"{at}: is nested more than {MAX_DEPTH} deep.")
        if node.tag:
            raise ConfigError(f"{at}: the tag {node.tag} is not allowed; write plain values, text in quotes.")
        if isinstance(node, yaml.MappingNode):
            mapping: dict[str, Node] = {}
            for key_node, value_node in node.value:
                key_mark = mark(key_node.start_mark)
                if not isinstance(key_node, yaml.ScalarNode) or key_node.tag:
                    raise ConfigError(f"{key_mark}: a key must be a word.")
                key = _text(key_node.value, key_mark)
                if key in mapping:
                    raise ConfigError(f"{key_mark}: {key}: appears twice; first at {mapping[key].mark}.")
                # The mark of the key, not of its value: that is the line that a reader looks for.
                mapping[key] = Node(convert(value_node, depth + 1).value, key_mark)
            return Node(mapping, at)
        if isinstance(node, yaml.SequenceNode):
            return Node([convert(item, depth + 1) for item in node.value], at)
        assert isinstance(node, yaml.ScalarNode)
        count += len(node.value) // 1000  # a long text repeated by aliases is a bomb too
        quoted = node.style in ("'", '"', "|", ">")
        return Node(_text(node.value, at) if quoted else _scalar(node.value, at), at)

    return convert(composed, 0)


def _text(text: str, mark: Mark) -> str:
    """Join escapes of surrogate pairs into characters, as JSON does."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ConfigError(f"{mark}: an escape is half of a surrogate pair, which is not a character.") from None


def _scalar(text: str, mark: Mark) -> Scalar:
    """Read a plain scalar by the core schema of YAML 1.2 (section 10.3.2)."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        if len(text) > 40:
            raise ConfigError(f"{mark}: a number of {len(text)} digits is too large.")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    if _FLOAT.fullmatch(text) or _NON_FINITE.fullmatch(text):
        raise ConfigError(f"{mark}: {text} is not a finite number.")
    return text


class _Dumper(yaml.SafeDumper):
    """Quote text that YAML 1.2 reads as a number, or PyYAML (YAML 1.1) as a line break."""


def _quoted(dumper: _Dumper, text: str) -> yaml.Node:
    special = _INT.fullmatch(text) or _FLOAT.fullmatch(text) or any(c in text for c in "\x85\u2028\u2029")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if special else None)


_Dumper.add_representer(str, _quoted)


def to_yaml(values: Value) -> str:
    """Return YAML text that `parse` reads back to equal values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def mark_at(marks: Mapping[Loc, Mark], loc: Loc) -> Mark:
    """Return the mark of `loc`, or of the nearest part around it that was written."""
    while loc not in marks:
        loc = loc[:-1]
    return marks[loc]
