"""Resuming with changes: some keys may change, and the others are refused by name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.analysis.records import training_seconds
from electra_lab.assembly import experiment as assembly
from electra_lab.assembly.data import open_data
from electra_lab.config.load import load
from electra_lab.config.schema import ExperimentConfig
from electra_lab.corpora.text_files import TextFiles
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.provenance import MAY_CHANGE
from electra_lab.presentation import run_page
from electra_lab.storage.run_directory import RunDirectory
from registry import objectives, samplers, tokenizers
from registry.component import Component
from registry.errors import ConfigError, DataError
from tests.electra_lab.jobs.pretraining import tiny
from tests.electra_lab.jobs.pretraining.tiny import Killed, assert_same, experiment, lines, run, stop_at
from tests.pages import Page

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was stopped after step 7 of 12, its text and its store; and a copy of it."""
    folder = tmp_path_factory.mktemp("stopped") / "here"
    with tiny.for_a_module():
        stop_at(7, lambda: run(experiment(folder), folder / "run"))
    shutil.copytree(folder, folder.with_name("kept"))
    return folder


@pytest.fixture
def stopped(once: Path) -> Path:
    """The stopped run in its original state, restored for each test."""
    shutil.rmtree(once)
    shutil.copytree(once.with_name("kept"), once)
    return once / "run"


def config(path: Path) -> Any:
    return yaml.safe_load((path / "config.yaml").read_text())


HARMLESS = ["train.log_every=3", "evaluate={every: 5, examples: 1}", "checkpoint.every=2", "checkpoint.keep=9",
            "run.max_minutes=1000", "train.on_non_finite=skip", "train.activation_checkpointing=true"]  # fmt: skip


def test_what_changes_no_weight_may_change_and_changes_none(stopped: Path, whole: Path, capsys) -> None:
    capsys.readouterr()
    execute.resume(stopped, "cpu", HARMLESS)
    said = capsys.readouterr().err
    assert "changed after step 7: " in said
    assert "train.log_every 5 -> 3; " in said
    weights = tiny.tensors(stopped)
    assert all(tensor.equal(weights[name]) for name, tensor in tiny.tensors(whole).items())
    assert [r["step"] for r in lines(stopped, "train")] == [5, 9, 12]
    assert [r["step"] for r in lines(stopped, "validation")] == [6, 10, 12]
    (change,) = RunDirectory(stopped).provenance().changes
    assert change.step == 7
    assert change.values["train.log_every"] == (5, 3)
    assert change.values["checkpoint.every"] == (4, 2)
    assert config(stopped)["train"]["log_every"] == 3
    execute.resume(stopped, "cpu")
    assert "changed after" not in capsys.readouterr().err
    assert len(RunDirectory(stopped).provenance().changes) == 1
    # A change belongs to the step from which the run continues: later steps are repeated with the new values.
    for step in tiny.steps(stopped)[1:]:
        shutil.rmtree(stopped / "checkpoints" / f"step-{step:08d}")
    execute.resume(stopped, "cpu")
    assert RunDirectory(stopped).provenance().changes[0].step == 4


@pytest.mark.parametrize(
    "change",
    ["train.learning_rate=0.1", "seed=3", "train.batch_size=8", "discriminator.dim=32", "masking.mask_prob=0.2",
     "train.batch_size=128", "data.sequence_length=8", "optimizer={type: muon}", "train.precision=bf16", "name=other"],
)  # fmt: skip
def test_what_decides_the_steps_so_far_may_not(stopped: Path, change: str) -> None:
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    with pytest.raises(ConfigError) as refused:
        execute.resume(stopped, "cpu", [change, "train.log_every=3"])
    said = str(refused.value).partition("Allowed changes")[0]
    assert f"(--set {change})" in said
    assert " -> " in said
    assert "train.log_every" not in said
    assert before == {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}


def test_every_key_that_may_change_is_one() -> None:
    for key in MAY_CHANGE:
        model: Any = ExperimentConfig
        for part in key.split("."):
            if model is Component:
                schemas = [kind.get(name).schema for kind in (objectives, tokenizers) for name in kind.names()]
                assert any(part in schema.model_fields for schema in schemas), key
                continue
            assert part in model.model_fields, key
            model = model.model_fields[part].annotation


