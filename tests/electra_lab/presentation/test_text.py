"""Numbers and facts in words."""

from __future__ import annotations

from electra_lab.presentation.text import data_facts, number, p_text, seconds
from electra_lab.storage.provenance import Data


def test_numbers_have_sensible_digits() -> None:
    found = [number(each) for each in (0.71234, 5.12345, 12345.6, 0.0, None, 2.5e-6, -0.00213, 1.5e12, 99.987)]
    assert found == ["0.7123", "5.123", "12,346", "0", "-", "2.5e-06", "-0.0021", "1.5e+12", "99.99"]
    assert (number(0.0042, sign=True), number(-0.5, sign=True)) == ("+0.0042", "-0.5000")
    assert [p_text(p) for p in (0.31, 0.0496, 0.05, 0.0504, 0.050004, 0.0004, 1.0, None)] == [
        "p = 0.31", "p = 0.050", "p = 0.050", "p = 0.0504", "p = 0.050004",
        "p < 0.001", "p = 1.00", "p undefined"]  # fmt: skip


DOCUMENTS = {"train": 13010, "validation": 341, "test": 377}
TOKENS = {"train": 1402118, "validation": 42013, "test": 40120}


def test_durations_are_said_as_people_say_them() -> None:
    told = [seconds(number) for number in (0.3, 45, 119, 720, 12600, 1e6)]
    assert told == ["< 1 s", "45 s", "2 min", "12 min", "3.5 h", "12 days"]


def test_counts_and_overlap_are_named_by_split() -> None:
    assert dict(data_facts(Data(store="abc", documents=DOCUMENTS, tokens=TOKENS, overlap=0.0126))) == {
        "data": "13,010 documents, 1,402,118 tokens to train; validation 341 and 42,013; test 377 and 40,120",
        "overlap": "1.3% of the 13-token runs of validation and test also occur in training text",
    }
    # What is not known is not said.
    assert list(data_facts(Data(store="abc"))) == []
    assert [title for title, _ in data_facts(Data(store="abc", documents=DOCUMENTS, tokens=TOKENS))] == ["data"]
    assert dict(data_facts(Data(store="abc", overlap=0.0)))["overlap"].startswith("0.0% of the 13-token runs")
