"""A cell is identified by its label, its seed and a digest of its content."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.config.load import Loaded, load
from electra_lab.config.source import Value
from electra_lab.jobs.identity import digest, identity_of
from registry import discovery
from tests.electra_lab.jobs.sweeps.test_file import SAFE, ablation, ids
from tests.helpers import write_experiment


def test_ids_are_those_of_the_content(tmp_path: Path):
    first = ablation(tmp_path, vary={"generator.scale": [0.5, 1.0]}, seeds=[0, 1])
    assert len(set(ids(first).values())) == 4
    more = ablation(tmp_path, name="other", question="Why?", vary={"generator.scale": [2.0, 1.0, 0.5]}, seeds=[5, 1, 0],
                    measure=[{"type": "pretraining"}], retries=3, launcher={"type": "local", "workers": 3})  # fmt: skip
    assert ids(first).items() <= ids(more).items()
    assert len(ids(more)) == 9
    stored = ablation(tmp_path, "data.store=elsewhere", seeds=[0, 1])
    assert ids(stored) == ids(first)
    written = (tmp_path / "tiny.yaml").read_text().splitlines()
    (tmp_path / "tiny.yaml").write_text("\n".join(reversed(written)))
    assert ids(ablation(tmp_path, seeds=[0, 1])) == ids(first)
    # Values that are written, defaults, or set by the ablation give the same experiment.
    assert ids(ablation(tmp_path, "sampler.temperature=1.0", "train.log_every=50", seeds=[0, 1])) == ids(first)
    assert ids(ablation(tmp_path, set={"train.steps": 1}, seeds=[0, 1])) == ids(first)


def test_equal_content_has_an_equal_digest_whatever_its_label(tmp_path: Path):
    grid: dict[str, Value] = {"generator.scale": [1.0]}
    alike: list[dict[str, Value]] = [grid, grid | {"train.batch_size": [2]}, {"large": {"generator.scale": 1.0}}]
    found = {ablation(tmp_path, vary=vary).cells[0].id for vary in alike}
    assert len(found) == 3
    [content] = {id.rpartition("-")[2] for id in found}
    assert ablation(tmp_path, vary=grid, seeds=[1]).cells[0].id.rpartition("-")[2] != content


PLAIN = """\
name: plain
corpus: {type: docstrings}
tokenizer: {type: wordpiece, vocab_size: 200}
data: {sequence_length: 16}
discriminator: {type: bert, dim: 16, depth: 1, heads: 2}
generator: {type: bert, dim: 8, heads: 2}
train: {steps: 3, batch_size: 2}
masking: {type: replace_prob}
objective: {type: electra}
sampler: {type: gumbel}
schedules: {learning_rate: {type: warmup_linear, warmup_steps: 1}}
"""
CHANGES = {
    "train.steps": 2, "train.batch_size": 4, "train.learning_rate": 5.1e-4, "optimizer.betas": [0.9, 0.998],
    "optimizer.weight_decay": 0.02, "schedules.learning_rate.warmup_steps": 1,
    "train.log_every": 3, "data.sequence_length": 15, "data.held_out": 0.31, "embedding.dropout": 0.2,
    "discriminator.dropout": 0.0, "generator.dropout": 0.0, "masking.mask_prob": 0.2, "sampler.temperature": 1.01,
    "objective.generator_weight": 2.0, "evaluate.every": 1, "evaluate.batch_size": 3, "checkpoint.keep": 2,
    "corpus.documents": "lines", "tokenizer.vocab_size": 201, "sampler.type": "argmax", "embedding.tie": "none",
    "schedules.sampler.temperature": {"type": "linear", "start": 2.0, "end": 1.0},
}  # fmt: skip


def test_every_change_of_a_value_changes_the_digest(tmp_path: Path):
    vary: dict[str, Value] = {key: {key: value} for key, value in CHANGES.items()} | {"none": {}}
    made = ablation(tmp_path, vary=vary)
    assert len({digest(loaded) for loaded in made.loaded.values()}) == len(CHANGES) + 1


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(write_experiment(tmp_path_factory.mktemp("loaded")))


def test_a_plug_in_that_changed_changes_the_digest(loaded: Loaded):
    plugged = [
        Loaded(loaded.config, loaded.marks, (discovery.Plugin(Path(file), sha, b""),))
        for file, sha in (("a.py", "1"), ("b.py", "1"), ("a.py", "2"))
    ]
    one, moved, changed = (identity_of("x", experiment) for experiment in plugged)
    assert one == moved != changed
    assert identity_of("x", loaded) != one


@given(label=st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_an_id_is_a_safe_file_name_whatever_the_label(loaded: Loaded, label: str):
    made = identity_of(label, loaded)
    assert SAFE.fullmatch(made)
    assert len(made) < 120
    assert made == identity_of(label, loaded)
