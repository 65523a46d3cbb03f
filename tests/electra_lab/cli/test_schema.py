"""electra-lab schema: JSON on stdout and nothing else, plug-ins included."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from electra_lab.config.source import parse
from registry import discovery, samplers
from registry.errors import PluginError
from tests.helpers import EXPERIMENT, write_experiment
from tests.scorecard.lab import Lab

PLUGIN = """\
from typing import Annotated

from pydantic import Field

from registry import samplers

print("a plug-in that talks")


@samplers.register("plugged")
def plugged(logits, rng, /, *, edge: Annotated[float, Field(gt=0, lt=0.5)] = 0.1):
    \"\"\"A sampler with a bounded option.\"\"\"
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(discovery, "_loaded", {})
    path = tmp_path / "plugs/plug.py"
    path.parent.mkdir()
    path.write_text(PLUGIN)
    with samplers.isolated():
        yield path


def accepts(schema: str, sampler: str) -> bool:
    values = parse(EXPERIMENT.replace("{type: gumbel}", sampler), "", Path()).plain()
    return Draft202012Validator(json.loads(schema)).is_valid(values)


def test_a_process_prints_a_schema_and_nothing_else(forks: Lab, tmp_path: Path):
    done = forks("schema", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    Draft202012Validator.check_schema(json.loads(done.out))
    assert accepts(done.out, "{type: gumbel}")
    assert not accepts(done.out, "{type: gumbel, temprature: 1.0}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("by", ["file", "experiment", "child"])
def test_a_plug_in_is_in_it_and_its_bounds_hold(lab, tmp_path: Path, plugin: Path, by: str):
    experiment = write_experiment(tmp_path / "there", imports="[../plugs/plug.py]")
    child = tmp_path / "child.yaml"
    child.write_text("extends: there/tiny.yaml\n")
    code, out, err = lab("schema", "--from", {"file": plugin, "experiment": experiment, "child": child}[by])
    assert (code, err) == (0, "a plug-in that talks\n")
    assert accepts(out, "{type: plugged, edge: 0.4}")
    assert not accepts(out, "{type: plugged, edge: 0.5}")
    assert not accepts(out, "{type: plugged, temperature: 0.4}")


def test_from_may_be_repeated(lab, plugin: Path):
    assert not accepts(lab("schema")[1], "{type: plugged}")
    other = plugin.with_name("other.py")
    other.write_text(PLUGIN.replace("plugged", "another"))
    code, out, _ = lab("schema", "--from", plugin, "--from", other)
    assert code == 0
    assert accepts(out, "{type: plugged}")
    assert accepts(out, "{type: another}")


def test_a_component_that_cannot_be_loaded_is_reported_on_stderr_and_the_rest_works(lab, monkeypatch):
    def get(name: str):
        if name == "broken":
            raise PluginError("no luck.")
        return load(name)

    load, names = samplers.get, samplers.names()
    monkeypatch.setattr(samplers, "names", lambda: ["broken", *names])
    monkeypatch.setattr(samplers, "get", get)
    code, out, err = lab("schema")
    assert (code, err) == (0, "sampler 'broken' is left out: no luck.\n")
    assert accepts(out, "{type: gumbel}")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("none.yaml", None, r"none\.yaml: cannot be read \(No such file or directory\)\."),
        ("none.py", None, r"none\.py: the plug-in cannot be read"),
        ("bad.py", "raise ValueError('no luck')\n", r"bad\.py:1: ValueError: no luck"),
        ("bad.yaml", "imports: [none.py]\n", r"bad\.yaml:1: imports\.0: the file .*/none\.py does not exist\."),
    ],
)
def test_a_file_that_cannot_be_used_is_exit_code_2(lab, name: str, text: str | None, reason: str):
    if text:
        Path(name).write_text(text)
    err = lab.fails(2, "schema", "--from", name)
    assert re.match(rf"\S*{reason}", err)


@pytest.mark.parametrize(
    ("options", "title", "key"),
    [(["--ablation"], "electra_lab ablation", "vary"), (["--finetuning"], "electra_lab fine-tuning", "dataset")],
)
def test_the_schema_of_each_kind_of_file(lab, options: list[str], title: str, key: str):
    code, out, err = lab("schema", *options)
    assert (code, err) == (0, "")
    assert json.loads(out)["title"] == title
    assert key in json.loads(out)["properties"]
    assert lab("schema", "--ablation", "--finetuning")[0] == 2
