"""The Python API: load, run, check and held_out, from files and from mappings."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import electra_lab
from electra_lab.jobs.pretraining import execute
from registry.errors import ConfigError, DataError
from tests.helpers import ROOT, ended, experiment_text, write_experiment


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_experiment(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execute, "write_report", lambda directory: directory.path)


def mapping(**sections: Any) -> dict[str, Any]:
    return {**yaml.safe_load(experiment_text()), **sections}


def test_a_file_and_its_content_are_the_same_experiment(tmp_path: Path) -> None:
    for number, config in enumerate(("tiny.yaml", Path("tiny.yaml"), mapping())):
        path = electra_lab.run(config, set=["train.steps=2"], out=f"run{number}", device="cpu")
        assert path == Path(f"run{number}")
        assert (path / "config.yaml").read_text() == Path("run0/config.yaml").read_text()
        assert electra_lab.load(path).detect("the cat").tokens
    assert yaml.safe_load(Path("run2/source.yaml").read_text()) == mapping()
    assert electra_lab.check(mapping()) == electra_lab.check(tmp_path / "tiny.yaml")


def test_check_returns_the_complete_experiment_as_plain_data(tmp_path: Path) -> None:
    complete = electra_lab.check("tiny.yaml", set=["train.steps=7"])
    assert json.loads(json.dumps(complete)) == complete
    assert complete["train"]["steps"] == 7
    assert complete["optimizer"]["type"] == "adamw"
    assert complete["corpus"]["paths"] == [str(tmp_path / "corpus.txt")]
    again = electra_lab.run(complete, out="again", device="cpu")
    assert electra_lab.check(again / "config.yaml") == complete


def test_mistakes_are_errors_of_the_lab_and_name_the_key() -> None:
    typo, ablation = mapping(sampler={"type": "gumbel", "temprature": 1.0}), {"base": "tiny.yaml", "vary": {}}
    with pytest.raises(ConfigError, match=r"^config: sampler\.temprature: .*'temperature'"):
        electra_lab.check(typo)
    with pytest.raises(ConfigError, match=r"^config: is an ablation"):
        electra_lab.run(ablation)
    Path("corpus.txt").unlink()
    with pytest.raises(DataError, match="no file matches"):
        electra_lab.check("tiny.yaml")
    assert not Path("runs").exists()


def test_held_out_documents_are_those_that_the_run_did_not_read() -> None:
    path = electra_lab.run("tiny.yaml", out="run", device="cpu")
    held_out = electra_lab.held_out(path)
    documents = Path("corpus.txt").read_text().split("\n\n")
    kept = json.loads((path / "provenance.json").read_text())["data"]["documents"]
    assert len(held_out) == kept["validation"] + kept["test"]
    assert set(held_out) < set(documents)
    Path("corpus.txt").unlink()
    with pytest.raises(DataError, match="no file matches"):
        electra_lab.held_out(path)


def test_held_out_documents_of_another_corpus_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A log is renamed, rotated away, or has other lines now: only by its content the split is that of the run."""
    lines = Path("corpus.txt").read_text().split("\n\n")
    logs, old, newer = Path("logs"), Path("logs/1 old.txt"), Path("logs/2 newer.txt")
    logs.mkdir()
    old.write_text("\n".join(lines[:25]))
    newer.write_text("\n".join(lines[25:]))
    corpus = {"type": "text_files", "paths": ["logs"], "documents": "lines"}
    data = {"sequence_length": 16, "held_out": 0.3, "split": "by_order"}
    path = electra_lab.run(mapping(corpus=corpus, data=data), out="run", device="cpu")
    expected = lines[-12:]
    assert electra_lab.held_out(path) == expected
    newer = newer.rename("logs/3 renamed.txt")
    assert electra_lab.held_out(path) == expected
    score = ["score", str(path), "x", "--normal", "validation", "--device", "cpu"]
    newer.rename("kept")
    code, said = ended(score, capsys)
    assert (code, "2 newer.txt" in said) == (3, True)
    Path("kept").rename("logs/2 newer.txt")
    old.write_text("\n".join(lines[1:26]))
    with pytest.raises(DataError, match=r"1 old\.txt"):
        electra_lab.held_out(path)


def test_it_is_imported_by_programs_without_arguments_and_loads_nothing_heavy() -> None:
    """For example programs that embed Python, whose handling of Ctrl-C must not change."""
    code = "import signal, sys; sys.argv = []; before = signal.getsignal(2); import electra_lab; "
    code += "assert signal.getsignal(2) is before; print(*dir(electra_lab)); "
    code += "print({'torch', 'numpy', 'transformers', 'tokenizers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "__version__ check held_out load run\nset()\n"
