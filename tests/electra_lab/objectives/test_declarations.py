"""Declarations of each objective: conflicts, the runs it starts from, and its cost, compared with torch's counter and
the table in docs/family.md; and the number of steps that a budget buys."""

import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from electra_lab.assembly.build import sketch
from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import Experiment, assemble
from electra_lab.config.load import load
from electra_lab.training.step import training_step
from registry import Flops, Needs, Objective, Setup, objectives
from registry.contracts.training import options_by_name
from registry.errors import ConfigError
from tests.electra_lab.jobs.pretraining.tiny import lines, run
from tests.electra_lab.objectives.tiny import REQUIRED, needs_of
from tests.helpers import ROOT, write_experiment

GENERATOR, TIE, SAMPLER, STEPS = "generator.type", "embedding.tie", "sampler", "objective.generator_steps"
SOUND = Setup(generator="network", tie="none", unbiased=True, steps=100)

TIES = [({"tie": tie}, [TIE]) for tie in ("tokens", "embeddings", "all", "gradient_disentangled")]

# The conflicting keys by objective and by difference from a valid setup.
FIXED: tuple[dict[str, Any], list[str]] = {"generator": "fixed"}, [GENERATOR]
CONFLICTS: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "adversarial": [
        FIXED, ({"unbiased": False}, [SAMPLER]), ({"generator": "fixed", "unbiased": False}, [GENERATOR, SAMPLER]),
        ({"unbiased": None}, []),  # there is no sampler; the needs refuse that
        ({"tie": "all", "steps": 1}, []),
    ],
    "amos": [
        FIXED, ({"tie": "all", "unbiased": None}, [TIE]), ({"tie": "gradient_disentangled", "unbiased": None}, []),
    ],
    "coco_lm": [({"separates": True}, ["packing.attention"])],
    "electric": [
        ({"generator_is_masked_lm": False}, [GENERATOR]),
        ({"generator_is_masked_lm": True, "generator": "fixed", "tie": "all"}, []),
        ({"generator_is_masked_lm": True, "unbiased": False}, [SAMPLER]),
    ],
    "frozen_generator": [
        FIXED, *TIES, ({"generator": "fixed", "tie": "all"}, [GENERATOR, TIE]), ({"unbiased": False, "steps": 1}, []),
    ],
    "two_stage": [
        FIXED, *TIES, ({"unbiased": False}, []), *(({"steps": steps}, [STEPS]) for steps in (6, 7)),
        *(({"steps": steps}, []) for steps in (8, None)),  # None: a budget that has not been converted to steps
        ({"generator": "fixed", "tie": "all", "steps": 1}, [GENERATOR, TIE, STEPS]),
    ],
}  # fmt: skip


def overrides(name: str, method: str) -> bool:
    """Return whether an objective has a method of its own instead of the default of the contract."""
    component: Any = objectives.get(name).component
    return inspect.getattr_static(component, method) is not inspect.getattr_static(Objective, method)


def test_the_table_is_complete() -> None:
    names = [name for name in objectives.names() if overrides(name, "conflicts")]
    assert sorted(CONFLICTS) == names, "CONFLICTS in this file needs a line for each objective with `conflicts`"


@pytest.mark.parametrize(
    ("name", "changes", "keys"),
    [
        (name, changes, keys)
        for name, cases in CONFLICTS.items()
        for changes, keys in [({"generator_is_masked_lm": True}, []), *cases]
    ],
)
def test_conflicts(name: str, changes: dict[str, Any], keys: list[str]) -> None:
    """Each has its key and a sentence that names the objective or its option."""
    component: Any = objectives.get(name).component
    found = list(component.conflicts(Setup(**{**vars(SOUND), **changes}), REQUIRED.get(name, {})))
    assert [key for key, _ in found] == keys
    for key, sentence in found:
        assert sentence.endswith(".")
        assert name in sentence or key == STEPS


def price(
    network: Literal["generator", "discriminator"], *, learns: bool = True, everywhere: bool = False,
    share: float = 1.0, heads: Any = None,
) -> int:  # fmt: skip
    """Prices from which every part of a sum can be read."""
    if (network, share, heads) == ("discriminator", 0.9, ("contrast",)):
        return 10**6 * learns
    if (network, heads) == ("generator", ()):  # a third of it is the head
        return 2 if learns else 0
    return {"generator": 1, "discriminator": 1000}[network] * (3 if learns else 1) * (10 if everywhere else 1)


