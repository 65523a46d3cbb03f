"""Changes of a config as a mapping that is laid over it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from electra_lab.config.source import Loc, Mark, Node, rivals, with_change
from registry.errors import ConfigError


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
            if twice := next((by for at, by in writers.items() if _within(loc, at) or _within(at, loc)), None):
                raise ConfigError(f"{node.mark}: {where}: {twice} and {key} set the same key; keep one of them.")
        writers |= {loc: key for loc, _ in leaves(change)}
        whole = change.over(whole, (where,))  # parts of one mapping: none of them replaces another
    return whole


def leaves(node: Node, loc: Loc = ()) -> Iterator[tuple[Loc, Mark]]:
    """Yield everything that is not a mapping of other values, and where it was written."""
    if isinstance(node.value, dict) and (node.value or not loc):
        for key, inner in node.value.items():
            yield from leaves(inner, (*loc, key))
    else:
        yield loc, node.mark


def _within(loc: Loc, other: Loc) -> bool:
    return loc[: len(other)] == other


def closed(overlay: Node, where: str, closed: Mapping[Loc, str]) -> str:
    """Return a line for each change of a key that may not be changed there."""
    found = []
    for loc, mark in leaves(overlay):
        of = (why for other, why in closed.items() if _within(loc, other) or other in rivals(loc))
        found += [f"{mark}: {where}{'.'.join(map(str, loc))} {why}." for why in of]
    return "\n".join(found)


def keys_of(node: Node | None) -> dict[str, Node]:
    return node.value if node and isinstance(node.value, dict) else {}


def laid_over(node: Node, base: Node) -> Node:
    return Node(node.over(base).value, base.mark)  # a key that the base lacks is missing in the base
