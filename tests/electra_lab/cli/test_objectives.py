"""Objectives that do not fit the rest of the file are refused at the line with a cure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import line_of, write_experiment

TWO_STAGE = {"embedding": "{dim: 8, max_length: 16, tie: none}"}
ALL = "{dim: 8, max_length: 16, tie: all}"
REFORMER = "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, reversible: true}"

# The sections of a file, the section whose line is named, and the key with numbers and cure.
WRONG: dict[str, tuple[dict[str, str], str, str]] = {
    "a generator for mlm": ({"objective": "{type: mlm}", "sampler": "null"}, "generator", "generator: mlm .* null"),
    "a sampler for mlm": ({"objective": "{type: mlm}", "generator": "null"}, "sampler", "sampler: mlm .* null"),
    "no generator": ({"generator": "null"}, "generator", "generator: is required: electra "),
    "no sampler": ({"sampler": "null"}, "sampler", "sampler: is required: electra "),
    "a shared table that must be frozen": (
        {"objective": "{type: frozen_generator, run: nowhere}", "embedding": ALL.replace("all", "tokens")},
        "embedding", "embedding.tie: must be none: frozen_generator ",
    ),
    "more tokens than are paid for": (  # a step has 2 x 16 tokens
        {"objective": "{type: two_stage, generator_steps: 5}", "train": "{tokens: 160, batch_size: 2}", **TWO_STAGE},
        "objective", r"objective.generator_steps: .* 5 steps .* \(train.tokens buys 5 steps.\)",
    ),
    "two stages without the length of the first": (
        {"objective": "{type: two_stage}", **TWO_STAGE}, "objective", "objective.generator_steps: is required."
    ),
    "encoders of other sizes cannot be one": ({"embedding": ALL}, "embedding", "embedding.tie: all .* tie: embeddings"),
    "exits of a generator with one layer": (
        {"objective": "{type: amos}", "sampler": "null", "generator": "{scale: 1.0, depth: 1}"},
        "objective", r"objective: amos refuses this: exits \[1\] must be two layers or more, ",
    ),
    "exits of a reversible generator": (
        {"objective": "{type: amos}", "sampler": "null", "discriminator": REFORMER, "generator": "{depth: 2}"},
        "objective", "objective: amos refuses this: its generator must return states of inner layers",
    ),
    "an encoder of another depth": (
        {"embedding": ALL, "generator": "{scale: 1.0, depth: 2}"}, "embedding", "embedding.tie: all "
    ),
    "an encoder with another option": (
        {"embedding": ALL, "generator": "{scale: 1.0, dropout: 0.5}"}, "embedding", "embedding.tie: all "
    ),
    "a reversible encoder cannot run twice": (
        {"embedding": ALL, "discriminator": REFORMER, "generator": "{scale: 1.0}"},
        "embedding", "embedding.tie: .* reversible: false",
    ),
    "a sampler that changes for adversarial": (
        {
            "objective": "{type: adversarial}", "sampler": "{type: temperature}",
            "schedules": "{sampler.temperature: {type: linear, start: 2, end: 1}, learning_rate: {warmup_steps: 0}}",
        },
        "sampler", "sampler: adversarial .*{type: temperature}",
    ),
    "a generator that sees the token that it predicts": (
        {"objective": "{type: electric}"}, "generator", "generator.type: electric .*two_towers, or unigram."
    ),
    "a discriminator that does not see the token that it judges": (
        {"discriminator": "{type: two_towers, dim: 16, depth: 1, heads: 2}"},
        "discriminator", "discriminator.type: two_towers .* Use bert.",
    ),
    "towers that cannot be halved": (
        {"objective": "{type: electric}", "generator": "{type: two_towers, dim: 6, heads: 2}"},
        "generator", "generator: .*half of dim 6.*",
    ),
}  # fmt: skip
RIGHT: dict[str, dict[str, str]] = {
    "mlm": {"objective": "{type: mlm}", "generator": "null", "sampler": "null"},
    "two stages by tokens": {
        "objective": "{type: two_stage, generator_steps: 4}", "train": "{tokens: 160, batch_size: 2}", **TWO_STAGE
    },
    "one Reformer": {
        "embedding": ALL, "generator": "{scale: 1.0}", "discriminator": REFORMER.replace("true", "false")
    },
    "adversarial": {
        "objective": "{type: adversarial}", "sampler": "{type: temperature, temperature: 1.0}",
        "schedules": "{masking.mask_prob: {type: linear, start: 0.3, end: 0.15}, learning_rate: {warmup_steps: 0}}",
    },
    "electric by word frequencies": {"objective": "{type: electric}", "generator": "{type: unigram}"},
    "electric with two towers": {"objective": "{type: electric}", "generator": "{type: two_towers, scale: 0.5}"},
    "towers that predict": (
        {"objective": "{type: mlm}", "generator": "null", "sampler": "null",
         "discriminator": "{type: two_towers, dim: 16, depth: 1, heads: 2}"}
    ),
    "adversarial with Gumbel noise": {"objective": "{type: adversarial}", "sampler": "{type: gumbel}"},
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_conflict_is_refused(lab, tmp_path: Path, case: str) -> None:
    sections, key, sentence = WRONG[case]
    file = write_experiment(tmp_path / "there", **sections)
    err = lab.fails(2, "check", file)
    assert re.fullmatch(rf"{re.escape(str(file))}:{line_of(key, file.read_text())}: {sentence}.*\n", err), err


@pytest.mark.parametrize("case", RIGHT)
def test_its_neighbour_is_accepted(lab, tmp_path: Path, case: str) -> None:
    code, _, err = lab("check", write_experiment(tmp_path / "there", **RIGHT[case]))
    assert (code, err) == (0, "")


def test_a_budget_in_flops_must_pay_for_both_stages(lab, tmp_path: Path) -> None:
    """It takes the vocabulary to know what a step costs, so this is found by `run`, before it writes anything."""
    objective, train = "{type: two_stage, generator_steps: 5}", "{flops: 5.0e+5, batch_size: 2}"
    file = write_experiment(tmp_path / "there", objective=objective, train=train, **TWO_STAGE)
    err = lab.fails(2, "run", file, "--out", tmp_path / "out", "--set", f"data.store={tmp_path}/store")
    place = rf"{re.escape(str(file))}:{line_of('objective')}: objective\.generator_steps: "
    assert re.search(rf"{place}.* 5 steps leaves none of (\d) .* \(train\.flops buys \1 steps\.\)\n$", err), err
    assert not (tmp_path / "out").exists()


def test_the_run_of_a_frozen_generator_that_is_not_there_is_exit_code_3(lab, tmp_path: Path) -> None:
    file = write_experiment(tmp_path / "there", objective="{type: frozen_generator, run: ../earlier}", **TWO_STAGE)
    sentence = (
        f"{file}:{line_of('objective')}: objective.run: {tmp_path}/earlier is not a run directory with a checkpoint."
    )
    code, out, err = lab("check", file)
    assert (code, err) == (0, f"note: {sentence} A run would stop there.\n")
    assert f"run: {tmp_path}/earlier " in out
    assert lab("run", file) == (3, "", f"{sentence}\n")
    assert not list((tmp_path / "here").iterdir())
