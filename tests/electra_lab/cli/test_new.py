"""electra-lab new: each shipped experiment is copied with all files it needs, and nothing is overwritten."""

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
def test_a_copy_brings_no_more_than_it_needs(lab, name: str, needs: list[str]):
    code, out, _ = lab("new", name, "my lab")
    assert code == 0
    own = name.removesuffix(".yaml") + ".yaml"
    assert sorted(written(Path("my lab"))) == sorted([own, *needs])
    assert shlex.split(out)[-1] == str(Path("my lab") / own), "the command cannot be pasted"
    # Another experiment extends the same file.
    code, out, _ = lab("new", "bert_small", "my lab")
    assert (code, out.splitlines()[:-1]) == (0, [str(Path("my lab/bert_small.yaml"))])


def test_an_unknown_name_is_answered_with_the_nearest_and_all(lab):
    err = lab.fails(2, "new", "reformer_smal")
    assert "Did you mean 'reformer_small'? Known: " in err
    assert all(name in err for name in NAMES)
    assert lab.fails(2, "new", "reformer_small", "mine.yaml").startswith("mine.yaml: is the name of a file.")
    assert written(Path.cwd()) == {}


SAME = (SHIPPED / "bert_small.yaml").read_bytes()


@pytest.mark.parametrize(
    ("name", "there", "content"),
    [
        ("bert_small", "bert_small.yaml", SAME), ("bert_small", "bert_small.yaml", b"name: mine\n"),
        ("plugins/eta", "reformer_small.yaml", b"name: mine\n"), ("plugins/eta", "reformer_small.yaml", b"\xff"),
        ("plugins/eta", "reformer_small.yaml", None),
    ],
)  # fmt: skip
def test_nothing_is_overwritten(lab, name: str, there: str, content: bytes | None):
    Path(there).mkdir() if content is None else Path(there).write_bytes(content)
    before = written(Path.cwd())
    err = lab.fails(2, "new", name)
    assert err.startswith(f"{there}: ")
    assert err.endswith(f"Name another folder: electra-lab new {name} DEST\n")
    assert written(Path.cwd()) == before


ROOT_USER = os.name == "nt" or os.geteuid() == 0


@pytest.mark.parametrize(
    "folder", ["file/there", pytest.param("closed", marks=pytest.mark.skipif(ROOT_USER, reason="root may write there"))]
)
def test_a_folder_that_cannot_be_written(lab, folder: str):
    Path("file").touch()
    Path("closed").mkdir(mode=0o500)
    err = lab.fails(2, "new", "reformer_small", folder)
    assert err.startswith(f"{Path(folder)}: cannot be written (")
    assert err.endswith("electra-lab new reformer_small DEST\n")
    assert written(Path.cwd()) == {"file": ""}


@pytest.mark.parametrize("line", ["extends: ../elsewhere.yaml", "extends: nowhere.yaml", "imports: [nowhere.py]"])
def test_in_a_repository_a_file_may_need_what_cannot_be_copied(lab, tmp_path: Path, monkeypatch, line: str):
    shutil.copytree(SHIPPED, tmp_path / "experiments")
    shutil.copy(SHIPPED / "reformer_small.yaml", tmp_path / "elsewhere.yaml")
    (tmp_path / "experiments" / "mine.yaml").write_text(f"# Mine.\n{line}\n", encoding="utf-8")
    monkeypatch.setattr(new, "shipped", lambda: tmp_path / "experiments")
    assert lab("new")[0] == 0
    assert "where." in lab.fails(2, "new", "mine")
    assert written(Path.cwd()) == {}


KINDS = [r.singular.replace(" ", "_") for r in registry.ALL]


def laws(*folders: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of new packages in one process."""
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
    assert all(name in text and not re.search(r"my_|My[A-Z]", text) for text in files.values())
    (plugin,) = [path for path in Path("some where", name).iterdir() if path.name == f"electra_lab_{name}.py"]
    load_plugin(plugin)
    assert r.get(name).file.samefile(plugin)
    with r.isolated():
        r._entries.pop(name)
        err = lab.fails(2, "new", "--component", kind, name, "some where")
    assert err.startswith(str(Path("some where", name, "pyproject.toml")))
    assert written(Path("some where", name)) == files


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
    "arguments",
    ["samplr", "sampler gumbel", "sampler Mine", "sampler a-b", "sampler x_", "sampler a__b", "sampler größe",
     "sampler class", "optimizer torch", "backbone nn", "backbone tensor", "schedule schedules", "tokenizer pytest"],
)  # fmt: skip
def test_components_that_cannot_be_begun(lab, arguments: str):
    what = arguments.split()[-1]
    err = lab.fails(2, "new", "--component", *arguments.split())
    assert (f"'{what}'" in err, "Python" in err) == (True, what == "class")
    assert written(Path.cwd()) == {}


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


@pytest.mark.parametrize("words", [("plugins/eta",), ("--component", "sampler", "mine")])
def test_a_command_that_was_killed_leaves_nothing_strange_and_can_be_repeated(lab, monkeypatch, words) -> None:
    """In the middle of each file."""
    assert lab("new", *words, "whole")[0] == 0
    whole, write = written(Path("whole")), Path.write_text
    for nth in range(len(whole)):
        left = nth

        def killed(path: Path, text: str, **options: Any) -> None:
            nonlocal left
            write(path, text[: None if left else 9], **options)
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        monkeypatch.setattr(Path, "write_text", killed)
        assert lab("new", *words, f"part-{nth}")[0] == 130
        monkeypatch.setattr(Path, "write_text", write)
        assert written(Path(f"part-{nth}")).keys() <= whole.keys()
        assert lab("new", *words, f"part-{nth}")[0] == 0
        assert written(Path(f"part-{nth}")) == whole
