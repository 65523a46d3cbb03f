"""The exit codes of `run` and `resume`, each by a real cause; 2 to 4 are in other files, 7 with ablations."""

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import electra_lab
from electra_lab.cli import main
from electra_lab.jobs.pretraining import execute
from tests.electra_lab.cli.conftest import CPU
from tests.electra_lab.jobs.pretraining.tiny import default_signals, experiment, lines, spying
from tests.scorecard.lab import Lab

SHORT = {"train": "{steps: 4, batch_size: 2, precision: fp32}", "evaluate": "{examples: 0}"}


@pytest.fixture(autouse=True)
def _no_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "report" not in request.node.name:
        monkeypatch.setattr(execute, "write_report", lambda directory, *_: directory.path / "report.html")
    with default_signals():
        yield


def spy(folder: Path, options: str = "") -> Path:
    return spying(folder, objective=f"{{type: spy{options}}}", **SHORT)


def test_0_a_run_that_ends_prints_its_directory_and_writes_its_report(lab: Any, tmp_path: Path) -> None:
    path = tmp_path / "run"
    code, out, err = lab("run", experiment(tmp_path / "there", **SHORT), "--out", path, *CPU)
    assert (code, out, err.count("\n") > 5) == (0, f"{path}\n", True)
    assert (path / "report.html").is_file()
    code, out, err = lab("resume", path, *CPU)
    assert (code, out, "the run is already complete" in err) == (0, f"{path}\n", True)
    assert lab("report", path) == (0, f"{path}/report.html\n", "")


