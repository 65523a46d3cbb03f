"""docs/official.yaml describes the lab correctly, and docs/faithful.md lists the differences.

Its statements about google-research/electra were read there; numbers that follow from a formula are recomputed.
"""

from __future__ import annotations

import inspect
import math
import re
import runpy
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import yaml
from scipy.stats import truncnorm

from electra_lab.assembly.build import sketch
from electra_lab.config.load import load
from registry.errors import ConfigError
from tests import faithful
from tests.helpers import ROOT

OFFICIAL = yaml.safe_load((ROOT / "docs" / "official.yaml").read_text(encoding="utf-8"))
FAITHFUL = (ROOT / "docs" / "faithful.md").read_text(encoding="utf-8")
DIFFERENCES, SAME = OFFICIAL["differences"], OFFICIAL["same"]
ENTRIES = {entry.get("key") or entry["check"]: entry for entry in (*DIFFERENCES, *SAME)}
KEYS = [name for name, entry in ENTRIES.items() if "key" in entry]
CHECKS = [name for name, entry in ENTRIES.items() if "check" in entry]
SIZES = ("small", "base", "large")
SHORTEST = faithful.SHORTEST


def flat(values: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values."""
    if not isinstance(values, dict):
        yield above, values
        return
    for key, value in values.items():
        yield from flat(value, f"{above}.{key}" if above else key)


@cache
def values_of(name: str | None) -> dict[str, Any]:
    loaded = load(ROOT / "experiments" / f"electra_{name}.yaml") if name else faithful.default()
    return dict(flat(loaded.config.model_dump(mode="json")))


def at(value: Any, size: str) -> Any:
    return value[size] if isinstance(value, dict) and set(value) == set(SIZES) else value


WRITTEN = dict(flat(SHORTEST))


def test_defaults_are_the_official_ones_or_are_listed() -> None:
    compared = {key: entry for key, entry in ENTRIES.items() if key in KEYS and key not in WRITTEN}
    expected = {key: at(entry.get("here", entry["there"]), "small") for key, entry in compared.items()}
    assert {key: values_of(None)[key] for key in compared} == expected


@pytest.mark.parametrize("size", SIZES)
def test_the_shipped_files_have_the_official_values_or_their_differences_are_listed(size: str) -> None:
    expected = {key: at(ENTRIES[key].get("files", ENTRIES[key]["there"]), size) for key in KEYS}
    assert {key: values_of(size)[key] for key in KEYS} == expected


@pytest.mark.parametrize("check", CHECKS)
def test_the_lab_does_what_is_listed(check: str) -> None:
    entry = ENTRIES[check]
    assert getattr(faithful, check)() == entry.get("here", entry["there"])


def test_each_value_and_each_measurement_is_listed_once() -> None:
    assert len(ENTRIES) == len(DIFFERENCES) + len(SAME)
    own = inspect.getmembers(faithful, lambda f: inspect.isfunction(f) and f.__module__ == faithful.__name__)
    measuring = {
        name for name, f in own if not any(p.default is p.empty for p in inspect.signature(f).parameters.values())
    }
    helpers = {"built", "default", "weights"}
    assert measuring - helpers == set(CHECKS)
    for entry in ENTRIES.values():
        assert entry.keys() <= {"key", "check", "what", "there", "here", "files", "source", "row"}
        assert "key" in entry or "what" in entry
        assert re.match(r"[\w/]+\.py, |util/training_utils\.py$|[\w/]+\.py and |Clark et al\.", entry["source"])


def test_no_default_is_left_out() -> None:
    """A key that is new must be compared with the official code, too."""
    ours = set(OFFICIAL["ours"])
    assert not ours & ENTRIES.keys()
    compared = {key for key in values_of(None) if key != "name" and not key.startswith("corpus.")}
    assert compared == {*KEYS} | ours


def parents(mapping: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            yield from parents(value, (*above, key))
        else:
            yield (*above, key)


@pytest.mark.parametrize("path", list(parents(SHORTEST)), ids=".".join)
def test_the_shortest_file_cannot_be_shorter(path: tuple[str, ...]) -> None:
    """Otherwise a key of the file has a default, which must be compared, too."""

    def without(mapping: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        first, *rest = path
        if rest:
            return mapping | {first: without(mapping[first], tuple(rest))}
        return {key: value for key, value in mapping.items() if key != first}

    with pytest.raises(ConfigError):
        load(without(SHORTEST, path))


def test_differences_differ_and_have_a_row() -> None:
    for name, entry in ENTRIES.items():
        if entry in SAME:
            assert not entry.keys() & {"here", "files", "row"}, name
            continue
        default, files = entry["here"], entry.get("files", entry["here"])
        assert files != entry["there"], f"{name} differs no longer: it belongs to `same`"
        assert default != entry["there"] or "files" in entry, name
        row = entry["row"]
        if isinstance(row, str):
            row = ENTRIES[row]["row"]
        assert row.keys() == {"here", "there", "why"}, name
        assert all("|" not in text and text.strip() == text and text[-1] != "." for text in row.values()), name


def words(value: float) -> set[str]:
    return {f"{value:g}", f"{value:,}", f"{100 * value:g} %"}


def test_rows_have_the_numbers_of_their_entries() -> None:
    for name, entry in ENTRIES.items():
        for side in ("here", "there") if isinstance(entry.get("row"), dict) else ():
            value = entry[side]
            if isinstance(value, int | float) and not isinstance(value, bool) and value not in (0, 1):
                said = set(re.findall(r"[\d.,]*\d(?: %)?", entry["row"][side]))
                spelled = name in ("first_rate", "first_update", "normalised")
                assert spelled or words(value) & said, f"{name}: {value} is not in {entry['row'][side]!r}"


def test_the_page_has_the_table() -> None:
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert generate["with_differences"](FAITHFUL, OFFICIAL) == FAITHFUL, "run: make docs"


def test_the_formulas_of_the_official_code() -> None:
    def masks(tokens: int, mask_prob: float = 0.15) -> int:
        """In float32; halves are rounded to even."""
        most = int((mask_prob + 0.005) * faithful.LENGTH)
        return max(1, min(most, int((torch.tensor(float(tokens)) * torch.tensor(mask_prob)).round())))

    there = {name: entry["there"] for name, entry in ENTRIES.items()}
    assert [masks(tokens) for tokens in faithful.LENGTHS] == there["mask_counts"]
    maskable = faithful.LENGTH - 2
    distinct = maskable * (1 - (1 - 1 / maskable) ** masks(faithful.LENGTH))
    assert round(distinct, 1) == there["distinct_positions"]
    b1, b2 = there["optimizer.betas"]
    updates = {t: (1 - b1**t) / math.sqrt(1 - b2**t) for t in (1, 12, 100, 3000)}  # of equal gradients
    assert round(updates[1], 2) == there["first_update"]
    assert updates[100] > 3
    assert 6.5 < updates[12] < 7
    assert updates[3000] == pytest.approx(1.03, abs=0.005)
    assert round(float(truncnorm.std(-2, 2, scale=0.02)), 4) == there["deviation"]
    steps, warmup = 1_000_000, there["schedules.learning_rate.warmup_steps"]
    official = [(1 - step / steps) * min(1, step / warmup) for step in (0, 5_000, 250_000, 500_000, 999_999)]
    assert official == pytest.approx([there["first_rate"], *there["rates"]], rel=2e-3)
    widths = [round(there["discriminator.dim"][size] * share) for size, share in
              zip(SIZES, (0.25, 0.33333, 0.25), strict=True)]  # fmt: skip
    assert widths == list(there["generator.dim"].values())
    assert {size: width // 64 for size, width in there["generator.dim"].items()} == there["generator.heads"]


def test_masks_of_full_rows_and_of_others() -> None:
    """The same number in full rows of one segment or two; elsewhere at most one more or less."""
    from registry import count

    for mask_prob, length in ((0.15, 128), (0.15, 512), (0.25, 512)):
        for special in (2, 3):
            tokens = torch.arange(special + 1, length + 1)
            official = (tokens.float() * torch.tensor(mask_prob)).round().clamp(1, int((mask_prob + 0.005) * length))
            apart = count(mask_prob, tokens - special) - official.long()
            assert apart[-1] == 0
            assert apart.abs().max() == 1


def test_segments_are_as_there() -> None:
    assert faithful.kinds_of_rows("segments") == ENTRIES["kinds_of_rows"]["there"]
    assert faithful.documents_in_a_row("segments") <= 2  # [SEP], of the two segments of one document


def test_the_page_has_the_flops_of_both_conventions() -> None:
    """Ours to four digits; those of the official script, which the lab counts in its own way, to 0.1 %."""
    section = " ".join(FAITHFUL.partition("\n\nFLOPs count")[2].partition("\n## ")[0].split())
    ours, script = re.findall(r"(\S+e\d+), (\S+e\d+) and (\S+e\d+)", section)
    for size, our, official in zip(SIZES, ours, script, strict=True):
        built = sketch(load(ROOT / "experiments" / f"electra_{size}.yaml"))
        assert f"{built.flops.total(built.steps):.3e}".replace("e+", "e") == our
        assert built.paper_flops.total(built.steps) == pytest.approx(float(official), rel=1e-3)
