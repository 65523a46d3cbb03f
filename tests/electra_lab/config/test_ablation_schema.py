"""The JSON schema of ablation files says what the validator says, as far as it goes without the base."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from electra_lab.cli import main
from electra_lab.config.ablation import load_ablation
from electra_lab.config.json_schema import ablation_schema
from electra_lab.config.source import to_yaml
from registry.errors import ConfigError
from tests.electra_lab.config.test_json_schema import TINY
from tests.helpers import write_experiment


@pytest.fixture(scope="module")
def ablations(plugged: None) -> Draft202012Validator:
    found, problems = ablation_schema()
    assert problems == []
    Draft202012Validator.check_schema(found)
    assert set(re.findall(r"#/\$defs/([\w.]+)", str(found))) == set(found["$defs"])
    return Draft202012Validator(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablations")
    write_experiment(folder)
    (folder / "parent.yaml").write_text(to_yaml(ABLATION))
    return folder


ABLATION: Any = {
    "name": "size",
    "base": "tiny.yaml",
    "vary": {"generator.scale": [0.5, 1.0]},
    "seeds": [0, 1],
    "measure": [{"type": "pretraining"}],
    "launcher": {"type": "local", "workers": 1},
}
GOOD: list[Any] = [
    {},
    {"question": "Why?", "imports": [], "retries": 0, "budget": None, "baseline": None, "quality": None, "set": {}},
    {"budget": {"steps": 3}},
    {"budget": {"flops": 1e9}, "set": {"train": {"batch_size": 4}}},
    {"set": {"embedding": {"dim": 4}, "train.batch_size": 4, "data.store": "kept", "evaluate.every": None}},
    {"set": {"sampler": {"temperature": 2.0}, "discriminator.dropout": 0.0, "train.tokens": 64.0, "train.steps": None}},
    {
        "set": {
            "discriminator": {"type": "plugged", "dim": 16, "depth": 1, "heads": 2, "window": 2, "inner": {"share": 1}}
        }
    },
    {"set": {"schedules.sampler.temperature": {"type": "linear", "start": 2.0, "end": 1.0}}},
    {
        "set": {"generator": {"type": "bert", "dim": 8, "heads": 2, "scale": None}},
        "vary": {"generator.dropout": [0, 0.5]},
    },
    {"vary": {"a": {}, "b b": {"sampler": {"type": "argmax"}}, "train": {"train.steps": 3}}},
    {"vary": {"train.steps": [1, 2], "sampler.type": ["gumbel", "top_k"]}},
    {"vary": {"train.betas": [[0.9, 0.99], [0.9, 0.999]]}},
    {"vary": {"schedules": [{}, {"sampler.temperature": {"type": "linear", "start": 2.0, "end": 1.0}}]}},
    {"vary": {"schedules.sampler.temperature": [{"type": "linear", "start": s, "end": 1.0} for s in (2.0, 3.0)]}},
    {"vary": {"masking": [{"type": "span"}, {"mask_prob": 0.3}]}},
    {"measure": [{"type": "detection_probe", "rows": 3}, {"type": "pretraining"}], "quality": "probe_auc"},
    {"launcher": {"type": "slurm"}},
]
BAD: list[Any] = [
    *({key: ...} for key in ("name", "base", "vary", "seeds")),
    {"name": "Size"}, {"sedes": [0]}, {"base": 3}, {"question": None}, {"retries": -1}, {"imports": "a.py"},
    {"seeds": []}, {"seeds": [0, 0]}, {"seeds": ["0"]}, {"seeds": [-1]}, {"seeds": 3}, {"seeds": [2**63]},
    {"budget": {}}, {"budget": {"steps": 3, "flops": 1e9}}, {"budget": {"steps": 0}}, {"budget": {"epochs": 3}},
    {"vary": {}}, {"vary": []}, {"vary": {"generator.scale": []}}, {"vary": {"generator.scale": 0.5}},
    {"vary": {"generator.scale": [0.5], "a": {}}}, {"vary": {"generator.scale": [0.5, 0.5]}},
    {"vary": {"generator.scael": [0.5]}}, {"vary": {"a": {"smapler.type": "argmax"}}},
    {"vary": {"sampler.type": ["gum"]}},
    {"vary": {" a": {}}}, {"vary": {"a" * 81: {}}}, {"vary": {"": {}}},
    {"vary": {"name": ["a"]}}, {"vary": {"a": {"seed": 3}}}, {"vary": {"imports": [["a.py"]]}},
    {"vary": {"data.store": ["a"]}}, {"vary": {"data": [{"store": "a"}]}}, {"vary": {"a": {"data": {"store": "a"}}}},
    {"vary": {"train.batch_size": [2, 0]}}, {"vary": {"a": {"train": {"batch_size": "many"}}}},
    {"vary": {"train.steps": [1, 2]}, "budget": {"steps": 3}},
    {"vary": {"a": {"train.flops": 1e9}}, "budget": {"steps": 3}},
    {"vary": {"train": [{"steps": 1}, {"steps": 2}]}, "budget": {"steps": 3}},
    {"set": {"train": {"tokens": 5}}, "budget": {"steps": 3}}, {"set": {"train.steps": 5}, "budget": {"steps": 3}},
    {"set": {"name": "a"}}, {"set": {"seed": 1}}, {"set": {"embedding.dmi": 4}}, {"set": {"embedding": {"dim": 0}}},
    {"set": {"sampler.temperature": 0}}, {"set": {"smapler": {}}}, {"set": []}, {"set": {"": 1}},
    {"set": {"train.": 1}},
    {"set": {"train.steps.x": 1}}, {"set": {"objective": {"type": "elektra"}}},
    {"measure": []}, {"measure": {}}, {"measure": ["pretraining"]}, {"measure": [{}]}, {"measure": [{"type": "pre"}]},
    {"measure": [{"type": "pretraining", "rows": 3}]}, {"measure": [{"type": "detection_probe", "rows": 0}]},
    {"quality": "luck"}, {"launcher": {"type": "slrum"}}, {"launcher": {"type": "local", "workers": 0}},
    {"launcher": {"workers": 2}}, {"train": {"steps": 3}}, {"base": ..., "corpus": {"type": "docstrings"}},
]  # fmt: skip


def judged(folder: Path, values: Any) -> list[str]:
    """The validator's errors, as for a file on disk."""
    file = folder / "ablation.yaml"
    file.write_text(to_yaml(values))
    try:
        load_ablation(file)
    except ConfigError as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize("good", GOOD, ids=str)
