"""The files that a YAML file cannot do without, gathered so that they can be copied to any place and machine.

Their places relative to each other stay, because relative paths in them must mean the same, and because identities of
runs depend on these paths as they are written.
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

    main   place of the file that needs the others, relative to the folder of the copies
    files  content of each copy, by its place
    """

    main: Path
    files: dict[Path, bytes]


def gathered(file: Path, *, begun: bool = False) -> Gathered:
    """Return a file with those that it needs, absolute paths made relative. Raises ConfigError.

    begun  True if the identity of a job holds its tokenizers' absolute paths: these paths, and their files, stay
    """
    main, texts = Path(os.path.abspath(file)), dict[Path, bytes]()
    waiting, names = [main], dict[Path, dict[str, Path]]()
    while waiting:
        here = waiting.pop()
        if here in texts:
            continue
        texts[here] = _content(here)
        if here.suffix not in (".yaml", ".yml"):
            continue
        names[here] = {}
        for key, name in named_files(here, texts[here]):
            is_absolute, place = os.path.isabs(os.path.expanduser(name)), Path(os.path.expanduser(name))
            is_tokenizer = key.endswith(TOKENIZER)
            if is_tokenizer and is_absolute and begun:
                continue
            place = Path(os.path.normpath(here.parent / place))
            waiting += filter(Path.is_file, _of_tokenizer(place) if is_tokenizer else [place])
            if is_absolute:
                names[here][name] = place
    # The folder that holds all of them.
    above = Path(os.path.commonpath([path.parent for path in texts]))
    copies = dict[Path, bytes]()
    for path in sorted(texts):
        copies[path.relative_to(above)] = _with_relative(path, texts[path], names.get(path, {}))
    return Gathered(main.relative_to(above), copies)


def named_files(file: Path, data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of each file that a YAML file names. Raises ConfigError."""
    text = data.decode("utf-8-sig", errors="replace")
    for key, name in _texts(parse(text, str(file), file.parent)):
        if FILES.fullmatch(key):
            yield key, name


def _texts(node: Node, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the value of each text."""
    if isinstance(node.value, dict):
        for name, inner in node.value.items():
            yield from _texts(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(node.value, list):
        for inner in node.value:
            yield from _texts(inner, key)
    elif isinstance(node.value, str):
        yield key, node.value


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}).") from None


def _of_tokenizer(place: Path) -> list[Path]:
    """Return the files of a tokenizer: those of its folder that the lab reads, or itself and its settings."""
    folder, names = (place, TOKENIZER_FILES) if place.is_dir() else (place.parent, (place.name,))
    return [folder / name for name in (*names, *SETTINGS)]


def _with_relative(file: Path, data: bytes, names: dict[str, Path]) -> bytes:
    """Write each absolute path relative to the file. Raises ConfigError for one with escapes."""
    for name, place in names.items():
        literal = re.compile(rb"(?<![\w./~-])" + re.escape(name.encode()) + rb"(?![\w./-])")
        relative = os.path.relpath(place, file.parent).encode()
        data, number = literal.subn(lambda _, relative=relative: relative, data)  # type: ignore[misc]
        if not number:
            raise ConfigError(f"{file}: the path {name} cannot be made relative. Write it relative to this file.")
    return data
