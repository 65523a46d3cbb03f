"""What each objective says of itself: its conflicts, its cost, and the runs that it starts from."""

from pathlib import Path
from typing import Any, Literal

import pytest

from registry import Flops, Setup, objectives
from registry.contracts.head import options_by_name
from tests.electra_lab.objectives.tiny import REQUIRED, needs_of

GENERATOR, TIE, SAMPLER, STEPS = "generator.type", "embedding.tie", "sampler", "objective.generator_steps"
SOUND = Setup(generator="network", tie="none", unbiased=True, steps=100)

# By objective and by what differs from a sound setup: the keys that conflict.
CONFLICTS: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "adversarial": [
        ({"generator": "fixed"}, [GENERATOR]),
        ({"unbiased": False}, [SAMPLER]),
        ({"unbiased": None}, []),  # there is no sampler; the needs refuse that
        ({"generator": "fixed", "unbiased": False}, [GENERATOR, SAMPLER]),
        ({"tie": "all", "steps": 1}, []),
    ],
    "amos": [
        ({"generator": "fixed"}, [GENERATOR]),
        ({"tie": "all", "unbiased": None}, [TIE]),
        ({"tie": "gradient_disentangled", "unbiased": None}, []),
    ],
    "coco_lm": [({"separates": True}, ["packing.attention"])],
    "electric": [
        ({}, ["generator.type"]),
        ({"cloze": True, "generator": "fixed", "tie": "all"}, []),
        ({"cloze": True, "unbiased": False}, [SAMPLER]),
    ],
    "frozen_generator": [
        ({"generator": "fixed"}, [GENERATOR]),
        *(({"tie": tie}, [TIE]) for tie in ("tokens", "embeddings", "all", "gradient_disentangled")),
        ({"generator": "fixed", "tie": "all"}, [GENERATOR, TIE]),
        ({"unbiased": False, "steps": 1}, []),
    ],
    "two_stage": [
        ({"generator": "fixed"}, [GENERATOR]),
        *(({"tie": tie}, [TIE]) for tie in ("tokens", "embeddings", "all", "gradient_disentangled")),
        *(({"steps": steps}, [STEPS]) for steps in (6, 7)),
        *(({"steps": steps}, []) for steps in (8, None)),  # None: a budget that has not been turned into steps
        ({"generator": "fixed", "tie": "all", "steps": 1}, [GENERATOR, TIE, STEPS]),
        ({"unbiased": False}, []),
    ],
}
NONE = [
    "all_tokens_mlm", "electra", "electra_correct", "electra_masked_only", "mc_bert", "mlm", "replace_mlm", "sas",
    "teams",
]  # fmt: skip


def test_the_table_is_complete() -> None:
    assert sorted([*CONFLICTS, *NONE]) == objectives.names()
    assert not [name for name in NONE if hasattr(objectives.get(name).component, "conflicts")]


@pytest.mark.parametrize(
    ("name", "changes", "keys"),
    [(name, changes, keys) for name, cases in CONFLICTS.items() for changes, keys in [({"cloze": True}, []), *cases]],
)
def test_conflicts(name: str, changes: dict[str, Any], keys: list[str]) -> None:
    """Each with its key, and a sentence that names the objective or its option."""
    component: Any = objectives.get(name).component
    found = list(component.conflicts(Setup(**{**vars(SOUND), **changes}), REQUIRED.get(name, {})))
    assert [key for key, _ in found] == keys
    for key, sentence in found:
        assert sentence.endswith(".")
        assert name in sentence or key == STEPS


def test_the_numbers_of_a_first_stage_that_is_too_long_are_named() -> None:
    component: Any = objectives.get("two_stage").component
    setup = Setup(generator="network", tie="none", unbiased=True, steps=5)
    [(_, sentence)] = component.conflicts(setup, {"generator_steps": 7})
    assert sentence == "a first stage of 7 steps leaves none of 5 for the second. Set it below 5, or train longer."


def price(
    network: Literal["generator", "discriminator"],
    *,
    learns: bool = True,
    everywhere: bool = False,
    share: float = 1.0,
    heads: Any = None,
) -> int:
    """Prices in which every part of a sum can be read off."""
    if (network, share, heads) == ("discriminator", 0.9, ("contrast",)):
        return 10**6 * learns
    if (network, heads) == ("generator", ()):  # a third of it is the head
        return 2 if learns else 0
    return {"generator": 1, "discriminator": 1000}[network] * (3 if learns else 1) * (10 if everywhere else 1)


HEADS = {
    "all_tokens_mlm": ("tokens",),
    "coco_lm": ("replaced", "tokens", "contrast"),
    "electra_correct": ("replaced", "tokens"),
    "electric": ("energy",),
    "mc_bert": ("candidates",),
    "mlm": ("tokens",),
    "replace_mlm": ("tokens",),
    "sas": ("replaced", "tokens"),
    "teams": ("replaced_branch", "candidates"),
}
FLOPS = {
    "coco_lm": Flops(3 + 3000 + 10**6),
    "all_tokens_mlm": Flops(3 + 30_000),
    "amos": Flops(3 + 2 * (3 - 2) + 3000 + (1 - 0)),
    "electric": Flops(30 + 3000),
    "frozen_generator": Flops(1 + 3000),
    "mc_bert": Flops(3 + (10 - 0) + 3000),
    "sas": Flops(3000),
    "two_stage": Flops(1 + 3000, first=7, at_first=3),
}


@pytest.mark.parametrize("name", objectives.names())
def test_flops_needs_and_earlier_runs(name: str) -> None:
    """Who runs, who learns, and where vocabulary logits are computed; by default both networks learn at every step."""
    component: Any = objectives.get(name).component
    needs = needs_of(name)
    assert hasattr(component, "flops") == (name in FLOPS)
    if name in FLOPS:
        assert built(name).flops(price) == FLOPS[name]
    assert hasattr(component, "earlier_runs") == (name == "frozen_generator")
    if name == "frozen_generator":
        assert built(name).earlier_runs() == {"generator": Path("runs/earlier")}
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


@pytest.mark.parametrize(("name", "frozen"), [("frozen_generator", True), ("electra", False)])
def test_the_parameters_of_a_frozen_generator_are_not_trainable(name: str, frozen: bool) -> None:
    made = built(name)
    assert [p.requires_grad for p in made.generator.parameters()] == [not frozen] * 2
    assert [p.requires_grad for p in made.discriminator.parameters()] == [True] * 2
    made.train()
    assert made.generator.training != frozen
    assert made.discriminator.training
