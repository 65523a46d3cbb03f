"""A packing."""

from dataclasses import replace
from typing import Any

import numpy as np

from registry import Packed, packings


@packings.register("my_packing")
class MyPacking(packings.get("documents").component):  # type: ignore[misc]  # known at run time only
    """As `documents`; rows that continue a document are segment 1."""

    def rows(self, rows: Any, /) -> Packed:
        packed: Packed = super().rows(rows)
        continues = ~np.isin(rows, self.first)  # [B]
        return replace(packed, segments=(continues[:, None] & packed.attention_mask).astype(packed.segments.dtype))
