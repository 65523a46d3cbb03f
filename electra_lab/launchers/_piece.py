"""One piece of work, as launchers run it in their worker processes, and the environment of these."""

import sys
import traceback
from importlib import import_module
from typing import Any

from registry import LabError, Outcome, Work
from registry.errors import ConfigError


def variables(threads: int) -> dict[str, str]:
    """Return the environment variables that limit the threads of a process; tokenizers use one."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**dict.fromkeys(names, str(threads)), "TOKENIZERS_PARALLELISM": "false"}


def library(launcher: str, name: str) -> Any:
    """Import a library that a launcher needs. Raises ConfigError."""
    try:
        return import_module(name)
    except ImportError:
        cure = "Install it: pip install 'electra-lab[clusters]'."
        raise ConfigError(f"launcher '{launcher}' needs {name}. {cure}") from None


def attempt(work: Work, folder: str, piece: str) -> Outcome:
    """Call work(folder, piece); an exception makes it a `failed` piece, with its traceback on stderr."""
    try:
        outcome = work(folder, piece)
        if isinstance(outcome, Outcome):
            return outcome
        raise TypeError(f"the work returned {type(outcome).__name__} and not an Outcome")
    except (Exception, SystemExit) as error:  # work that calls sys.exit must not take the process with it
        traceback.print_exc(file=sys.stderr)
        return Outcome("failed", sentence(error))


def sentence(error: BaseException) -> str:
    """Return `error` on one line; a LabError is already a sentence."""
    text = " ".join(str(error).split())
    return text if isinstance(error, LabError) and text else f"{type(error).__name__}: {text or 'no details'}"
