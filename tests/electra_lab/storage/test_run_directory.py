"""The run directory: its files, its lock, its records, its format."""

import itertools
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from electra_lab.storage.provenance import Code
from electra_lab.storage.run_directory import RunDirectory, is_run, refuse_used
from electra_lab.tokenizers.wordpiece import wordpiece
from registry.errors import CheckpointError, ConfigError, InUse
from tests.electra_lab.storage.test_provenance import PROVENANCE


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "run", "name")
    made.write("config.yaml", "name: tiny\n")
    made.write_json("provenance.json", PROVENANCE)
    return made


def test_a_new_directory_is_where_it_was_asked_for_or_named_after_time(tmp_path: Path, monkeypatch) -> None:
    assert RunDirectory.create(tmp_path / "a" / "b", "tiny").path == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    monkeypatch.chdir(tmp_path)
    first, second = (RunDirectory.create(None, "tiny").path for _ in range(2))
    assert first != second
    assert re.fullmatch(r"runs/tiny/\d{8}-\d{6}-[0-9a-f]{4}", str(first))
    assert first.is_dir()


def test_an_out_that_is_used_is_refused_and_resume_is_named_for_jobs_alone(tmp_path: Path, directory) -> None:
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    refuse_used(None)
    refuse_used(tuned)
    refuse_used(tmp_path / "absent" / "deep")
    (tmp_path / "file").write_text("")
    (tuned / "finetuning.yaml").write_text("")
    seed = shutil.copytree(directory.path, tuned / "seed-0")
    jobs = ((directory.path, True), (tuned, True), (seed, False))
    for out, resumes in ((tmp_path, False), (tmp_path / "file", False), *jobs):
        with pytest.raises(ConfigError, match=rf"--out {out}: exists and is not empty\. ") as refused:
            refuse_used(out)
        assert (f"electra-lab resume {out}" in str(refused.value)) == resumes
    with pytest.raises(ConfigError, match=f"--out {tmp_path}/file/run: cannot be created: {tmp_path}/file is not a fo"):
        refuse_used(tmp_path / "file" / "run")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        RunDirectory.create(tmp_path, "tiny")


def test_only_a_directory_with_config_and_provenance_is_a_run(directory: RunDirectory, tmp_path: Path) -> None:
    assert is_run(directory.path)
    assert RunDirectory.open(directory.path).path == directory.path
    for name in ("config.yaml", "provenance.json"):
        kept = (directory.path / name).read_bytes()
        (directory.path / name).unlink()
        with pytest.raises(ConfigError, match="is not a run directory: it has no config"):
            RunDirectory.open(directory.path)
        (directory.path / name).write_bytes(kept)
    with pytest.raises(ConfigError, match="is not a run directory"):
        RunDirectory.open(tmp_path / "none")


def test_one_at_a_time_and_the_holder_is_named(directory: RunDirectory) -> None:
    with directory.locked():
        assert (directory.path / ".lock").read_text() == str(os.getpid())
        holder = rf"^{directory.path}: is in use by process {os.getpid()}\.$"
        with pytest.raises(InUse, match=holder), RunDirectory(directory.path).locked():
            pytest.fail("two hold it")
    with pytest.raises(ZeroDivisionError), directory.locked():
        raise ZeroDivisionError
    with directory.locked():
        pass


def test_records_come_back_and_numbers_that_are_not_finite_become_null(directory: RunDirectory) -> None:
    assert directory.records() == []
    directory.append({"step": 1, "split": "train", "loss": 0.1, "worse": math.nan, "worst": -math.inf, "n": 3})
    directory.append({"step": 2, "split": "validation"})
    assert directory.records() == [
        {"step": 1, "split": "train", "loss": 0.1, "worse": None, "worst": None, "n": 3},
        {"step": 2, "split": "validation"},
    ]
    assert "NaN" not in directory.metrics.read_text()
    # Reading refuses numbers that no chart can show, so they are not written.
    directory.append({"step": 3, "split": "train", "loss": 6.9e299, "n": -1e200})
    assert directory.records()[-1] == {"step": 3, "split": "train", "loss": None, "n": None}


def test_a_history_ends_with_a_step_and_with_its_evaluations_if_these_are_whole(tmp_path: Path) -> None:
    for evaluated, last in ((True, "test"), (False, "train")):
        directory = RunDirectory.create(tmp_path / last, "tiny")
        for step in (1, 2, 3):
            for split in ("train", "test"):
                directory.append({"step": step, "split": split})
        directory.truncate(2, evaluated=evaluated)
        kept = [(record["step"], record["split"]) for record in directory.records()]
        assert (kept[:3], kept[-1]) == ([(1, "train"), (1, "test"), (2, "train")], (2, last))


