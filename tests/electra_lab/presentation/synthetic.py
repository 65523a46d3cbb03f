"""The folder of an ablation as `ablate` leaves it, written without runs and networks."""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from electra_lab.metrics import PRETRAINING
from electra_lab.presentation import run_page
from electra_lab.presentation import sweep_figures as ablation_figures
from electra_lab.storage.provenance import FORMAT

AUC = {"summary": "AUC on one fixed corruption of test text", "higher_is_better": True}
ACCURACY = {"summary": "accuracy there at threshold 0.5", "higher_is_better": True}
OWN_LOSS = {"summary": "the objective's own loss on test text", "unit": "nats", "higher_is_better": False}
MEASURES: list[dict[str, Any]] = [
    {"type": "fixed_corruption", "key": "fixed_corruption-0123456789", "options": {"share": 0.15}, "references": {},
     "metrics": {"reference_auc": AUC, "reference_accuracy": ACCURACY}},
    {"type": "pretraining", "key": "pretraining-abcdef0123", "options": {}, "references": {},
     "metrics": {"own_loss": OWN_LOSS}},
]  # fmt: skip
CORRUPTION, OWN = (measure["key"] for measure in MEASURES)
OTHERS = {  # further keys that the page of a run reads
    "discriminator_accuracy": 0.8, "discriminator_precision": 0.5, "discriminator_recall": 0.4,
    "always_original_auc": 0.5, "always_original_accuracy": 0.85, "unigram_auc": 0.6, "replaced_share": 0.15,
    "generator_accuracy": 0.2, "unigram_entropy": 6.1,
}  # fmt: skip
STEPS, FLOPS, TOKENS_A_STEP = 400, 1.0e12, 2048

Score = Callable[[int, int], float]


def score(variant: int, seed: int) -> float:
    """Return the leading metric of a cell: effects of the variant and the seed, and a little noise."""
    rng = np.random.default_rng([variant, seed])
    luck = np.random.default_rng(seed).normal()
    return float(0.7 + 0.02 * variant - 0.005 * variant**2 + 0.01 * luck + 0.002 * rng.normal())


def write_folder(
    folder: Path,
    changes: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int] = (0, 1, 2),
    keys: Sequence[str] = (),
    *,
    state: Mapping[str, str] | None = None,
    without: Mapping[str, Collection[str]] | None = None,
    flops: Sequence[float] | None = None,
    question: str = "How large should the generator be?",
    budget: Mapping[str, float] | None = None,
    scores: Score = score,
    **plan: Any,
) -> Path:
    """Write a plan of these variants over these seeds, and its cells.

    state    of cells by id (`v0-s1`), where they are not done: missing, failed, begun, unfinished, unmeasured,
             partial, or cleaned (done, but without checkpoints)
    without  by variant, the metrics that its cells do not have
    flops    of one cell of each variant, if they differ
    """
    state, without, labels = state or {}, without or {}, list(changes)
    folder.mkdir(parents=True, exist_ok=True)
    cells = []
    for (i, label), seed in product(enumerate(labels), seeds):
        spent, generator = flops[i] if flops else FLOPS * (1 - 0.001 * i), 500_000 * (i + 1)
        cells.append({
            "id": f"v{i}-s{seed}", "variant": label, "seed": seed, "steps": max(STEPS - 40 * i, 80),
            "flops": spent, "paper_flops": 2 * spent,
            "parameters": {"generator": generator, "discriminator": 4_000_000, "shared": 300_000,
                           "total": 3_700_000 + generator},
        })  # fmt: skip
    variants = []
    for label, changed in changes.items():
        variants.append({"label": label, "changes": changed, "differs": _differs(changes[labels[0]], changed)})
    written = {
        "format": 1, "name": "generator_size", "question": question, "base": "../reformer_small.yaml",
        "budget": {"flops": FLOPS} if budget is None else budget or None, "keys": list(keys),
        "variants": variants,
        "baseline": labels[0], "seeds": list(seeds), "measures": MEASURES, "metric": "reference_auc", "cells": cells,
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(written | plan, indent=1), encoding="utf-8")
    (folder / "ablation.yaml").write_text("base: ../reformer_small.yaml\n", encoding="utf-8")
    for cell in cells:
        variant = labels.index(cell["variant"])
        became = state.get(cell["id"], "done")
        if became == "failed":
            file = folder / "cells" / cell["id"] / "metrics.jsonl"
            fail(folder, cell["id"], f"{file}: step 12: the loss was not finite & <b>large</b>.", 2)
        elif became != "missing":
            write_cell(folder, cell, variant, became, scores(variant, cell["seed"]), without)
    return folder


