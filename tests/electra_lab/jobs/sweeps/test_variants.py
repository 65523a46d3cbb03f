"""Labels of variants are readable and tell them apart; problems of several variants are reported once."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.jobs.sweeps.plan import planned_variants
from electra_lab.jobs.sweeps.variants import Problems, _short
from registry.errors import ConfigError
from tests.helpers import write_experiment


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (1, "1"), (1.0, "1.0"), (0.125, "0.125"), (1e-4, "0.0001"), (1e-6, "1e-06"), (1e12, "1e+12"),
        (0.123456789, "0.123456789"), (1.0e9, "1e+09"), (True, "true"), (None, "null"), ("null", '"null"'),
        ("1", '"1"'), ("1e4", '"1e4"'), ("true", '"true"'), ("", '""'), ("bert", "bert"), ("../a b.txt", "../a b.txt"),
        ("a\nb", '"a\\nb"'), ("a, b=2", '"a, b=2"'), ("---", '"---"'), (" a", '" a"'), ("größe", "größe"),
        ([0.9, 0.999], "[0.9, 0.999]"), ([], "[]"), ({}, "{}"), ({"type": "argmax"}, "argmax"),
        ({"type": "top_k", "k": 3}, "top_k(k=3)"), ({"steps": None}, "(steps=null)"),
    ],
)  # fmt: skip
def test_a_value_in_a_label(value: Any, label: str):
    assert _short(value) == label


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
TREES = st.recursive(
    SCALARS,
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(st.text(string.ascii_lowercase) | st.just("type"), each, max_size=3)
    ),
    max_leaves=5,
)


@given(TREES, TREES)
@settings(max_examples=200, deadline=None)
def test_different_values_have_different_labels(one: Any, other: Any):
    assert _short(one).isprintable()
    if sorted(repr(one)) != sorted(repr(other)):  # keys in another order are the same mapping
        assert _short(one) != _short(other)


def test_what_is_wrong_with_several_variants_is_reported_once():
    found = Problems()
    for variant in "abcde":
        found.add(ConfigError("f.yaml:3: x: is bad."), variant)
    found.add("f.yaml:4: y: is bad.", "a")
    found.add("f.yaml:9: z: is bad of all.")
    found.add("f.yaml:9: z: is bad of all.", "b")
    with pytest.raises(ConfigError) as refused:
        found.refuse()
    assert str(refused.value).splitlines() == [
        "f.yaml:3: x: is bad. (in the variants a; b; c and 2 more)",
        "f.yaml:4: y: is bad. (in the variant a)",
        "f.yaml:9: z: is bad of all.",
    ]


@pytest.mark.parametrize(
    ("vary", "beyond"),
    [
        ("{base: {}, other: {masking.type: whole_word}}", {"masking.mask_prob"}),
        ("{base: {}, other: {masking: {type: whole_word}}}", {"masking.mask_prob"}),
        ("{base: {}, other: {masking: {type: whole_word, mask_prob: 0.2}}}", set()),
        ("{base: {}, other: {masking: {type: whole_word, mask_prob: 0.3}}}", set()),
        ("{generator.scale: [0.5, 1.0]}", set()),  # becomes widths and heads, which is what it says
        ("{base: {masking.mask_prob: 0.2}, other: {train.learning_rate: 1.0e-3}}", set()),  # the baseline's change
        ("{base: {masking.type: whole_word}, other: {}}", {"masking.mask_prob"}),
        ("{base: {}, other: {discriminator.depth: 3, train.learning_rate: 1.0e-3}}", {"generator.depth"}),
    ],
)
def test_what_no_change_names_is_known(tmp_path: Path, vary: str, beyond: set[str]) -> None:
    write_experiment(tmp_path, masking="{type: replace_prob, mask_prob: 0.3}")
    file = tmp_path / "sizes.yaml"
    baseline = "" if "scale" in vary else "baseline: base\n"
    file.write_text(f"name: sizes\nbase: tiny.yaml\nvary: {vary}\nseeds: [0]\n{baseline}")
    variants = planned_variants(load_ablation(file))
    assert [set(variant.beyond) for variant in variants] == [set(), beyond]
    assert all(set(variant.beyond) <= variant.differs.keys() for variant in variants)