BAD = ('"<script>"', "{}", "NaN", "9e999", "1e308", "1.1e100", "9" * 400)  # values of a record


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", "7", "[" * 100_000, "\x00\x00", '{"step": 1}', '{"split": "train"}', '{"step": "1", "split": "x"}',
        '{"step": 1, "split": 2}', '{"step": -1, "split": "train"}', '{"step": ' + "9" * 30 + ', "split": "train"}',
        *(f'{{"step": 1, "split": "train", "loss": {value}}}' for value in BAD),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named_but_a_last_one_is_a_kill(directory: RunDirectory, line: str) -> None:
    directory.append({"step": 1, "split": "train"})
    good = directory.metrics.read_text()
    directory.metrics.write_text(good + line)
    assert directory.records() == [{"step": 1, "split": "train"}]
    directory.metrics.write_text(good + line + "\n" + good)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:2: is not a record; the file is damaged\."):
        directory.records()


def test_records_after_a_step_are_dropped(directory: RunDirectory) -> None:
    records = [{"step": step, "split": split} for step in (1, 2, 3) for split in ("train", "validation")]
    for record in records:
        directory.append(record)
    directory.metrics.write_text(directory.metrics.read_text() + '{"step": 4, "sp')
    directory.truncate(3)
    assert directory.records() == records
    directory.truncate(2)
    assert directory.records() == records[:4]
    assert directory.metrics.read_text().endswith("\n")  # the next record begins on a new line
    directory.truncate(0)
    assert directory.records() == []


def test_a_full_disk_is_a_sentence(directory: RunDirectory) -> None:
    directory.metrics.mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: cannot be written \(Is a directory\)"):
        directory.append({"step": 1, "split": "train"})
    (directory.path / "plugins").write_text("")
    with pytest.raises(CheckpointError, match="plugins: cannot be written"):
        directory.keep_plugin(Code(file="a.py", sha256="0" * 64), b"")


def test_plug_ins_are_kept_byte_for_byte(directory: RunDirectory) -> None:
    for letter, content in (("a", b"\xff\r\n"), ("b", b"")):
        directory.keep_plugin(Code(file=f"/there/{letter}/mine.py", sha256=letter * 64), content)
    kept = {file.name: file.read_bytes() for file in (directory.path / "plugins").iterdir()}
    assert kept == {"aaaaaaaa-mine.py": b"\xff\r\n", "bbbbbbbb-mine.py": b""}


def test_the_tokenizer_is_kept_with_its_counts_or_its_absence_has_a_cure(directory: RunDirectory) -> None:
    made = wordpiece([f"the cat {n} sat" for n in range(20)], vocab_size=100)
    counts = torch.arange(made.get_vocab_size())
    directory.write_json("provenance.json", PROVENANCE)
    directory.keep_tokens(made, counts, "one")
    tokenizer, found = directory.tokens()
    assert tokenizer.get_vocab() == made.get_vocab()
    assert "[MASK]" not in tokenizer.encode("[MASK] cat").tokens  # text, not the mask
    assert torch.equal(found, counts)
    other = RunDirectory.create(directory.path.with_name("other"), "x")
    other.keep_tokens(wordpiece(["one two"], vocab_size=100), counts, "other")
    spoiled = {name: (other.path / name).read_bytes() for name in ("tokenizer.json", "vocabulary.safetensors")}
    for name, content in itertools.product(spoiled, (b"{", None)):
        directory.keep_tokens(made, counts, "one")
        (directory.path / name).write_bytes(spoiled[name] if content is None else content)
        cure = f"If its token store is still there, this restores them: electra-lab resume {directory.path}"
        with pytest.raises(CheckpointError, match=rf"{directory.path}: its tokenizer cannot be read \(.*\)\. {cure}"):
            directory.tokens()


def test_records_are_on_the_disk_before_a_checkpoint_is(directory: RunDirectory, monkeypatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    directory.flush()
    assert synced == []
    directory.append({"step": 1, "split": "train"})
    directory.flush()
    assert synced == [str(directory.metrics)]


def test_a_damaged_provenance_is_a_sentence(directory: RunDirectory) -> None:
    directory.write_json("provenance.json", PROVENANCE | {"data": {}})
    with pytest.raises(CheckpointError, match=r"provenance\.json: is damaged: data\.store: Field required"):
        directory.provenance()


def test_a_run_is_finished_with_its_last_checkpoint_and_its_report(directory: RunDirectory) -> None:
    last, report = directory.path / "checkpoints" / f"step-{PROVENANCE['steps']:08d}", directory.path / "report.html"
    assert directory.last_checkpoint() == last
    found = [directory.finished()]
    changes: list[Callable[[], object]] = [
        report.touch, lambda: last.mkdir(parents=True), (last / "MANIFEST.json").touch, report.unlink, report.touch,
        lambda: (directory.path / "provenance.json").write_text('{"steps": 1}'),
    ]  # fmt: skip
    for change in changes:
        change()
        found.append(directory.finished())
    assert found == [False, False, False, True, False, True, False]
