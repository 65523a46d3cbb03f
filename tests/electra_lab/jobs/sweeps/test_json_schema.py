"""The JSON schema of ablation files accepts everything that `check` accepts, and refuses values wrong by themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from electra_lab.config.json_schema import file_schema
from electra_lab.config.source import to_yaml
from electra_lab.jobs.sweeps.file import AblationConfig, load_ablation
from registry import launchers, measures
from registry.errors import ConfigError
from tests.helpers import write_experiment

ABLATION: Any = {
    "name": "size",
    "base": "tiny.yaml",
    "vary": {"generator.scale": [0.5, 1.0]},
    "seeds": [0, 1],
    "measure": [{"type": "pretraining"}],
    "launcher": {"type": "local", "workers": 1},
}
RATE = {"learning_rate": {"warmup_steps": 0}}
GOOD: list[Any] = [
    {},
    {"question": "Why?", "imports": [], "retries": 0, "budget": None, "baseline": None, "metric": None, "set": {}},
    {"budget": {"steps": 3}},
    {"budget": {"flops": 1e9}, "set": {"train": {"batch_size": 4}}},
    {"set": {"embedding": {"dim": 4}, "train.batch_size": 4, "data.store": "kept", "evaluate.every": None}},
    {"set": {"sampler": {"temperature": 2.0}, "discriminator.dropout": 0.0, "train.tokens": 64.0, "train.steps": None}},
    {"set": {"schedules.sampler.temperature": {"type": "linear", "start": 2.0, "end": 1.0}}},
    {"vary": {"a": {}, "b b": {"sampler": {"type": "argmax"}}, "train": {"train.steps": 3}}},
    {"vary": {"train.steps": [1, 2], "sampler.type": ["gumbel", "top_k"]}},
    {"vary": {"optimizer.betas": [[0.9, 0.99], [0.9, 0.999]]}},
    {"vary": {"schedules": [RATE, {"sampler.temperature": {"type": "linear", "start": 2.0, "end": 1.0}}]}},
    {"vary": {"masking": [{"type": "span"}, {"mask_prob": 0.3}]}},
    {"seeds": [1e0, 2]},
    {"measure": [{"type": "detection_probe", "rows": 3}, {"type": "pretraining"}], "metric": "probe_auc"},
    {"launcher": {"type": "slurm", "sbatch": {"qos": "high", "nice": 3}}},
    {"launcher": {"workers": 2}},
]
BAD: list[Any] = [
    {"name": "Size"}, {"sedes": [0]}, {"base": 3}, {"question": None}, {"retries": -1}, {"imports": "a.py"},
    {"seeds": []}, {"seeds": ["0"]}, {"seeds": [-1]}, {"seeds": 3}, {"seeds": [2**63]}, {"quality": "probe_auc"},
    {"budget": {"steps": 0}}, {"budget": {"epoch": 3}}, {"vary": []}, {"set": []}, {"sampler": {"type": "gumbel"}},
    {"measure": []}, {"measure": {"type": "pretraining"}}, {"measure": [{"type": "loss"}]},
    {"measure": [{"type": "pretraining", "rows": 3}]}, {"measure": [{"type": "fixed_corruption", "mask_prob": 0}]},
    {"launcher": {"type": "local", "workers": 0}}, {"launcher": {"type": "slrum"}}, {"launcher": "slurm"},
    {"launcher": {"type": "ray", "partition": "long"}}, {"extends": 3},
]  # fmt: skip


@pytest.fixture(scope="module")
def accepts() -> Any:
    schema = file_schema(AblationConfig, "ablation")
    Draft202012Validator.check_schema(schema)
    assert set(re.findall(r"#/\$defs/([\w.]+)", str(schema))) == {*schema["$defs"]}
    return Draft202012Validator(schema).is_valid


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_files_that_check_accepts_pass_whole_and_in_parts(accepts: Any, tmp_path: Path, values: Any) -> None:
    write_experiment(tmp_path)
    whole = ABLATION | values
    (tmp_path / "size.yaml").write_text(to_yaml(whole))
    load_ablation(tmp_path / "size.yaml")
    assert accepts(whole)
    assert accepts({"extends": "parent.yaml"} | values)


@pytest.mark.parametrize("values", BAD, ids=str)
def test_a_wrong_key_or_value_is_refused_also_in_a_child(accepts: Any, tmp_path: Path, values: Any) -> None:
    assert not accepts(ABLATION | values)
    assert not accepts({"extends": "parent.yaml"} | values)
    write_experiment(tmp_path)
    (tmp_path / "size.yaml").write_text(to_yaml(ABLATION | values))
    with pytest.raises(ConfigError):
        load_ablation(tmp_path / "size.yaml")


def test_measures_and_launchers_are_offered_with_their_summaries() -> None:
    properties = file_schema(AblationConfig, "ablation")["properties"]
    for registry, offered in ((measures, properties["measure"]["items"]), (launchers, properties["launcher"])):
        kind = offered["properties"]["type"]
        summaries = {listing.name: listing.summary for listing in registry.listings()}
        assert dict(zip(kind["enum"], kind["enumDescriptions"], strict=True)) == summaries
    assert properties["extends"]["description"] == "The ablation file that this one changes."
