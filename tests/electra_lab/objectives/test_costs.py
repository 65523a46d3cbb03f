"""The table of costs in docs/family.md, against the lab's own count at the size of ELECTRA-Base."""

import re
from functools import cache

import pytest

from electra_lab.assembly.build import sketch
from electra_lab.config.load import load
from registry import Needs, objectives
from tests.electra_lab.objectives.tiny import REQUIRED
from tests.helpers import ROOT

PAGE = (ROOT / "docs" / "family.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)`(?:, ([^|]+?))? \| (\d\.\d\d) \|", re.MULTILINE)
# What the words behind a name mean. Without any, the generator is that of electra_base.yaml.
SHALLOW = ["generator={depth: 4, scale: 1.0}"]
WORDS: dict[str, list[str]] = {
    "": [],
    "4-layer G": SHALLOW,
    "8-layer G": ["generator={depth: 8, scale: 1.0}"],
    "6-layer G, 3 shared": ["generator={depth: 6, scale: 1.0}", "embedding.tie={layers: 3}"],
    "two towers": ["generator={type: two_towers, scale: 0.66667}"],
    "`unigram`": ["generator={type: unigram}"],
    "second stage": [],
}


@cache
def step(objective: str, *overrides: str) -> int:
    """Return the FLOPs of a step of matrix products, of the later stage if there are two."""
    options, needs = REQUIRED.get(objective, {}), getattr(objectives.get(objective).component, "needs", Needs())
    if callable(needs):  # a function of options that the file does not set
        needs = Needs()
    missing = {"generator": needs.generator, "sampler": needs.sampler}
    absent = [f"{key}=null" for key, needed in missing.items() if not needed]
    tie = ["embedding.tie=none"] if objective in REQUIRED else []  # those that freeze a network
    wanted = ", ".join(f"{key}: {value}" for key, value in options.items())
    chosen = f"objective={{type: {objective}, {wanted}}}"
    return sketch(load(ROOT / "experiments" / "electra_base.yaml", [*overrides, *absent, *tie, chosen])).flops.per_step


@pytest.mark.parametrize("name", objectives.names())
def test_the_page_has_the_cost_of_each_objective(name: str) -> None:
    """Relative to a step of `electra` with the same rows."""
    rows = [(words, cost) for found, words, cost in ROW.findall(PAGE) if found == name]
    assert rows, f"add a row: | `{name}` | {step(name) / step('electra'):.2f} | |"
    for words, cost in rows:
        assert f"{step(name, *WORDS[words]) / step('electra'):.2f}" == cost, words
