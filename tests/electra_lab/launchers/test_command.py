"""The end of a command in words."""

from pathlib import Path

import pytest

from electra_lab.launchers._command import ended


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
