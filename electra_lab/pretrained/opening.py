"""From a path or a name to a pair."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra_lab.assembly.experiment import open_corpus
from electra_lab.data.raw_documents import held_out_texts
from electra_lab.inference.pair import Pair
from electra_lab.pretrained.opened import open_run, run_config
from electra_lab.storage.run_directory import is_run
from electra_lab.training.device import choose_device
from registry.errors import ConfigError


def load(path_or_name: str | Path, *, device: str = "auto", step: int | None = None) -> Pair:
    """Open a pre-trained pair for use.

    path_or_name  a run directory, a folder that `electra-lab export` wrote, or an ELECTRA or BERT in Hugging Face's
                  format: a folder, or a name on the hub, which needs the network
    device        "cpu", "cuda", or "auto", which takes CUDA if there is a device
    step          of a run directory, the checkpoint to open; by default the newest

    Raises registry.errors.LabError.
    """
    name = os.path.expanduser(path_or_name)
    if "\0" in name:
        raise ConfigError(f"{name!r}: cannot be a path.")
    if step is not None and not isinstance(step, int):
        raise ConfigError(f"step must be a whole number, is {step!r}.")
    where, path = choose_device(device), Path(name)
    if is_run(path):
        run = open_run(path, where, step)
        networks: dict[str, Any] = run.networks
        return Pair(str(path), run.tokenizer, run.vocabulary, run.length, **networks)
    if step is not None:
        raise ConfigError(f"{path_or_name}: is not a run directory, so it has no step {step}.")
    from electra_lab.pretrained.exported import open_folders

    return open_folders(name, where)


def held_out(path: Path) -> Iterator[str]:
    """Yield the documents that a run kept from training. Raises ConfigError, DataError if the corpus is not there."""
    loaded = run_config(path)
    return held_out_texts(open_corpus(loaded), loaded.config.data.held_out)
