"""The folders of fine-tunings and suites: their seeds, splits and numbers."""

import json
import shutil
from pathlib import Path

import pytest

from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry.errors import CheckpointError
from tests.electra_lab.presentation.finetuned import ID, scores, write_finetuned, write_seed


def test_the_seeds_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = FinetuningFolder(write_finetuned(tmp_path / "a", scores("accuracy", 0.5, 0.6, first=9)))
    write_seed(folder.path, 2, None)
    for other in ("seed-x", "seed-", "seed--1", "old-seed-7"):
        (folder.path / other).mkdir()
    assert folder.seeds() == [2, 9, 10]
    assert folder.seed(10).path == folder.path / "seed-10"
    assert folder.seed(10).provenance().steps == 1200


def test_only_a_finished_seed_has_results(tmp_path: Path) -> None:
    folder = FinetuningFolder(write_finetuned(tmp_path / "a", {0: {"validation": {"accuracy": 0.5}}}))
    write_seed(folder.path, 1, None)
    found = folder.results(0)
    assert (found.seed, found.step, found.splits["validation"].metrics) == (0, 1200, {"accuracy": 0.5})
    assert folder.results(1) is None
    assert folder.results(7) is None
    assert folder.values("validation", "accuracy") == {0: 0.5}


def test_results_of_an_older_version_have_no_losses_and_no_tables(tmp_path: Path) -> None:
    old = {"run": f"{ID}-3", "seed": 3, "step": 0, "splits": {"test": {"examples": 2, "metrics": {}}}}
    folder = write_finetuned(tmp_path, scores("accuracy", 0.5, first=3))
    (folder / "seed-3" / "results.json").write_text(json.dumps(old))
    found = FinetuningFolder(folder).results(3)
    assert (found.lost, found.splits["test"].tables) == ({}, [])


def test_values_are_of_the_seeds_that_have_a_number(tmp_path: Path) -> None:
    seeds = {
        0: {"validation": {"accuracy": 0.5, "matthews": None}, "test": {}},
        1: {"validation": {"accuracy": None, "matthews": 0.0}, "test": {}},
        2: {"test": {"accuracy": 0.9}},
    }
    folder = FinetuningFolder(write_finetuned(tmp_path / "a", seeds))
    assert folder.values("validation", "accuracy") == {0: 0.5}
    assert folder.values("validation", "matthews") == {1: 0.0}
    assert folder.values("test", "accuracy") == {2: 0.9}
    assert folder.values("dev", "accuracy") == {}


def test_a_metric_is_judged_on_the_first_split_that_has_it(tmp_path: Path) -> None:
    """A missing number is not taken from the next split."""
    splits = {"unlabelled": {}, "dev": {"accuracy": 0.5}, "test": {"accuracy": 0.9, "f1": 0.8}}
    seeds = {1: splits, 2: splits | {"dev": {"accuracy": None}}}
    folder = FinetuningFolder(write_finetuned(tmp_path / "a", seeds))
    write_seed(folder.path, 0, None)
    assert folder.judged_by("accuracy") == {1: 0.5}
    assert folder.judged_by("f1") == {1: 0.8, 2: 0.8}
    assert folder.judged_by("matthews") == {}
    null = {seed: splits | {"dev": {"accuracy": None}} for seed in (0, 1)}
    assert FinetuningFolder(write_finetuned(tmp_path / "b", null)).judged_by("accuracy") == {}
    assert FinetuningFolder(tmp_path / "nothing").judged_by("accuracy") == {}


def test_predictions_are_lines_of_json_whatever_is_in_them(tmp_path: Path) -> None:
    """JSON strings may contain characters that Python's `splitlines` takes for line ends."""
    texts = ["one\u2028two", "one\x85two", "one\u2029two", "one\ntwo\r\x0b\x0c\x1c"]
    given = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    write_finetuned(tmp_path / "a", {0: {"test": {}}}, predictions={"test": given})
    assert FinetuningFolder(tmp_path / "a").predictions(0, "test") == given


@pytest.mark.parametrize("content", [None, b'{"id": ', b'{"id": "\xff"}\n'])
def test_predictions_that_cannot_be_read_say_how_to_make_them_again(tmp_path: Path, content: bytes | None) -> None:
    folder = FinetuningFolder(write_finetuned(tmp_path / "a", {0: {"test": {}}}))
    file = folder.path / "seed-0" / "predictions-test.jsonl"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"^{file}: .* Delete results\.json"):
        folder.predictions(0, "test")


@pytest.mark.parametrize("text", ["{", "{}"])
def test_damaged_results_say_how_to_make_them_again(tmp_path: Path, text: str) -> None:
    folder = FinetuningFolder(write_finetuned(tmp_path / "a", {0: {"test": {}}}))
    file = folder.path / "seed-0" / "results.json"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=rf"^{file}: .* Delete it and resume\.$"):
        folder.results(0)


def test_seeds_and_files_of_another_fine_tuning_or_seed_are_refused(tmp_path: Path) -> None:
    predictions = {"validation": [{"id": "1", "correct": False}]}
    for name, values in (("a", (0.5, 0.6)), ("b", (0.7, 0.8))):
        folder = write_finetuned(tmp_path / name, scores("accuracy", *values), id=name, predictions=predictions)
        (folder / "identity.json").write_text(json.dumps({"id": name}))
    a = tmp_path / "a"
    (a / "seed-1" / "predictions-validation.jsonl").write_text('{"id": "2"}\n')
    with pytest.raises(CheckpointError, match=r"seed-1/predictions-validation\.jsonl: "):
        FinetuningFolder(a).predictions(1, "validation")
    for number, source in enumerate(("a/seed-0", "b/seed-1", "a/seed-0/results.json", "b/seed-1/results.json")):
        copied = FinetuningFolder(Path(shutil.copytree(a, tmp_path / f"copy{number}")))
        target = copied.path / "seed-1" / Path(source).name.replace("seed-0", "").replace("seed-1", "")
        if (tmp_path / source).is_dir():
            shutil.rmtree(target)
        (shutil.copytree if (tmp_path / source).is_dir() else shutil.copy)(tmp_path / source, target)
        with pytest.raises(CheckpointError, match=rf"belongs to {source[0]}-{source[7]}, not to a-1"):
            copied.results(1)
        with pytest.raises(CheckpointError):
            copied.values("validation", "accuracy")
