"""A run's directory that is damaged, or of another version: a sentence, and the page is left alone."""

from __future__ import annotations

import pytest

from electra_lab.presentation.run_page import write_report
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError


@pytest.mark.usefixtures("drawn")
def test_a_run_of_another_format_is_refused_and_keeps_its_page(directory: RunDirectory) -> None:
    """Its records have other splits, so its page would say that it was never evaluated."""
    value = directory.read_json("provenance.json")
    directory.write_json("provenance.json", value | {"format": 2})
    before = (directory.path / "report.html").read_bytes()
    with pytest.raises(CheckpointError, match=r"was written by electra_lab 0\.1\.0 in format 2; this version"):
        write_report(directory)
    assert (directory.path / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.yaml", "a: [1"),
        ("config.yaml", "text"),
        ("config.yaml", "[name]"),
        pytest.param("config.yaml", "[" * 100_000, id="nested"),
        pytest.param("config.yaml", "name: \ud800", id="not UTF-8"),
        ("provenance.json", "1"),
        ("provenance.json", "{"),
        ("metrics.jsonl", "{}\n{}\n"),
        ("examples.json", "["),
        ("examples.json", '[[{"token": "a"}]]'),
    ],
)
@pytest.mark.usefixtures("drawn")
def test_a_damaged_file_is_named(directory: RunDirectory, file: str, text: str) -> None:
    (directory.path / "report.html").unlink()
    (directory.path / file).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CheckpointError) as error:
        write_report(directory)
    assert str(error.value).startswith(f"{directory.path / file}:")
    assert len(str(error.value).splitlines()) == 1
    assert not (directory.path / "report.html").exists()
