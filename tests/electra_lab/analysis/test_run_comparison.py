"""Differences between runs, and whether their tests and the rows of these are the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.analysis.run_comparison import changes, obstacles, same_rows, subjects
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.presentation.finetuned import scores, write_finetuned
from tests.electra_lab.presentation.synthetic import SCALES, write_cell, write_folder
from tests.helpers import rewrite_config

SIZES = {"generator": 10, "discriminator": 40, "shared": 3, "total": 47}


def write(folder: Path, *names: str) -> list[Path]:
    """Write runs, the later ones with fewer steps and more FLOPs."""
    for i, name in enumerate(names):
        cell = {"id": name, "seed": 3, "steps": 400 - 40 * i, "flops": (1 + i) * 1e12, "paper_flops": 1e13}
        write_cell(folder, cell | {"parameters": SIZES}, i)
    return [folder / "cells" / name for name in names]


def change(path: Path, **values: Any) -> None:
    """Change the config of a run."""
    config = yaml.safe_load((path / "config.yaml").read_text())
    rewrite_config(path, yaml.safe_dump(config | values))


def test_only_what_differs_is_named(tmp_path: Path) -> None:
    first, second = write(tmp_path, "one", "other")
    change(second, name="x", generator={"scale": 0.25}, masking={"type": "span"}, train={"steps": None})
    assert changes(subjects([first, second])) == {"generator.scale": [0.5, 0.25], "masking.type": [None, "span"]}
    [third] = write(tmp_path / "more", "third")
    assert changes(subjects([first, third, second]))["generator.scale"] == [0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"masking": {"mask_prob": 0.2}}, ["masking.mask_prob"]), ({"seed": 4}, []), ({"train": {"steps": 2}}, []),
        ({"objective": {"type": "mlm"}}, ["objective.type"]), ({"evaluate": {"every": 2, "at_start": True}}, []),
        ({"evaluate": {"batch_size": 2}}, []), ({"evaluate": {"test_tokens": 2}}, ["evaluate.test_tokens"]),
        ({"data": {"store": "elsewhere"}}, []),
        ({"data": {"sequence_length": 64}}, ["data.sequence_length"]), ({"corpus": {"paths": ["moved"]}}, []),
    ],
)  # fmt: skip
def test_what_makes_tests_incomparable(tmp_path: Path, changed: dict[str, Any], named: list[str]) -> None:
    paths = write(tmp_path, "one", "other")
    change(paths[1], **changed)
    assert obstacles(subjects(paths)) == named
    assert same_rows(subjects(paths)) == (not any(key.startswith(("data.", "tokenizer.")) for key in named))


def with_data(path: Path, **values: Any) -> None:
    """Change the data section of a run's provenance."""
    provenance = json.loads((path / "provenance.json").read_text())
    provenance["data"] |= values
    (path / "provenance.json").write_text(json.dumps(provenance))


def test_other_text_is_named_by_its_keys(tmp_path: Path) -> None:
    paths = write(tmp_path, "one", "other")
    with_data(paths[1], store="another")
    assert obstacles(subjects(paths)) == ["the text"]
    assert not same_rows(subjects(paths))
    change(paths[1], masking={"mask_prob": 0.4})
    assert not same_rows(subjects(paths))
    change(paths[1], corpus={"paths": ["other"]})
    assert obstacles(subjects(paths)) == ["corpus.paths", "masking.mask_prob"]


def test_the_tokenizer_of_a_run_and_its_copy_are_the_same(tmp_path: Path) -> None:
    """As in continued pre-training: another recipe and therefore another token store, but the same tokens."""
    first, second = paths = write(tmp_path, "one", "other")
    with_data(second, store="another")
    change(second, tokenizer={"type": "pretrained", "path": "one/tokenizer.json"})
    (first / "tokenizer.json").write_text("a")
    for text, same in (("a", True), ("b", False)):
        (second / "tokenizer.json").write_text(text)
        assert (not obstacles(subjects(paths))) == same
    (second / "tokenizer.json").write_text("a")
    with_data(second, tokens={"train": 1, "validation": 1, "test": 1})
    assert "tokenizer.type" in obstacles(subjects(paths))


def test_labels_tell_runs_apart(tmp_path: Path) -> None:
    by_time = write(tmp_path, "20261120-135056-1a2b", "20261120-135057-9c1e")
    assert [s.label for s in subjects(by_time)] == ["generator_size-1a2b", "generator_size-9c1e"]
    change(by_time[1], name="other")
    assert [s.label for s in subjects(by_time)] == ["generator_size", "other"]
    [same] = write(tmp_path / "there", "20261120-135056-1a2b")
    assert [s.label for s in subjects([by_time[0], same])] == [str(by_time[0]), str(same)]


def test_costs_are_those_up_to_the_last_record(tmp_path: Path) -> None:
    _, path = write(tmp_path, "one", "other")
    records = RunDirectory(path).records()
    kept = [record for record in records if record["step"] <= 180]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    costs = subjects([path, tmp_path / "cells" / "one"])[0].costs
    assert (costs["steps"], costs["tokens"], costs["FLOPs"]) == (180, 180 * 2048, 1e12)
    assert costs["FLOPs as the paper counts"] == 5e12
    assert costs["tokens/s"] == pytest.approx(8500)
    assert costs["seconds of training"] == pytest.approx(180 * 2048 / 8500)
    next(record for record in reversed(kept) if record["split"] == "train")["flops"] = 0.7e12  # as with batch_warmup
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    assert subjects([tmp_path / "cells" / "one", path])[1].costs["FLOPs"] == pytest.approx(0.7e12)


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    first, second = write(tmp_path, "one", "other")
    sweep = write_folder(tmp_path / "sweep", SCALES, (0,), ["generator.scale"])
    tuned = write_finetuned(tmp_path / "tuned", scores("accuracy", 0.5))
    for others in ([], [first], [sweep], [tuned], [tmp_path], [tmp_path / "absent"]):
        paths = [first, *others]
        with pytest.raises(ConfigError):
            subjects(paths)
    change(second, task={"type": "text_classification"})
    with pytest.raises(ConfigError, match="other"):
        subjects([first, second])
    (first / "metrics.jsonl").write_text("{}\n{}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        subjects([first, write(tmp_path / "more", "more")[0]])
