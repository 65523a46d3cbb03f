"""electra_lab: the lab for ELECTRA pre-training.

load(path_or_name)  a pre-trained pair, to detect replaced tokens, corrupt, fill and embed texts
held_out(run)       the documents that a run kept from training
run(config)         train an experiment
check(config)       find all errors of an experiment without running it
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import registry

if TYPE_CHECKING:
    from electra_lab.inference.pair import Pair

if not getattr(registry, "__electra_lab__", False):
    _message = (
        f"electra_lab needs its own package `registry`, but Python found another one: {registry.__file__}. "
        "Rename or move that file, or start Python from another folder."
    )
    if sys.argv[0] == "-m" or Path(sys.argv[0]).name == "electra-lab":  # the command line, before it can catch errors
        print(_message, file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(_message)

__version__ = "0.1.0"

Config = str | Path | Mapping[str, Any]


def load(path_or_name: str | Path, *, device: str = "auto", step: int | None = None) -> Pair:
    """Open a pre-trained pair for use.

    path_or_name  a run directory, a folder that `electra-lab export` wrote, or an ELECTRA or BERT in Hugging Face's
                  format: a folder, or a name on the hub, which needs the network
    device        "cpu", "cuda", or "auto", which takes CUDA if there is a device
    step          of a run directory, the checkpoint to open; by default the newest

    Raises registry.errors.LabError.
    """
    from electra_lab.inference.opening import load

    return load(path_or_name, device=device, step=step)


def held_out(run: str | Path) -> list[str]:
    """Return the documents that a run kept from training. Its corpus must still be there. Raises LabError."""
    from electra_lab.inference.opening import held_out

    return list(held_out(Path(run)))


def run(config: Config, *, set: str | Iterable[str] = (), out: str | Path | None = None, device: str = "auto") -> Path:
    """Train an experiment, and return its run directory, which `load` opens.

    config  an experiment file, or its content as a mapping; then paths begin in the working directory
    set     values to override, as with `--set`: ["train.steps=100"]
    out     the run directory, absent or empty; by default runs/<name>/<time>

    Raises registry.errors.LabError.
    """
    from electra_lab.runs import execute

    return execute.run(_source(config), _changes(set), None if out is None else Path(out), device)


def check(config: Config, *, set: str | Iterable[str] = ()) -> dict[str, Any]:
    """Find all errors of an experiment without running it, and return it complete, with every default.

    Raises registry.errors.ConfigError with one line per error, and DataError for data that is not there.
    """
    from electra_lab.assembly.experiment import check
    from electra_lab.config.load import load

    loaded = load(_source(config), _changes(set))
    if absent := check(loaded):
        raise absent
    complete: dict[str, Any] = loaded.config.model_dump(mode="json", exclude_none=True)
    return complete


def _changes(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _source(config: Config) -> Path | Mapping[str, Any]:
    return Path(config) if isinstance(config, str) else config
