"""Row 10: valid configs are written out in full and read back, and the JSON schema accepts them.

That it refuses what the lab refuses, tests/electra_lab/config/test_json_schema.py has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st

import registry
from electra_lab.config.json_schema import file_schema
from electra_lab.config.load import dump, load
from electra_lab.config.schema import ExperimentConfig
from electra_lab.config.source import read_file
from registry.errors import ConfigError
from tests.electra_lab.config.generated import named
from tests.helpers import write_experiment
from tests.scorecard.conftest import Score
from tests.scorecard.rows import SEED


def one_of(kind: registry.Registry[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(*(named(kind, name) for name in kind.names()))


SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**63 - 1),
        "name": st.sampled_from(["a", "1e5", "010", "null", "no", "1.2.3", "x" * 64]),
        "masking": one_of(registry.masking_strategies),
        "sampler": one_of(registry.samplers),
        "optimizer": one_of(registry.optimizers),
        "packing": one_of(registry.packings),
        "tokenizer": st.one_of(named(registry.tokenizers, "wordpiece"), named(registry.tokenizers, "bpe")),
        "checkpoint": st.fixed_dictionaries({"every": st.integers(1, 10**9), "keep": st.integers(1, 10**6)}),
        "evaluate": st.fixed_dictionaries({}, optional={"every": st.integers(1, 10**9) | st.none()}),
        "train": st.fixed_dictionaries(
            {"steps": st.integers(1, 10**9), "batch_size": st.integers(1, 4096)},
            optional={"learning_rate": st.floats(1e-12, 1e12), "clip_norm": st.floats(1e-6, 1e6)},
        ),
    },
)


def test_what_is_written_out_is_read_back_equal(score: Score, tmp_path: Path) -> None:
    validator = jsonschema.Draft202012Validator(file_schema(ExperimentConfig, "experiment"))
    accepted = 0

    @seed(SEED)
    @settings(max_examples=4 * score.number, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(SECTIONS)
    def one(values: dict[str, Any]) -> None:
        nonlocal accepted
        if accepted >= score.number:
            return
        sections = {key: json.dumps(value) for key, value in values.items()}
        file = write_experiment(tmp_path, **sections)
        try:
            loaded = load(file)
        except ConfigError:  # with values that are valid one by one, but not together
            assume(False)
        accepted += 1
        with score.trial(f"config {accepted}: {sections}"):
            complete = tmp_path / "runs" / "deep" / "config.yaml"
            complete.parent.mkdir(parents=True, exist_ok=True)
            complete.write_text(dump(loaded.config), encoding="utf-8")
            again = load(complete)
            assert again.config == loaded.config, "is read back as a different config"
            assert dump(again.config) == dump(loaded.config), "is written differently the second time"
            for path in (file, complete):
                wrong = [error.message for error in validator.iter_errors(read_file(path).plain())]
                assert not wrong, f"the JSON schema refuses {path.name}: {wrong[:2]}"

    one()
