"""electra-lab check FILE"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from electra_lab.cli.run import File, Set


def check(file: File, set_: Set = None) -> None:
    """Find every error of an experiment without running it; print it filled in, with the origin of each value."""
    from electra_lab.assemble import check
    from electra_lab.config.load import load
    from electra_lab.config.origins import dump_with_origins

    with redirect_stdout(sys.stderr):  # what a plug-in prints is no YAML
        loaded = load(file, set_ or [])
        absent = check(loaded)
    if absent:
        print(f"note: {absent} A run would stop there.", file=sys.stderr)
    print(dump_with_origins(loaded), end="")
