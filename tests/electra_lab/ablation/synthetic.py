"""An ablation's folder as `ablate` leaves it, made of numbers: no run, no network."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

MEASURES: list[dict[str, Any]] = [
    {
        "type": "fixed_corruption",
        "folder": "fixed_corruption",
        "options": {"share": 0.15},
        "reference": None,
        "quantities": {
            "reference_auc": {"summary": "AUC on one fixed corruption of held-out text.", "higher_is_better": True},
            "reference_accuracy": {"summary": "Accuracy there at threshold 0.5.", "higher_is_better": True},
        },
    },
    {
        "type": "pretraining",
        "folder": "pretraining",
        "options": {},
        "reference": None,
        "quantities": {
            "held_out_loss": {"summary": "The objective's own loss on held-out text.", "higher_is_better": False}
        },
    },
]
HELD_OUT = {  # what else a run's own page reads
    "discriminator_accuracy": 0.8, "discriminator_precision": 0.5, "discriminator_recall": 0.4,
    "always_original_auc": 0.5, "always_original_accuracy": 0.85, "unigram_auc": 0.6, "replaced_share": 0.15,
    "generator_accuracy": 0.2, "unigram_entropy": 6.1,
}  # fmt: skip
STEPS, FLOPS, TOKENS_A_STEP = 400, 1.0e12, 2048


def score(variant: int, seed: int) -> float:
    """What variant number so-and-so gets with a seed: shared luck of the seed, a little of its own."""
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
    **plan: Any,
) -> Path:
    """A plan of these variants over these seeds, and its cells.

    state    of cells by id (`v0-s1`), where they are not done: missing, failed, begun, unfinished, unmeasured, partial
    without  by variant, the quantities that its cells do not have
    flops    of one cell of each variant, if they are not the same
    """
    state, without, labels = state or {}, without or {}, list(changes)
    folder.mkdir(parents=True, exist_ok=True)
    cells = [
        {
            "id": f"v{i}-s{seed}",
            "variant": label,
            "seed": seed,
            "steps": STEPS - 40 * i,
            "flops": flops[i] if flops else FLOPS * (1 - 0.001 * i),
            "parameters": {"generator": 500_000 * (i + 1), "discriminator": 4_000_000, "shared": 300_000,
                           "total": 3_700_000 + 500_000 * (i + 1)},
        }
        for i, label in enumerate(labels)
        for seed in seeds
    ]  # fmt: skip
    written = {
        "name": "generator_size", "question": question, "base": "../reformer_small.yaml",
        "budget": {"flops": FLOPS} if budget is None else budget or None, "keys": list(keys),
        "variants": [{"label": label, "changes": each} for label, each in changes.items()], "baseline": labels[0],
        "seeds": list(seeds), "measures": MEASURES, "leading": "reference_auc", "cells": cells,
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(written | plan, indent=1), encoding="utf-8")
    (folder / "ablation.yaml").write_text("base: ../reformer_small.yaml\n", encoding="utf-8")
    for cell in cells:
        variant = labels.index(cell["variant"])
        _write_cell(folder, cell, variant, changes[cell["variant"]], state.get(cell["id"], "done"), without)
    return folder


def _write_cell(
    folder: Path,
    cell: Mapping[str, Any],
    variant: int,
    changes: Mapping[str, Any],
    state: str,
    without: Mapping[str, Collection[str]],
) -> None:
    if state == "failed":
        (folder / "failed").mkdir(exist_ok=True)
        error = f"{folder / 'cells' / cell['id'] / 'metrics.jsonl'}: step 12: the loss was not finite & <b>large</b>."
        (folder / "failed" / f"{cell['id']}.json").write_text(json.dumps({"error": error, "attempts": 2}))
    if state in ("missing", "failed"):
        return
    path = folder / "cells" / cell["id"]
    path.mkdir(parents=True)
    if state == "begun":
        return
    (path / "config.yaml").write_text(yaml.safe_dump(_config(cell, changes), sort_keys=False), encoding="utf-8")
    (path / "provenance.json").write_text(json.dumps(_provenance(path), indent=1), encoding="utf-8")
    records = list(_records(cell, variant))
    kept = records[: len(records) // 2] if state == "unfinished" else records
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
    if state == "unfinished":
        return
    (path / "report.html").write_text("<!doctype html><title>run</title>", encoding="utf-8")
    if state == "unmeasured":
        return
    auc = score(variant, cell["seed"])
    measures = {
        "fixed_corruption": {"reference_auc": auc, "reference_accuracy": 0.8 + auc / 10},
        "pretraining": {"held_out_loss": 6 - 3 * auc},
    }
    if state == "partial":
        del measures["pretraining"]
    absent = without.get(cell["variant"], ())
    left = {measure: {k: v for k, v in values.items() if k not in absent} for measure, values in measures.items()}
    (path / "measures.json").write_text(json.dumps(left, indent=1), encoding="utf-8")


def _config(cell: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "name": cell["id"], "seed": cell["seed"], "imports": [],
        "generator": {"type": "reformer", "scale": 0.5}, "sampler": {"type": "gumbel", "temperature": 1.0},
        "masking": {"type": "replace_prob", "mask_prob": 0.15},
        "train": {"steps": cell["steps"], "learning_rate": 5e-4},
    }  # fmt: skip
    for key, value in changes.items():
        *above, last = key.split(".")
        inside = config
        for name in above:
            inside = inside.setdefault(name, {})
        inside[last] = value
    return config


def _provenance(path: Path) -> dict[str, Any]:
    return {
        "started": "2026-11-20T13:50:56+0000", "command": ["electra-lab", "run", str(path)], "electra_lab": "0.1.0",
        "git": {"commit": "5f2dae8da280f75976ac3c062d1d0510872a3ec3", "changed": False},
        "config_sha256": "0" * 64, "plugins": [{"file": str(path / "mine.py"), "sha256": "ab" * 32, "package": None}],
        "environment": {"python": "3.11.7", "packages": {"torch": "2.13.0+cpu", "numpy": "2.4.6"}, "device": "cpu",
                        "processor": "AVX512", "threads": 1, "precision": "fp32"},
        "platform": "Linux-6.18-x86_64-with-glibc2.36",
        "data": {"store": "1147959d66f455b1", "documents": {"train": 14678, "held_out": 11},
                 "tokens": {"train": 2070185, "held_out": 837}, "vocabulary": 4096},
    }  # fmt: skip


def _records(cell: Mapping[str, Any], variant: int) -> Any:
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
            auc = score(variant, cell["seed"]) - 0.2 * decay
            yield {"step": step, "split": "held_out", **loss, "discriminator_auc": auc, **HELD_OUT, "seconds": 1.5}


SCALES = {f"generator.scale={scale}": {"generator.scale": scale} for scale in (0.25, 0.5, 0.75, 1.0)}
NAMED = {
    "as the paper has it": {},
    "adversarial": {"objective.type": "adversarial"},
    "masked <b>only</b> & $x$ | `all` of the tokens": {"objective.type": "electra_masked_only"},
    "mlm": {"objective.type": "mlm", "generator": None},
}
GRID = {
    f"generator.scale={scale},masking.mask_prob={prob}": {"generator.scale": scale, "masking.mask_prob": prob}
    for scale in (0.25, 0.5, 1.0)
    for prob in (0.15, 0.25)
}
