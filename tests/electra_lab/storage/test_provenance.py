"""provenance.json as a model: required keys, and keys of older and newer files."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from electra_lab.metrics import PRETRAINING
from electra_lab.storage.provenance import FORMAT, OWN_TASK, Provenance

PROVENANCE: dict[str, Any] = {
    "format": FORMAT,
    "id": "one",
    "started": "2024-05-01T10:00:00+0000",
    "electra_lab": "0.6",
    "config_sha256": "0" * 64,
    "environment": {
        "python": "3.11.7", "packages": {"torch": "2.10", "x-transformers": None}, "device": "cpu",
        "processor": "AVX2", "threads": 2, "precision": "fp32",
    },
    "data": {"store": "abc"},
    "parameters": {"total": 7},
    "steps": 12,
    "flops_per_step": 10,
    "flops": 120,
}  # fmt: skip


def test_it_is_read_back_as_it_was_written() -> None:
    first = Provenance.model_validate(PROVENANCE | {"metrics": PRETRAINING})
    again = Provenance.model_validate(json.loads(json.dumps(first.model_dump(mode="json"))))
    assert again == first
    assert dict(again.metrics) == PRETRAINING
    assert list(again.metrics) == list(PRETRAINING)  # reports list them in this order


def test_an_early_file_did_not_tell_the_metrics_on_its_own_task() -> None:
    """All were said to compare runs, and those of detection came first; a task's metrics stay as they are."""
    names = ("discriminator_auc", "replaced_share", "generator_loss", "generator_mask_loss", "generator_accuracy")
    early = {name: {"title": name, "own_task": False} for name in names}
    read = Provenance.model_validate(PROVENANCE | {"metrics": early}).metrics
    assert list(read) == ["generator_mask_loss", "generator_loss", "generator_accuracy", *names[:2]]
    assert {name: metric.comparable for name, metric in read.items()} == {
        name: PRETRAINING[name].comparable for name in names
    }
    of_a_task = {"f1": {"own_task": True}, "recall": {"own_task": False}}
    read = Provenance.model_validate(PROVENANCE | {"metrics": of_a_task}).metrics
    assert [(name, metric.comparable) for name, metric in read.items()] == [("f1", False), ("recall", True)]
    later = {"mine": {"own_task": False}, "generator_mask_loss": {"own_task": False}, names[0]: {"own_task": True}}
    assert list(Provenance.model_validate(PROVENANCE | {"metrics": later}).metrics) == list(later)


def test_all_metrics_on_a_runs_own_task_that_early_releases_had_are_known() -> None:
    later = {"choice_accuracy", "none_accuracy", "choice_loss"}
    assert {name for name, metric in PRETRAINING.items() if not metric.comparable} - later == OWN_TASK


def test_an_older_file_has_the_first_format_and_a_newer_one_keeps_its_keys() -> None:
    older = {key: value for key, value in PROVENANCE.items() if key != "format"}
    assert Provenance.model_validate(older).format == 1
    newer = Provenance.model_validate(PROVENANCE | {"invented": {"later": [1]}})
    assert newer.format == FORMAT == 3
    assert newer.model_dump(mode="json")["invented"] == {"later": [1]}


@pytest.mark.parametrize("key", [key for key in PROVENANCE if key != "format"])
def test_what_every_run_has_must_be_there(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        Provenance.model_validate({k: v for k, v in PROVENANCE.items() if k != key})
