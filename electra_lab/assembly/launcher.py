"""Components that the command line names, and launchers as objects."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from electra_lab.config.sections import Of
from electra_lab.config.source import parse
from registry import Launcher, launchers, using
from registry.component import Component
from registry.core import Registry
from registry.errors import ConfigError


def component_of_flag(text: str, flag: str, registry: Registry[Any], **options: Any) -> Component:
    """Parse the value of a flag: `slurm`, or `{type: slurm, partition: cpu}`. Raises ConfigError.

    options  options of other flags, which win over the mapping
    """
    value: Any = parse(text, flag, Path.cwd(), one_line=True).plain()
    value = {"type": str(value)} if isinstance(value, str | int | float) else value  # a name may look like a number
    value = {**value, **options} if isinstance(value, dict) else value
    try:
        chosen: Component = TypeAdapter(Annotated[Component, Of(registry)]).validate_python(value)
    except ValidationError as error:
        wrong = " ".join(": ".join([".".join(map(str, e["loc"])), e["msg"]]).lstrip(": ") for e in error.errors())
        raise ConfigError(f"{flag} {text}: {wrong} A mapping has options: '{{type: NAME, ...}}'.") from None
    return chosen


def make_launcher(chosen: Component, **options: Any) -> Launcher:
    """Make a launcher; `options` override the chosen ones."""
    entry = launchers.get(chosen.type)
    with using(entry):
        launcher = entry.component(**{**chosen.keywords(), **options})
        if not (callable(launcher) and callable(launcher.check) and isinstance(launcher.here, bool)):
            raise TypeError("must be callable, with a method check() and a boolean `here`.")
        return launcher
