"""electra_lab: a lab bench for ELECTRA pre-training."""

import registry

if not getattr(registry, "__electra_lab__", False):
    raise ImportError(
        f"electra_lab needs its own package `registry`, but Python found another one: {registry.__file__}. "
        "Rename or move that file, or start Python from another folder."
    )

__version__ = "0.1.0"
