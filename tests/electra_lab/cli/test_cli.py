"""The command line as users see it: exit codes, one clear sentence, no leftovers."""

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from electra_lab.cli import VERBS, main
from tests.electra_lab.cli.conftest import CPU
from tests.helpers import line_of, python, write_experiment


def nothing_written(folder: Path) -> bool:
    return not list(folder.iterdir())


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_mistake_in_the_file_is_one_sentence_and_exit_code_2(lab, tmp_path: Path, verb: str):
    file = write_experiment(tmp_path / "there", sampler="{type: gumbel, temprature: 2.0}")
    err = lab.fails(2, verb, file)
    assert re.match(f"{re.escape(str(file))}:{line_of('sampler')}: sampler.temprature: .* 'temperature'?.*\n$", err)
    assert nothing_written(tmp_path / "here")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_version_and_the_completion_of_a_shell_are_shown(lab, monkeypatch: pytest.MonkeyPatch, shell: str):
    assert lab("--version") == (0, f"electra-lab {version('electra-lab')}\n", "")
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (shell, f"/bin/{shell}"))
    code, out, err = lab("--show-completion", shell)
    assert (code, err, "electra-lab" in out, "COMPLETE" in out) == (0, "", True, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("electra-lab re", {"resume", "replay", "report", "registry"}),
        ("electra-lab registry ", {"list", "describe"}),
        ("electra-lab run --d", {"--device", "--dry-run"}),
        ("electra-lab train ", {verb.rstrip("_") for verb in VERBS} | {"registry"}),
    ],
)
def test_bash_completes_verbs_and_options(monkeypatch, capsys, words: str, expected: set[str]):
    monkeypatch.setattr(sys, "argv", ["electra-lab"])
    place = str(len(words.split(" ")) - 1)
    for name, value in {"_ELECTRA_LAB_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0, set(capsys.readouterr().out.split())) == (0, expected)


def test_a_misspelt_verb_is_answered_with_the_right_one(lab):
    assert "'run'" in lab.fails(2, "runn", "a.yaml")


@pytest.mark.parametrize("arguments", [("nope",), ("run",), ("run", "a.yaml", "--device", "tpu"), ("run", "--nope")])
def test_wrong_usage_is_exit_code_2_with_a_hint(lab, arguments: tuple[str, ...]):
    err = lab.fails(2, *arguments)
    assert "Usage: " in err
    assert "Error: " in err


@pytest.mark.parametrize("occupied", ["out/kept.txt", "out"])
def test_an_out_that_is_not_empty_is_kept(lab, tmp_path: Path, occupied: str):
    out, kept = tmp_path / "out", tmp_path / occupied
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    err = lab.fails(2, "run", write_experiment(tmp_path / "there"), "--out", out)
    assert err.startswith(f"--out {out}: exists and is not empty.")
    assert "electra-lab" not in err
    assert (kept.read_text(), nothing_written(tmp_path / "here")) == ("mine", True)


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_an_out_around_the_token_stores_is_refused_before_there_are_any(lab, tmp_path: Path, arguments: list[str]):
    """`--out runs`, the default folder of the stores, used to be refused only after the corpus had been read."""
    file = write_experiment(tmp_path / "there", data="{sequence_length: 16, held_out: 0.3, store: runs/.store}")
    out = tmp_path / "there" / "runs"
    err = lab.fails(2, "run", file, "--out", out, *arguments)
    assert err.startswith(f"--out {out}: holds the token stores (data.store: {out}/.store). ")
    assert not out.exists()
    assert lab("run", file, "--out", out / "one")[0] == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"{corpus}: no file matches\."),
        (b"", r"^{file}: corpus: no document has any text in {corpus}\."),
        (b"good\n\nbad \xff\n", r"{corpus}:3: byte 10 is not UTF-8\. .*"),
        (b"only one document", r"^{data}: data\.held_out: with 0\.3, the split \w+ is empty: .*"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_exit_code_3(lab, tmp_path: Path, content: bytes | None, reason: str):
    file = write_experiment(tmp_path / "there")
    corpus = file.parent / "corpus.txt"
    corpus.unlink() if content is None else corpus.write_bytes(content)
    err = lab.fails(3, "run", file, *CPU)
    places = {"corpus": corpus, "file": f"{file}:{line_of('corpus')}", "data": f"{file}:{line_of('data')}"}
    expected = reason.format(**{name: re.escape(str(place)) for name, place in places.items()})
    assert re.search(f"{expected}$", err.splitlines()[-1])
    assert nothing_written(tmp_path / "here")


def test_another_package_called_registry_is_named_and_nothing_else(tmp_path: Path):
    (tmp_path / "registry.py").write_text("ALL = []\n")
    sentence = f"electra_lab needs its own package `registry`, but Python found another one: {tmp_path}/registry.py. "
    done = python("-m", "electra_lab", "run", "a.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(sentence)
    done = python("-c", "import electra_lab", cwd=tmp_path)
    assert (done.returncode, f"\nImportError: {sentence}" in done.stderr) == (1, True)
