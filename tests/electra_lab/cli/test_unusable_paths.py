"""Unusable paths: too long, circular links, below a file, not UTF-8; and a deleted working directory."""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from electra_lab.jobs.endings import as_lab_error
from electra_lab.storage.files import refuse_unusable
from registry.errors import ConfigError
from tests.electra_lab.cli.conftest import CPU
from tests.electra_lab.jobs.pretraining.tiny import experiment
from tests.helpers import experiment_text, line_of, write_experiment

LONG = "n" * 300
COMMANDS = [
    "new reformer_small PATH", "check PATH", "schema --from PATH", "schema --from PATH.py",
    "registry list --from PATH.py", "prepare PATH", "run PATH", "run tiny.yaml --out PATH",
    "run tiny.yaml --dry-run --out PATH", "resume PATH", "replay PATH", "ablate PATH", "ablate a.yaml --out PATH",
    "finetune PATH", "finetune fine.yaml --out PATH", "finetune fine.yaml --model PATH", "report PATH", "list PATH",
    "clean PATH", "compare PATH none", "compare none other --html PATH", "export PATH exported", "export none PATH",
    "push PATH me/it --dry-run", "detect PATH text", "detect none --file PATH", "detect none text --html PATH",
    "corrupt PATH text", "fill PATH text", "predict PATH text", "predict none --file PATH", "embed PATH text",
    "play PATH --no-browser",
    "embed none text --out PATH", "bundle PATH out.zip", "bundle tiny.yaml PATH", "open PATH",
    "open none --out PATH", "report PATH --methods", "report none --figures PATH", "report none --table csv --out PATH",
]  # fmt: skip
COMPUTE = ("run", "resume", "replay", "ablate", "finetune", "detect", "corrupt", "fill", "predict", "embed", "play")
FINETUNING = """\
name: fine
model: none
task: {type: text_classification}
dataset: {type: table, train: t.tsv, validation: d.tsv, text: sentence, label: label}
"""


@pytest.mark.parametrize(
    "path",
    [LONG, "loop", "tiny.yaml/x", *(pytest.param(path, marks=pytest.mark.slow) for path in (f"{LONG}/x", "loop/x"))],
    ids=lambda path: path[-8:],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_cannot_be_is_a_sentence(lab: Any, command: str, path: str) -> None:
    write_experiment(Path())
    Path("a.yaml").write_text("name: a\nbase: tiny.yaml\nseeds: [0]\nvary: {train.steps: [2, 3]}\n")
    Path("fine.yaml").write_text(FINETUNING)
    for split in ("t.tsv", "d.tsv"):
        Path(split).write_text(f"sentence\tlabel\n{split}\tno\n")
    Path("loop").symlink_to("loop")
    words = command.replace("PATH", path).split()
    code, out, err = lab(*words, *(CPU if words[0] in COMPUTE else ()))
    assert (code in (2, 3), out) == (True, "")
    assert path.partition("/")[0] in err or "none" in command


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command.endswith(("--html PATH", "text --out PATH"))]
)
def test_an_answer_is_not_written_into_a_pipe(lab: Any, command: str) -> None:
    """A file would take the place of the pipe, whose reader would wait forever."""
    os.mkfifo("pipe")
    option = command.split()[-2]
    assert f"{option} pipe: " in lab.fails(2, *command.replace("PATH", "pipe").split())
    assert Path("pipe").is_fifo()


KEYS = {
    "corpus.paths.0": ("corpus", "{type: text_files, paths: [PATH]}"),
    "tokenizer.path": ("tokenizer", "{type: pretrained, path: PATH}"),
    "data.store": ("data", "{sequence_length: 16, store: PATH}"),
    "init.discriminator": ("train", "{steps: 1}\ninit: {discriminator: ./PATH}"),
    "imports.0": ("train", "{steps: 1}\nimports: [PATH]"),
    "extends": ("train", "{steps: 1}\nextends: PATH"),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_long_name_in_a_file_is_refused_at_its_key(lab: Any, key: str) -> None:
    write_experiment(Path())
    section, value = KEYS[key]
    text = experiment_text(**{section: value.replace("PATH", LONG)})
    Path("long.yaml").write_text(text)
    line = line_of(section, text) + value.count("\n")
    assert lab.fails(2, "check", "long.yaml").startswith(f"long.yaml:{line}: {key}: ")


@pytest.mark.parametrize("arguments", [("check", "tiny.yaml"), ("run", "tiny.yaml"), ("new", "reformer_small", "x/y")])
def test_a_working_directory_that_is_gone_is_a_sentence(lab, tmp_path, monkeypatch, arguments) -> None:
    file, gone = write_experiment(tmp_path / "there"), tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = lab(*(word.replace("tiny.yaml", str(file)) for word in arguments))
    assert (code in (2, 4), err.count("\n")) == (True, 1)


def test_no_folder_for_temporary_files_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    with pytest.raises(FileNotFoundError) as raised:
        tempfile.gettempdir()
    found = as_lab_error(raised.value)
    assert isinstance(found, ConfigError)
    assert "TMPDIR" in str(found)


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [(28, None, 3), (28, "file", 3), (122, "file", 3), (5, None, 3), (13, "file", 2), (30, "file", 2), (6, "file", 3)],
)
def test_full_disks_and_missing_rights_are_no_internal_errors(number: int, name: str | None, code: int) -> None:
    found = as_lab_error(OSError(number, os.strerror(number), name))
    assert found is not None
    assert (found.exit_code, os.strerror(number) in str(found)) == (code, True)
    assert (
        as_lab_error(OSError(13, "Permission denied"))
        is as_lab_error(FileNotFoundError(2, "Not there", "ours"))
        is None
    )


@pytest.mark.parametrize("name", [LONG, "loop", "a\0b", os.fsdecode(b"caf\xe9")])
def test_unusable_names_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError):
        refuse_unusable(tmp_path / name)
    refuse_unusable(tmp_path / "absent" / "folder")


NAME = os.fsdecode(b"caf\xe9")
ABLATION = "name: a\nbase: tiny.yaml\nseeds: [0]\nvary: {train.steps: [12, 13]}\nmeasure: [{type: pretraining}]\n"
BYTES = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")


@BYTES
@pytest.mark.parametrize(("verb", "file"), [("run", "tiny.yaml"), ("ablate", "a.yaml")])
def test_a_new_folder_is_refused_before_anything_is_done(lab: Any, tmp_path: Path, verb: str, file: str) -> None:
    experiment(tmp_path).with_name("a.yaml").write_text(ABLATION)
    assert "its name is not UTF-8" in lab.fails(2, verb, tmp_path / file, "--out", NAME)
    assert not Path(NAME).exists()


@BYTES
@pytest.mark.parametrize("words", [("resume",), ("report",), ("detect", "text"), ("export", "exported")])
def test_a_folder_that_was_renamed_is_refused(lab: Any, words: tuple[str, ...]) -> None:
    Path(NAME).mkdir()
    for name in ("config.yaml", "provenance.json"):
        (Path(NAME) / name).write_text("{}")
    assert "its name is not UTF-8." in lab.fails(2, words[0], NAME, *words[1:])


@BYTES
def test_an_experiment_in_such_a_folder_is_refused_at_the_path(lab: Any, tmp_path: Path) -> None:
    shutil.move(experiment(tmp_path / "there").parent, tmp_path / NAME)
    assert "corpus.paths.0: the path" in lab.fails(2, "check", tmp_path / NAME / "tiny.yaml")
