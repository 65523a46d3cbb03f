"""The laws are expected to fail here, so hypothesis need not minimize examples."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

from electra_lab import testing


@pytest.fixture(autouse=True)
def _without_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in testing.__all__:
        for law in vars(getattr(testing, name, None)).values() if name.endswith("Contract") else ():
            if found := getattr(law, "_hypothesis_internal_use_settings", None):
                quick = settings(found, phases=[Phase.explicit, Phase.generate], database=None, derandomize=True)
                monkeypatch.setattr(law, "_hypothesis_internal_use_settings", quick)
