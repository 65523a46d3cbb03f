"""A release has the same version everywhere."""

from __future__ import annotations

import os
import re

import yaml

from electra_lab.version import __version__
from tests.helpers import ROOT


def test_citation_and_changelog_name_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)[0]
    assert newest == __version__


def test_the_tag_is_that_of_the_version() -> None:
    """Of `make release-check TAG=...`; without a tag there is nothing to compare."""
    assert os.environ.get("ELECTRA_LAB_TAG") in (None, "", f"v{__version__}")


def test_the_changelog_is_short_enough_to_read() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 60
