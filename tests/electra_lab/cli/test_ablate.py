"""electra-lab ablate: mistakes are refused at file and line before anything is written; its options and answer."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.analysis.results import cell_result
from electra_lab.jobs.sweeps import run
from electra_lab.storage.ablation_folder import AblationFolder
from registry import launchers
from tests.electra_lab.cli.conftest import Lab
from tests.electra_lab.jobs.sweeps import small
from tests.electra_lab.presentation.synthetic import leave_out_pictures
from tests.helpers import EXPERIMENT, write_experiment
from tests.pages import Page

START = {
    "name": "size", "base": "tiny.yaml", "set": "{}", "vary": "{generator.scale: [0.5, 1.0]}", "seeds": "[0, 1]",
    "measure": "[{type: pretraining}]",
}  # fmt: skip


def write(folder: Path, file: str = "size.yaml", /, **sections: str | None) -> Path:
    """Write the ablation with some sections replaced or left out; new sections are appended."""
    write_experiment(folder)
    path = folder / file
    text = [f"{key}: {value}\n" for key, value in (START | sections).items() if value is not None]
    path.write_text("".join(text), encoding="utf-8")
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(lab: Any, path: Path, *arguments: object, verb: str = "ablate") -> list[str]:
    """Return the lines of the refusal; checks that nothing is written anywhere."""
    before, here = files(path.parent), Path.cwd()
    err = lab.fails(2, verb, path, *arguments)
    assert files(path.parent) == before
    assert list(here.iterdir()) == []
    return err.splitlines()


BROAD = "{discriminator: {dim: 16000, heads: 1}, generator.scale: 0.01}"
LARGE = "[{type: fixed_corruption, large: 8.0}]"
ROTARY = "{type: transformer, dim: 12, depth: 1, heads: 4, rotary: true}"
WITHOUT_ROTARY = f"\n  generator.scale: [0.5]\n  discriminator:\n  - {{dropout: 0.1}}\n  - {ROTARY}"
TWO_NUMBERS = "{generator.scale: [0.5, 9.0], sampler.temperature: [1.0, 0.0]}"
OTHER_ROWS = "{a: {data.sequence_length: 8}, b: {tokenizer.vocab_size: 300}, c: {}}"
ALIKE = "{a: {}, b: {train.batch_size: 4}, c: {generator.scale: 0.5}}"
OVERLAP = "{sampler: [{type: gumbel, temperature: 0.5}], sampler.temperature: [1.0]}"
MIXED = "{generator.scale: [0.5], large: {generator.scale: 1.0}}"
MANY = f"{{generator.scale: {[n / 1000 for n in range(1, 502)]}}}"
FLOPS = "{flops: 1.0e9}"
KEYS = list(yaml.safe_load(EXPERIMENT))[1:]

# Each mistake, and the lines of its message: a number is a line of the file {f} in the folder {d}.
WRONG: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "empty seeds": ({"seeds": "[]"}, ["5: seeds: *1 item, not 0."]),
    "a seed twice": ({"seeds": "[0, 3, 3]"}, ["5: seeds: 3 "]),
    "seeds below zero": ({"seeds": "[-1]"}, ["5: seeds.0: *, is -1."]),
    "seeds as text": ({"seeds": "['0', a]"}, ['5: seeds.0: *"0".', '5: seeds.1: *"a".']),
    "a key that the base does not have": (
        {"vary": "{sampler.temprature: [0.5, 1.0]}"},
        ["4: sampler.temprature: *'temperature'? Known: temperature. "
         "(in the variants sampler.temprature=0.5; sampler.temprature=1.0)"],
    ),
    "a section that it lacks": ({"vary": "{a: {samplr.x: 1.0}}"}, ["4: samplr: *'sampler'? * (in the variant a)"]),
    "a key to set": ({"set": "{embedding: {dmi: 4}}"}, ["3: embedding.dmi: *'dim'? *"]),
    "values that only one variant has": (
        {"vary": TWO_NUMBERS},
        ["4: sampler.temperature: *, is 0. (in the variants generator.scale=0.5, sampler.temperature=0.0; "
         "generator.scale=9.0, sampler.temperature=0.0)",
         "4: generator.scale: *8. (in the variants generator.scale=9.0, sampler.temperature=1.0; "
         "generator.scale=9.0, sampler.temperature=0.0)"],
    ),
    "what the networks refuse": ({"vary": WITHOUT_ROTARY}, ["8: discriminator: transformer *(in the variant *)"]),
    "a budget that buys no step": ({"budget": "{flops: 1.0}"}, ["7: train.flops: 1 is too low: one step costs "] * 2),
    "a budget that is too small for one variant": (
        {"budget": "{tokens: 50}", "vary": "{a: {}, b: {train.batch_size: 8}}"},
        ["7: train.tokens: 50 *128. (in the variant b)"],
    ),
    "two variants alike": ({"vary": ALIKE}, ["4: vary: a and c "]),
    "a value twice": ({"vary": "\n  data.overlap:\n  - 0.5\n  - 0.50"}, ["7: vary: data.overlap=0.5 *at {f}:6; "]),
    "a base that is not there": ({"base": "none.yaml"}, ["2: base: *{d}/none.yaml "]),
    "a base that is a folder": ({"base": "."}, ["2: base: *{d} "]),
    "a base that is an ablation": ({"base": "size.yaml"}, ["2: base: {f} is itself an ablation"]),
    "nothing varied": ({"vary": None}, ["1: vary: is required"]),
    "vary empty": ({"vary": "{}"}, ["4: vary: is empty"]),
    "vary mixed": ({"vary": MIXED}, ["4: vary: mixes "]),
    "vary a list": ({"vary": "[generator.scale]"}, ["4: vary: must be a mapping"]),
    "no values": ({"vary": "{generator.scale: []}"}, ["4: vary.generator.scale: has no values"]),
    "a scalar": ({"vary": "{generator.scale: 0.5}"}, ["4: vary.generator.scale: must be a list"]),
    "a variant's name": ({"vary": '{"a\\nb": {}, " c": {seed: 1}}'}, ["4: vary.a", "?b: *80 ", "4: vary. c: *80 "]),
    "too many": ({"vary": MANY}, ["4: vary: has 1002 *1000."]),
    "no key": ({"vary": "{sampler..x: [1.0]}", "set": "{'': 1}"}, ["4: vary: 'sampler..x' ", "3: set: '' "]),
    "two keys that overlap": ({"vary": OVERLAP}, ["4: vary: sampler and sampler.temperature "]),
    "two keys to set that overlap": (
        {"set": "{sampler.temperature: 1.0, sampler: {temperature: 0.5}}"}, ["3: set: sampler.temperature and sampler "]
    ),
    "two budgets": ({"budget": "{steps: 3, flops: 1.0e9}"}, ["7: budget: "]),
    "varied steps": ({"budget": FLOPS, "vary": "{train.steps: [1, 2]}"}, ["4: vary: train.steps "]),
    "varied tokens": ({"budget": FLOPS, "vary": "{a: {train: {tokens: 5}}, b: {}}"}, ["4: vary: train.tokens "]),
    "varied names": ({"vary": "{name: [a, b]}"}, ["4: vary: name is set by the ablation"]),
    "varied seeds": ({"vary": "\n  seed:\n  - 1\n  - 2"}, ["6: vary: seed "]),
    "varied imports": ({"vary": "{a: {imports: [x.py]}}"}, ["4: vary: imports "]),
    "varied stores": ({"vary": "{data.store: [a, b]}"}, ["4: vary: data.store "]),
    "a name and a seed to set": ({"set": "{name: a, seed: 3}"}, ["3: set: name ", "3: set: seed "]),
    "an unknown baseline": ({"baseline": "generator.scale=0.55"}, ["7: baseline: *=0.55'*'generator.scale=0.5'? "]),
    "an unknown metric": ({"metric": "discriminator_auk"}, ["7: metric: *'discriminator_auc'? Known: "]),
    "an empty metric": ({"metric": "''"}, ["7: metric: *''. Known: "]),
    "an unknown measure": ({"measure": "\n- {type: fixed_coruption}"}, ["7: measure.0.type: *'fixed_corruption'? "]),
    "a measure without a type": ({"measure": "[pretraining]"}, ["6: measure.0: "]),
    "options of a measure": (
        {"measure": "[{type: fixed_corruption, mask_prob: 1.5, stpes: 3}]"},
        ["6: measure.0.mask_prob: *, is 1.5.", "6: measure.0.stpes: *'steps'? "],
    ),
    "a metric twice": ({"measure": "\n- {type: pretraining}" * 2}, ["8: measure.1: pretraining and pretraining "]),
    "an unknown launcher": ({"launcher": "{type: slrum}"}, ["7: launcher.type: *'slurm'? "]),
    "options of a launcher": ({"launcher": "{type: local, workers: 0}"}, ["7: launcher.workers: "]),
    "a reference that the networks refuse": (
        {"set": BROAD, "vary": "{train.batch_size: [2]}", "measure": LARGE},
        ["6: *fixed_corruption (large): discriminator.dim: *, is 128000."],
    ),
    "other rows": (
        {"vary": OTHER_ROWS, "measure": "[{type: detection_probe}]"},
        ["4: vary: a *(data differs)", "4: vary: b *(tokenizer differs)"],
    ),
    "a typo of the file's own keys": ({"sedes": "[0]", "retries": "-1"}, ["8: retries: *-1.", "7: sedes: *'seeds'? "]),
    "keys of an experiment": ({"train": "{}", "seed": "3"}, ["7: train: is a key *`set`.", "8: seed: is a key "]),
    "a plug-in that is not there": ({"imports": "[none.py]"}, ["7: imports.0: *{d}/none.py "]),
    "an experiment that is extended": (
        {"base": None, "extends": "tiny.yaml", "measure": None, "set": None, "seeds": "[]"},
        [*(f"?{{d}}/tiny.yaml:{n}: {key}: is a key of experiments" for n, key in enumerate(KEYS, start=2)),
         "1: base: ", "3: seeds: "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_refused_before_anything_is_made(lab, tmp_path: Path, case: str):
    sections, expected = WRONG[case]
    path = write(tmp_path / "there", **sections)
    lines = refused(lab, path)
    assert len(lines) == len(expected), lines
    for pattern in expected:
        whole = pattern[1:] if pattern.startswith("?") else f"{{f}}:{pattern}"
        whole = whole.replace("{f}", str(path)).replace("{d}", str(path.parent))
        begins = re.escape(whole).replace(r"\*", ".*")
        assert any(re.match(begins, line) for line in lines), (pattern, lines)


@pytest.mark.parametrize("case", ["a value twice", "other rows", "a budget that buys no step",
                                  "what the networks refuse", "keys of an experiment"])  # fmt: skip
def test_check_and_dry_run_refuse_the_same(lab, tmp_path: Path, case: str):
    path = write(tmp_path / "there", **WRONG[case][0])
    assert refused(lab, path) == refused(lab, path, verb="check") == refused(lab, path, "--dry-run")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("generator.scale=2.0", "generator.scale is changed by `vary`"),
        ("generator={scale: 2.0}", "generator.scale is changed by `vary`"),
        ("generator.dim=4", "generator.dim is changed by `vary`"),
        ("seed=3", "seed cannot be changed here"),
        ("set.name=other", "set: name is set by the ablation"),
        ("seeds=[]", "seeds: "),
        ("budget.flops=0", "budget.flops: "),
        ("train.steps=5", "train.steps is set by `budget`"),
        ("train.batch_size=0", "train.batch_size: "),
        ("sampler.temprature=1.0", "sampler.temprature: "),
        ("nonsense", "write it as a.b=value."),
    ],
)
def test_an_override_that_cannot_hold_for_all(lab, tmp_path: Path, override: str, reason: str):
    [line] = refused(lab, write(tmp_path / "there", budget=FLOPS), "--set", override)
    assert line.startswith(f"--set {override}: {reason}")


def test_files_of_another_kind_and_files_that_cannot_be_read(lab, tmp_path: Path):
    experiment, broken = write_experiment(tmp_path / "there"), tmp_path / "there/broken.yaml"
    [line] = refused(lab, experiment)
    assert re.match(f"{experiment}: is not an ablation: .* electra-lab run {experiment}$", line)
    path = write(tmp_path / "there")
    assert lab.fails(2, "run", path) == f"{path}: is an ablation. To run it: electra-lab ablate {path}\n"
    [line] = refused(lab, path.with_name("none.yaml"))
    assert line.startswith(f"{path.with_name('none.yaml')}: ")
    broken.write_text("base: [\n")
    for file in (broken, write(tmp_path / "there", base="broken.yaml")):
        [line] = refused(lab, file)
        assert line.startswith(f"{broken}:2: ")


def test_what_a_parent_wrote_is_reported_at_its_line(lab, tmp_path: Path):
    parent = write(tmp_path / "there", vary="{a: {sampler.temprature: 1.0}, b: {}}", base="none.yaml")
    child = tmp_path / "there/child.yaml"
    child.write_text("extends: size.yaml\nbase: tiny.yaml\nmetric: luck\n")
    [line] = refused(lab, child)  # the metric is compared with those of the networks, which cannot be built yet
    assert line.startswith(f"{parent}:4: sampler.temprature: ")
    parent.write_text(parent.read_text().replace("temprature: 1.0", "temperature: 0.5"))
    [line] = refused(lab, child)
    assert line.startswith(f"{child}:3: metric: ")


def test_a_folder_of_something_else_is_left_alone(lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # It takes seconds and is not requested.
    monkeypatch.setattr("electra_lab.jobs.sweeps.run.forecast", lambda *_: None)
    path = write(tmp_path / "there")
    out = tmp_path / "out"
    [line] = refused(lab, path, "--out", "runs")
    assert line.startswith(f"--out runs: holds the token stores (data.store: {Path.cwd()}/runs/.store).")
    out.write_text("mine")
    assert refused(lab, path, "--out", out) == [f"--out {out}: is not a folder."]
    out.unlink()
    out.mkdir()
    (out / "kept.txt").write_text("mine")
    for arguments in ([], ["--dry-run"]):
        [line] = refused(lab, path, "--out", out, *arguments)
        assert line.startswith(f"--out {out}: is not empty and not the folder of an ablation.")
    assert files(out) == {"kept.txt": b"mine"}
    (out / "plan.json").write_text('{"cells": [{"id": "other-s0-0123456789"}]}')  # of format 1
    for arguments in ([], ["--dry-run"]):
        assert lab.fails(4, "ablate", path, "--out", out, *arguments).startswith(f"{out}/plan.json: ")


def test_data_that_is_not_here_is_exit_code_3_and_a_mistake_of_the_file_comes_first(lab, tmp_path: Path):
    path = write(tmp_path / "there")
    [line] = refused(lab, path, "--launcher", "slrum")
    assert (line.startswith("--launcher slrum: "), "'slurm'" in line) == (True, True)
    (path.parent / "corpus.txt").unlink()
    sentence = f"{path.parent}/tiny.yaml:2: corpus: text_files: {path.parent}/corpus.txt: no file matches."
    assert lab.fails(3, "ablate", path) == sentence + "\n"
    assert list(Path.cwd().iterdir()) == []
    code, out, err = lab("check", path)
    assert (code, err, out.split(" x ")[0]) == (0, f"note: {sentence} A run would stop there.\n", "size: 2 variants")
    path.write_text(path.read_text() + "budget: {tokens: 1}\n")
    [line] = refused(lab, path)
    assert line.startswith(f"{path}:7: train.tokens: 1 is too low: one step costs 32. (in the variants")


def test_a_reference_that_is_one_of_the_cells(lab, tmp_path: Path):
    path = write(tmp_path / "there", vary="{a: {}, b: {train.batch_size: 4}}", seeds="[5]",
                 measure="[{type: fixed_corruption, large: 1.0, seed: 5}]")  # fmt: skip
    write_experiment(tmp_path / "there", generator="null", sampler="null", objective="{type: mlm}",
                     embedding="{dim: 8, max_length: 16, tie: none}")  # fmt: skip
    [line] = refused(lab, path)
    assert line.startswith(f"{path}:6: measure.0: the reference of fixed_corruption (large) is also a cell")


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...]]]:
    """Replace `ablate` and `dry_run` by functions that only record their calls; returns the calls."""
    found: list[tuple[str, tuple[Any, ...]]] = []

    def call(name: str, answer: object, *arguments: Any, **options: Any) -> object:
        print("the output of a plug-in")
        found.append((name, (*arguments, *options.values())))
        return answer

    monkeypatch.setattr(run, "ablate", partial(call, "ablate", Path("the/folder")))
    monkeypatch.setattr(run, "dry_run", partial(call, "dry_run", "the needs"))
    return found


def test_options_reach_the_ablation_and_the_answer_is_its_folder(lab: Lab, called: list[Any]) -> None:
    assert lab("ablate", "a.yaml") == (0, "the/folder\n", "the output of a plug-in\n")
    lab("ablate", "a.yaml", "--set", "train.steps=3", "--set", "seed=1", "--out", "there", "--device", "cpu",
        "--launcher", "slurm", "--workers", "5")  # fmt: skip
    assert called == [
        ("ablate", (Path("a.yaml"), [], None, "auto", None, None)),
        ("ablate", (Path("a.yaml"), ["train.steps=3", "seed=1"], Path("there"), "cpu", "slurm", 5)),
    ]
    called.clear()
    dry = ("ablate", "a.yaml", "--dry-run", "--out", "there", "--workers", "2", "--device", "cuda")
    assert lab(*dry) == lab(*dry, "--no-trial") == (0, "the needs\n", "the output of a plug-in\n")
    options = (Path("a.yaml"), [], Path("there"), "cuda", None, 2)
    assert called == [("dry_run", (*options, True)), ("dry_run", (*options, False))]
    called.clear()
    for number in ("0", "many"):
        assert "--workers" in lab.fails(2, "ablate", "a.yaml", "--workers", number)
    assert called == []


def test_a_dry_run_reads_no_corpus_and_writes_nothing(lab, tmp_path: Path, monkeypatch) -> None:
    file = small.write(tmp_path / "there", steps=2, launcher="{type: local, workers: 3}")
    monkeypatch.setattr(run, "open_data", lambda *_: pytest.fail("it reads the corpus"))
    before = sorted(tmp_path.rglob("*"))
    code, out, err = lab("ablate", file, "--dry-run", "--device", "cpu")
    assert (code, err) == (0, "")
    assert sorted(tmp_path.rglob("*")) == before
    assert out.startswith("sizes: 2 variants x 2 seeds = 4 cells, 2 reference runs, 0 already done, in runs/sizes\n")
    assert "left to do: 6 runs, " in out
    assert "of training, 3 at a time.\n" in out
    assert "\n  generator.scale=1.0:  generator.dim 8 -> 16; generator.heads 1 -> 2\n" in out


def test_cells_that_failed_are_exit_code_7_and_the_page_is_there(lab, tmp_path: Path, monkeypatch) -> None:
    launchers.register("in_process")(small.InProcess)
    leave_out_pictures(monkeypatch)
    file = small.write(tmp_path / "there", seeds="[0]", steps=2, more="retries: 0", launcher=small.HERE)
    changed = {"vary": {"train.learning_rate": [1.0e30]}, "measure": [{"type": "pretraining"}]}
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changed))
    err = lab.fails(7, "ablate", file, "--out", "here")
    assert "\n1 of 1 runs failed. The reasons are in here/report.html, the logs in here/logs. " in err
    assert "Nothing can be said yet" in err
    folder = AblationFolder(Path("here"))
    state = cell_result(folder, folder.plan, folder.plan.cells[0].id)
    assert (state.status, state.attempts) == ("failed", 1)
    reason, _, _ = state.error.partition(" electra-lab replay ")  # its path is relative to the page there
    assert reason in Page(Path("here/report.html")).text