def test_the_page_says_what_was_changed_and_the_end_how_long_all_of_it_took(
    tmp_path: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append = RunDirectory.append
    slow = {"tokens_per_second": 64 / 300}  # three steps of 64 tokens
    monkeypatch.setattr(RunDirectory, "append", lambda self, record: append(self, record | slow))
    execute.resume(stopped, "cpu", ["train.steps=8"])
    monkeypatch.undo()
    monkeypatch.setattr(execute, "write_report", lambda directory: directory.path)
    seconds = training_seconds(RunDirectory(stopped).records())
    assert seconds is not None
    assert seconds > 900
    for again in (False, True):
        if again:
            execute.resume(stopped, "cpu")
        assert re.findall(r"trained in ([\d,]+) s", capsys.readouterr().err) == [f"{seconds:,.0f}"]
    facts = Page(run_page.write_report(RunDirectory(stopped))).facts()
    assert facts["steps"] == "8 of 8"
    assert facts["changed"] == "after step 7: train.steps 12 -> 8"


def test_auto_decides_again_where_it_was_not_set_before(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a run that began with too many rows would try the same number again, and never fit."""
    found = list[int]()

    def at_a_time(*_: Any) -> int:
        found.append(1)
        return 1

    monkeypatch.setattr(assembly, "rows_at_a_time", at_a_time)
    stop_at(9, lambda: execute.resume(stopped, "cpu", ["train.micro_batch_size=auto"]))
    assert RunDirectory(stopped).provenance().environment.micro_batch_size == 1
    execute.resume(stopped, "cpu")  # the decision is kept
    assert found == [1]
    assert lines(stopped)[-1]["step"] == 12


def test_a_run_of_another_machine_goes_on(stopped: Path, capsys) -> None:
    """Its number of rows at a time is kept. The other version and missing records are reported."""
    directory = RunDirectory(stopped)
    there = directory.provenance()
    other = {"device": "NVIDIA H100", "micro_batch_size": 64, "electra_lab": "0.1.0 (00000000)"}
    moved = there.model_copy(update={"environment": there.environment.model_copy(update=other)})
    directory.write_json("provenance.json", moved.model_dump(mode="json"))
    (stopped / "metrics.jsonl").unlink()
    execute.resume(stopped, "cpu", ["train.log_every=3", "train.micro_batch_size=1"])
    assert directory.provenance().environment == moved.environment
    said = capsys.readouterr().err
    for differs in ("device NVIDIA H100 -> cpu", "electra_lab 0.1.0 (00000000) -> ", "micro_batch_size 64 -> 1"):
        assert differs in said.partition("not bit-exact, because of ")[2].partition("\n")[0]
    assert "changed after step 7: train.log_every 5 -> 3; train.micro_batch_size unset -> 1\n" in said
    assert "metrics.jsonl: the records up to step 7 are gone" in said
    assert [record["step"] for record in lines(stopped, "train")] == [9, 12]


def test_more_steps_continue_a_finished_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The effect on the schedule is reported; run directory, report and budget are those of the longer run."""
    before = lines(path)
    execute.resume(path, "cpu", ["train.steps=20"])
    said = capsys.readouterr().err
    assert "changed after step 12: train.steps 12 -> 20" in said
    assert "note: 20 steps instead of 12: every schedule continues as in a run of that length" in said
    rates = re.search(r"next step is ([\d.e-]+), that of the last one was ([\d.e-]+)", said)
    peak = config(path)["train"]["learning_rate"]
    assert float(rates[1]) == pytest.approx(peak * (1 - 12 / 20), rel=0.01)
    assert float(rates[2]) == pytest.approx(peak * (1 - 11 / 12), rel=0.01)
    assert lines(path)[: len(before)] == before
    assert [(r["step"], r["split"]) for r in lines(path)][-3:] == [(20, "train"), (20, "validation"), (20, "test")]
    directory = RunDirectory(path)
    assert (directory.provenance().steps, directory.last_checkpoint().name) == (20, "step-00000020")
    with pytest.raises(ConfigError, match=r"\b20 steps.*\b15\b"):
        execute.resume(path, "cpu", ["train.steps=15"])


def test_a_kill_while_a_change_is_kept_leaves_a_run_that_resumes(tmp_path: Path, stopped: Path, monkeypatch) -> None:
    """After provenance.json, before config.yaml: the run is unchanged, and the same command applies the change."""

    write = RunDirectory.write

    def killed(self: RunDirectory, name: str, text: str) -> None:
        if name == "config.yaml":
            raise Killed
        write(self, name, text)

    for again in ([], ["train.steps=16"]):
        path = shutil.copytree(stopped, tmp_path / f"again{len(again)}")
        with monkeypatch.context() as patched:
            patched.setattr(RunDirectory, "write", killed)
            with pytest.raises(Killed):
                execute.resume(path, "cpu", ["train.steps=16"])
        execute.resume(path, "cpu", again)
        steps = 16 if again else 12
        assert (lines(path)[-1]["step"], RunDirectory(path).provenance().steps) == (steps, steps)
        assert config(path)["train"]["steps"] == steps


def test_a_config_that_was_edited_is_refused_with_what_differs(stopped: Path) -> None:
    file = stopped / "config.yaml"
    file.write_text(file.read_text().replace("log_every: 5", "log_every: 4").replace("seed: 0", "seed: 1"))
    with pytest.raises(ConfigError, match=r"\(seed 0 -> 1; train\.log_every 5 -> 4\).*resume .* --set KEY=VALUE"):
        execute.resume(stopped, "cpu")


def store(path: Path) -> Path:
    (found,) = [
        folder for folder in (path / config(path)["data"]["store"]).iterdir() if not folder.name.startswith(".")
    ]
    return found


def test_another_text_is_refused_before_it_is_tokenized(stopped: Path, whole: Path) -> None:
    (corpus,) = config(stopped)["corpus"]["paths"]
    text, kept = Path(corpus).read_text(), store(stopped)
    Path(corpus).write_text(text + "\n\nOne more document, of no importance.")
    with pytest.raises(DataError, match="corpus or the tokenizer has changed") as refused:
        execute.resume(stopped, "cpu")
    assert store(stopped) == kept
    cure = str(refused.value).rpartition("electra-lab resume ")[2]
    assert cure == f"{stopped} --set data.store={kept}"
    execute.resume(stopped, "cpu", [cure.partition("--set ")[2]])
    assert_same(whole, stopped)


def test_a_text_is_read_once_to_recognize_it(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprint, read = TextFiles.fingerprint, list[Any]()
    monkeypatch.setattr(TextFiles, "fingerprint", lambda self: read.append(self) or fingerprint(self))
    execute.resume(stopped, "cpu")
    assert len(read) == 1


def test_a_text_that_is_gone_is_not_needed(tmp_path: Path, stopped: Path, whole: Path, capfd) -> None:
    Path(config(stopped)["corpus"]["paths"][0]).unlink()
    before = (stopped / "config.yaml").read_text()
    execute.resume(stopped, "cpu")
    assert f"using the token store {store(stopped)}" in capfd.readouterr().err
    assert (stopped / "config.yaml").read_text() == before
    assert_same(whole, stopped)


def test_a_run_that_is_resumed_through_a_link_keeps_its_config(tmp_path: Path) -> None:
    """The path to its token store is relative to the run, not to the link."""
    file = experiment(tmp_path, data="{sequence_length: 16, held_out: 0.3, store: .store}")
    path, link = tmp_path / "run", tmp_path / "deep" / "below" / "latest"
    stop_at(4, lambda: run(file, path))
    link.parent.mkdir(parents=True)
    link.symlink_to(path)
    before = (path / "config.yaml").read_bytes()
    execute.resume(link, "cpu", ["train.log_every=3"])
    assert (path / "config.yaml").read_bytes() == before.replace(b"log_every: 5", b"log_every: 3")


@pytest.mark.parametrize("cure", ["corpus.paths=[{text}]", "data.store={store}"])
def test_text_and_store_that_have_moved_are_named(tmp_path: Path, stopped: Path, whole: Path, cure: str) -> None:
    """Both suggested remedies work."""
    (corpus,), kept = config(stopped)["corpus"]["paths"], store(stopped)
    text, there = tmp_path / "elsewhere.txt", tmp_path / kept.name
    Path(corpus).rename(text)
    kept.rename(there)
    with pytest.raises(DataError, match="no file matches") as refused:
        execute.resume(stopped, "cpu")
    for words in ("corpus.KEY=VALUE", f"data.store=FOLDER/{kept.name}"):
        assert f"electra-lab resume {stopped} --set {words}" in str(refused.value)
    execute.resume(stopped, "cpu", [cure.format(text=text, store=there)])
    assert_same(whole, stopped)


def test_another_store_is_refused(tmp_path: Path, stopped: Path) -> None:
    other = open_data(load(experiment(tmp_path, data="{sequence_length: 16, held_out: 0.4, store: store}")), print)
    with pytest.raises(DataError, match=r"is not the token store of this run"):
        execute.resume(stopped, "cpu", [f"data.store={other.folder}"])


def test_a_plug_in_may_lie_elsewhere(tmp_path: Path, stopped: Path) -> None:
    text = "from registry import samplers\n\n\n@samplers.register('mine')\ndef mine(logits, rng, /):\n    'Best.'\n"
    (tmp_path / "mine.py").write_text(f"{text}    return logits.argmax(-1)\n")
    file = experiment(tmp_path, imports="[mine.py]", sampler="{type: mine}")
    stop_at(7, lambda: run(file, tmp_path / "plugged"))
    (tmp_path / "mine.py").rename(tmp_path / "moved.py")
    del samplers._entries["mine"]  # not loaded in another process
    execute.resume(tmp_path / "plugged", "cpu", [f"imports=[{tmp_path / 'moved.py'}]"])
    assert lines(tmp_path / "plugged")[-1]["step"] == 12
