"""Weights that an objective takes from parent runs."""

from collections.abc import Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from torch import nn

from electra_lab.assembly.build import Built
from electra_lab.config.load import Loaded
from electra_lab.config.source import Loc, read_file
from electra_lab.data.store import Store
from electra_lab.storage.checkpoint import load_network
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, DataError

SAME = ("corpus", "tokenizer", "data.held_out", "data.overlap", "embedding.dim", "embedding.max_length")


def parent_runs(objective: nn.Module) -> Mapping[str, Path]:
    """Return the run directories whose weights an objective takes, by the name of its network."""
    runs: Mapping[str, Path] = getattr(objective, "earlier_runs", dict)()
    return runs


def config_of(run: Path, network: str) -> Any:
    """Return the config of a run; its discriminator stands in for a missing generator. Raises DataError."""
    if not (run / "config.yaml").is_file() or not any((run / "checkpoints").glob("step-*")):
        raise DataError(f"{run} is not a run directory with a checkpoint.")
    config: Any = read_file(run / "config.yaml").plain()
    config[network] = config.get(network) or config.get("discriminator")
    return config


def refuse_other_parents(loaded: Loaded, objective: nn.Module) -> None:
    """Raise ConfigError if a parent run has other data or another network, DataError if it is missing."""
    ours = loaded.config.model_dump(mode="json", exclude_none=True)
    for network, run in parent_runs(objective).items():
        try:
            theirs = config_of(run, network)
        except DataError as error:
            raise loaded.problem(place_of(loaded, run), str(error), DataError) from None
        for key in (*SAME[:2], network, *SAME[2:]):
            loc: Loc = tuple(key.split("."))
            try:
                mine, other = (reduce(getitem, loc, config) for config in (ours, theirs))
            except (KeyError, TypeError):
                reason = f"{run / 'config.yaml'} is not a complete experiment: it lacks {key}."
                raise loaded.problem(place_of(loaded, run), reason) from None
            if mine != other:
                cure = "Write the run's own section, or name another run."
                raise loaded.problem(loc, f"is {mine}, but the run whose {network} is used, {run}, has {other}. {cure}")


def load_parents(loaded: Loaded, built: Built, store: Store) -> dict[str, str]:
    """Load the weights of parent runs; returns the checkpoint of each network. Raises DataError, CheckpointError."""
    used = {}
    for network, path in parent_runs(built.learner.objective).items():
        run = RunDirectory(path)
        try:
            provenance = run.provenance()
        except CheckpointError as error:
            raise loaded.problem(place_of(loaded, path), str(error), DataError) from None
        run.refuse_other_format(provenance)
        if provenance.data.store != store.key:
            # The sections may be equal and the files not; then the same id may mean another token.
            there = f"token store {provenance.data.store}, here {store.key}"
            reason = f"{path} was trained on other data ({there}), so its tokens differ."
            raise loaded.problem(place_of(loaded, path), reason, DataError)
        used[network] = load_network(run.checkpoints, (network, "discriminator"), built.networks[network])
    return used


def place_of(loaded: Loaded, run: Path) -> Loc:
    """Return the option of the objective that names a run."""
    options = loaded.config.objective.keywords()
    return ("objective", *(name for name, value in options.items() if value == run))
