"""The one exception family of the lab: every error is a sentence with a cure, and knows its exit code."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class LabError(Exception):
    """Something the user can mend. `exit_code` is what the command line returns for it."""

    exit_code = 1


class ConfigError(LabError):
    """The experiment file, a `--set` or a component's options are wrong."""

    exit_code = 2


class InUse(ConfigError):
    """Another process is at work in a run directory."""


class DataError(LabError):
    """The corpus or the tokenizer cannot be used."""

    exit_code = 3


class CheckpointError(LabError):
    """No usable checkpoint, or one that does not belong to this run."""

    exit_code = 4


class DivergedError(LabError):
    """A loss or gradient is not finite."""

    exit_code = 5


class OutOfMemoryError(LabError):
    """The device or the machine has too little memory."""

    exit_code = 6


class CellsFailed(LabError):
    """An ablation came to its end, but some of its cells failed."""

    exit_code = 7


class Preempted(LabError):
    """SIGTERM arrived; the run saved a checkpoint and can be resumed."""

    exit_code = 75


class Interrupted(LabError):
    """Ctrl-C arrived; the run saved a checkpoint and can be resumed."""

    exit_code = 130


class UnknownName(ConfigError):
    """No component of that kind has that name."""


class DuplicateName(ConfigError):
    """Two definitions claim one name."""


class BadSignature(ConfigError):
    """A component's signature does not follow its contract."""


class PluginError(ConfigError):
    """A plug-in cannot be loaded, or its code failed."""


class BadResult(ConfigError):
    """A component returned what its contract does not allow."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The tail of an error: the nearest known word, and all of them."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"{hint} Known: {', '.join(names) or 'none'}."
