"""Libraries that trackers need."""

from importlib.util import find_spec

from registry.errors import ConfigError


def require(extra: str, *libraries: str) -> None:
    """Raise ConfigError, with the extra to install, if one of the libraries is not here. Imports nothing."""
    for library in libraries:
        spec = find_spec(library)
        if spec is None or spec.origin is None:  # a folder of that name, such as wandb/, is not the library
            raise ConfigError(f"needs {library}. Install it: pip install 'electra-lab[{extra}]'.")
