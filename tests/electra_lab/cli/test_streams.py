"""Output of commands: answers arrive unchanged or the command fails; messages may be lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from electra_lab.cli import _streams
from electra_lab.cli._streams import answer
from tests.electra_lab.cli.conftest import CPU
from tests.helpers import ROOT, experiment_text, python, write_experiment
from tests.scorecard.lab import Lab, saved
from tests.scorecard.project import sent

TITLE = "\x1b]0;owned\x07"
SHOWN = r"\x1b]0;owned\x07"
FINETUNING = """\
name: fine
model: run
task: {type: text_classification}
dataset: {type: table, train: t.tsv, validation: d.tsv, text: sentence, label: label}
seeds: [0]
train: {epochs: 1, batch_size: 8}
"""
ABLATION = "name: a\nbase: tiny.yaml\nseeds: [0]\nvary: {train.steps: [2, 3]}\nmeasure: [{type: pretraining}]\n"
PRINTS = '''
from registry import samplers


@samplers.register("own", unbiased=False)
def own(logits, rng, /):
    """Draw."""
    print("drawn" * 1000)
    return logits.argmax(-1)
'''
ANSWERS = [
    ("--help",), ("--version",), ("new",), ("new", "reformer_small", "copy"), ("check", "tiny.yaml"), ("schema",),
    ("registry", "list", "--json"), ("registry", "describe", "samplers", "gumbel"), ("prepare", "tiny.yaml", "--json"),
    ("run", "tiny.yaml", "--dry-run", *CPU), ("run", "tiny.yaml", "--out", "again", *CPU), ("resume", "run", *CPU),
    ("replay", "run", *CPU), ("ablate", "a.yaml", "--dry-run", *CPU), ("finetune", "fine.yaml", "--out", "fine", *CPU),
    ("report", "run"), ("report", "run", "--methods"), ("report", "run", "--table", "csv"), ("list", "."),
    ("bundle", "run", "b.zip"), ("open", "run.zip", "--out", "opened"),
    ("compare", "run", "copied"), ("push", "run", "me/it", "--dry-run"),
    ("export", "run", "exported", "--json"), ("clean", "."), ("detect", "run", "the cat", *CPU),
    ("corrupt", "run", "the cat", "--json", *CPU), ("fill", "run", "the [MASK]", *CPU),
    ("detect", "run", "the cat", "--html", "page.html", *CPU), ("predict", "tuned", "the cat", *CPU),
    ("embed", "run", "the cat", *CPU), ("embed", "run", "the cat", "--out", "vectors.npy", *CPU),
]  # fmt: skip


@pytest.fixture(scope="module")
def here(forks: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a fine-tuning and an ablation."""
    folder = tmp_path_factory.mktemp("here")
    write_experiment(folder, train="{steps: 2, batch_size: 2, precision: fp32}")
    for split in ("t.tsv", "d.tsv"):
        (folder / split).write_text("sentence\tlabel\n" + "".join(f"the cat {n}\t{n % 2}\n" for n in range(8)))
    (folder / "fine.yaml").write_text(FINETUNING)
    (folder / "a.yaml").write_text(ABLATION)
    (folder / "own.py").write_text(PRINTS)
    write_experiment(folder, "own.yaml", sampler="{type: own}\nimports: [own.py]", train="{steps: 3, log_every: 1}")
    for words in (("run", "tiny.yaml", "--out", "run"), ("finetune", "fine.yaml", "--out", "tuned")):
        assert forks(*words, *CPU, cwd=folder).code == 0
    shutil.copytree(folder / "run", folder / "copied")
    assert forks("bundle", "run", "run.zip", cwd=folder).code == 0
    return folder


def answered() -> Iterator[Any]:
    """Every command with one target, `--help` with all; the other pairs run the same code and are slow tests."""
    targets = [("/dev/full", 3), ("pipe", 141), ("closed", 3)]
    for place, arguments in enumerate(ANSWERS):
        for number, target in enumerate(targets):
            quick = number == place % len(targets) or arguments[0] == "--help"
            name = "-".join([target[0], *arguments[:2]])
            yield pytest.param(arguments, *target, id=name, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("arguments", "target", "code"), [*answered()])
def test_an_answer_that_cannot_be_printed_is_an_error(forks, here, arguments, target, code) -> None:
    new = ("again", "fine", "copy", "b.zip", "opened")
    arguments = tuple(f"{word}-{Path(target).name}" if word in new else word for word in arguments)
    ended = forks(*arguments, cwd=here, hooks=[("stream", {"number": 1, "target": target})])
    assert (ended.code, ended.traced) == (code, False), ended
    assert code != 3 or "standard output" in ended.err.splitlines()[-1]
    if "--out" in arguments and arguments[0] not in ("embed", "open"):  # the work is done nevertheless
        assert (here / arguments[arguments.index("--out") + 1] / "report.html").is_file()


