"""One piece of work, done where it is: what every launcher calls at the far end."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from registry import LabError, Outcome


def attempt(work: Callable[[str, str], Outcome], folder: str, piece: str) -> Outcome:
    """work(folder, piece); an exception is a `failed` piece, and its traceback goes to stderr."""
    try:
        outcome = work(folder, piece)
        if isinstance(outcome, Outcome):
            return outcome
        raise TypeError(f"the work returned {type(outcome).__name__} and not an Outcome")
    except (Exception, SystemExit) as error:  # work that calls sys.exit must not take the process with it
        traceback.print_exc(file=sys.stderr)
        return Outcome("failed", sentence(error))


def sentence(error: BaseException) -> str:
    """`error` on one line; a LabError is a sentence already."""
    said = " ".join(str(error).split())
    return said if isinstance(error, LabError) and said else f"{type(error).__name__}: {said or 'no details'}"
