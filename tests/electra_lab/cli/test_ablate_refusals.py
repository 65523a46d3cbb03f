"""What an ablation is refused for: exit code 2, a sentence with file and line, before anything is made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import write_experiment

START = {
    "name": "size", "base": "tiny.yaml", "set": "{}", "vary": "{generator.scale: [0.5, 1.0]}", "seeds": "[0, 1]",
    "measure": "[{type: pretraining}]",
}  # fmt: skip
LINES = {key: number for number, key in enumerate(START, start=1)}


def write(folder: Path, file: str = "size.yaml", /, **sections: str | None) -> Path:
    """The ablation with some of its lines rewritten or left out; further sections are added at the end."""
    write_experiment(folder)
    path = folder / file
    text = [f"{key}: {value}\n" for key, value in (START | sections).items() if value is not None]
    path.write_text("".join(text), encoding="utf-8")
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(lab: Any, path: Path, *arguments: object, verb: str = "ablate") -> list[str]:
    """The lines that it says; nothing is written, nowhere."""
    before, here = files(path.parent), Path.cwd()
    err = lab.fails(2, verb, path, *arguments)
    assert files(path.parent) == before
    assert list(here.iterdir()) == []
    return err.splitlines()


# What is wrong, and the lines that are said about it: {f} is the file, {b} its base, a number the line in the file.
WRONG: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "no seeds": ({"seeds": None}, ["{f}:1: seeds: is required."]),
    "empty seeds": ({"seeds": "[]"}, ["{f}:5: seeds: must have at least 1 item, not 0."]),
    "a seed twice": ({"seeds": "[0, 3, 3]"}, ["{f}:5: seeds: 3 appears twice."]),
    "seeds below zero": ({"seeds": "[-1]"}, ["{f}:5: seeds.0: must be greater than or equal to 0, is -1."]),
    "seeds as text": (
        {"seeds": "['0', a]"},
        ['{f}:5: seeds.0: must be an integer, is "0".', '{f}:5: seeds.1: must be an integer, is "a".'],
    ),
    "a key that the base does not have": (
        {"vary": "{sampler.temprature: [0.5, 1.0]}"},
        ["{f}:4: sampler.temprature: unknown parameter. Did you mean 'temperature'? Known: temperature. "
         "(in the variants sampler.temprature=0.5; sampler.temprature=1.0)"],
    ),
    "a section that the base does not have": (
        {"vary": "{a: {samplr.temperature: 1.0}}"},
        ["{f}:4: samplr: unknown parameter. Did you mean 'sampler'? *. (in the variant a)"],
    ),
    "a key to set that the base does not have": (
        {"set": "{embedding: {dmi: 4}}"},
        ["{f}:3: embedding.dmi: unknown parameter. Did you mean 'dim'? *."],
    ),
    "values that only one variant has": (
        {"vary": "{generator.scale: [0.5, 9.0], sampler.temperature: [1.0, 0.0]}"},
        [
            "{f}:4: sampler.temperature: must be *, is 0. "
            "(in the variants generator.scale=0.5, sampler.temperature=0.0; "
            "generator.scale=9.0, sampler.temperature=0.0)",
            "{f}:4: generator.scale: must be a number above 0 and at most 8. "
            "(in the variants generator.scale=9.0, sampler.temperature=1.0; "
            "generator.scale=9.0, sampler.temperature=0.0)",
        ],
    ),
    "what the networks refuse": (
        {"vary": "\n  generator.scale: [0.5]\n  discriminator:\n  - {dropout: 0.1}\n"
                 "  - {type: transformer, dim: 12, depth: 1, heads: 4, rotary: true}"},
        ["{f}:8: discriminator: transformer refuses this: rotary positions need an even *. (in the variant *)"],
    ),
    "a budget that buys no step": (
        {"budget": "{flops: 1.0}"},
        ["{f}:7: train.flops: 1 is too low: one step costs *"] * 2,
    ),
    "a budget that is too small for one variant": (
        {"budget": "{tokens: 50}", "vary": "{a: {}, b: {train.batch_size: 8}}"},
        ["{f}:7: train.tokens: 50 is too low: one step costs 128. (in the variant b)"],
    ),
    "two variants alike": (
        {"vary": "{a: {}, b: {train.batch_size: 4}, c: {generator.scale: 0.5}}"},
        ["{f}:4: vary: a and c are the same; remove one of them."],
    ),
    "a value twice": (
        {"vary": "\n  generator.scale:\n  - 0.5\n  - 0.50"},
        ["{f}:7: vary: generator.scale=0.5 appears twice, first at {f}:6; *"],
    ),
    "no base": ({"base": None}, ["{f}:1: base: is required."]),
    "a base that is not there": ({"base": "none.yaml"}, ["{f}:2: base: the file {d}/none.yaml does not exist."]),
    "a base that is a folder": ({"base": "."}, ["{f}:2: base: the file {d} does not exist."]),
    "a base that is an ablation": ({"base": "size.yaml"}, ["{f}:2: base: {f} is itself an ablation; name the file *"]),
    "nothing varied": ({"vary": None}, ["{f}:1: vary: is required."]),
    "vary empty": ({"vary": "{}"}, ["{f}:4: vary: is empty; write a key of the base and a list of values."]),
    "vary mixed": (
        {"vary": "{generator.scale: [0.5], large: {generator.scale: 1.0}}"},
        ["{f}:4: vary: mixes keys (with lists of values) and names (with changes). Use one of the two forms."],
    ),
    "vary a list": ({"vary": "[generator.scale]"}, ["{f}:4: vary: must be a mapping of keys to values."]),
    "no values": ({"vary": "{generator.scale: []}"}, ["{f}:4: vary.generator.scale: has no values."]),
    "a scalar": ({"vary": "{generator.scale: 0.5}"}, ["{f}:4: vary.generator.scale: must be a list of values of *"]),
    "a variant's name": (
        {"vary": '{"a\\nb": {}, " c": {generator.scale: 1.0}}'},
        [
            "{f}:4: vary.a", "b: a variant's name is one line of at most 80 characters, without spaces around it.",
            "{f}:4: vary. c: a variant's name is one line of at most 80 characters, without spaces around it.",
        ],
    ),
    "too many": (
        {"vary": f"{{generator.scale: {[n / 1000 for n in range(1, 502)]}}}"},
        ["{f}:4: vary: has 1002 cells; an ablation may have at most 1000."],
    ),
    "no key": ({"vary": "{sampler..temperature: [1.0]}", "set": "{'': 1}"}, [
        "{f}:4: vary: 'sampler..temperature' is not a key; write it as a.b.",
        "{f}:3: set: '' is not a key; write it as a.b.",
    ]),
    "two keys that overlap": (
        {"vary": "{sampler: [{type: gumbel, temperature: 0.5}], sampler.temperature: [1.0]}"},
        ["{f}:4: vary: sampler and sampler.temperature set the same key; keep one of them."],
    ),
    "two keys to set that overlap": (
        {"set": "{sampler.temperature: 1.0, sampler: {temperature: 0.5}}"},
        ["{f}:3: set: sampler.temperature and sampler set the same key; keep one of them."],
    ),
    "two budgets": ({"budget": "{steps: 3, flops: 1.0e9}"}, ["{f}:7: budget: set one of steps, epochs, *"]),
    "a budget and varied steps": (
        {"budget": "{flops: 1.0e9}", "vary": "{train.steps: [1, 2]}"},
        ["{f}:4: vary: train.steps is set by `budget`; keep one of them."],
    ),
    "a budget and varied tokens": (
        {"budget": "{flops: 1.0e9}", "vary": "{a: {train: {tokens: 5}}, b: {}}"},
        ["{f}:4: vary: train.tokens is set by `budget`; keep one of them."],
    ),
    "varied names": ({"vary": "{name: [a, b]}"}, ["{f}:4: vary: name is set by the ablation, for every cell."]),
    "varied seeds": ({"vary": "\n  seed:\n  - 1\n  - 2"}, ["{f}:6: vary: seed cannot be changed here: list the *"]),
    "varied imports": ({"vary": "{a: {imports: [x.py]}}"}, ["{f}:4: vary: imports cannot be varied: list plug-ins *"]),
    "varied stores": ({"vary": "{data.store: [a, b]}"}, ["{f}:4: vary: data.store cannot be varied: the place of *"]),
    "a name and a seed to set": (
        {"set": "{name: a, seed: 3}"},
        [
            "{f}:3: set: name is set by the ablation, for every cell.",
            "{f}:3: set: seed cannot be changed here: list the seeds under `seeds`.",
        ],
    ),
    "an unknown baseline": (
        {"baseline": "generator.scale=0.55"},
        ["{f}:7: baseline: no variant is called 'generator.scale=0.55'. Did you mean 'generator.scale=0.5'? *"],
    ),
    "an unknown metric": (
        {"metric": "discriminator_auk"},
        ["{f}:7: metric: no measure computes 'discriminator_auk'. Did you mean 'discriminator_auc'? Known: *"],
    ),
    "an empty metric": ({"metric": "''"}, ["{f}:7: metric: no measure computes ''. Known: *"]),
    "an unknown measure": (
        {"measure": "\n- {type: pretraining}\n- {type: fixed_coruption}"},
        ["{f}:8: measure.1.type: no measure is called 'fixed_coruption'. Did you mean 'fixed_corruption'? Known: *"],
    ),
    "a measure without a type": ({"measure": "[pretraining]"}, ["{f}:6: measure.0: must be a mapping such as *"]),
    "no measure": ({"measure": "[]"}, ["{f}:6: measure: must have at least 1 item, not 0."]),
    "options of a measure": (
        {"measure": "[{type: fixed_corruption, mask_prob: 1.5, stpes: 3}]"},
        [
            "{f}:6: measure.0.mask_prob: must be less than or equal to 1, is 1.5.",
            "{f}:6: measure.0.stpes: unknown parameter. Did you mean 'steps'? Known: *",
        ],
    ),
    "the old name of a metric": ({"quality": "luck"}, ["{f}:7: quality: has moved: write it as metric."]),
    "a metric twice": (
        {"measure": "\n- {type: pretraining}\n- {type: pretraining}"},
        ["{f}:8: measure.1: pretraining and pretraining both compute generator_mask_loss; keep one of them."],
    ),
    "an unknown launcher": (
        {"launcher": "{type: slrum}"},
        ["{f}:7: launcher.type: no launcher is called 'slrum'. Did you mean 'slurm'? Known: *"],
    ),
    "options of a launcher": ({"launcher": "{type: local, workers: 0}"}, ["{f}:7: launcher.workers: must be *"]),
    "a reference that the networks refuse": (
        {"set": "{discriminator: {dim: 16000, heads: 1}, generator.scale: 0.01}", "vary": "{train.batch_size: [2]}",
         "measure": "[{type: fixed_corruption, large: 8.0}]"},
        ["{f}:6: the reference of fixed_corruption (large): discriminator.dim: must be less than *, is 128000."],
    ),
    "other rows": (
        {"vary": "{a: {data.sequence_length: 8}, b: {tokenizer.vocab_size: 300}, c: {}}",
         "measure": "[{type: detection_probe}]"},
        [
            "{f}:4: vary: a reads other rows than the base (data differs)*or change data under `set`.",
            "{f}:4: vary: b reads other rows than the base (tokenizer differs)*",
        ],
    ),
    "a typo of the file's own keys": (
        {"sedes": "[0]", "retries": "-1"},
        ["{f}:8: retries: must be *, is -1.", "{f}:7: sedes: unknown parameter. Did you mean 'seeds'? *"],
    ),
    "keys of an experiment": (
        {"train": "{steps: 3}", "seed": "3"},
        [
            "{f}:7: train: is a key of experiments. To change it for every cell, put it under `set`.",
            "{f}:8: seed: is a key of experiments. To change it for every cell, put it under `set`.",
        ],
    ),
    "a plug-in that is not there": ({"imports": "[none.py]"}, ["{f}:7: imports.0: the file {d}/none.py does not *"]),
    "an experiment that is extended": (
        {"base": None, "extends": "tiny.yaml", "measure": None, "set": None, "seeds": "[]"},
        [*(f"{{b}}:{n}: {key}: is a key of experiments. To change it for every cell, put it under `set`."
           for n, key in enumerate(("corpus", "tokenizer", "data", "embedding", "discriminator", "generator", "masking",
                                    "sampler", "objective", "schedules", "train"), start=2)),
         "{f}:1: base: is required.", "{f}:3: seeds: must have at least 1 item, not 0."],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_refused_before_anything_is_made(lab, tmp_path: Path, case: str):
    sections, expected = WRONG[case]
    path = write(tmp_path / "there", **sections)
    lines = refused(lab, path)
    words = {"f": str(path), "b": str(path.with_name("tiny.yaml")), "d": str(path.parent)}
    patterns = [re.sub(r"\{(\w)\}", lambda m: words[m[1]], each) for each in expected]
    assert len(lines) == len(patterns), lines
    for pattern in patterns:
        begins = re.escape(pattern).replace(r"\*", ".*")
        assert any(re.fullmatch(f"{begins}(?: .*)?", line) for line in lines), (pattern, lines)


@pytest.mark.parametrize("case", ["a value twice", "other rows", "a budget that buys no step",
                                  "what the networks refuse", "keys of an experiment"])  # fmt: skip
def test_check_and_dry_run_refuse_the_same(lab, tmp_path: Path, case: str):
    path = write(tmp_path / "there", **WRONG[case][0])
    assert refused(lab, path) == refused(lab, path, verb="check") == refused(lab, path, "--dry-run")


# Overrides


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("generator.scale=2.0", "generator.scale is changed by `vary`."),
        ("generator={scale: 2.0}", "generator.scale is changed by `vary`."),
        ("seed=3", "seed cannot be changed here: list the seeds under `seeds`."),
        ("generator.dim=4", "generator.dim is changed by `vary`."),
        ("set.name=other", "set: name is set by the ablation, for every cell."),
        ("seeds=[]", "seeds: must have at least 1 item"),
        ("budget.flops=0", "budget.flops: must be greater than 0"),
        ("train.steps=5", "train.steps is set by `budget`; keep one of them."),
        ("train.batch_size=0", "train.batch_size: must be greater than 0, is 0."),
        ("sampler.temprature=1.0", "sampler.temprature: unknown parameter. Did you mean 'temperature'?"),
        ("nonsense", "write it as a.b=value."),
    ],
)
def test_an_override_that_cannot_hold_for_all(lab, tmp_path: Path, override: str, reason: str):
    [line] = refused(lab, write(tmp_path / "there", budget="{flops: 1.0e9}"), "--set", override)
    assert line.startswith(f"--set {override}: {reason}")


# Which file it is


def test_an_experiment_is_not_an_ablation(lab, tmp_path: Path):
    path = write_experiment(tmp_path / "there")
    [line] = refused(lab, path)
    assert re.match(f"{path}: is not an ablation: .* electra-lab run {path}$", line)


def test_an_ablation_is_not_an_experiment(lab, tmp_path: Path):
    path = write(tmp_path / "there")
    assert lab("run", path) == (2, "", f"{path}: is an ablation. To run it: electra-lab ablate {path}\n")


def test_a_file_that_cannot_be_read(lab, tmp_path: Path):
    (tmp_path / "there").mkdir()
    missing = tmp_path / "there/none.yaml"
    assert refused(lab, missing) == [f"{missing}: cannot be read (No such file or directory)."]
    broken = tmp_path / "there/broken.yaml"
    broken.write_text("base: [\n")
    [line] = refused(lab, broken)
    assert line.startswith(f"{broken}:2: is not valid YAML")
    path = write(tmp_path / "there", base="broken.yaml")
    [line] = refused(lab, path)
    assert line.startswith(f"{broken}:2: is not valid YAML")


def test_what_a_parent_wrote_is_reported_at_its_line(lab, tmp_path: Path):
    parent = write(tmp_path / "there", vary="{a: {sampler.temprature: 1.0}, b: {}}", base="none.yaml")
    child = tmp_path / "there/child.yaml"
    child.write_text("extends: size.yaml\nbase: tiny.yaml\nmetric: luck\n")
    lines = refused(lab, child)
    assert lines[0].startswith(f"{parent}:4: sampler.temprature: unknown parameter.")
    assert lines[1].startswith(f"{child}:3: metric: no measure computes 'luck'.")


# Its folder, its command line, its data and its reference


def test_a_folder_of_something_else_is_left_alone(lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # It takes seconds, and is not asked for.
    monkeypatch.setattr("electra_lab.jobs.sweeps.run.forecast", lambda *_: None)
    path = write(tmp_path / "there")
    out = tmp_path / "out"

    def said(*arguments: str) -> str:
        before = files(tmp_path)
        [line] = refused(lab, path, "--out", out, *arguments)
        assert files(tmp_path) == before
        return line

    [line] = refused(lab, path, "--out", "runs")
    assert line.startswith(f"--out runs: holds the token stores (data.store: {Path.cwd()}/runs/.store). Choose")
    out.write_text("mine")
    assert said() == f"--out {out}: is not a folder."
    out.unlink()
    out.mkdir()
    (out / "kept.txt").write_text("mine")
    for arguments in ([], ["--dry-run"]):
        assert said(*arguments).startswith(f"--out {out}: is not empty and not the folder of an ablation.")
    old = {"cells": [{"id": "other-s0-0123456789"}]}  # from before plans had a format
    for text, reason in (
        ("[3]", "is damaged: Input should be a valid dictionary"),
        ("{", "cannot be read (Expecting property name"),
        (json.dumps(old), "was written by another version of electra_lab, in format 1"),
    ):
        (out / "plan.json").write_text(text)
        for arguments in ([], ["--dry-run"]):
            code, printed, err = lab("ablate", path, "--out", out, *arguments)
            assert (code, printed) == (4, "")
            assert err.startswith(f"{out}/plan.json: {reason}")
            assert len(err.splitlines()) == 1


def test_a_launcher_that_nobody_knows(lab, tmp_path: Path):
    [line] = refused(lab, write(tmp_path / "there"), "--launcher", "slrum")
    assert line.startswith("--launcher slrum: ")
    assert "Did you mean 'slurm'?" in line


def test_data_that_is_not_here_is_exit_code_3_and_a_mistake_of_the_file_comes_first(lab, tmp_path: Path):
    path = write(tmp_path / "there")
    (path.parent / "corpus.txt").unlink()
    sentence = f"{path.parent}/tiny.yaml:2: corpus: text_files: {path.parent}/corpus.txt: no file matches."
    assert lab("ablate", path) == (3, "", sentence + "\n")
    assert list(Path.cwd().iterdir()) == []
    code, out, err = lab("check", path)
    assert (code, err) == (0, f"note: {sentence} A run would stop there.\n")
    assert out.startswith("size: 2 variants")
    path.write_text(path.read_text() + "budget: {tokens: 1}\n")
    where = "(in the variants generator.scale=0.5; generator.scale=1.0)"
    assert refused(lab, path) == [f"{path}:7: train.tokens: 1 is too low: one step costs 32. {where}"]


def test_a_reference_that_is_one_of_the_cells(lab, tmp_path: Path):
    base = write_experiment(tmp_path / "there", generator="null", sampler="null", objective="{type: mlm}",
                            embedding="{dim: 8, max_length: 16, tie: none}")  # fmt: skip
    text = base.read_text()
    path = write(tmp_path / "there", vary="{a: {}, b: {train.batch_size: 4}}", seeds="[5]",
                 measure="[{type: fixed_corruption, large: 1.0, seed: 5}]")  # fmt: skip
    base.write_text(text)
    [line] = refused(lab, path)
    assert line.startswith(f"{path}:6: measure.0: the reference of fixed_corruption (large) is also a cell")
