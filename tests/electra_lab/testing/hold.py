"""Test a component against one law of its suite, as pytest would."""

from __future__ import annotations

import inspect
from typing import Any

from electra_lab.testing.common import Contract


def hold(suite: Contract, law: str, **given: Any) -> None:
    """Call a law on the CPU with the given values that it takes."""
    test = getattr(suite, f"test_{law}")
    values = {"device": "cpu", **given}
    test(**{name: values[name] for name in inspect.signature(test).parameters})
