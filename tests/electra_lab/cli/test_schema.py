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


def test_it_prints_a_schema_and_nothing_else(lab):
    code, out, err = lab("schema")
    assert (code, err) == (0, "")
    Draft202012Validator.check_schema(json.loads(out))
    assert accepts(out, "{type: gumbel}")
    assert not accepts(out, "{type: gumbel, temprature: 1.0}")
    assert not accepts(out, "{type: plugged}")
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("by", ["file", "experiment", "child"])
def test_a_plug_in_is_in_it_and_its_bounds_hold(lab, tmp_path: Path, plugin: Path, by: str):
    experiment = write_experiment(tmp_path / "there", imports="[../plugs/plug.py]")
    child, other = tmp_path / "child.yaml", plugin.with_name("other.py")
    child.write_text("extends: there/tiny.yaml\n")
    other.write_text(PLUGIN.replace("plugged", "another"))
    chosen = {"file": plugin, "experiment": experiment, "child": child}[by]
    code, out, err = lab("schema", "--from", chosen, "--from", other)
    assert (code, err) == (0, "a plug-in that talks\n" * 2)
    assert accepts(out, "{type: plugged, edge: 0.4}")
    assert not accepts(out, "{type: plugged, edge: 0.5}")
    assert not accepts(out, "{type: plugged, temperature: 0.4}")
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
        ("none.yaml", None, r"none\.yaml: "),
        ("none.py", None, r"none\.py: "),
        ("bad.py", "raise ValueError('no luck')\n", r"bad\.py:1: ValueError: no luck"),
        ("bad.yaml", "imports: [none.py]\n", r"bad\.yaml:1: imports\.0: the file .*/none\.py "),
    ],
)
def test_a_file_that_cannot_be_used_is_exit_code_2(lab, name: str, text: str | None, reason: str):
    if text:
        Path(name).write_text(text)
    assert re.match(rf"\S*{reason}", lab.fails(2, "schema", "--from", name))


@pytest.mark.parametrize(
    ("option", "title", "key"),
    [("--ablation", "electra_lab ablation", "vary"), ("--finetuning", "electra_lab fine-tuning", "dataset")],
)
def test_the_schema_of_each_kind_of_file(lab, option: str, title: str, key: str):
    code, out, err = lab("schema", option)
    assert (code, err, json.loads(out)["title"]) == (0, "", title)
    assert key in json.loads(out)["properties"]
    assert lab.fails(2, "schema", "--ablation", "--finetuning")
