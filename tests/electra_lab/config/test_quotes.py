"""What errors quote: one's own file, and nothing of a file that only another one names."""

from __future__ import annotations

from pathlib import Path

import pytest

from electra_lab.config.source import read_file
from registry.errors import ConfigError
from tests.electra_lab.config.test_source import written


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SECRET\nroot:$6$SECRET:19000:0\n", "an experiment file is a mapping"),
        ("a: 1\nb: %SECRET\n", "2: is not valid YAML: found character ... that cannot start any token."),
        ("a: *SECRET\n", "1: is not valid YAML: found undefined alias ...."),
        ("a: '\\n\nb: \"SECRET\n", "is not valid YAML: "),
        ('a: "\\SECRET"\n', "1: is not valid YAML: found unknown escape character ...."),
        ("a: !SECRET 1\n", "1: a tag is not allowed; write plain values, text in quotes."),
        ("SECRET: 1\nSECRET: 2\n", "2: a key appears twice; first at {file}:1."),
        ("a: 9e99999\n", "1: a number is not finite."),
        ("a: .inf\n", "1: a number is not finite."),
        ("a: \x01SECRET\n", "1: has a character that is not allowed in YAML."),
        ("- SECRET\n", "1: an experiment file is a mapping of keys to values."),
    ],
)
def test_nothing_is_quoted_from_a_file_that_only_another_one_names(tmp_path: Path, text: str, kind: str) -> None:
    """Whoever sends an experiment need not be allowed to read all that the lab can read."""
    file = written(tmp_path / "kept", text)
    with pytest.raises(ConfigError) as refused:
        read_file(written(tmp_path / "child.yaml", "extends: kept\n"))
    assert str(refused.value).startswith(f"{file}:")
    assert kind.format(file=file) in str(refused.value)
    assert not any(word in str(refused.value) for word in ("SECRET", "999", "inf", "\x01", r"\x01"))


def test_of_ones_own_file_an_error_quotes_what_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found undefined alias 'there'"):
        read_file(written(tmp_path / "own.yaml", "a: *there\n"))
