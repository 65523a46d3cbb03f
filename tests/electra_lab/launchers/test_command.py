"""The end of a command, and errors, in words."""

from pathlib import Path

import pytest

from electra_lab.launchers._command import ended, sentence
from registry.errors import ConfigError


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        (0, 0, ""), (1, 1, "exit code 1"), (75, 75, "exit code 75"), (130, 130, "exit code 130"),
        (-9, -9, "signal 9 (SIGKILL); the system sends it when memory runs out"), (137, -9, "signal 9 (SIGKILL)"),
        (-11, -11, "signal 11 (SIGSEGV); its"), (143, -15, "signal 15 (SIGTERM)"),
    ],
)  # fmt: skip
def test_an_exit_code_says_what_happened(code: int, expected: int, words: str) -> None:
    outcome = ended(code, Path("a.txt"))
    assert (outcome.code, bool(outcome.error)) == (expected, code != 0)
    assert words in outcome.error
    assert not outcome.error or outcome.error.endswith("its output is in a.txt.")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no\n  good"), "ValueError: no good"), (ValueError(), "ValueError: no details"),
        (ConfigError(""), "ConfigError: no details"),
        (ConfigError("a.yaml:3: must be\nan integer."), "a.yaml:3: must be an integer."),
    ],
)  # fmt: skip
def test_an_error_is_one_line(error: BaseException, said: str) -> None:
    assert sentence(error) == said
