"""One piece of work, and messages about its end."""

from typing import Any

import pytest

from electra_lab.launchers._piece import attempt, sentence
from registry import Outcome
from registry.errors import ConfigError


def raising(error: BaseException) -> Any:
    def fail(folder: str, piece: str) -> Outcome:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no\n  good"), "ValueError: no good"), (KeyError("a"), "KeyError: 'a'"),
        (ValueError(), "ValueError: no details"), (ConfigError(""), "ConfigError: no details"),
        (ConfigError("a.yaml:3: seed: must be\nan integer."), "a.yaml:3: seed: must be an integer."),
        (SystemExit(3), "SystemExit: 3"),
    ],
)  # fmt: skip
def test_an_exception_is_one_line_and_its_traceback_is_on_stderr(error: BaseException, said: str, capsys) -> None:
    assert sentence(error) == said
    assert attempt(raising(error), "folder", "piece") == Outcome("failed", said)
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_the_launchers_affair() -> None:
    with pytest.raises(KeyboardInterrupt):
        attempt(raising(KeyboardInterrupt()), "folder", "piece")


def test_anything_but_an_outcome_is_a_failure() -> None:
    expected = Outcome("failed", "TypeError: the work returned tuple and not an Outcome")
    assert attempt(lambda *_: ("done", ""), "folder", "piece") == expected  # type: ignore[arg-type, return-value]
