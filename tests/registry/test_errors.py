"""Errors know their exit codes, and suggest what was meant."""

from __future__ import annotations

import re

import pytest

from registry import errors
from registry.errors import LabError, did_you_mean

KINDS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, LabError)
}  # fmt: skip


def test_exit_codes_are_those_of_the_design() -> None:
    assert {name: kind.exit_code for name, kind in KINDS.items()} == {
        "LabError": 1, "Reported": 1,
        "ConfigError": 2, "InUse": 2, "UnknownName": 2, "DuplicateName": 2, "BadSignature": 2, "PluginError": 2,
        "BadResult": 2,
        "DataError": 3, "CheckpointError": 4, "DivergedError": 5, "OutOfMemoryError": 6, "CellsFailed": 7,
        "Stopped": 1, "Preempted": 75, "Interrupted": 130,
    }  # fmt: skip


def test_the_help_of_the_command_line_lists_every_exit_code() -> None:
    from electra_lab.cli import app

    listed = [int(code) for code in re.findall(r"(\d+) \w", str(app.info.epilog))]
    assert listed == sorted({0, *(kind.exit_code for kind in KINDS.values())})


@pytest.mark.parametrize(
    ("word", "known", "tail"),
    [
        ("gumbl", ["top_k", "gumbel"], " Did you mean 'gumbel'? Known: gumbel, top_k."),
        ("qqq", ["top_k", "gumbel"], " Known: gumbel, top_k."),
        ("qqq", [], " Known: none."),
        ("alpa", {"alpha": 1, "beta": 2}, " Did you mean 'alpha'? Known: alpha, beta."),
    ],
)
def test_a_suggestion_names_the_nearest_word_and_all_of_them(word: str, known: list[str], tail: str) -> None:
    assert did_you_mean(word, known) == tail
