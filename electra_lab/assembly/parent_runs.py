"""Weights that come from parent runs."""

from collections.abc import Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, cast

from torch import nn

from electra_lab.assembly.build import Built
from electra_lab.config.load import Loaded
from electra_lab.config.schema import ExperimentConfig
from electra_lab.config.source import Loc
from electra_lab.data.store import Store
from electra_lab.model.network import Network
from electra_lab.model.weights import account_for, fill, own_tensors
from electra_lab.pretrained.hugging_face import is_model
from electra_lab.pretrained.opening import config_with, read_run
from electra_lab.pretrained.trained_model import Part
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, DataError

SAME = ("corpus", "tokenizer", "data.held_out", "data.overlap", "embedding.dim", "embedding.max_length")


def parents_of(objective: nn.Module) -> Mapping[str, Path]:
    """Return the run directories and models that an objective starts from, by the name of its own network."""
    parents: Mapping[str, Path] = getattr(objective, "earlier_runs", dict)()
    return parents


def parent_models(objective: nn.Module) -> Mapping[str, Path]:
    """Return those that are folders in Hugging Face format: their weights come as those of `init`."""
    return {network: path for network, path in parents_of(objective).items() if is_model(path)}


def parent_runs(objective: nn.Module) -> Mapping[str, Path]:
    """Return the others, run directories."""
    return {network: path for network, path in parents_of(objective).items() if not is_model(path)}


def evaluates_at_start(config: ExperimentConfig, objective: nn.Module) -> bool:
    """Return True if validation text is evaluated before the first step: with `auto`, if weights are loaded."""
    wanted = config.evaluate.at_start
    return bool(config.init.models or parents_of(objective)) if wanted == "auto" else wanted


def refuse_other_parents(loaded: Loaded, objective: nn.Module) -> None:
    """Raise ConfigError if a parent run has other data or another network, DataError if it is not there."""
    ours = loaded.config.model_dump(mode="json", exclude_none=True)
    for network, run in parent_runs(objective).items():
        try:
            theirs = config_with(run, network)
        except DataError as error:
            raise loaded.problem(place_of(loaded, run), str(error), DataError) from None
        for key in (*SAME[:2], network, *SAME[2:]):
            loc: Loc = tuple(key.split("."))
            both: list[Any] = [ours, theirs]
            try:
                one, two = (reduce(getitem, loc, config) for config in both)
            except (KeyError, TypeError):
                reason = f"{run / 'config.yaml'} is not a complete experiment: it lacks {key}."
                raise loaded.problem(place_of(loaded, run), reason) from None
            if one != two:
                cure = "Write the run's own section, or name another run."
                raise loaded.problem(loc, f"is {one}, but the run whose {network} is used, {run}, has {two}. {cure}")


def load_parents(loaded: Loaded, built: Built, store: Store) -> dict[str, str]:
    """Load the weights of parent runs; returns the checkpoint of each network. Raises DataError, CheckpointError."""
    used = {}
    for network, path in parent_runs(built.learner.objective).items():
        try:
            RunDirectory(path).provenance()
        except CheckpointError as error:
            raise loaded.problem(place_of(loaded, path), str(error), DataError) from None
        model = read_run(path, plugins=False)
        assert model.run is not None
        if (there := model.run.provenance.data.store) != store.key:
            # The sections may be equal and the files not; then the same id may mean another token.
            stores = f"token store {there}, here {store.key}"
            reason = f"{path} was trained on other data ({stores}), so its tokens differ."
            raise loaded.problem(place_of(loaded, path), reason, DataError)
        used[network] = load_part(model.part(network), cast("Network", built.networks[network]))
    return used


def load_part(part: Part, network: Network) -> str:
    """Fill a network, and return the checkpoint with its checksum. Raises CheckpointError."""
    try:
        account = account_for(part.tensors, own_tensors(network))
    except ValueError as error:
        raise part.misfit(str(error)) from None
    if others := (*account.new, *account.unused):
        raise part.misfit(f"it has other heads: {', '.join(others)}.")
    fill(network, part.tensors)
    (checksum,) = part.sums().values()
    return f"{part.path.name} {checksum}"


def place_of(loaded: Loaded, run: Path) -> Loc:
    """Return the option of the objective that names a run."""
    options = loaded.config.objective.keywords()
    return ("objective", *(name for name, value in options.items() if value == run))
