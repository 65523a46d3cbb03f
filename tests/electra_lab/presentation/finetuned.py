"""The folders of fine-tunings and suites as `finetune` leaves them, written without model and training."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.presentation import finetuning_page
from tests.electra_lab.presentation.synthetic import provenance

ID = "0123456789abcdef"  # of every fine-tuning
METRICS: dict[str, dict[str, Any]] = {
    "accuracy": {"summary": "share of the examples that get the right label", "title": "accuracy"},
    "matthews": {"summary": "correlation of predictions & labels", "title": "Matthews correlation"},
    "cut_examples": {"summary": "share of the examples that are cut", "title": "cut examples"},
}
CONFIG: dict[str, Any] = {
    "name": "animals", "seeds": [0], "model": "runs/small", "network": "discriminator", "init": "pretrained",
    "task": {"type": "text_classification"}, "dataset": {"type": "table"},
    "evaluate": {"select": "last", "errors": 10},
}  # fmt: skip

Splits = Mapping[str, Mapping[str, float | None]]  # of a seed: by split, by metric


def scores(name: str, *values: float | None, split: str = "validation", first: int = 0) -> dict[int, Splits]:
    """Return the results of seeds that have one metric on one split."""
    return {seed: {split: {name: value}} for seed, value in enumerate(values, start=first)}


def write_finetuned(
    folder: Path, seeds: Mapping[int, Splits], *, config: Mapping[str, Any] | None = None, **of_seeds: Any
) -> Path:
    """Write a fine-tuning whose `seeds` are finished; `config` overrides keys."""
    folder.mkdir(parents=True, exist_ok=True)
    written = CONFIG | {"seeds": list(seeds)} | dict(config or {})
    text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True)
    (folder / "finetuning.yaml").write_text(text, encoding="utf-8")
    (folder / "identity.json").write_text(json.dumps({"id": ID}), encoding="utf-8")
    for seed, splits in seeds.items():
        write_seed(folder, seed, splits, **of_seeds)
    return folder


def write_seed(
    folder: Path,
    seed: int,
    splits: Splits | None,
    *,
    metrics: Mapping[str, Mapping[str, Any]] = METRICS,
    predictions: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    lost: Mapping[str, Mapping[str, float]] | None = None,
    records: Sequence[Mapping[str, Any]] = (),
    id: str = ID,
    **facts: Any,
) -> Path:
    """Write the run directory of a seed; without `splits` it is not finished. `facts` replace keys of provenance.

    id  of the fine-tuning
    """
    path = folder / f"seed-{seed}"
    path.mkdir(parents=True, exist_ok=True)
    cell = {"parameters": {"network": 13_000, "head": 34, "total": 13_034}, "steps": 1200, "flops": 3.21e12}
    data = {"store": "0123", "documents": {"train": 67349, "validation": 872}}
    began = provenance(path, cell) | {"id": f"{id}-{seed}", "data": data, "metrics": metrics} | facts
    (path / "provenance.json").write_text(json.dumps(began), encoding="utf-8")
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    if splits is None:
        return path
    results: dict[str, Any] = {"run": f"{id}-{seed}", "seed": seed, "step": 1200, "splits": {}, "sha256": {}}
    results["lost"] = lost or {}
    for split, values in splits.items():
        found = (predictions or {}).get(split, [])
        lines = "".join(json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in found)
        (path / f"predictions-{split}.jsonl").write_text(lines, encoding="utf-8")
        results["sha256"][f"predictions-{split}.jsonl"] = hashlib.sha256(lines.encode()).hexdigest()
        own = (tables or {}).get(split, [])
        results["splits"][split] = {"examples": len(found), "metrics": dict(values), "tables": own}
    (path / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return path


def leave_out_curve(patch: pytest.MonkeyPatch) -> None:
    """Leave out the picture of a fine-tuning's page, which takes most of its time."""
    patch.setattr(finetuning_page, "_curve", lambda folder, table: None)
    patch.setattr(finetuning_page, "training_charts", lambda runs, first: [])
