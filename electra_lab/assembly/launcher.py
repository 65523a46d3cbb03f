"""Launchers: as the command line names them, and as objects."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from electra_lab.config.sections import Of
from electra_lab.config.source import parse
from registry import Launcher, launchers, using
from registry.component import Component
from registry.errors import ConfigError


def launcher_options(text: str, workers: int | None = None) -> Component:
    """Parse the value of `--launcher`: `slurm`, or `{type: slurm, partition: cpu}`. Raises ConfigError.

    workers  number of `--workers`, which wins over the mapping
    """
    value: Any = parse(text, "--launcher", Path.cwd(), one_line=True).plain()
    value = {"type": value} if isinstance(value, str) else value
    if workers and isinstance(value, dict):
        value = {**value, "workers": workers}
    try:
        chosen: Component = TypeAdapter(Annotated[Component, Of(launchers)]).validate_python(value)
    except ValidationError as error:
        wrong = " ".join(": ".join([".".join(map(str, e["loc"])), e["msg"]]).lstrip(": ") for e in error.errors())
        raise ConfigError(f"--launcher {text}: {wrong} A mapping has options: '{{type: NAME, ...}}'.") from None
    return chosen


def make_launcher(chosen: Component, **options: Any) -> Launcher:
    """Make a launcher; `options` override the chosen ones."""
    entry = launchers.get(chosen.type)
    with using(entry):
        launcher = entry.component(**{**chosen.keywords(), **options})
        if not (callable(launcher) and callable(launcher.check) and isinstance(launcher.here, bool)):
            raise TypeError("must be callable, with a method check() and a boolean `here`.")
        return launcher
