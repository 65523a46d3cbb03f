"""electra-lab check FILE"""

from __future__ import annotations

from electra_lab.cli.run import File, Set


def check(file: File, set_: Set = None) -> None:
    """Find every error of an experiment without running it; print it with all defaults filled in."""
    from electra_lab.assemble import check
    from electra_lab.config.load import dump, load

    loaded = load(file, set_ or [])
    check(loaded)
    print(dump(loaded.config), end="")
