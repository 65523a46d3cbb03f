"""The command line as a user meets it: exit codes, one clear sentence, nothing left behind."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from electra_lab.cli import main
from tests.helpers import EXPERIMENT, line_of, python, write_experiment
from tests.scorecard.lab import Lab


def nothing_written(folder: Path) -> bool:
    return not list(folder.iterdir())


REFORMER = {
    "data": "{sequence_length: 100}",
    "embedding": "{dim: 8, max_length: 100}",
    "discriminator": "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 64}",
}
WRONG = {
    "unknown name": (
        {"sampler": "{type: gumbl}"},
        "{file}:{sampler}: sampler.type: no sampler is called 'gumbl'. Did you mean 'gumbel'? "
        "Known: argmax, gumbel, nucleus, temperature, top_k.",
    ),
    "typo in a key": (
        {"sampler": "{type: gumbel, temprature: 2.0}"},
        "{file}:{sampler}: sampler.temprature: unknown parameter. Did you mean 'temperature'? Known: temperature.",
    ),
    "wrong type": ({"train": "{steps: many}"}, '{file}:{train}: train.steps: must be an integer, is "many".'),
    "out of range": (
        {"masking": "{type: replace_prob, mask_prob: 1.5}"},
        "{file}:{masking}: masking.mask_prob: must be less than or equal to 1, is 1.5.",
    ),
    "duplicate key": (
        {"train": "{steps: 1}\nseed: 1\nseed: 2"},
        "{file}:14: seed: appears twice; first at {file}:13.",
    ),
    "a length the backbone cannot take": (
        REFORMER,
        "{file}:{data}: data.sequence_length: reformer takes multiples of 128; 100 would be padded to 128, which is "
        "above embedding.max_length 100. Raise max_length to 128 or shorten the sequence.",
    ),
    "what a backbone's constructor refuses": (
        {"discriminator": "{type: transformer, dim: 12, depth: 1, heads: 4, rotary: true}"},
        "{file}:{discriminator}: discriminator: transformer refuses this: "
        "rotary positions need an even head width; dim 12 / heads 4 is 3.",
    ),
}


def expected(sentence: str, file: Path) -> str:
    lines = {key: line_of(key) for key in ("sampler", "train", "masking", "data", "discriminator")}
    return sentence.format(file=file, **lines) + "\n"


@pytest.mark.parametrize("verb", ["check", "run"])
@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_in_the_file_is_one_sentence_and_exit_code_2(lab, tmp_path: Path, verb: str, case: str):
    sections, sentence = WRONG[case]
    file = write_experiment(tmp_path / "there", **sections)
    assert lab(verb, file) == (2, "", expected(sentence, file))
    assert nothing_written(tmp_path / "here")


def test_version(lab):
    assert lab("--version") == (0, f"electra-lab {version('electra-lab')}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_shown_for_a_shell(lab, monkeypatch: pytest.MonkeyPatch, shell: str):
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (shell, f"/bin/{shell}"))
    code, out, err = lab("--show-completion", shell)
    assert (code, err) == (0, "")
    assert "electra-lab" in out
    assert "_ELECTRA_LAB_COMPLETE" in out or "COMPLETE" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("electra-lab re", {"resume", "replay", "report", "registry"}),
        ("electra-lab registry ", {"list", "describe"}),
        ("electra-lab run --d", {"--device", "--dry-run"}),
    ],
)
def test_bash_completes_verbs_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, expected: set[str]
):
    """As the script of `--show-completion` calls the program."""
    monkeypatch.setattr(sys, "argv", ["electra-lab"])
    monkeypatch.setenv("_ELECTRA_LAB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert set(capsys.readouterr().out.split()) == expected


def test_another_ending_than_the_files_gets_a_suggestion(lab, tmp_path: Path):
    file = write_experiment(tmp_path / "there", "mine.yaml")
    wrong = file.with_suffix(".yml")
    sentence = f"{wrong}: cannot be read (No such file or directory). Did you mean {file}?\n"
    for verb in ("check", "run", "ablate"):
        assert lab(verb, wrong) == (2, "", sentence)


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_file_that_cannot_be_read_is_exit_code_2(lab, tmp_path: Path, verb: str):
    assert lab(verb, "none.yaml") == (2, "", "none.yaml: cannot be read (No such file or directory).\n")
    assert lab(verb, tmp_path) == (2, "", f"{tmp_path}: is a folder, not an experiment file.\n")
    assert nothing_written(tmp_path / "here")


def test_a_wrong_set_is_reported_by_its_own_words(lab, tmp_path: Path):
    file = write_experiment(tmp_path / "there")
    sentence = "--set train.steps=0: train.steps: must be greater than 0, is 0.\n"
    assert lab("check", file, "--set", "train.steps=0") == (2, "", sentence)
    assert lab("check", file, "--set", "nonsense") == (2, "", "--set nonsense: write it as a.b=value.\n")


@pytest.mark.parametrize("arguments", [("nope",), ("run",), ("run", "a.yaml", "--device", "tpu"), ("run", "--nope")])
def test_wrong_usage_is_exit_code_2_with_a_hint(lab, arguments: tuple[str, ...]):
    code, out, err = lab(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: " in err
    assert "Error: " in err


@pytest.mark.parametrize("occupied", ["folder", "file"])
def test_an_out_that_is_not_empty_is_kept_and_resume_is_named(lab, tmp_path: Path, occupied: str):
    out = tmp_path / "out"
    kept = out / "kept.txt" if occupied == "folder" else out
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    code, _, err = lab("run", write_experiment(tmp_path / "there"), "--out", out)
    assert code == 2
    assert err.startswith(f"--out {out}: exists and is not empty. To continue a run: electra-lab resume {out}.")
    assert kept.read_text() == "mine"
    assert nothing_written(tmp_path / "here")


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_an_out_around_the_token_stores_is_refused_before_there_are_any(lab, tmp_path: Path, arguments: list[str]):
    """`--out runs`, where they lie by default, was refused once the corpus had been read: it was no longer empty."""
    file = write_experiment(tmp_path / "there", data="{sequence_length: 16, held_out: 0.3, store: runs/.store}")
    out, store = tmp_path / "there" / "runs", tmp_path / "there" / "runs" / ".store"
    code, _, err = lab("run", file, "--out", out, *arguments)
    reason = f"is where the token stores lie (data.store: {store}). Choose another folder, such as {out}/NAME."
    assert (code, err) == (2, f"--out {out}: {reason}\n")
    assert not out.exists()
    assert lab("run", file, "--out", out / "one")[0] == 0


def test_a_device_that_is_not_there_is_exit_code_2(lab, tmp_path: Path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    sentence = "--device cuda: torch finds no CUDA device here. Use --device cpu or auto.\n"
    assert lab("run", write_experiment(tmp_path / "there"), "--device", "cuda") == (2, "", sentence)
    assert nothing_written(tmp_path / "here")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"{corpus}: no file matches\."),
        (b"", r"^{file}: corpus: no document has any text\."),
        (b"\n \n\n", r"^{file}: corpus: no document has any text\."),
        (b"good\n\nbad \xff\n", r"{corpus}:3: byte 10 is not UTF-8\. .*"),
        (b"only one document", r"^{data}: data\.held_out: with 0\.3, the split \w+ is empty: .*"),
    ],
    ids=["missing", "empty", "blank", "not UTF-8", "one document"],
)
def test_a_corpus_that_cannot_be_used_is_exit_code_3(lab, tmp_path: Path, content: bytes | None, reason: str):
    file = write_experiment(tmp_path / "there")
    corpus = file.parent / "corpus.txt"
    corpus.unlink()
    if content is not None:
        corpus.write_bytes(content)
    code, out, err = lab("run", file, "--device", "cpu")
    assert (code, out) == (3, "")
    places = {"corpus": corpus, "file": f"{file}:{line_of('corpus')}", "data": f"{file}:{line_of('data')}"}
    expected = reason.format(**{name: re.escape(str(place)) for name, place in places.items()})
    assert re.search(f"{expected}$", err.splitlines()[-1])
    assert nothing_written(tmp_path / "here")


@pytest.mark.parametrize("verb", [["check", "f.yaml"], ["registry", "list"]])
def test_an_internal_error_is_exit_code_1_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: list[str]
):
    import electra_lab.config.load
    from registry.core import Registry

    def broken(*_: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(electra_lab.config.load, "load", broken)
    monkeypatch.setattr(Registry, "listings", broken)
    monkeypatch.setattr(sys, "argv", ["electra-lab", *verb])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    sentence = "This is an internal error of electra_lab, not of your experiment. Please report it."
    assert capsys.readouterr().err.endswith(f"RuntimeError: unforeseen\n\n{sentence}\n")


# Fresh processes


def test_a_mistake_in_a_real_process(tmp_path: Path):
    here = tmp_path / "here"
    here.mkdir()
    sections, sentence = WRONG["typo in a key"]
    file = write_experiment(tmp_path / "there", **sections)
    done = python("-m", "electra_lab", "run", str(file), cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected(sentence, file))
    assert nothing_written(here)


def test_a_missing_corpus(forks: Lab, tmp_path: Path):
    file = tmp_path / "there.yaml"
    file.write_text(EXPERIMENT)
    here = tmp_path / "here"
    here.mkdir()
    done = forks("run", str(file), cwd=here)
    assert done.code == 3
    assert done.err == f"{file}:2: corpus: text_files: {tmp_path}/corpus.txt: no file matches.\n"
    assert nothing_written(here)


def test_another_package_called_registry_is_named_and_nothing_else(tmp_path: Path):
    """A file of that name in the working folder comes first on Python's path."""
    (tmp_path / "registry.py").write_text("ALL = []\n")
    sentence = (
        f"electra_lab needs its own package `registry`, but Python found another one: {tmp_path}/registry.py. "
        "Rename or move that file, or start Python from another folder."
    )
    done = python("-m", "electra_lab", "run", "a.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{sentence}\n")
    done = python("-c", "import electra_lab", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith(f"ImportError: {sentence}\n")
