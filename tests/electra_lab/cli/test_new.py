"""electra-lab new: each shipped experiment is copied with all that it needs, and nothing is overwritten."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import registry
from electra_lab.cli import new
from electra_lab.config.load import kind_of_file, load, load_finetuning
from electra_lab.jobs.sweeps.file import load_ablation
from registry import load_plugin
from tests.helpers import ROOT

SHIPPED = ROOT / "experiments"
LOADERS: dict[str, Any] = {"experiment": load, "ablation": load_ablation, "fine-tuning": load_finetuning}
NAMES = sorted(file.relative_to(SHIPPED).with_suffix("").as_posix() for file in SHIPPED.rglob("*.yaml"))


def written(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8", errors="replace") for path in files}


def test_without_a_name_all_are_listed_with_their_first_line(lab, tmp_path: Path):
    code, out, err = lab("new")
    assert (code, err) == (0, "")
    for line in out.splitlines():
        name, comment = line.split(maxsplit=1)
        assert (SHIPPED / f"{name}.yaml").read_text("utf-8").startswith(f"# {comment}\n")
    listed = [line.split()[0] for line in out.splitlines()]
    assert sorted(listed) == NAMES
    assert [name.count("/") for name in listed] == sorted(name.count("/") for name in NAMES)
    assert written(tmp_path) == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_needs_nothing_but_what_was_copied(lab, tmp_path: Path, name: str):
    code, out, err = lab("new", name)
    assert (code, err) == (0, "")
    copies = written(Path.cwd())
    assert copies == {path: (SHIPPED / path).read_text("utf-8") for path in copies}
    *paths, command = out.splitlines()
    assert sorted(paths) == sorted(copies)
    kind = kind_of_file(Path(f"{name}.yaml"))
    verb = {"experiment": "run", "ablation": "ablate"}.get(kind, "finetune")
    assert shlex.split(command.removeprefix("Run it with: ")) == ["electra-lab", verb, str(Path(f"{name}.yaml"))]
    loaded = LOADERS[kind](Path(f"{name}.yaml"))
    assert loaded.config.name == Path(name).name
    if kind == "ablation":
        loaded = loaded.base
    read = {mark.folder.resolve() for mark in loaded.marks.values()} | {plugin.file for plugin in loaded.plugins}
    assert all(path.is_relative_to(Path.cwd().resolve()) for path in read)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("reformer_small", []),
        ("plugins/eta.yaml", ["plugins/eta.py", "reformer_small.yaml"]),
        ("ablations/sampler_full",
         ["ablations/sampler.yaml", "electra_small.yaml", "reformer_small.yaml", "transformer_small.yaml",
          "transformer_tiny.yaml"]),
    ],
)  # fmt: skip
def test_a_copy_brings_no_more_than_it_needs(lab, tmp_path: Path, name: str, needs: list[str]):
    code, out, _ = lab("new", name, "my lab")
    assert code == 0
    own = name.removesuffix(".yaml") + ".yaml"
    assert sorted(written(Path("my lab"))) == sorted([own, *needs])
    assert shlex.split(out)[-1] == str(Path("my lab") / own), "the command cannot be pasted"


def test_an_unknown_name_is_answered_with_the_nearest_and_all(lab, tmp_path: Path):
    err = lab.fails(2, "new", "reformer_smal")
    assert "Did you mean 'reformer_small'? Known: " in err
    assert all(name in err for name in NAMES)
    assert written(tmp_path) == {}


@pytest.mark.parametrize("text", [None, "name: mine\n"], ids=["the same", "changed"])
def test_the_file_itself_is_not_overwritten(lab, tmp_path: Path, text: str | None):
    Path("bert_small.yaml").write_text(text or (SHIPPED / "bert_small.yaml").read_text("utf-8"), "utf-8")
    before = written(tmp_path)
    sentence = "exists already, so nothing was written. Name another folder: electra-lab new bert_small DEST"
    assert lab("new", "bert_small") == (2, "", f"bert_small.yaml: {sentence}\n")
    assert written(tmp_path) == before


@pytest.mark.parametrize("what", ["changed", "binary", "folder"])
def test_a_file_that_it_needs_is_not_overwritten(lab, tmp_path: Path, what: str):
    base = Path("reformer_small.yaml")
    base.mkdir() if what == "folder" else base.write_bytes(b"name: mine\n" if what == "changed" else b"\xff")
    before = written(tmp_path)
    err = lab.fails(2, "new", "plugins/eta")
    assert err.startswith("reformer_small.yaml: ")
    assert err.endswith("Name another folder: electra-lab new plugins/eta DEST\n")
    assert written(tmp_path) == before


def test_experiments_share_what_they_extend(lab, tmp_path: Path):
    assert lab("new", "plugins/eta")[0] == 0
    code, out, _ = lab("new", "bert_small")
    assert code == 0
    assert out.splitlines()[:-1] == ["bert_small.yaml"]


def test_a_folder_has_no_name_of_a_file(lab, tmp_path: Path):
    sentence = "is the name of a file. Name a folder for reformer_small.yaml."
    assert lab("new", "reformer_small", "mine.yaml") == (2, "", f"mine.yaml: {sentence}\n")
    assert written(tmp_path) == {}


ROOT_USER = os.name == "nt" or os.geteuid() == 0


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("file/there", "Not a directory"),
        pytest.param("closed", "Permission denied", marks=pytest.mark.skipif(ROOT_USER, reason="root may write there")),
    ],
)
def test_a_folder_that_cannot_be_written(lab, tmp_path: Path, folder: str, reason: str):
    Path("file").touch()
    Path("closed").mkdir(mode=0o500)
    sentence = f"{Path(folder)}: cannot be written ({reason}). Name another folder: electra-lab new reformer_small DEST"
    assert lab("new", "reformer_small", folder) == (2, "", f"{sentence}\n")
    assert written(Path.cwd()) == {"file": ""}


@pytest.mark.parametrize("line", ["extends: ../elsewhere.yaml", "extends: nowhere.yaml", "imports: [nowhere.py]"])
def test_in_a_repository_a_file_may_need_what_cannot_be_copied(lab, tmp_path: Path, monkeypatch, line: str):
    shutil.copytree(SHIPPED, tmp_path / "experiments")
    shutil.copy(SHIPPED / "reformer_small.yaml", tmp_path / "elsewhere.yaml")
    (tmp_path / "experiments" / "mine.yaml").write_text(f"# Mine.\n{line}\n", encoding="utf-8")
    monkeypatch.setattr(new, "shipped", lambda: tmp_path / "experiments")
    assert lab("new")[0] == 0
    err = lab.fails(2, "new", "mine")
    assert "where" in err
    assert "cannot be written" not in err
    assert written(Path.cwd()) == {}


KINDS = [r.singular.replace(" ", "_") for r in registry.ALL]


def laws(*folders: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of new packages, in one process."""
    words = [sys.executable, "-m", "pytest", "-q", "-rpf", "-p", "no:cacheprovider", *folders]
    return subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_component_of_every_kind_is_written_under_its_own_name(lab, kind: str):
    name = "brand_new"
    code, out, err = lab("new", "--component", kind, name, "some where")
    assert (code, err) == (0, "")
    files = written(Path("some where", name))
    assert sorted(files) == [f"electra_lab_{name}.py", "pyproject.toml", f"test_{name}.py"]
    assert shlex.split(out.splitlines()[-1])[-1] == str(Path("some where", name))
    r = next(r for r in registry.ALL if r.singular.replace(" ", "_") == kind)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["description"] == f"electra_lab {r.singular} '{name}'."
    assert project["entry-points"] == {f"electra_lab.{r.plural}": {name: f"electra_lab_{name}"}}
    for text in files.values():
        assert name in text
        assert not re.search(r"my_|My[A-Z]", text)
    (plugin,) = [path for path in Path("some where", name).iterdir() if path.name == f"electra_lab_{name}.py"]
    load_plugin(plugin)
    assert r.get(name).file.samefile(plugin)


