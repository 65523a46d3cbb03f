"""The command line as a user meets it: exit codes, one clear sentence, nothing left behind."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from electra_lab.cli import main
from tests.helpers import EXPERIMENT, line_of, python, write_experiment


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
        "{file}:13: seed: stands twice; first at {file}:12.",
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


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_file_that_cannot_be_read_is_exit_code_2(lab, tmp_path: Path, verb: str):
    assert lab(verb, "none.yaml") == (2, "", "none.yaml: cannot be read (No such file or directory).\n")
    assert lab(verb, tmp_path) == (2, "", f"{tmp_path}: is a folder, not an experiment file.\n")
    assert nothing_written(tmp_path / "here")


def test_a_wrong_set_is_told_by_its_own_words(lab, tmp_path: Path):
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
    assert err.startswith(f"--out {out}: exists and is not empty. To go on with a run: electra-lab resume {out}.")
    assert kept.read_text() == "mine"
    assert nothing_written(tmp_path / "here")


def test_a_device_that_is_not_there_is_exit_code_2(lab, tmp_path: Path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    sentence = "--device cuda: torch sees no CUDA device here. Use --device cpu or auto.\n"
    assert lab("run", write_experiment(tmp_path / "there"), "--device", "cuda") == (2, "", sentence)
    assert nothing_written(tmp_path / "here")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"{corpus}: no file matches\."),
        (b"", r"the corpus is empty: it has no document with any text\."),
        (b"\n \n\n", r"the corpus is empty: it has no document with any text\."),
        (b"good\n\nbad \xff\n", r"{corpus}:3: byte 10 is not UTF-8\. .*"),
        (b"only one document", r"the (train|held-out) split is empty: .*"),
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
    assert re.search(reason.format(corpus=re.escape(str(corpus))) + "$", err.splitlines()[-1])
    assert nothing_written(tmp_path / "here")


def test_data_that_is_not_here_is_no_mistake_of_the_file(lab, tmp_path: Path):
    file = write_experiment(tmp_path / "there")
    (file.parent / "corpus.txt").unlink()
    code, out, err = lab("check", file)
    assert code == 0
    assert out.startswith("name: tiny")
    sentence = f"{file}:2: corpus: text_files: {file.parent}/corpus.txt: no file matches."
    assert err == f"note: {sentence} A run would stop there.\n"


def test_check_prints_a_config_that_check_accepts(lab, tmp_path: Path):
    code, out, err = lab("check", write_experiment(tmp_path / "there"), "--set", "seed=7")
    assert (code, err) == (0, "")
    again = tmp_path / "again.yaml"
    again.write_text(out)
    code, repeated, err = lab("check", again)
    assert (code, err) == (0, "")
    assert re.search(r"^seed: 7 +# --set seed=7$", out, re.MULTILINE)
    assert re.search(rf"^seed: 7 +# {again}:2$", repeated, re.MULTILINE)  # the origins differ, the values do not
    assert re.sub(" +#.*", "", repeated) == re.sub(" +#.*", "", out)
    assert nothing_written(tmp_path / "here")


@pytest.mark.parametrize("verb", [["check", "f.yaml"], ["registry", "list"]])
def test_a_bug_of_ours_is_exit_code_1_and_says_so(
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
    assert "RuntimeError: unforeseen\n\nThis is a bug in electra_lab" in capsys.readouterr().err


# The registry


def test_registry_list_shows_every_component_with_place_and_summary(lab):
    code, out, err = lab("registry", "list")
    assert (code, err) == (0, "")
    assert re.search(r"^samplers \(\d+\)  registry/contracts\.py: Sampler$", out, re.MULTILINE)
    assert re.search(r"^  gumbel +\S*samplers/gumbel\.py:\d+ +Draw from softmax", out, re.MULTILINE)
    for name in ("bert", "reformer", "replace_prob", "electra", "text_files", "wordpiece"):
        assert re.search(rf"^  {name} ", out, re.MULTILINE)


@pytest.mark.parametrize("kind", ["masking_strategies", "masking_strategy", "masking-strategy", "masking strategy"])
def test_a_kind_is_understood_singular_and_plural(lab, kind: str):
    code, out, _ = lab("registry", "list", kind)
    assert code == 0
    assert out.startswith("masking_strategies (")
    assert "samplers" not in out


def test_registry_list_json_gives_options_with_type_default_and_bounds(lab):
    code, out, _ = lab("registry", "list", "--json")
    assert code == 0
    kinds = json.loads(out)
    assert {"backbones", "masking_strategies", "samplers", "objectives", "corpora", "tokenizers"} <= set(kinds)
    gumbel = next(entry for entry in kinds["samplers"] if entry["name"] == "gumbel")
    assert gumbel["summary"].startswith("Draw from softmax")
    assert re.search(r"samplers/gumbel\.py:\d+$", gumbel["place"])
    assert gumbel["options"] == [{"name": "temperature", "type": "float", "bounds": ">= 1e-06", "default": 1.0}]
    paths = next(e for e in kinds["corpora"] if e["name"] == "text_files")["options"][0]
    assert (paths["name"], paths["type"], "default" in paths) == ("paths", "list[Path]", False)


@pytest.mark.parametrize("kind", ["sampler", "samplers"])
def test_registry_describe_shows_docstring_options_and_yaml(lab, kind: str):
    code, out, _ = lab("registry", "describe", kind, "gumbel")
    assert code == 0
    assert re.match(r"sampler gumbel  \S*samplers/gumbel\.py:\d+\n\nDraw from softmax", out)
    assert re.search(r"^  temperature +float +default 1\.0  >= 1e-06$", out, re.MULTILINE)
    assert out.endswith("\n  {type: gumbel}\n")


def test_describe_shows_what_is_required(lab):
    _, out, _ = lab("registry", "describe", "corpus", "text_files")
    assert re.search(r"^  paths +list\[Path\] +required  at least 1$", out, re.MULTILINE)
    assert out.endswith("\n  {type: text_files, paths: ...}\n")
    _, out, _ = lab("registry", "describe", "sampler", "argmax")
    assert "  (no options)\n" in out


def test_an_unknown_kind_or_name_gets_a_suggestion(lab):
    known = "backbones, corpora, masking_strategies, objectives, samplers, tokenizers"
    code, out, err = lab("registry", "list", "sampels")
    assert (code, out) == (2, "")
    assert err.startswith("there is no registry 'sampels'. Did you mean 'samplers'? Known: ")
    assert all(kind in err for kind in known.split(", "))
    sentence = (
        "no sampler is called 'gumbl'. Did you mean 'gumbel'? Known: argmax, gumbel, nucleus, temperature, top_k.\n"
    )
    assert lab("registry", "describe", "sampler", "gumbl") == (2, "", sentence)


# Fresh processes


@pytest.mark.parametrize("arguments", [["registry", "list"], ["--help"], ["run", "--help"]], ids=" ".join)
def test_listing_and_help_are_quick_and_import_nothing_heavy(tmp_path: Path, arguments: list[str]):
    done = python("-X", "importtime", "-m", "electra_lab", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "registry.core" in imported
    assert not imported & {"torch", "transformers", "numpy", "tokenizers", "matplotlib", "sklearn"}
    assert not [name for name in imported if re.match(r"electra_lab\.(samplers|backbones|masking|training)", name)]
    assert nothing_written(tmp_path)

    def seconds() -> float:
        started = time.perf_counter()
        python("-m", "electra_lab", *arguments, cwd=tmp_path)
        return time.perf_counter() - started

    assert min(seconds() for _ in range(3)) < 1


def test_a_mistake_in_a_real_process(tmp_path: Path):
    here = tmp_path / "here"
    here.mkdir()
    sections, sentence = WRONG["typo in a key"]
    file = write_experiment(tmp_path / "there", **sections)
    done = python("-m", "electra_lab", "run", str(file), cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected(sentence, file))
    assert nothing_written(here)


def test_a_missing_corpus_in_a_real_process(tmp_path: Path):
    file = tmp_path / "there.yaml"
    file.write_text(EXPERIMENT)
    here = tmp_path / "here"
    here.mkdir()
    done = python("-m", "electra_lab", "run", str(file), cwd=here)
    assert done.returncode == 3
    assert done.stderr == f"{file}:2: corpus: text_files: {tmp_path}/corpus.txt: no file matches.\n"
    assert nothing_written(here)
