"""electra-lab new NAME [DEST]"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.config.load import kind_of_file
from electra_lab.config.source import parse
from registry.errors import ConfigError, UnknownName, command, did_you_mean


def new(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of a shipped experiment, such as reformer_small.")
    ] = None,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DEST", help="Folder to copy into. Default: the working directory.", show_default=False),
    ] = Path(),
) -> None:
    """Copy a shipped experiment, to edit and run it. Without NAME, list all of them.

    The files that it extends, varies, imports or lists as tasks are copied too. Existing files are never overwritten.
    """
    root = _shipped()
    known = {file.relative_to(root).with_suffix("").as_posix(): file for file in root.rglob("*.yaml")}
    if name is None:
        for shipped in sorted(known, key=lambda name: (name.count("/"), name)):
            comment = known[shipped].read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            answer(f"{shipped:<32}  {comment}")
        return
    name = name.removesuffix(".yaml")
    if name not in known:
        hint = did_you_mean(name, known)
        raise UnknownName(f"no experiment '{name}' comes with electra_lab.{hint} To see what they do: electra-lab new")
    own = folder / known[name].relative_to(root)
    if folder.suffix in (".yaml", ".yml"):
        raise ConfigError(f"{folder}: is the name of a file; name a folder, in which {own.name} is written.")
    verb = {"ablation": "ablate", "experiment": "run"}.get(kind_of_file(known[name]), "finetune")
    _copy({folder / file.relative_to(root): file for file in _with_needs(known[name], root)}, own, name)
    answer(f"Run it with: {command(verb, own)}")


def _shipped() -> Path:
    """Return the folder of experiments: inside the installed package, or next to it in the repository."""
    package = Path(__file__).parents[1]
    inside = package / "experiments"
    return inside if inside.is_dir() else package.parent / "experiments"


def _with_needs(file: Path, root: Path) -> Iterator[Path]:
    """Yield the files that a YAML file extends, varies, imports or lists, with all that those need; then itself.

    Raises ConfigError if one of them is not below `root`.
    """
    if not (file.is_relative_to(root) and file.is_file()):
        raise ConfigError(f"{file}: is needed, but does not come with electra_lab, so nothing was copied.")
    if file.suffix == ".yaml":
        values = parse(file.read_text(encoding="utf-8"), str(file), file.parent).plain()
        assert isinstance(values, dict)
        listed: list[object] = []
        for key in ("extends", "base", "imports"):
            value = values.get(key)
            listed += value if isinstance(value, list) else [value]
        for path in listed:
            if isinstance(path, str):
                yield from _with_needs(Path(os.path.normpath(file.parent / path)), root)
    yield file


def _copy(files: dict[Path, Path], own: Path, name: str) -> None:
    """Copy files, given by their targets, and print the new ones. Raises ConfigError before anything is written.

    own  the target that must not exist; others may, with the same text, as experiments share what they extend
    """
    from electra_lab.storage.files import write_whole

    cure = f"Name another folder: {command('new', name, 'DEST')}"
    missing: dict[Path, str] = {}
    try:
        for target, file in files.items():
            text = file.read_text(encoding="utf-8")
            if not os.path.lexists(target):
                missing[target] = text
            elif target == own or target.read_text(encoding="utf-8", errors="replace") != text:
                raise ConfigError(f"{target}: exists already, so nothing was written. {cure}")
        for folder in {target.parent for target in missing}:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(None, "Permission denied", folder)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written ({error.strerror}). {cure}") from None
    for target, text in missing.items():
        write_whole(target, text)
    for target in missing:
        answer(target)
