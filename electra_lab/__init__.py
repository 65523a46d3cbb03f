"""electra_lab: the lab for ELECTRA pre-training."""

import sys
from pathlib import Path

import registry

if not getattr(registry, "__electra_lab__", False):
    _message = (
        f"electra_lab needs its own package `registry`, but Python found another one: {registry.__file__}. "
        "Rename or move that file, or start Python from another folder."
    )
    if sys.argv[0] == "-m" or Path(sys.argv[0]).name == "electra-lab":  # the command line, before it can catch errors
        print(_message, file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(_message)

__version__ = "0.1.0"
