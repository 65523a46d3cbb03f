"""Objectives that do not fit the rest of the file: refused by `check` and `run`, at the line, with a cure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import line_of, write_experiment

TWO_STAGE = {"embedding": "{dim: 8, max_length: 16, tie: none}"}
ALL = "{dim: 8, max_length: 16, tie: all}"
REFORMER = "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, reversible: true}"

PLAIN = r"sampler: adversarial needs draws from the generator's own softmax\. Use \{type: temperature\}\."

# The sections of a file, the section whose line is named, and the sentence.
WRONG = {
    "a generator for mlm": (
        {"objective": "{type: mlm}", "sampler": "null"}, "generator",
        r"generator: mlm does not use a generator; remove this key \(to override a parent's, write generator: null\)\.",
    ),
    "a sampler for mlm": (
        {"objective": "{type: mlm}", "generator": "null"}, "sampler",
        r"sampler: mlm does not use a sampler; remove this key \(to override a parent's, write sampler: null\)\.",
    ),
    "no generator": ({"generator": "null"}, "generator", r"generator: is required: electra needs a generator\."),
    "no sampler": ({"sampler": "null"}, "sampler", r"sampler: is required: electra needs a sampler\."),
    "no sampler for the frozen generator": (
        {"sampler": "null", "objective": "{type: frozen_generator, run: nowhere}", **TWO_STAGE}, "sampler",
        r"sampler: is required: frozen_generator needs a sampler\.",
    ),
    "a shared table that two stages would change": (
        {"objective": "{type: two_stage, generator_steps: 1}", "train": "{steps: 2}"}, None,
        r"embedding\.tie: must be none: two_stage freezes the generator, so none of its parameters may be shared\.",
    ),
    "a shared table that must be frozen": (
        {"objective": "{type: frozen_generator, run: nowhere}", "embedding": ALL.replace("all", "tokens")}, "embedding",
        r"embedding\.tie: must be none: frozen_generator freezes the generator, so none of its parameters may be "
        r"shared\.",
    ),
    "as many steps of the first stage as there are": (
        {"objective": "{type: two_stage, generator_steps: 5}", "train": "{steps: 5}", **TWO_STAGE}, "objective",
        r"objective\.generator_steps: a first stage of 5 steps leaves none of 5 for the second\. "
        r"Set it below 5, or train longer\.",
    ),
    "more tokens than are paid for": (  # a step has 2 x 16 tokens
        {"objective": "{type: two_stage, generator_steps: 5}", "train": "{tokens: 160, batch_size: 2}", **TWO_STAGE},
        "objective",
        r"objective\.generator_steps: a first stage of 5 steps leaves none of 5 for the second\. "
        r"Set it below 5, or train longer\. \(train\.tokens buys 5 steps\.\)",
    ),
    "two stages without the length of the first": (
        {"objective": "{type: two_stage}", **TWO_STAGE}, "objective", r"objective\.generator_steps: is required\."
    ),
    "encoders of other sizes cannot be one": (
        {"embedding": ALL}, "embedding",
        r"embedding\.tie: all shares the whole encoder, but generator and discriminator differ\. Write generator: "
        r"\{scale: 1\.0\}, with no option of its own, or use tie: embeddings\.",
    ),
    "an encoder of another depth": (
        {"embedding": ALL, "generator": "{scale: 1.0, depth: 2}"}, "embedding", r"embedding\.tie: all shares the"
    ),
    "an encoder with an option of its own": (
        {"embedding": ALL, "generator": "{scale: 1.0, dropout: 0.5}"}, "embedding", r"embedding\.tie: all shares the"
    ),
    "a reversible encoder cannot run twice": (
        {"embedding": ALL, "discriminator": REFORMER, "generator": "{scale: 1.0}"}, "embedding",
        r"embedding\.tie: tie: all runs the encoder twice before one backward pass, which reversible layers cannot\. "
        r"Use reversible: false, or tie: embeddings\.",
    ),
    "a generator that learns nothing for adversarial": (
        {"objective": "{type: adversarial}", "sampler": "{type: temperature}", "generator": "{type: unigram}"},
        "generator",
        r"generator\.type: adversarial needs a network as generator\. Write generator: \{scale: 0\.5\}\.",
    ),
    "a sharpened sampler for adversarial": (
        {"objective": "{type: adversarial}", "sampler": "{type: temperature, temperature: 0.5}"}, "sampler", PLAIN
    ),
    "a cut sampler for adversarial": (
        {"objective": "{type: adversarial}", "sampler": "{type: top_k}"}, "sampler", PLAIN
    ),
    "a sampler that changes for adversarial": (
        {
            "objective": "{type: adversarial}", "sampler": "{type: temperature}",
            "schedules": "{sampler.temperature: {type: linear, start: 2, end: 1}, learning_rate: {warmup_steps: 0}}",
        },
        "sampler", PLAIN,
    ),
}  # fmt: skip
RIGHT = {
    "mlm": {"objective": "{type: mlm}", "generator": "null", "sampler": "null"},
    "two stages": {"objective": "{type: two_stage, generator_steps: 4}", "train": "{steps: 5}", **TWO_STAGE},
    "two stages by tokens": {
        "objective": "{type: two_stage, generator_steps: 4}", "train": "{tokens: 160, batch_size: 2}", **TWO_STAGE
    },
    "one encoder": {"embedding": ALL, "generator": "{scale: 1.0}"},
    "one Reformer": {
        "embedding": ALL, "generator": "{scale: 1.0}", "discriminator": REFORMER.replace("true", "false")
    },
    "adversarial": {
        "objective": "{type: adversarial}", "sampler": "{type: temperature, temperature: 1.0}",
        "schedules": "{masking.mask_prob: {type: linear, start: 0.3, end: 0.15}, learning_rate: {warmup_steps: 0}}",
    },
    "adversarial with Gumbel noise": {"objective": "{type: adversarial}", "sampler": "{type: gumbel}"},
}  # fmt: skip


@pytest.mark.parametrize("verb", ["check", "run"])
@pytest.mark.parametrize("case", WRONG)
def test_a_conflict_is_refused(lab, tmp_path: Path, verb: str, case: str) -> None:
    sections, key, sentence = WRONG[case]
    file = write_experiment(tmp_path / "there", **sections)
    code, out, err = lab(verb, file)
    line = line_of(key, file.read_text()) if key else line_of("embedding")
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"{re.escape(str(file))}:{line}: {sentence}.*\n", err), err
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("case", RIGHT)
def test_its_neighbour_is_accepted(lab, tmp_path: Path, case: str) -> None:
    """One step away from what is refused."""
    code, _, err = lab("check", write_experiment(tmp_path / "there", **RIGHT[case]))
    assert (code, err) == (0, "")


def test_a_budget_in_flops_must_pay_for_both_stages(lab, tmp_path: Path) -> None:
    """It takes the vocabulary to know what a step costs, so this is found by `run`, before it writes anything."""
    objective, train = "{type: two_stage, generator_steps: 5}", "{flops: 5.0e+5, batch_size: 2}"
    file = write_experiment(tmp_path / "there", objective=objective, train=train, **TWO_STAGE)
    code, _, err = lab("run", file, "--out", tmp_path / "out", "--set", f"data.store={tmp_path}/store")
    assert code == 2
    sentence = r"objective\.generator_steps: a first stage of 5 steps leaves none of (\d) for the second\. "
    cure = r"Set it below \1, or train longer\. \(train\.flops buys \1 steps\.\)"
    assert re.search(rf"{re.escape(str(file))}:{line_of('objective')}: {sentence}{cure}\n$", err), err
    assert not (tmp_path / "out").exists()


def test_the_run_of_a_frozen_generator_that_is_not_there_is_exit_code_3(lab, tmp_path: Path) -> None:
    """`check` only notes it: the file is good, and the run may come."""
    file = write_experiment(tmp_path / "there", objective="{type: frozen_generator, run: ../earlier}", **TWO_STAGE)
    sentence = (
        f"{file}:{line_of('objective')}: objective.run: {tmp_path}/earlier is not a run directory with a checkpoint."
    )
    code, out, err = lab("check", file)
    assert (code, err) == (0, f"note: {sentence} A run would stop there.\n")
    assert f"run: {tmp_path}/earlier " in out
    assert lab("run", file) == (3, "", f"{sentence}\n")
    assert not list((tmp_path / "here").iterdir())