@pytest.mark.parametrize(("file", "target"), [("tiny.yaml", "closed"), ("own.yaml", "pipe")])
def test_messages_that_cannot_be_printed_end_no_training(forks: Lab, here: Path, file: str, target: str) -> None:
    out = f"{file}-{Path(target).name}"
    hooks = [("stream", {"number": 2, "target": target})]
    ended = forks("run", file, "--out", out, *CPU, cwd=here, hooks=hooks)
    assert (ended.code, ended.out) == (0, f"{out}\n")
    assert saved(here / out)
    assert forks("resume", out, *CPU, cwd=here, hooks=hooks).out == f"{out}\n"


@pytest.mark.parametrize(("target", "code"), [("closed", 3), (os.devnull, 0)])
def test_texts_from_standard_input(forks: Lab, here: Path, target: str, code: int) -> None:
    ended = forks("detect", "run", "-", *CPU, cwd=here, hooks=[("stream", {"number": 0, "target": target})])
    assert (ended.code, ended.out, ended.traced) == (code, "", False)
    assert code == 0 or ended.err.startswith("standard input: ")


@pytest.mark.parametrize(
    ("command", "number"),
    [("bundle run c.zip", signal.SIGTERM), ("open run.zip --out o", signal.SIGHUP), ("export run e", signal.SIGTERM)],
)
def test_a_signal_leaves_no_temporary_files(forks: Lab, here: Path, command: str, number: int) -> None:
    before = sorted(here.iterdir())
    ended = forks(*command.split(), cwd=here, hooks=[sent("open:tokenizer.json", 1, number)])
    assert (ended.code, ended.out, ended.traced) == (128 + number, "", False)
    assert sorted(here.iterdir()) == before


def test_a_full_pipe_that_does_not_block_is_waited_for(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    script = "from electra_lab.cli._streams import answer, usable\nwith usable(): answer('x' * 300_000)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=writing, cwd=ROOT)
    os.close(writing)
    with process, os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"x" * 300_000 + b"\n"
    assert process.returncode == 0


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_is_json_in_every_encoding(forks: Lab, here: Path, encoding: str) -> None:
    text = "caf\xe9 \x7f\x80\x9f\x1b[31m \u0905"
    hooks = [("encoded", {"encoding": encoding})]
    ended = forks("detect", "run", text, "--json", *CPU, cwd=here, hooks=hooks)
    assert (ended.code, json.loads(ended.out)["text"]) == (0, text)
    assert forks("detect", "run", text, *CPU, cwd=here, hooks=hooks).code == 0


def test_answers_are_escaped_on_a_terminal_alone(monkeypatch, capsys) -> None:
    with _streams.usable():
        answer(f"{TITLE}\x80")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        answer(f"{TITLE}\x80")
    assert capsys.readouterr().out == f"{TITLE}\x80\n{SHOWN}\\x80\n"


@pytest.mark.parametrize(
    "arguments",
    [("check", f"{TITLE}.yaml"), (TITLE,), ("run", f"--{TITLE}"), ("check", "tiny.yaml", "--set", f"train.{TITLE}=3"),
     ("check", "keys.yaml"), ("check", f"{TITLE}/tiny.yaml"), ("report", TITLE), ("detect", TITLE, "text"),
     ("registry", "list", "--from", f"{TITLE}.py"), ("registry", "describe", "samplers", TITLE)],
)  # fmt: skip
def test_control_characters_of_names_and_keys_are_shown(lab: Any, arguments: tuple[str, ...]) -> None:
    write_experiment(Path())
    write_experiment(Path(TITLE), sampler="{type: gumbl}")
    (Path() / "keys.yaml").write_text(experiment_text(train=r'{"\e]0;owned\a": 3}'), encoding="utf-8")
    err = lab.fails(3 if arguments[0] == "detect" else 2, *arguments)
    assert SHOWN in err
    assert not {"\x1b", "\x07"} & set(err)


INTERRUPTS = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"


@pytest.mark.parametrize("module", ["pydantic", "torch"])
def test_ctrl_c_while_modules_are_imported(tmp_path: Path, module: str) -> None:
    """From the first module on; also if a module converts every exception into another, as libraries do."""
    body = INTERRUPTS.replace("\n", "\n    ")
    (tmp_path / f"{module}.py").write_text(f"try:\n    {body}pass\nexcept BaseException:\n    raise ImportError\n")
    done = python("-m", "electra_lab", "detect", "none", "text", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
