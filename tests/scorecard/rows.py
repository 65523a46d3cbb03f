"""The rows of the scorecard: their laws and numbers of trials, which are set only here."""

from __future__ import annotations

import os
from dataclasses import dataclass

FULL = "ELECTRA_LAB_SCORECARD" in os.environ
ALL = os.environ.get("ELECTRA_LAB_SCORECARD") == "all"  # every case of every row, which takes hours
SEED = int(os.environ.get("ELECTRA_LAB_SCORECARD_SEED", "0"))
ONLY = os.environ.get("ELECTRA_LAB_SCORECARD_ONLY", "")  # trials whose words contain this, to repeat one


@dataclass(frozen=True)
class Row:
    """A law, and the number of trials by which `make test` and `make scorecard` test it.

    small  cases of each test that `make test` tries
    full   random cases of `make scorecard`
    most   cases of each test that `make scorecard` tries, of those that can be enumerated; None for all
    """

    law: str
    small: int
    full: int = 0
    most: int | None = None


ROWS = {
    1: Row("killed at any moment and resumed, a run ends bit-identical to one that was never killed", 1, 60),
    2: Row(
        "a signal in any phase saves the step that is done; exit 75 or 130; the printed command continues", 2, most=150
    ),
    3: Row("stopped and resumed after any step, a run of any component ends bit-identical", 1),
    4: Row("the same seed gives the same bits in every process; where it cannot, the lab says why", 1),
    5: Row("two processes train what one does; a lost one is noticed; one, two and one again continue", 0),
    6: Row("a damaged checkpoint is never loaded: named, passed over, exit 4 if none is left", 1, 100),
    7: Row("a failing disk leaves every earlier checkpoint, one clear sentence and no litter", 1, most=150),
    8: Row(
        "retention leaves exactly what it promises, nothing foreign is removed, one is valid at every moment",
        1,
        most=12,
    ),
    9: Row("a wrong config is refused with exit 2 and a line for each mistake, never with a traceback", 33, 10_000),
    10: Row("a valid config survives being written out; the JSON schema accepts what the lab accepts", 3, 200),
    11: Row("hostile names, files and checkpoints run no code and write nothing outside the run directory", 1),
    12: Row("no weight that is not finite is ever saved; exit 5, or the step is skipped if asked for", 1),
    13: Row("where memory ends, exit 6 with advice, and the last checkpoint is valid", 1),
    14: Row("every cell of an ablation ends exactly once, whatever is killed", 0),
    15: Row("without network and with a home that cannot be written, everything from data to report works", 1),
    16: Row(
        "an exported model loads without our code and gives the same numbers; a killed export leaves no half",
        1,
        most=60,
    ),
    17: Row("what decided the steps so far cannot change unnoticed on resume; what may change, may", 1),
    18: Row("run directories of earlier releases are resumed, or refused by name", 1),
    19: Row("of two processes in one directory the second is refused; a dead one's lock is taken over", 1),
}
