"""Where a run comes from: versions, machine, code, data."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import electra_lab
import registry
from electra_lab.assemble import Experiment
from electra_lab.config.load import Loaded

PACKAGES = ("torch", "tokenizers", "x-transformers", "reformer-pytorch", "numpy", "safetensors", "pydantic")


def provenance(loaded: Loaded, experiment: Experiment, config_yaml: str) -> dict[str, Any]:
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "electra_lab": electra_lab.__version__,
        "git": _git(),
        "config_sha256": hashlib.sha256(config_yaml.encode()).hexdigest(),
        "plugins": [{"file": str(p.file), "sha256": p.sha256, "package": p.package} for p in loaded.plugins],
        "environment": environment(experiment),
        "platform": platform.platform(),
        "data": {
            "store": experiment.store.key,
            "documents": experiment.store.documents,
            "tokens": {"train": len(experiment.store.train), "held_out": len(experiment.store.held_out)},
            "vocabulary": experiment.vocabulary.size,
        },
        **({"frozen_generator": experiment.frozen} if experiment.frozen else {}),
        "parameters": experiment.parameters,
        "steps": experiment.plan.steps,
        "flops_per_step": experiment.plan.flops.per_step,
        "flops": experiment.plan.flops.total(experiment.plan.steps),
    }


def environment(experiment: Experiment) -> dict[str, Any]:
    """What a run's numbers can depend on beyond its config; compared when it is resumed."""
    device = experiment.device
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "precision": experiment.plan.precision,
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed in the environment, in words: `threads 2 -> 1`."""
    flat_before, flat_now = ({**e, **e["packages"]} for e in (before, now))
    keys = [key for key in flat_now if key != "packages"]
    return [f"{k} {flat_before.get(k)} -> {flat_now[k]}" for k in keys if flat_before.get(k) != flat_now[k]]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit of the code that runs, if git tracks it."""
    code = [str(Path(package.__file__ or "").parent) for package in (electra_lab, registry)]

    def git(*arguments: str) -> str:
        command = ["git", "-C", code[0], *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else it merely lies inside somebody's repository
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--", *code))}
    except (OSError, subprocess.SubprocessError):
        return None
