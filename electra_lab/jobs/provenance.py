"""The provenance of a run: versions, machine, code, data."""

import hashlib
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import registry
from electra_lab.assembly.experiment import Experiment
from electra_lab.config.load import Loaded, dump
from electra_lab.jobs.changes import content
from electra_lab.storage.provenance import FORMAT, Code, Data, Environment, Provenance
from electra_lab.version import __version__
from registry import Plugin

CODE = Path(__file__).parents[1], Path(registry.__file__ or "").parent  # the folders of the lab
PACKAGES = ("torch", "tokenizers", "x-transformers", "reformer-pytorch", "numpy", "safetensors", "pydantic")


def provenance(loaded: Loaded, experiment: Experiment) -> Provenance:
    """Return the provenance of a new run."""
    return began(
        loaded,
        loaded.plugins,
        environment_of(experiment),
        data=data_of(experiment),
        earlier_runs=experiment.parents,
        init=experiment.init,
        weights=experiment.weights,
        parameters=experiment.parameters,
        metrics=dict(experiment.accumulate(()).metrics),
        **length(experiment),
    )


def length(experiment: Experiment) -> dict[str, Any]:
    """Return the length of a run, which may change when it is resumed."""
    settings = experiment.settings
    return {
        "steps": settings.steps,
        "flops_per_step": settings.flops.per_step,
        "flops": settings.flops.total(settings.steps),
        "paper_flops": experiment.paper_flops,
        "milestones": experiment.milestones,
    }


def began(loaded: Loaded[Any], plugins: Sequence[Plugin], environment: Environment, **facts: Any) -> Provenance:
    """Return the provenance of a training that begins now; `facts` are the keys specific to its kind."""
    return Provenance(
        format=FORMAT,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=sys.argv,
        electra_lab=__version__,
        git=_git(),
        config_sha256=hashlib.sha256(dump(loaded.config).encode()).hexdigest(),
        config=content(loaded),
        plugins=[Code(file=str(p.file), sha256=p.sha256, package=p.package) for p in plugins],
        environment=environment,
        platform=platform.platform(),
        **facts,
    )


def data_of(experiment: Experiment) -> Data:
    store = experiment.store
    return Data(
        store=store.key,
        documents=dict(store.documents),
        tokens=dict(store.tokens),
        overlap=store.overlap,
        vocabulary=experiment.vocabulary.size,
        rows=len(experiment.train),
    )


def environment_of(experiment: Experiment) -> Environment:
    """Return the environment of an experiment: everything besides its config that can affect its numbers."""
    choices = experiment.choices
    return environment(
        experiment.device,
        choices.precision,
        processes=experiment.run.learner.world.size,
        compile=choices.compile,
        attention=choices.attention,
        micro_batch_size=experiment.settings.micro_batch_size,
        reasons=choices.reasons,
    )


def environment(device: torch.device, precision: str, **choices: Any) -> Environment:
    """Return the parts of the machine that can affect numbers; they are compared when a run is resumed."""
    return Environment(
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        device=device_name(device),
        processor=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        precision=precision,
        electra_lab=_code(),
        **choices,
    )


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def differences(before: Environment, now: Environment) -> list[str]:
    """Describe the changes of the environment: `threads 2 -> 1`."""
    unknown = {key for key in ("electra_lab", "micro_batch_size") if getattr(before, key) is None}  # to older versions

    def flat(environment: Environment) -> dict[str, Any]:
        return environment.model_dump(exclude={"packages", "reasons", *unknown}) | environment.packages

    then, today = flat(before), flat(now)
    return [f"{key} {then.get(key)} -> {today[key]}" for key in today if then.get(key) != today[key]]


@cache
def _code() -> str:
    """Return the version of the lab with a hash of its code, which may change without a new version."""
    state = hashlib.sha256()
    for folder in CODE:
        for file in sorted(folder.rglob("*.py")):
            state.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return f"{__version__} ({state.hexdigest()[:8]})"


@cache  # imported packages do not change
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Return the commit of the running code, if git tracks it and answers."""
    try:
        return _commit()
    except (OSError, subprocess.SubprocessError):
        return None


@cache  # the running code is that of the first answer; failures are not kept
def _commit() -> dict[str, Any]:
    code = [str(folder) for folder in CODE]

    def git(*arguments: str) -> str:
        command = ["git", "-C", code[0], *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    git("ls-files", "--error-unmatch", "__init__.py")  # otherwise it merely lies inside somebody's repository
    return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--", *code))}