@pytest.mark.parametrize("plugged", [False, True])
def test_1_an_internal_error_shows_its_traceback_and_asks_for_a_report(tmp_path, monkeypatch, capsys, plugged) -> None:
    file = spy(tmp_path) if plugged else experiment(tmp_path, **SHORT)

    def broken(*_: object, **__: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr("electra_lab.training.loop.compute", broken)
    monkeypatch.setattr(sys, "argv", ["electra-lab", "run", str(file), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    last = said.strip().splitlines()[-1]
    assert ended.value.code == 1
    assert "Traceback" in said
    assert "KeyError: 'unforeseen'" in said
    loop = re.escape(str(Path(electra_lab.__file__).parent / "training/loop.py"))  # the innermost file of the lab
    assert re.match(rf"This is an internal error of electra_lab, at {loop}:\d+, .*report", last)
    assert ("spy.py" in last) == plugged


def test_5_a_run_that_diverges(lab: Any, tmp_path: Path) -> None:
    path = tmp_path / "run"
    for arguments in (("run", spy(tmp_path / "there", ", poison: 2"), "--out", path), ("resume", path)):
        err = lab.fails(5, *arguments)
        assert re.search(r"^step 4: the loss or gradient of 1 of the steps", err, re.MULTILINE)
        assert "or set train.on_non_finite: skip. There is no checkpoint." in err
        assert err.endswith(f"To find the cause: electra-lab replay {path}\n")
    assert json.loads(lab("list", path, "--json")[1])[0]["state"] == "diverged"


GREEDY = '''
from registry import corpora


@corpora.register("greedy")
class Greedy:
    """Wants more memory than there is."""

    def __init__(self, /):
        pass

    def __iter__(self):
        yield WANTED

    def fingerprint(self):
        return "greedy"
'''


@pytest.mark.parametrize(
    ("verb", "wanted", "said"),
    [
        ("run", "bytearray(1 << 60).decode()", r".*"),
        ("run", "self.refuse('std::bad_alloc')", r"std::bad_alloc"),
        ("prepare", "self.refuse('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling it')", r"CUDA error: .* it"),
    ],
)
def test_6_too_little_memory_for_the_data(lab: Any, tmp_path: Path, verb: str, wanted: str, said: str) -> None:
    """As Python and libraries report it; also from inside a plug-in, which is not to blame."""
    refuse = "\n    def refuse(self, words): raise RuntimeError(words)\n"
    (tmp_path / "greedy.py").write_text(GREEDY.replace("WANTED", wanted) + refuse)
    err = lab.fails(6, verb, experiment(tmp_path, corpus="{type: greedy}\nimports: [greedy.py]"))
    assert re.search(rf"^there is not enough memory \({said}\)\. ", err, re.MULTILINE)


def test_2_a_plug_in_that_raises_what_is_not_an_exception(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY.replace("WANTED", "self.end()\n    def end(self): raise GeneratorExit"))
    err = lab.fails(2, "prepare", experiment(tmp_path, corpus="{type: greedy}\nimports: [greedy.py]"))
    assert re.search(r"greedy\.py:14: corpus 'greedy' failed: GeneratorExit", err)


def test_6_too_little_memory_for_training(lab: Any, tmp_path: Path) -> None:
    """torch's own error, which on the CPU is a plain RuntimeError."""
    path = tmp_path / "run"
    for arguments in (("run", spy(tmp_path / "there", ", greed: 2"), "--out", path), ("resume", path)):
        err = lab.fails(6, *arguments)
        assert re.search(r"(?m)^there is not enough memory .* train\.micro_batch_size .*: electra-lab resume", err)


@pytest.mark.parametrize(
    ("code", "number", "name"),
    [(75, signal.SIGHUP, "SIGHUP"), (130, signal.SIGINT, "Ctrl-C")],
)
def test_75_and_130_a_signal_saves_and_the_resume_ends(lab, tmp_path, code: int, number: int, name: str) -> None:
    """The run can be resumed to its end: the step in which it was stopped is not repeated."""
    file, path = spy(tmp_path / "there", f", strike: 2, signal: {int(number)}"), tmp_path / "run"
    err = lab.fails(code, "run", file, "--out", path)
    second = "; a second Ctrl-C stops without saving" if name == "Ctrl-C" else ""
    assert f"{name}: saving after this step{second}\n" in err
    assert err.endswith(f"stopped and saved after step 3. Resume with: electra-lab resume {path}\n")
    assert lab("resume", path)[:2] == (0, f"{path}\n")
    assert lines(path)[-1]["step"] == 4


def test_ctrl_c_in_a_real_process(forks: Lab, tmp_path: Path) -> None:
    file, path = experiment(tmp_path, **SHORT), tmp_path / "run"
    hook = ("signals", {"point": "step", "nth": 2, "numbers": [int(signal.SIGINT)]})
    ended = forks("run", file, "--out", path, *CPU, cwd=tmp_path, hooks=[hook])
    assert (ended.code, ended.out) == (130, "")
    assert "Ctrl-C: saving after this step; a second Ctrl-C stops without saving\n" in ended.err
    assert ended.err.endswith(f"stopped and saved after step 2. Resume with: electra-lab resume {path}\n")
    assert (path / "checkpoints" / "step-00000002").is_dir()


THREE = {"train": "{steps: 3, batch_size: 2, precision: fp32}", "evaluate": "{examples: 1}"}
LOUD = '''
from registry import samplers

print("loaded")


@samplers.register("loud")
def loud(logits, rng, /):
    """Prints."""
    print("drawing")
    return logits.argmax(-1)
'''


def test_the_answer_is_the_run_directory_alone_whatever_a_plug_in_prints(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    file = experiment(tmp_path, sampler="{type: loud}\nimports: [loud.py]", **THREE)
    code, out, err = lab("run", file, "--set", "train.steps=4", "--set", "seed=9")
    assert code == 0
    assert re.fullmatch(r"runs/tiny/\d{8}-\d{6}-[0-9a-f]{4}\n", out)
    assert {"loaded", "drawing"} <= set(err.splitlines())
    path = tmp_path / "here" / out.strip()
    config = (path / "config.yaml").read_text()
    assert re.search(r"^seed: 9$", config, re.MULTILINE)
    assert re.search(r"^  steps: 4$", config, re.MULTILINE)
    assert (path / "source.yaml").read_text() == file.read_text()
    assert (path / "checkpoints" / "step-00000004").is_dir()


def test_what_is_said_at_the_beginning_and_at_the_end(lab: Any, tmp_path: Path) -> None:
    _, _, err = lab("run", experiment(tmp_path / "there", **THREE), "--out", tmp_path / "run", *CPU)
    assert f"tiny: 3 steps of 2 x 16 tokens on cpu, fp32, into {tmp_path / 'run'}\n" in err
    for key, room, name in (("discriminator", "backbones", "bert"), ("sampler", "samplers", "gumbel"),
                            ("optimizer", "optimizers", "adamw"), ("objective", "objectives", "electra")):  # fmt: skip
        assert re.search(rf"^  {key} +{name} +\S*{room}/{name}\.py:\d+", err, re.MULTILINE), key
    assert re.search(r"^step +3  train .* tokens/s$", err, re.MULTILINE)
    assert re.search(r"^step +3  (validation|test) .* AUC 0\.\d{3}$", err, re.MULTILINE)
    assert "after step 3, on test text" in err
    assert re.search(rf"trained in \S+ s; report {tmp_path / 'run'}/report\.html$", err.rstrip())


def test_a_dry_run_answers_on_standard_output_and_writes_nothing(lab: Any, tmp_path: Path) -> None:
    file = experiment(tmp_path / "there", **THREE)
    code, out, err = lab("run", file, "--dry-run", "--set", "train.steps=7", *CPU)
    assert (code, out.splitlines()[0], err) == (0, "tiny: 7 steps of 2 x 16 tokens", "")
    assert not list((tmp_path / "here").iterdir())
    assert not (tmp_path / "there" / "store").exists()
