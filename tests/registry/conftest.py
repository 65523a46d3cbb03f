"""Packages as installed by pip, for the tests of entry points."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GOOD = """\
from registry import samplers


@samplers.register("{name}")
def {name}(logits, rng, /, *, heat: float = 1.0):
    \"""One of a package.

    More of it.
    \"""
    return logits.argmax(-1)
"""


class Packages:
    """Installed packages: modules, and .dist-info folders with METADATA and entry_points.txt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, package: str = "shop", version: str = "1.2", **modules: str) -> None:
        """Install a package whose entry points name `<package>_<name>`, modules with the given text.

        An empty text leaves the module out.
        """
        points = {f"electra_lab.samplers:{name}": f"{package}_{name}" for name in modules}
        self.write(package, version, points)
        for name, text in modules.items():
            if text:
                self.module(f"{package}_{name}.py", text.replace("{name}", name))

    def write(self, package: str, version: str, points: dict[str, str]) -> Path:
        """Write the metadata; `points` maps group:name to a module."""
        info = self.folder / f"{package}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        lines = [f"[{key.split(':')[0]}]\n{key.split(':')[1]} = {module}\n" for key, module in points.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        return info

    def module(self, file: str, text: str) -> Path:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    """An empty folder on sys.path; modules imported from it are removed afterwards."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield Packages(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