def add_references(folder: Path, score: Callable[[int, int, int], float], metric: str = "auc") -> Path:
    """Give all measured cells of a folder a metric `auc` that is the mean over three references.

    score   of the reference, the variant and the seed
    metric  that the report leads with
    """
    parts = ["auc_small", "auc_large", "auc_unigram"]

    def found(variant: int, seed: int) -> dict[str, float]:
        scores = [score(i, variant, seed) for i in range(3)]
        return {"auc": sum(scores) / 3} | dict(zip(parts, scores, strict=True))

    added = {"auc": {"summary": "the mean", "parts": parts}} | {part: {} for part in parts}
    return _add(folder, added, found, metric=metric)


def add_baselines(folder: Path, metric: str = "reference_auc", **trivial: Score) -> Path:
    """Give all measured cells of a folder baselines of a metric, by name, with scores by variant and seed."""
    known = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["measures"][0]["metrics"][metric]
    added = {name: {"summary": "needs no training", "title": f"the {name}"} for name in trivial}
    changed = {metric: known | {"baselines": list(trivial)}, **added}
    return _add(folder, changed, lambda variant, seed: {name: score(variant, seed) for name, score in trivial.items()})


def _add(folder: Path, metrics: dict[str, Any], found: Callable[[int, int], dict[str, float]], **changed: Any) -> Path:
    """Add metrics to the first measure of a plan, and their numbers to all measured cells."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan["measures"][0]["metrics"] |= metrics
    (folder / "plan.json").write_text(json.dumps(plan | changed), encoding="utf-8")
    labels = [variant["label"] for variant in plan["variants"]]
    for cell in plan["cells"]:
        file = folder / "cells" / cell["id"] / "measures.json"
        if file.is_file():
            values = json.loads(file.read_text())
            values["numbers"][CORRUPTION] |= found(labels.index(cell["variant"]), cell["seed"])
            file.write_text(json.dumps(values), encoding="utf-8")
    return folder


def _differs(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (base.get(key), own.get(key)) for key in {**base, **own} if base.get(key) != own.get(key)}


def fail(folder: Path, id: str, error: str, attempts: int = 1) -> None:
    (folder / "failed").mkdir(exist_ok=True)
    (folder / "failed" / f"{id}.json").write_text(json.dumps({"error": error, "attempts": attempts}))


def write_cell(
    folder: Path,
    cell: Mapping[str, Any],
    variant: int = 0,
    state: str = "done",
    auc: float = 0.7,
    without: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Write the files of a finished cell."""
    path = folder / "cells" / cell["id"]
    path.mkdir(parents=True)
    if state == "begun":
        return
    config = {"name": "generator_size", "seed": cell["seed"], "generator": {"scale": 0.5}}
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    (path / "provenance.json").write_text(json.dumps(provenance(path, cell), indent=1), encoding="utf-8")
    records = list(_records(cell, variant, auc))
    kept = records[: len(records) // 2] if state == "unfinished" else records
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
    if state == "unfinished":
        return
    if state != "cleaned":
        write_checkpoint(path, cell["steps"])
    (path / "report.html").write_text("<!doctype html><title>run</title>", encoding="utf-8")
    if state == "unmeasured":
        return
    detected = {"reference_auc": auc, "reference_accuracy": 0.8 + auc / 10}
    measures = {CORRUPTION: detected, OWN: {"own_loss": 6 - 3 * auc}}
    if state == "partial":
        del measures[OWN]
    absent = (without or {}).get(cell.get("variant", ""), ())
    for values, metric in product(measures.values(), absent):
        values.pop(metric, None)
    (path / "measures.json").write_text(measured(cell["id"], measures, cell["steps"]), encoding="utf-8")


def measured(id: str, numbers: Mapping[str, Any], step: int = STEPS) -> str:
    """Return the text of measures.json of a cell."""
    return json.dumps({"run": id, "step": step, "numbers": numbers}, indent=1)


def add_documents(cell: Path, documents: Mapping[str, Any], key: str = CORRUPTION) -> None:
    """Give a measured cell the contributions of test documents, by metric."""
    file = cell / "measures.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(values | {"documents": {key: documents}}), encoding="utf-8")


def write_checkpoint(run: Path, step: int) -> Path:
    """Write the final checkpoint with the parts that `AblationFolder.state` checks: its manifest."""
    checkpoint = run / "checkpoints" / f"step-{step:08d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "MANIFEST.json").write_text("{}", encoding="utf-8")
    return checkpoint


def provenance(path: Path, cell: Mapping[str, Any]) -> dict[str, Any]:
    config = path / "config.yaml"
    return {
        "format": FORMAT, "id": path.name, "started": "2026-11-20T13:50:56+0000",
        "command": ["electra-lab", "run", str(path)],
        "electra_lab": "0.1.0", "git": {"commit": "5f2dae8da280f75976ac3c062d1d0510872a3ec3", "changed": False},
        "config_sha256": hashlib.sha256(config.read_bytes() if config.is_file() else b"").hexdigest(),
        "config": yaml.safe_load(config.read_text()) if config.is_file() else {},
        "plugins": [{"file": str(path / "mine.py"), "sha256": "ab" * 32, "package": None}],
        "environment": {"python": "3.11.7", "packages": {"torch": "2.13.0+cpu", "numpy": "2.4.6", "absent": None},
                        "device": "cpu", "processor": "AVX512", "threads": 1, "precision": "fp32"},
        "platform": "Linux-6.18-x86_64-with-glibc2.36",
        "data": {"store": "1147959d66f455b1", "documents": {"train": 14678, "validation": 11, "test": 1012},
                 "tokens": {"train": 2070185, "validation": 837, "test": 90210}, "vocab_size": 4096,
                 "overlap": 0.0126},
        "parameters": cell["parameters"], "steps": cell["steps"], "flops": int(cell["flops"]),
        "paper_flops": int(cell["paper_flops"]) if "paper_flops" in cell else None,
        "flops_per_step": int(cell["flops"] // cell["steps"]),
        "metrics": {name: asdict(metric) for name, metric in PRETRAINING.items()},
    }  # fmt: skip


def _records(cell: Mapping[str, Any], variant: int, auc: float) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng([variant, cell["seed"], 7])
    steps, before = cell["steps"], 0
    for step in range(20, steps + 1, 20):
        speed = 9000.0 - 500 * variant
        decay = math.exp(-3 * step / steps)
        loss = {
            "generator_loss": 5 - 0.2 * variant + 3 * decay + 0.05 * rng.normal(),
            "discriminator_loss": 0.4 + 0.3 * decay + 0.01 * rng.normal(),
        }
        yield {"step": step, "split": "train", **loss, "tokens": step * TOKENS_A_STEP,
               "flops": cell["flops"] * step / steps, "tokens_per_second": speed,
               "seconds": (step - before) * TOKENS_A_STEP / speed}  # fmt: skip
        before = step
        if step % 80 == 0 or step == steps:
            yield {"step": step, "split": "validation", "tokens": 837, **loss, "discriminator_auc": auc - 0.2 * decay,
                   **OTHERS, "seconds": 1.5}  # fmt: skip
    yield {"step": steps, "split": "test", "tokens": 65536, **loss, "discriminator_auc": auc, **OTHERS, "seconds": 6.0}


SCALES = {f"generator.scale={scale}": {"generator.scale": scale} for scale in (0.25, 0.5, 0.75, 1.0)}
NAMED = {
    "as the paper has it": {},
    "adversarial": {"objective.type": "adversarial"},
    "masked <b>only</b> & $x$ | `all` of the tokens": {"objective.type": "electra_masked_only"},
    "mlm": {"objective.type": "mlm", "generator": None},
}
GRID: dict[str, dict[str, float]] = {}
for scale, prob in product((0.25, 0.5, 1.0), (0.15, 0.25)):
    changes = {"generator.scale": scale, "masking.mask_prob": prob}
    GRID[",".join(f"{key}={value}" for key, value in changes.items())] = changes


def leave_out_pictures(patch: pytest.MonkeyPatch) -> None:
    """Leave out the pictures of pages, which take most of the time, for tests of text and numbers."""
    for name, nothing in {"leading": None, "differences": None, "compute": (None, ""), "curves": []}.items():
        patch.setattr(ablation_figures, name, lambda results, nothing=nothing: nothing)
    patch.setattr(ablation_figures, "keys", lambda labels: dict.fromkeys(labels, ""))
    patch.setattr(run_page, "_curves", lambda records, metrics: [])
    patch.setattr(run_page, "training_charts", lambda runs: [])
