"""electra_lab: the lab for ELECTRA pre-training.

load(path_or_name)  a pre-trained pair, to detect replaced tokens, corrupt, fill and embed texts
held_out(run)       the documents that a run kept from training
run(config)         train an experiment
check(config)       find all errors of an experiment without running it
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import registry
from electra_lab.version import __version__

if TYPE_CHECKING:
    from electra_lab.api import check, held_out, load, run

__all__ = ["__version__", "check", "held_out", "load", "run"]

if not getattr(registry, "__electra_lab__", False):
    _message = (
        f"electra_lab needs its own package `registry`, but Python found another one: {registry.__file__}. "
        "Rename or move that file, or start Python from another folder."
    )
    if sys.argv[0] == "-m" or Path(sys.argv[0]).name == "electra-lab":  # the command line, before it can catch errors
        print(_message, file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(_message)


def __getattr__(name: str) -> Any:
    """Import the Python API when it is first used: it needs torch, which takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from electra_lab import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
