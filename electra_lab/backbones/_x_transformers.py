"""The classes of x-transformers that the lab uses, imported without einx.

x-transformers imports einx, which imports torch's compiler and takes a second. The lab's options need neither. Options
of the library that need einx still find it: it is imported when they first use it.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Einx(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` reads such attributes of every module
            raise AttributeError(name)
        return getattr(import_module("einx"), name)


stand_in = _Einx("einx")
if sys.modules.setdefault("einx", stand_in) is stand_in:
    import x_transformers  # noqa: F401  # keeps the stand-in

    del sys.modules["einx"]

from x_transformers import Encoder  # noqa: E402
from x_transformers.x_transformers import Attention, LayerNorm, RotaryEmbedding  # noqa: E402

__all__ = ["Attention", "Encoder", "LayerNorm", "RotaryEmbedding"]
