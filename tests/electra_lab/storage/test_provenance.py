"""provenance.json as a model: required keys, and keys of older and newer files."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from electra_lab.metrics import PRETRAINING
from electra_lab.storage.provenance import FORMAT, Provenance

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


def test_a_newer_file_keeps_its_keys() -> None:
    newer = Provenance.model_validate(PROVENANCE | {"invented": {"later": [1]}})
    assert newer.format == FORMAT == 1
    assert newer.model_dump(mode="json")["invented"] == {"later": [1]}


@pytest.mark.parametrize("key", list(PROVENANCE))
def test_what_every_run_has_must_be_there(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        Provenance.model_validate({k: v for k, v in PROVENANCE.items() if k != key})
