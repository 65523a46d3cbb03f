"""Row 3: a run of each registered component, stopped and resumed after every single step."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import registry
from tests.scorecard.conftest import Score
from tests.scorecard.lab import Lab
from tests.scorecard.project import SECTIONS, Project, sent
from tests.scorecard.rows import FULL

STEPS = 7
UNTIED = "{dim: 8, max_length: 16, tie: none}"
MLM = {"objective": "{type: mlm}", "generator": "null", "sampler": "null"}


def alone(kind: str, section: str) -> dict[str, dict[str, str]]:
    """Return the sections of an experiment for each component of a kind, with its own defaults."""
    every = registry.masking_strategies if kind == "masking" else getattr(registry, kind)
    return {name: {section: f"{{type: {name}}}"} for name in every.names()}


def encoder(name: str, depth: int = 1, **options: object) -> dict[str, str]:
    more = "".join(f", {key}: {value}" for key, value in options.items())
    return {"discriminator": f"{{type: {name}, dim: 16, depth: {depth}, heads: 2{more}}}"}


def rate(schedule: str, **others: str) -> dict[str, str]:
    more = "".join(f", {key.replace('__', '.')}: {{{value}}}" for key, value in others.items())
    return {"schedules": f"{{learning_rate: {{{schedule}}}{more}}}"}


WARM_UP = "type: warmup_linear, warmup_steps: 3"
# The sections, other than the defaults, that each component is tested with.
USES: dict[str, dict[str, dict[str, str]]] = {
    "backbones": {
        "bert": {}, "transformer": encoder("transformer"),
        "modernbert": encoder("modernbert", depth=2, local_attention=4),
        "deberta": encoder("deberta", buckets=8, max_distance=16),
        "hugging_face": encoder("hugging_face", model_type="roberta"),
        "reformer": encoder("reformer", bucket_size=4, hashes=1),
        "performer": encoder("performer", features=8, redraw_every=2),
        "two_towers": {"objective": "{type: electric}", "generator": "{type: two_towers}"},
    },
    "generators": alone("generators", "generator"),
    "masking": alone("masking", "masking"),
    "samplers": alone("samplers", "sampler"),
    "packings": alone("packings", "packing"),
    "optimizers": alone("optimizers", "optimizer"),
    "schedules": {
        "constant": rate("type: constant"),
        "cosine": rate("type: cosine, start: 1.0, end: 0.1"),
        "exponential": rate(WARM_UP, train__generator_rate="type: exponential, start: 2.0, end: 1.0, rate: 5.0"),
        "linear": rate(WARM_UP, sampler__temperature="type: linear, start: 2.0, end: 1.0"),
        "warmup_linear": rate(WARM_UP),
        "warmup_stable_decay": rate("type: warmup_stable_decay, warmup_steps: 2"),
    },
    "objectives": {
        **alone("objectives", "objective"), "mlm": MLM,
        "coco_lm": {"objective": "{type: coco_lm, group: 2}"},
        "adversarial": {"objective": "{type: adversarial}", "sampler": "{type: temperature}"},
        "amos": {"objective": "{type: amos}", "sampler": "null", **encoder("bert", depth=2)},
        "two_stage": {"objective": "{type: two_stage, generator_steps: 3}", "embedding": UNTIED},
        "sas": {"objective": "{type: sas}", "generator": "null"},
        "electric": {"objective": "{type: electric}", "generator": "{type: two_towers}"},
        "teams": {"objective": "{type: teams}", **encoder("bert", depth=2)},
        "frozen_generator": {
            "objective": "{type: frozen_generator, run: mlm}", "embedding": UNTIED, "generator": "{scale: 1.0}"
        },
    },
}  # fmt: skip


def test_all_components_are_tried(score: Score) -> None:
    for kind, uses in USES.items():
        with score.trial(f"all {kind}"):
            every = registry.masking_strategies if kind == "masking" else getattr(registry, kind)
            assert not set(every.names()) - set(uses), f"add {set(every.names()) - set(uses)}"


@pytest.mark.scorecard
def test_after_every_step(score: Score, lab: Lab, tmp_path: Path) -> None:
    cases = [(kind, name) for kind, uses in USES.items() for name in uses]
    for kind, name in score.chosen(cases, " ".join):
        folder = tmp_path / f"{kind}-{name}"
        sections = {"train": SECTIONS["train"].replace("steps: 12", f"steps: {STEPS}"), **USES[kind][name]}
        with score.trial(f"{kind} {name}"):
            if name == "frozen_generator":
                mlm = Project.create(lab, folder, train=sections["train"], **MLM)
                mlm.reference.rename(folder / "mlm")
            project = Project.create(lab, folder, **sections)
            out = project.new()
            for steps in [1] * (STEPS - 1) if FULL else (1, STEPS - 2):
                project.again(out, hooks=[sent("step", steps, signal.SIGTERM)]).must(75)
            project.ends_alike(out)