HEADS = {
    "all_tokens_mlm": ("tokens",), "mlm": ("tokens",), "replace_mlm": ("tokens",), "electric": ("energy",),
    "mc_bert": ("candidates",), "coco_lm": ("replaced", "tokens", "contrast"), "sas": ("replaced", "tokens"),
    "electra_correct": ("replaced", "tokens"), "teams": ("replaced_branch", "candidates"),
}  # fmt: skip
FLOPS = {
    "coco_lm": Flops(3 + 3000 + 10**6), "all_tokens_mlm": Flops(3 + 30_000), "electric": Flops(30 + 3000),
    "amos": Flops(3 + 2 * (3 - 2) + 3000 + (1 - 0)), "frozen_generator": Flops(1 + 3000), "sas": Flops(3000),
    "mc_bert": Flops(3 + (10 - 0) + 3000), "two_stage": Flops(1 + 3000, first=7, at_first=3),
}  # fmt: skip


@pytest.mark.parametrize("name", objectives.names())
def test_flops_needs_and_earlier_runs(name: str) -> None:
    """Which network runs or learns, and where vocabulary logits are computed; by default both learn at every step."""
    needs = needs_of(name)
    assert built(name).flops(price) == FLOPS.get(name, Flops(3 + 3000))
    earlier = {"generator": Path("runs/earlier")} if name == "frozen_generator" else {}
    assert built(name).earlier_runs() == earlier
    assert needs.generator == (name not in ("mlm", "sas"))
    assert needs.sampler == (name not in ("mlm", "amos"))
    assert tuple(options_by_name(needs.heads)) == HEADS.get(name, ("replaced",))


def built(name: str) -> Any:
    from torch import nn

    component: Any = objectives.get(name).component
    networks = [nn.Linear(1, 1), nn.Linear(1, 1)]
    for network in networks:
        network.dim, network.depth, network.inner_states = 1, 4, True
    return component(*networks, None, None, None, **REQUIRED.get(name, {}))


PAGE = (ROOT / "docs" / "family.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)`(?:, ([^|]+?))? \| (\d\.\d\d) \|", re.MULTILINE)
# The meaning of the words after a name. Without any, the generator is that of electra_base.yaml.
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
    """Return the FLOPs of the matrix products of a step, of the later stage if there are two."""
    options, needs = REQUIRED.get(objective, {}), objectives.get(objective).component.needs
    if callable(needs):  # depends on options that the file does not set
        needs = Needs()
    missing = {"generator": needs.generator, "sampler": needs.sampler}
    absent = [f"{key}=null" for key, needed in missing.items() if not needed]
    tie = ["embedding.tie=none"] if objective in REQUIRED else []  # those that freeze a network
    wanted = ", ".join(f"{key}: {value}" for key, value in options.items())
    chosen = f"objective={{type: {objective}, {wanted}}}"
    return sketch(load(ROOT / "experiments" / "electra_base.yaml", [*overrides, *absent, *tie, chosen])).flops.per_step


@pytest.mark.parametrize("name", objectives.names())
def test_the_page_has_the_cost_of_each_objective(name: str) -> None:
    rows = [(words, cost) for found, words, cost in ROW.findall(PAGE) if found == name]
    assert rows, f"add a row: | `{name}` | {step(name) / step('electra'):.2f} | |"
    for words, cost in rows:
        assert f"{step(name, *WORDS[words]) / step('electra'):.2f}" == cost, words


BATCH, FIRST = 4, 2
MODEL = "{type: bert, dim: 64, depth: 2, heads: 2}"
SECTIONS = {
    "data": "{sequence_length: 64, held_out: 0.3}",
    "embedding": "{dim: 48, max_length: 64, tie: none}",
    "discriminator": MODEL,
}
PLAIN = (
    "electra_masked_only", "electra_correct", "replace_mlm", "all_tokens_mlm", "teams", "mc_bert", "adversarial"
)  # fmt: skip
TIED = "{dim: 48, max_length: 64, tie: all}"
OBJECTIVES: dict[str, dict[str, str]] = {
    **{name: {"objective": f"{{type: {name}}}"} for name in PLAIN},
    "two_stage": {"objective": f"{{type: two_stage, generator_steps: {FIRST}}}"},
    "frozen_generator": {"objective": "{type: frozen_generator, run: earlier}"},
    "coco_lm": {"objective": "{type: coco_lm, group: 2}"},
    "mlm": {"objective": "{type: mlm}", "generator": "null", "sampler": "null"},
    "electric": {"objective": "{type: electric}", "generator": "{type: two_towers, scale: 0.5}"},
    "sas": {"objective": "{type: sas}", "generator": "null"},
    "sas, masked anew": {"objective": "{type: sas, remask: every_visit}", "generator": "null"},
    "amos": {"objective": "{type: amos}", "sampler": "null"},
    "gated transformers": {"discriminator": MODEL.replace("bert", "transformer, glu: true, flash: false")},
    "reformers of one hash": {"discriminator": MODEL.replace("bert", "reformer, bucket_size: 32, hashes: 1")},
    "one encoder": {"objective": "{type: electra}", "generator": "{scale: 1.0}", "embedding": TIED},
    "a shared table plus a difference": {"embedding": TIED.replace("all", "gradient_disentangled")},
}
# Objectives that compute more or less than `electra`. Heads and encoders: the laws. All prices: above.
QUICK = ("two_stage", "mc_bert", "sas, masked anew", "amos", "gated transformers", "reformers of one hash",
         "one encoder", "a shared table plus a difference")  # fmt: skip
