"""Objectives that do not fit the rest of the file are refused at their line, with advice."""

import re
from pathlib import Path

import pytest

from tests.helpers import line_of, write_experiment

UNTIED = {"embedding": "{dim: 8, max_length: 16, tie: none}"}
TIED = {"embedding": "{dim: 8, max_length: 16, tie: all}"}
REFORMER = "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, reversible: true}"
MLM = {"objective": "{type: mlm}", "generator": "null", "sampler": "null"}
AMOS = {"objective": "{type: amos}", "sampler": "null"}
TWO_STAGE = {"objective": "{type: two_stage, generator_steps: 5}", "train": "{tokens: 160, batch_size: 2}", **UNTIED}
ADVERSARIAL = {"objective": "{type: adversarial}"}
ELECTRIC = {"objective": "{type: electric}"}
TOWERS = "{type: two_towers, dim: 16, depth: 1, heads: 2}"
CHANGES = "{learning_rate: {warmup_steps: 0}, %s: {type: linear, start: 0.3, end: 0.15}}"

# The sections of a file, and the key that is named, with numbers and advice; the line is that of its section.
WRONG: dict[str, tuple[dict[str, str], str]] = {
    "a generator for mlm": (MLM | {"generator": "{scale: 0.5}"}, "generator: mlm .* null"),
    "a sampler for mlm": (MLM | {"sampler": "{type: gumbel}"}, "sampler: mlm .* null"),
    "no generator": ({"generator": "null"}, "generator: is required: electra "),
    "no sampler": ({"sampler": "null"}, "sampler: is required: electra "),
    "a shared table that must be frozen": (
        {"objective": "{type: frozen_generator, run: nowhere}", "embedding": "{dim: 8, max_length: 16, tie: tokens}"},
        "embedding.tie: must be none: frozen_generator ",
    ),
    "more tokens than are paid for": (  # a step has 2 x 16 tokens
        TWO_STAGE, r"objective.generator_steps: .* 5 steps .* \(train.tokens buys 5 steps.\)"
    ),
    "no length of a stage": ({"objective": "{type: two_stage}", **UNTIED}, "objective.generator_steps: is required."),
    "encoders of other sizes": (TIED, "embedding.tie: all .* tie: embeddings"),
    "an encoder of another depth": (TIED | {"generator": "{scale: 1.0, depth: 2}"}, "embedding.tie: all "),
    "an encoder with another option": (TIED | {"generator": "{scale: 1.0, dropout: 0.5}"}, "embedding.tie: all "),
    "a reversible encoder cannot run twice": (
        TIED | {"discriminator": REFORMER, "generator": "{scale: 1.0}"}, "embedding.tie: .* reversible: false"
    ),
    "exits of a generator with one layer": (
        AMOS | {"generator": "{scale: 1.0, depth: 1}"}, r"objective: amos refuses this: exits \[1\] must be two layers"
    ),
    "exits of a reversible generator": (
        AMOS | {"discriminator": REFORMER, "generator": "{depth: 2}"},
        "objective: amos refuses this: its generator must return states of inner layers",
    ),
    "a sampler that changes for adversarial": (
        ADVERSARIAL | {"sampler": "{type: temperature}", "schedules": CHANGES % "sampler.temperature"},
        "sampler: adversarial .*{type: temperature}",
    ),
    "a generator that sees the token that it predicts": (ELECTRIC, "generator.type: electric .*or unigram."),
    "towers do not see what they judge": ({"discriminator": TOWERS}, "discriminator.type: two_towers .* Use bert."),
    "no half": (ELECTRIC | {"generator": "{type: two_towers, dim: 6, heads: 2}"}, "generator: .*half of dim 6.*"),
}  # fmt: skip
RIGHT: dict[str, dict[str, str]] = {
    "mlm": MLM,
    "two stages by tokens": TWO_STAGE | {"objective": "{type: two_stage, generator_steps: 4}"},
    "one Reformer": TIED | {"generator": "{scale: 1.0}", "discriminator": REFORMER.replace("true", "false")},
    "adversarial": ADVERSARIAL
    | {"sampler": "{type: temperature, temperature: 1.0}", "schedules": CHANGES % "masking.mask_prob"},
    "adversarial with Gumbel noise": ADVERSARIAL | {"sampler": "{type: gumbel}"},
    "electric by word frequencies": ELECTRIC | {"generator": "{type: unigram}"},
    "electric with two towers": ELECTRIC | {"generator": "{type: two_towers, scale: 0.5}"},
    "towers that predict": MLM | {"discriminator": TOWERS},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_conflict_is_refused(lab, tmp_path: Path, case: str) -> None:
    sections, sentence = WRONG[case]
    file = write_experiment(tmp_path, **sections)
    line = line_of(re.split(r"\W", sentence)[0], file.read_text())
    err = lab.fails(2, "check", file)
    assert re.fullmatch(rf"{re.escape(str(file))}:{line}: {sentence}.*\n", err), err


@pytest.mark.parametrize("case", RIGHT)
def test_its_neighbour_is_accepted(lab, tmp_path: Path, case: str) -> None:
    code, _, err = lab("check", write_experiment(tmp_path, **RIGHT[case]))
    assert (code, err) == (0, "")


def test_a_budget_in_flops_must_pay_for_both_stages(lab, tmp_path: Path) -> None:
    """The cost of a step depends on the vocabulary, so `run` finds this, before it writes anything."""
    file = write_experiment(tmp_path, **(TWO_STAGE | {"train": "{flops: 5.0e+5, batch_size: 2}"}))
    err = lab.fails(2, "run", file, "--out", tmp_path / "out", "--set", f"data.store={tmp_path}/store")
    place = rf"{re.escape(str(file))}:{line_of('objective')}: objective\.generator_steps: "
    assert re.search(rf"{place}.* 5 steps leaves none of (\d) .* \(train\.flops buys \1 steps\.\)\n$", err), err
    assert not (tmp_path / "out").exists()


def test_the_run_of_a_frozen_generator_that_is_not_there_is_exit_code_3(lab, tmp_path: Path) -> None:
    file = write_experiment(tmp_path / "there", objective="{type: frozen_generator, run: ../earlier}", **UNTIED)
    place = f"{file}:{line_of('objective')}: objective.run: {tmp_path}/earlier: "
    code, out, note = lab("check", file)
    assert (code, note.startswith(f"note: {place}"), f"run: {tmp_path}/earlier " in out) == (0, True, True)
    assert note == f"note: {lab.fails(3, 'run', file)[:-1]} A run would stop there.\n"
    assert not list((tmp_path / "here").iterdir())