def test_a_new_component_passes_its_tests(lab):
    for name in ("sound", "broken"):
        assert lab("new", "--component", "schedule", name)[0] == 0
    template = Path("broken/electra_lab_broken.py")
    template.write_text(template.read_text().replace("progress**power", "progress / 0"))
    done = laws("sound", "broken")
    assert done.returncode == 1, done.stdout
    outcomes = re.findall(r"^(PASSED|FAILED) .*/test_(sound|broken)\.py", done.stdout, re.MULTILINE)
    assert outcomes == [("PASSED", "sound"), ("FAILED", "broken")]


@pytest.mark.slow
def test_new_components_of_all_kinds_pass_their_tests(lab):
    for kind in KINDS:
        assert lab("new", "--component", kind)[0] == 0
    done = laws(*(f"my_{kind}" for kind in KINDS))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["samplr"], "samplr"),
        (["sampler", "gumbel"], "gumbel"),
        (["sampler", "Mine"], "Mine"),
        (["sampler", "a-b"], "a-b"),
        (["sampler", "x_"], "x_"),
        (["sampler", "a__b"], "a__b"),
        (["sampler", "größe"], "größe"),
        (["sampler", "class"], "class"),
        (["optimizer", "torch"], "torch"),
        (["backbone", "nn"], "nn"),
        (["backbone", "tensor"], "tensor"),
        (["schedule", "schedules"], "schedules"),
        (["tokenizer", "pytest"], "pytest"),
    ],
)
def test_components_that_cannot_be_begun(lab, arguments: list[str], what: str):
    err = lab.fails(2, "new", "--component", *arguments)
    assert f"'{what}'" in err
    assert ("Python" in err) == (what == "class")
    assert written(Path.cwd()) == {}


def test_a_component_is_not_overwritten(lab):
    assert lab("new", "--component", "sampler", "mine")[0] == 0
    before = written(Path.cwd())
    err = lab.fails(2, "new", "--component", "sampler", "mine")
    assert err.startswith(str(Path("mine", "pyproject.toml")))
    assert written(Path.cwd()) == before


def test_the_recipe_of_the_docs_for_own_text(lab):
    page = (ROOT / "docs" / "own-text.md").read_text("utf-8")
    command = re.search(r"```console\n\$ electra-lab (new \w+)\n```", page)
    recipe = re.search(r"```yaml\n# (my_text\.yaml)\n(.*?)```", page, re.DOTALL)
    assert command
    assert recipe
    assert lab(*command[1].split())[0] == 0
    Path(recipe[1]).write_text(recipe[2])
    Path("my_corpus").mkdir()
    for number in range(35):
        paragraphs = (f"{word} {number} has {n} words in it." for n, word in enumerate(["One", "Another", "This"] * 40))
        Path(f"my_corpus/{number}.txt").write_text("\n\n".join(paragraphs))
    code, out, err = lab("prepare", recipe[1])
    assert (code, err.splitlines()[1:]) == (0, [])
    assert "35 files (" in out
    # For whole files 0.05 is too little; the key that is blamed is the one to set.
    whole = ("--set", "corpus.documents=files")
    code, _, err = lab("prepare", recipe[1], *whole)
    assert (code, ": data.held_out: " in err) == (3, True)
    assert err.splitlines()[-1].startswith(f"{recipe[1]}:5: ")
    share = re.search(r"Set it to ([\d.]+)", err)
    assert share
    assert lab("prepare", recipe[1], *whole, "--set", f"data.held_out={share[1]}")[0] == 0
