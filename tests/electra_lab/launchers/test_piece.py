"""One piece of work, and what is said of its end."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from electra_lab.launchers._piece import attempt, sentence
from registry import Outcome
from registry.errors import ConfigError


def work(error: BaseException) -> Any:
    def fail(folder: str, piece: str) -> Outcome:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no\n  good"), "ValueError: no good"),
        (KeyError("a"), "KeyError: 'a'"),
        (ValueError(), "ValueError: no details"),
        (ConfigError("a.yaml:3: seed: must be\nan integer."), "a.yaml:3: seed: must be an integer."),
        (ConfigError(""), "ConfigError: no details"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_an_exception_is_one_line_and_its_traceback_is_on_stderr(error: BaseException, said: str, capsys) -> None:
    assert sentence(error) == said
    assert attempt(work(error), "folder", "piece") == Outcome("failed", said)
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_the_launchers_affair() -> None:
    with pytest.raises(KeyboardInterrupt):
        attempt(work(KeyboardInterrupt()), "folder", "piece")


@pytest.mark.parametrize(("result", "name"), [(None, "NoneType"), ("done", "str"), (("done", ""), "tuple")])
def test_anything_but_an_outcome_is_a_failure(result: Any, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = Outcome("failed", f"TypeError: the work returned {name} and not an Outcome")
    assert attempt(lambda *_: result, "folder", "piece") == expected
    assert "test_piece" not in capsys.readouterr().out
    assert not sys.exc_info()[0]
