"""Listings are read from source text and import nothing."""

import json
from pathlib import Path

import pytest

from registry import ALL, masking_strategies, samplers
from registry.core import Registry
from registry.listing import Listing, read, short
from tests.helpers import python


@pytest.mark.parametrize("registry", [samplers, masking_strategies], ids=lambda r: r.plural)
def test_a_listing_read_from_source_says_what_the_import_says(registry: Registry):
    read = {name: registry._built_in(path) for name, path in registry._home_files().items()}
    assert read
    for name, listing in read.items():
        entry = registry.get(name)
        assert (listing.summary, listing.place) == (entry.summary, entry.place)


def test_a_listing_passes_over_definitions_that_register_nothing(tmp_path: Path):
    file = tmp_path / "late.py"
    file.write_text(
        '@cache\ndef helper():\n    """No."""\n\n\n@backbones.register("late")\ndef other():\n    """Another kind."""\n'
        '\n\n@samplers.register("later")\ndef later():\n    """Another name."""\n'
        '\n\n@registry.samplers.register("late")\ndef late():\n    """Yes."""\n'
    )
    assert samplers._built_in(file) == Listing("late", "Yes.", f"{file}:16")
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    assert samplers._built_in(empty) == Listing("empty", "(registers nothing)", f"{empty}:1")


def test_every_registry_lists_at_least_one_documented_component():
    for registry in ALL:
        assert registry.listings(), registry.plural
        assert all(listing.summary and listing.summary != "(registers nothing)" for listing in registry.listings())


def test_listing_imports_no_component_and_a_lookup_imports_exactly_one(tmp_path: Path):
    script = """
import json, sys, registry
def loaded():
    return {m for m in sys.modules if m.startswith("electra_lab.") and m.count(".") == 2} | ({"torch"} & {*sys.modules})
for r in registry.ALL:
    r.listings(), r.names()
listing = sorted(loaded())
registry.schedules.get("linear")
print(json.dumps([listing, sorted(loaded())]))
"""
    done = python("-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listing, lookup = json.loads(done.stdout)
    assert listing == []
    assert lookup == ["electra_lab.schedules.linear"]


def test_a_name_is_read_for_its_own_registry_only(tmp_path: Path):
    file = tmp_path / "two.py"
    file.write_text('@samplers.register("two", unbiased=True)\ndef two():\n    """Two."""\n')
    assert read(file, "samplers", "two") == Listing("two", "Two.", f"{file}:1")
    assert read(file, "backbones", "two") is None
    assert read(file, "samplers", "tow") is None


@pytest.mark.parametrize("data", [None, b"def (", b"\x00", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_or_parsed_has_no_listing(tmp_path: Path, data: bytes | None):
    file = tmp_path / "broken.py"
    if data is not None:
        file.write_bytes(data)
    assert read(file, "samplers", "broken") is None


def test_a_path_is_short_below_the_working_directory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert short(tmp_path / "a" / "b.py") == "a/b.py"
    assert short(tmp_path.parent / "b.py") == str(tmp_path.parent / "b.py")
