"""electra_lab: the lab for ELECTRA pre-training.

load(path_or_name)  a pre-trained pair, to detect replaced tokens, corrupt, fill and embed texts; or a fine-tuned
                    model, to predict labels, numbers, tags and answers
held_out(run)       the documents that a run kept from training
run(config)         train an experiment
check(config)       find all errors of an experiment without running it
"""

from __future__ import annotations

import os
import signal
import sys

_IS_COMMAND = [os.path.basename(word) for word in sys.argv[:1]] in (["-m"], ["electra-lab"])


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Exit at once before and after a command, and in imports, which report exceptions as others or swallow them."""
    modules = set[str]()
    while frame:
        modules.add(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    if "electra_lab.cli" not in modules or "importlib._bootstrap" in modules:
        os._exit(130)
    raise KeyboardInterrupt


if _IS_COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupt)

from typing import TYPE_CHECKING, Any  # noqa: E402

import registry  # noqa: E402
from electra_lab.version import __version__  # noqa: E402

if TYPE_CHECKING:
    from types import FrameType

    from electra_lab.api import check, held_out, load, run

__all__ = ["__version__", "check", "held_out", "load", "run"]

if not getattr(registry, "__electra_lab__", False):
    _message = (
        f"electra_lab needs its own package `registry`, but Python found another one: {registry.__file__}. "
        "Rename or move that file, or start Python from another folder."
    )
    if _IS_COMMAND:  # before it can catch errors
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
    return __all__