def test_a_good_ablation_is_judged_as_by_the_validator(ablations: Draft202012Validator, folder: Path, good: Any):
    values = ABLATION | good
    assert judged(folder, values) == []
    assert [error.message for error in ablations.iter_errors(values)] == []
    assert judged(folder, {"extends": "parent.yaml"}) == []
    assert ablations.is_valid({"extends": "parent.yaml"} | good)


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_bad_ablation_is_judged_as_by_the_validator(ablations: Draft202012Validator, folder: Path, bad: Any):
    values = {key: value for key, value in (ABLATION | bad).items() if value is not ...}
    assert judged(folder, values)
    assert not ablations.is_valid(values)


@pytest.mark.parametrize(
    ("child", "good"),
    [
        ({}, True),
        ({"seeds": [7]}, True),
        ({"launcher": {"workers": 2}}, True),  # of which type, the parent knows
        ({"vary": {}}, True),
        ({"budget": {"steps": 3}}, True),
        ({"set": {"train": {"batch_size": 4}}}, True),
        ({"seeds": []}, False),
        ({"launcher": {"type": "local", "workers": 0}}, False),
        ({"vary": {"generator.scale": []}}, False),
        ({"measure": [{"rows": 3}]}, False),  # a list replaces the parent's
        ({"budget": {"steps": 3, "tokens": 5.0}}, False),
        ({"extends": 3}, False),
        ({"sedes": [7]}, False),
    ],
    ids=str,
)
def test_an_ablation_that_extends_another_may_leave_out_anything(
    ablations: Draft202012Validator, folder: Path, child: Any, good: bool
):
    values = {"extends": "parent.yaml"} | child
    assert (judged(folder, values) == []) == good
    assert ablations.is_valid(values) == good


def test_an_ablations_schema_completes_dotted_keys(ablations: Draft202012Validator):
    keys = ablations.schema["$defs"]["changes.set"]["properties"]
    assert {
        "train.learning_rate",
        "sampler.temperature",
        "sampler.edge",
        "discriminator.depth",
        "generator.scale",
    } <= set(keys)
    assert not {"name", "seed", "extends"} & set(keys)


def test_the_command_prints_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["electra-lab", "schema", "--ablation"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed = Draft202012Validator(json.loads(capsys.readouterr().out))
    assert printed.is_valid(ABLATION)
    assert not printed.is_valid(TINY)
