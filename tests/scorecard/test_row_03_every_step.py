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
WARM_UP = "learning_rate: {type: warmup_linear, warmup_steps: 3}"
# The sections beside the defaults with which a component is used.
USES: dict[str, dict[str, dict[str, str]]] = {
    "backbones": {
        "bert": {},
        "transformer": {"discriminator": "{type: transformer, dim: 16, depth: 1, heads: 2}"},
        "modernbert": {"discriminator": "{type: modernbert, dim: 16, depth: 2, heads: 2, local_attention: 4}"},
        "deberta": {"discriminator": "{type: deberta, dim: 16, depth: 1, heads: 2, buckets: 8, max_distance: 16}"},
        "hugging_face": {"discriminator": "{type: hugging_face, model_type: roberta, dim: 16, depth: 1, heads: 2}"},
        "reformer": {"discriminator": "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, hashes: 1}"},
        "two_towers": {"objective": "{type: electric}", "generator": "{type: two_towers}"},
        "performer": {
            "discriminator": "{type: performer, dim: 16, depth: 1, heads: 2, features: 8, redraw_every: 2}"
        },
    },
    "generators": {name: {"generator": f"{{type: {name}}}"} for name in ("uniform", "unigram")},
    "masking": {name: {"masking": f"{{type: {name}}}"} for name in registry.masking_strategies.names()},
    "samplers": {name: {"sampler": f"{{type: {name}}}"} for name in registry.samplers.names()},
    "packings": {name: {"packing": f"{{type: {name}}}"} for name in registry.packings.names()},
    "optimizers": {name: {"optimizer": f"{{type: {name}}}"} for name in registry.optimizers.names()},
    "schedules": {
        "constant": {"schedules": "{learning_rate: {type: constant}}"},
        "cosine": {"schedules": "{learning_rate: {type: cosine, start: 1.0, end: 0.1}}"},
        "exponential": {
            "schedules": f"{{{WARM_UP}, train.generator_rate: {{type: exponential, start: 2.0, end: 1.0, rate: 5.0}}}}"
        },
        "linear": {"schedules": f"{{{WARM_UP}, sampler.temperature: {{type: linear, start: 2.0, end: 1.0}}}}"},
        "warmup_linear": {"schedules": f"{{{WARM_UP}}}"},
        "warmup_stable_decay": {"schedules": "{learning_rate: {type: warmup_stable_decay, warmup_steps: 2}}"},
    },
    "objectives": {
        "electra": {},
        "electra_masked_only": {"objective": "{type: electra_masked_only}"},
        "electra_correct": {"objective": "{type: electra_correct}"},
        "coco_lm": {"objective": "{type: coco_lm, group: 2}"},
        "adversarial": {"objective": "{type: adversarial}", "sampler": "{type: temperature}"},
        "amos": {
            "objective": "{type: amos}", "sampler": "null",
            "discriminator": "{type: bert, dim: 16, depth: 2, heads: 2}",
        },
        "two_stage": {"objective": "{type: two_stage, generator_steps: 3}", "embedding": UNTIED},
        "mlm": MLM,
        "sas": {"objective": "{type: sas}", "generator": "null"},
        "all_tokens_mlm": {"objective": "{type: all_tokens_mlm}"},
        "electric": {"objective": "{type: electric}", "generator": "{type: two_towers}"},
        "replace_mlm": {"objective": "{type: replace_mlm}"},
        "mc_bert": {"objective": "{type: mc_bert}"},
        "teams": {"objective": "{type: teams}", "discriminator": "{type: bert, dim: 16, depth: 2, heads: 2}"},
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