NAMED = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in OBJECTIVES]


def settings(folder: Path, **sections: str) -> dict[str, str]:
    train = f"{{steps: 5, batch_size: {BATCH}, precision: fp32}}"
    data = SECTIONS["data"].replace("}", f", store: {folder.parent / 'store'}}}")  # one for all tests
    return {**SECTIONS, "train": train, **sections, "data": data}


def made(folder: Path, **sections: str) -> Experiment:
    loaded = load(write_experiment(folder, **settings(folder, **sections)))
    return assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))


def counted(experiment: Experiment, step: int) -> int:
    """Return the FLOPs that torch counts in one real step; its counter supports only plain attention."""
    experiment.run.learner.objective.train()
    batch = experiment.train.training_batch(0, step, BATCH, experiment.device)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        training_step(
            experiment.run.learner, experiment.run.optimizer, batch, seed=0, step=step, rate=1.0, clip_norm=1.0,
            micro_batch_size=BATCH, precision="fp32",
        )  # fmt: skip
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", NAMED)
def test_every_step_costs_what_the_plan_says(tmp_path: Path, name: str) -> None:
    """Within two percent; the lab's formulas leave out only the gate and the baseline, which are smaller still."""
    if name == "frozen_generator":
        file = write_experiment(tmp_path, "earlier.yaml", **settings(tmp_path))
        run(file, tmp_path / "earlier", "train.steps=1", "evaluate.examples=0")
    experiment = made(tmp_path, **OBJECTIVES[name])
    flops = experiment.settings.flops
    for step in range(flops.first + 2):
        assert flops.total(step + 1) - flops.total(step) == pytest.approx(counted(experiment, step), rel=0.02), step


def test_by_hand() -> None:
    flops = Flops(per_step=4, first=3, at_first=10)
    assert [flops.total(n) for n in (0, 1, 3, 4, 10)] == [0, 10, 30, 34, 58]
    assert [flops.steps(b) for b in (0, 9, 10, 29, 30, 33, 34, 58, 61, 62)] == [0, 0, 1, 2, 3, 3, 4, 10, 10, 11]
    assert Flops(7).steps(20) == 2
    assert Flops(7).total(3) == 21


@given(
    per_step=st.integers(1, 10**9), first=st.integers(0, 1000), at_first=st.integers(1, 10**9),
    budget=st.integers(0, 10**15), fraction=st.sampled_from([0.0, 0.25, 0.5]),
)  # fmt: skip
def test_a_budget_buys_all_the_steps_that_it_pays_for(per_step, first, at_first: int, budget: int, fraction) -> None:
    flops = Flops(per_step, first, at_first)
    steps = flops.steps(budget + fraction)
    assert steps >= 0
    assert flops.total(steps) <= budget + fraction < flops.total(steps + 1)


@pytest.mark.parametrize("extra", [0.0, 0.9])
def test_a_run_ends_when_its_flops_are_spent(tmp_path: Path, extra: float) -> None:
    """The first stage and two steps of the second; a budget below the first step of the second is refused."""
    objective = OBJECTIVES["two_stage"]
    flops = made(tmp_path, **objective).settings.flops
    assert flops.at_first < 0.8 * flops.per_step, "the test could not distinguish the stages"
    budget = flops.total(FIRST + 2) + extra * flops.per_step
    file = write_experiment(
        tmp_path, **settings(tmp_path, **objective, train=f"{{flops: {budget!r}, batch_size: {BATCH}}}")
    )
    record: dict[str, Any] = lines(run(file, tmp_path / "run", "evaluate.examples=0"))[-3]
    assert (record["step"], record["flops"]) == (FIRST + 2, flops.total(FIRST + 2))
    too_little = float(flops.total(FIRST + 1) - 1)
    with pytest.raises(ConfigError, match=rf"first stage of {FIRST} steps leaves none of {FIRST} .* buys {FIRST} "):
        run(file, tmp_path / "never", f"train.flops={too_little!r}")
