"""electra-lab new NAME [DEST], electra-lab new --component KIND [NAME] [DEST]"""

import ast
import keyword
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.registry_ import registry_of
from electra_lab.config.load import kind_of_file
from electra_lab.config.portable import TOKENIZER, named_files
from electra_lab.config.source import shipped
from registry.errors import ConfigError, UnknownName, command, did_you_mean

PROJECT = """[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "electra-lab-{dashed}"
version = "0.1.0"
description = "electra_lab {kind} '{name}'."
requires-python = ">=3.11"

[project.entry-points."electra_lab.{plural}"]
{name} = "{module}"

[tool.setuptools]
py-modules = ["{module}"]
"""


def new(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Name of a shipped experiment, such as reformer_small; or of the new component."
        ),
    ] = None,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DEST", help="Folder to copy into. Default: the working directory.", show_default=False),
    ] = Path(),
    component: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Write a new component of this kind instead, such as sampler, as a package with tests."
        ),
    ] = None,
) -> None:
    """Copy a shipped experiment, to edit and run it. Without NAME, list all of them.

    The files that it extends, varies, imports or lists as tasks are copied too. Existing files are never overwritten.
    """
    root = shipped()
    if component is not None:
        _package(component, name, folder, root)
        return
    experiments = {file.relative_to(root).with_suffix("").as_posix(): file for file in root.rglob("*.yaml")}
    if name is None:
        for experiment in sorted(experiments, key=lambda name: (name.count("/"), name)):
            comment = experiments[experiment].read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            answer(f"{experiment:<32}  {comment}")
        return
    name = name.removesuffix(".yaml")
    if name not in experiments:
        hint = did_you_mean(name, experiments)
        raise UnknownName(f"no experiment '{name}' comes with electra_lab.{hint} To list them: electra-lab new")
    copy = folder / experiments[name].relative_to(root)
    if folder.suffix in (".yaml", ".yml"):
        raise ConfigError(f"{folder}: is the name of a file. Name a folder for {copy.name}.")
    verb = {"ablation": "ablate", "experiment": "run"}.get(kind_of_file(experiments[name]), "finetune")
    files = _with_needs(experiments[name], root)
    texts = {folder / file.relative_to(root): file.read_text(encoding="utf-8") for file in files}
    _write(texts, copy, command("new", name, "DEST"))
    answer(f"Run it with: {command(verb, copy)}")


def _package(kind: str, name: str | None, folder: Path, root: Path) -> None:
    """Write the package of a component: the component, its tests and pyproject.toml, in a folder of its name.

    Raises UnknownName for the kind, and ConfigError for a name that cannot be used or a file that exists.
    """
    components = registry_of(kind)
    singular = components.singular.replace(" ", "_")
    name = name or f"my_{singular}"
    if not re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        cure = f"Use small letters and digits, in words that _ joins: my_{singular}."
        raise ConfigError(f"'{name}': cannot be a component's name. {cure}")
    if name in components.names():
        raise ConfigError(f"there is a {components.singular} '{name}' already. Choose another name.")
    files = (f"{singular}.py", f"test_{singular}.py")
    templates = {file: (root / "components" / file).read_text(encoding="utf-8") for file in files}
    if keyword.iskeyword(name):
        raise ConfigError(f"'{name}': is a keyword of Python. Choose another name.")
    if {name, _in_capitals(name)} & {*_imported("\n".join(templates.values()))}:
        raise ConfigError(f"'{name}': is a name that the new files import. Choose another name.")
    package, module = folder / name, f"electra_lab_{name}"
    # The templates have names such as my_sampler and MySampler.
    texts = {}
    for (file, template), before in zip(templates.items(), ("", f"import {module}  # noqa: F401\n"), strict=True):
        text = before + template
        texts[file] = text.replace(f"my_{singular}", name).replace(_in_capitals(f"my_{singular}"), _in_capitals(name))
    words = {"name": name, "dashed": name.replace("_", "-"), "kind": components.singular, "plural": components.plural}
    project = PROJECT.format(**words, module=module)
    _write({
        package / "pyproject.toml": project,
        package / f"{module}.py": texts[f"{singular}.py"],
        package / f"test_{name}.py": texts[f"test_{singular}.py"],
    }, package / "pyproject.toml", command("new", name, "DEST", "--component", kind))  # fmt: skip
    answer(f"Test it with: cd {shlex.quote(str(package))} && python -m pytest")
    answer(f"Install it with: pip install -e {shlex.quote(str(package))}")


def _imported(text: str) -> Iterator[str]:
    """Yield the names that a file of Python imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _in_capitals(name: str) -> str:
    """Return the name of a class: MySampler for my_sampler."""
    return "".join(part.title() for part in name.split("_"))


def _with_needs(file: Path, root: Path) -> Iterator[Path]:
    """Yield the files that a YAML file needs, with all that those need; then itself.

    Raises ConfigError if one of them is not below `root`.
    """
    if not (file.is_relative_to(root) and file.is_file()):
        raise ConfigError(f"{file}: is needed, but is not part of electra_lab. Nothing was copied.")
    if file.suffix == ".yaml":
        names = [name for key, name in named_files(file, file.read_bytes()) if not key.endswith(TOKENIZER)]
        for name in names:
            yield from _with_needs(Path(os.path.normpath(file.parent / name)), root)
    yield file


def _write(texts: dict[Path, str], main: Path, elsewhere: str) -> None:
    """Write texts, given by their files, and print the new files. Raises ConfigError before anything is written.

    main       the file that must not exist; others may exist if identical: experiments share parents
    elsewhere  the command that writes to another folder
    """
    from electra_lab.storage.files import disk

    cure = f"Name another folder: {elsewhere}"
    missing: dict[Path, str] = {}
    try:
        for target, text in texts.items():
            there = target.read_text(encoding="utf-8", errors="replace") if os.path.lexists(target) else ""
            if there != text and text.startswith(there):  # cut short by the end of an earlier command
                missing[target] = text
            elif target == main or there != text:
                raise ConfigError(f"{target}: exists already, so nothing was written. {cure}")
        for folder in {target.parent for target in missing}:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(None, "Permission denied", folder)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written ({error.strerror}). {cure}") from None
    # The file that must not exist comes last, so that a command that was killed can be repeated.
    for target in sorted(missing, key=lambda target: target == main):
        with disk(target):
            target.write_text(missing[target], encoding="utf-8")
    for target in missing:
        answer(target)
