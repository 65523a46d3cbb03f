"""The files that a YAML file cannot do without, to be copied to any place and machine.

Their places relative to each other stay: relative paths in them must mean the same, and the identities of runs depend
on these paths as they are written.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from electra_lab.config.source import Node, parse
from registry.contracts.data import TOKENIZER_FILES
from registry.errors import ConfigError

# Keys that name files: parents, bases, plug-ins, fine-tunings of measures, and tokenizers.
FILES = re.compile(r"(.*\.)?(extends|base|imports|measure\.file|tokenizer\.path)")
TOKENIZER = "tokenizer.path"
SETTINGS = ("tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "config.json")


@dataclass(frozen=True)
class Gathered:
    """Copies of files.

    main       place of the file that needs the others, relative to the folder of the copies
    files      content of each copy, by its place
    elsewhere  absolute paths in them, whose files are not copied
    missing    files that are named and do not exist
    """

    main: Path
    files: dict[Path, bytes]
    elsewhere: list[str]
    missing: list[str]


def gathered(file: Path) -> Gathered:
    """Return a file with those that it needs. Raises ConfigError."""
    main, contents, elsewhere = Path(os.path.abspath(file)), dict[Path, bytes](), list[str]()
    missing = list[str]()
    waiting = [main]
    while waiting:
        here = waiting.pop()
        if here in contents or not here.is_file():  # loading it reports that it is missing
            continue
        try:
            contents[here] = here.read_bytes()
        except OSError as error:
            raise ConfigError(f"{here}: cannot be read ({error.strerror}).") from None
        for key, name in named_files(here, contents[here]) if here.suffix in (".yaml", ".yml") else ():
            place = Path(os.path.normpath(here.parent / name))
            is_tokenizer = key.endswith(TOKENIZER)
            if not os.path.isabs(os.path.expanduser(name)):
                waiting += _of_tokenizer(place) if is_tokenizer else [place]
                missing += [] if place.exists() else [f"{here}: {key}: {name}"]
            elif not is_tokenizer:  # whose absolute path belongs to the identity of runs, which have a copy
                elsewhere.append(f"{here}: {key}: {name}")
    above = Path(os.path.commonpath([path.parent for path in contents]))
    copies = {path.relative_to(above): contents[path] for path in sorted(contents)}
    return Gathered(main.relative_to(above), copies, elsewhere, missing)


def named_files(file: Path, content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of each file that a YAML file names. Raises ConfigError."""
    for key, name in _texts(parse(content.decode("utf-8-sig", errors="replace"), str(file), file.parent)):
        if FILES.fullmatch(key):
            yield key, name


def _texts(node: Node, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the value of each text."""
    if isinstance(node.value, str):
        yield key, node.value
    elif isinstance(node.value, list):
        for item in node.value:
            yield from _texts(item, key)
    elif isinstance(node.value, dict):
        for name, inner in node.value.items():
            yield from _texts(inner, f"{key}.{name}".lstrip("."))


def _of_tokenizer(place: Path) -> list[Path]:
    """Return the files that a tokenizer may have: those of its folder, or itself and its settings."""
    folder, names = (place, TOKENIZER_FILES) if place.is_dir() else (place.parent, (place.name,))
    return [folder / name for name in (*names, *SETTINGS)]
