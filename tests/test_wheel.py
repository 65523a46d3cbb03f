"""The wheel contains every file and works without the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.helpers import ROOT

BUILT_FROM = ("electra_lab", "registry", "experiments", "pyproject.toml", "setup.py", "README.md", "LICENSE")
# A package example, which is installed separately; a page that links to docs/, which the wheel lacks.
LEFT_OUT = ("plugins/package/", "LOG.md")


def run(*command: str | Path, cwd: Path) -> str:
    """Return the output of a command, run without the settings that would lead back to the repository."""
    away = ("PYTHONPATH", "PIP_REQUIRE_VIRTUALENV")
    environment = {key: value for key, value in os.environ.items() if key not in away}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stderr, end="")
    return done.stdout


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources of the wheel: a build leaves files behind, and picks up older ones."""
    folder = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", ".*", "build", "*.egg-info")
    for name in BUILT_FROM:
        path = ROOT / name
        shutil.copytree(path, folder / name, ignore=ignored) if path.is_dir() else shutil.copy(path, folder)
    return folder


def build(kind: str, source: Path, into: Path) -> Path:
    """Build an `sdist` or a `wheel` with the setuptools that are installed."""
    code = f"import setuptools.build_meta as backend; print(backend.build_{kind}({str(into)!r}))"
    return into / run(sys.executable, "-c", code, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """The wheel, built from the source distribution, as for an upload."""
    built = source.with_name("built")
    shutil.unpack_archive(build("sdist", source, built), built, filter="data")
    (unpacked,) = (path for path in built.iterdir() if path.is_dir())
    return build("wheel", unpacked, built)


class Environment:
    """A virtual environment, and a folder to work in."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.venv, self.folder = folder / "venv", folder / "elsewhere"
        self.folder.mkdir()
        run(sys.executable, "-m", "venv", *options, self.venv, cwd=folder)
        self.programs = self.venv / ("Scripts" if os.name == "nt" else "bin")

    def __call__(self, program: str, *arguments: str | Path) -> str:
        return run(self.programs / program, *arguments, cwd=self.folder)

    def borrow(self, *places: str | Path) -> None:
        """Make the packages in these folders importable, too."""
        (next(self.venv.rglob("site-packages")) / "borrowed.pth").write_text("\n".join(map(str, places)))

    def pip(self, verb: str, *arguments: str | Path) -> None:
        """Install or uninstall without network, with the pip of the tests."""
        pip = [sys.executable, "-m", "pip", "--python", self.programs / "python", verb, "--quiet"]
        offline = ["--no-index", "--no-deps", "--no-build-isolation"] if verb == "install" else ["--yes"]
        run(*pip, *offline, *arguments, cwd=self.folder)


@pytest.fixture
def lab(wheel: Path, tmp_path: Path) -> Environment:
    """The wheel alone, in an environment that borrows the installed packages, but not an editable electra_lab."""
    lab = Environment(tmp_path, "--without-pip")
    lab.pip("install", wheel)
    lab.borrow(sysconfig.get_path("purelib"))
    return lab


def test_the_wheel_holds_every_source_file_and_nothing_else(source: Path, wheel: Path) -> None:
    sources = {f"{package}/{file}" for package in ("electra_lab", "registry") for file in files_below(source / package)}
    experiments = {file for file in files_below(source / "experiments") if not file.startswith(LEFT_OUT)}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = {name.partition(".dist-info/")[2] for name in archive.namelist()} - {""}
    assert held == sources | {f"electra_lab/experiments/{file}" for file in experiments}
    assert {"electra_lab/py.typed", "registry/py.typed", "electra_lab/presentation/style.css"} <= held
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}


ABOUT = """
import json
from importlib import metadata
import electra_lab, registry
about = metadata.metadata("electra-lab").json
print(json.dumps([electra_lab.__version__, electra_lab.__file__, registry.__file__, about]))
"""


def test_it_works_where_there_is_no_repository(lab: Environment) -> None:
    version, *files, about = json.loads(lab("python", "-c", ABOUT))
    assert all(Path(file).is_relative_to(lab.venv) for file in files)
    assert about["version"] == version
    assert about["license_expression"] == "MIT"
    assert {url.split(",")[0] for url in about["project_url"]} == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.13"} <= set(about["classifier"])
    assert set(about["provides_extra"]) == {
        "hugging-face", "onnx", "notebooks", "clusters", "site", "data", "tensorboard", "wandb", "mlflow", "trackio",
        "remote", "search", "dev",
    }  # fmt: skip

    shipped = {file.removesuffix(".yaml") for file in files_below(ROOT / "experiments") if file.endswith(".yaml")}
    assert {line.split()[0] for line in lab("electra-lab", "new").splitlines()} == shipped
    *files, said = lab("electra-lab", "new", "plugins/eta").splitlines()
    assert files == ["reformer_small.yaml", "plugins/eta.py", "plugins/eta.yaml"]
    assert said.endswith(": electra-lab run plugins/eta.yaml")
    assert "name: eta" in lab("electra-lab", "check", "plugins/eta.yaml")


@pytest.mark.skipif("ELECTRA_LAB_WHEEL" not in os.environ, reason="installs everything: make test-wheel")
def test_it_installs_with_all_that_it_needs_and_trains(wheel: Path) -> None:
    with TemporaryDirectory() as folder:  # more than a gigabyte, which pytest would keep
        lab = Environment(Path(folder))
        lab("pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", wheel)
        print(lab("pip", "check"), lab("pip", "show", "electra-lab"), lab("electra-lab", "new", "reformer_small"))
        steps = ["--set", "train.steps=20", "--set", "schedules.learning_rate.warmup_steps=5"]
        lab("electra-lab", "run", "reformer_small.yaml", *steps, "--out", "run")
        provenance = json.loads((lab.folder / "run" / "provenance.json").read_text(encoding="utf-8"))
        assert (provenance["git"], provenance["steps"]) == (None, 20)
        assert "</html>" in (lab.folder / "run" / "report.html").read_text(encoding="utf-8")
