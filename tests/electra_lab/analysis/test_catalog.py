"""The jobs below a folder: their kinds and states, from the files that a job leaves behind."""

import json
import os
import shutil
from pathlib import Path

import pytest

from electra_lab.analysis.catalog import Job, jobs, ordered
from electra_lab.analysis.records import last_evaluation, training_seconds
from electra_lab.analysis.results import read
from electra_lab.presentation.listing import table
from electra_lab.presentation.sweep_page import variants_markdown
from electra_lab.presentation.verdict import verdict
from electra_lab.storage.files import MANIFEST, lock
from electra_lab.storage.records import TAIL, last_records
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.presentation.finetuned import scores, write_finetuned, write_seed
from tests.electra_lab.presentation.synthetic import MEASURES, SCALES, measured, write_cell, write_folder
from tests.helpers import python

SIZES = {"generator": 10, "discriminator": 40, "shared": 3, "total": 47}


def write_run(path: Path, steps: int = 400, state: str = "done") -> Path:
    write_cell(path.parent, {"id": path.name, "seed": 3, "steps": steps, "flops": 1e12, "parameters": SIZES}, 0, state)
    shutil.move(path.parent / "cells" / path.name, path)
    (path.parent / "cells").rmdir()
    return path


def by_name(root: Path) -> dict[str, Job]:
    return {str(job.path.relative_to(root)): job for job in jobs(root)}


def test_every_kind_is_found_at_any_depth_and_nothing_inside_a_job(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "b" / "run")
    write_finetuned(tmp_path / "tuned", scores("accuracy", 0.5, 0.75))
    write_folder(tmp_path / "deep" / "sweep", SCALES, (0, 1), ["generator.scale"])
    (tmp_path / "a" / "round").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a" / "loop").symlink_to("loop")
    found = by_name(tmp_path)
    assert {name: job.kind for name, job in found.items()} == {
        "a/b/run": "run", "tuned": "fine-tuning", "deep/sweep": "ablation"
    }  # fmt: skip
    assert {job.state for job in found.values()} == {"finished"}


def test_a_run_has_its_last_evaluation_without_baselines_and_its_own_task(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    job = by_name(tmp_path)["run"]
    records = RunDirectory(run).records()
    assert (job.name, job.done, job.total) == ("generator_size", 400, 400)
    assert job.numbers == {"generator_loss": records[-1]["generator_loss"], "generator_accuracy": 0.2}
    assert job.seconds == pytest.approx(sum(r["seconds"] for r in records if r["split"] == "train"))
    assert job.written == (run / "metrics.jsonl").stat().st_mtime


def test_states_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "stopped", state="unfinished")
    directory = RunDirectory(write_run(tmp_path / "diverged", state="unfinished"))
    directory.note_divergence("the loss is not finite")
    run = write_run(tmp_path / "held", state="unfinished")
    begun = tmp_path / "begun"
    begun.mkdir()
    for name in (".lock", "source.yaml"):
        (begun / name).touch()
    with lock(run / ".lock"):
        states = {name: job.state for name, job in by_name(tmp_path).items()}
    assert states == {"stopped": "stopped", "diverged": "diverged", "held": "running", "begun": "stopped"}
    directory.truncate(80)
    for step, file in ((40, MANIFEST), (60, MANIFEST), (80, "state.safetensors")):  # the last one is not whole
        (directory.checkpoints / f"step-{step:08}").mkdir(parents=True)
        (directory.checkpoints / f"step-{step:08}" / file).touch()
    found = by_name(tmp_path)
    assert (found["diverged"].state, found["diverged"].done) == ("stopped", 60)
    assert found["stopped"].done == 0  # it has saved nothing


def test_damaged_jobs_are_listed_and_stop_nothing(tmp_path: Path) -> None:
    for name in ("line", "provenance", "gone", "number"):
        write_run(tmp_path / name)
    (tmp_path / "line" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "split": "train"}\n')
    (tmp_path / "provenance" / "provenance.json").write_text("{")
    (tmp_path / "gone" / "config.yaml").unlink()
    wrong, right = '{"step": 1, "split": "test", "generator_loss": "x"}\n', '{"step": 2, "split": "train"}\n'
    (tmp_path / "number" / "metrics.jsonl").write_text(wrong + right)
    write_finetuned(tmp_path / "tuned", scores("accuracy", 0.5))
    (tmp_path / "tuned" / "finetuning.yaml").write_text("[" * 1200)
    write_folder(tmp_path / "sweep", SCALES, (0,), ["generator.scale"])
    (tmp_path / "sweep" / "plan.json").write_text("[]")
    found = by_name(tmp_path)
    assert len(found) == 6
    assert {job.state for job in found.values()} == {"damaged"}
    for name, file in {"line": "metrics.jsonl", "provenance": "provenance.json", "sweep": "plan.json"}.items():
        assert found[name].error.startswith(str(tmp_path / name / file))
    with pytest.raises(ConfigError):
        list(jobs(tmp_path / "sweep" / "plan.json"))


def test_a_fine_tuning_has_the_mean_over_its_finished_seeds(tmp_path: Path) -> None:
    write_finetuned(tmp_path / "tuned", scores("matthews", 0.5, 0.75), config={"seeds": [0, 1, 2]})
    write_seed(tmp_path / "tuned", 2, None)
    job = by_name(tmp_path)["tuned"]
    assert (job.state, job.done, job.total, job.numbers) == ("stopped", 2, 3, {"matthews": 0.625})


def test_a_fine_tuning_is_judged_by_the_first_split_with_labels_and_was_written_by_its_last_seed(
    tmp_path: Path,
) -> None:
    found = {seed: {"unlabelled": {}, "test": {"matthews": 0.5}, "more": {"matthews": 0.25}} for seed in (0, 1)}
    write_finetuned(tmp_path / "tuned", found)
    for seed, written in ((0, 2e9), (1, 1e9)):
        records = tmp_path / "tuned" / f"seed-{seed}" / "metrics.jsonl"
        records.touch()
        os.utime(records, (written, written))
    job = by_name(tmp_path)["tuned"]
    assert (job.numbers, job.written) == ({"matthews": 0.5}, 2e9)


def test_an_ablation_of_fine_tunings_has_the_cells_and_the_time_of_all_tasks(tmp_path: Path) -> None:
    scores = {"a": {"cola": (0.1, 0.3), "rte": (0.7, 0.9)}, "b": {"cola": (0.6, 0.8), "rte": (0.1, None)}}
    measures = [{"type": "fine-tuning", "key": task, "metrics": {task: {}}} for task in ("cola", "rte")]
    measures.append({"type": "average", "key": "average", "metrics": {"average": {}}})
    cells, numbers = [], {}
    for variant, by_task in scores.items():
        for task, found in by_task.items():
            for seed, value in enumerate(found):
                cells.append({"id": f"{variant}-{task}-{seed}", "variant": variant, "seed": seed, "task": task})
                numbers[cells[-1]["id"]] = {} if value is None else {task: {task: value}}
    write_folder(tmp_path / "sweep", {"a": {}, "b": {}}, cells=cells, measures=measures, metric="average", seeds=[0, 1])
    for id, found in numbers.items():
        trained = tmp_path / "sweep" / "cells" / id / f"seed-{id[-1]}"
        trained.mkdir(parents=True)
        (trained.parent / "measures.json").write_text(measured(id, found))
        record = {"step": 1, "split": "train", "tokens": 64, "tokens_per_second": 32.0}
        (trained / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    job = by_name(tmp_path)["sweep"]
    assert (job.state, job.done, job.total, job.seconds) == ("stopped", 7, 8, 8 * 64 / 32)
    assert job.numbers == {"average": pytest.approx((0.2 + 0.8) / 2)}  # b lacks a cell


@pytest.mark.parametrize("higher", [True, False])
def test_an_ablation_has_the_best_mean_of_a_variant_not_its_best_cell(tmp_path: Path, higher: bool) -> None:
    """v1 has the best cell of all; v2 has a better mean, but not all seeds."""
    sign = 1 if higher else -1
    by_seed = [[0.5, 0.7, 0.6], [0.9, 0.1, 0.2], [0.8, 0.8, 0.0]]
    measures = json.loads(json.dumps(MEASURES))
    measures[0]["metrics"]["reference_auc"]["higher_is_better"] = higher
    write_folder(
        tmp_path / "sweep",
        {"a*": {}, "b": {}, "c": {}},
        scores=lambda variant, seed: sign * by_seed[variant][seed],
        state={"v2-s2": "missing"},
        measures=measures,
    )
    job = by_name(tmp_path)["sweep"]
    assert (job.numbers, job.verdict) == ({"reference_auc": pytest.approx(sign * 0.6)}, "")
    text = variants_markdown(read(tmp_path / "sweep"))
    (tmp_path / "sweep" / "table.md").write_text(text)
    job = by_name(tmp_path)["sweep"]
    assert job.verdict == verdict(read(tmp_path / "sweep"))[0]
    (line,) = table([job], tmp_path, "newest", None).rows
    assert f"{sign * 0.6:.4g} reference_auc: {job.verdict}" in line


def test_states_of_an_ablation(tmp_path: Path) -> None:
    state = {"v1-s1": "unmeasured", "v3-s0": "missing", "v3-s1": "failed"}
    folder = write_folder(tmp_path / "sweep", SCALES, (0, 1), ["generator.scale"], state=state)
    job = by_name(tmp_path)["sweep"]
    assert (job.state, job.done, job.total) == ("failed", 5, 8)
    (folder / "claims").mkdir()
    with lock(folder / "claims" / "v3-s0"):
        assert by_name(tmp_path)["sweep"].state == "running"


@pytest.mark.parametrize(
    "evaluated",
    [
        [(20, "validation", 5.0), (30, "validation", 4.0), (50, "validation", 3.0)],
        [(20, "test", 5.0), (30, "test", 3.0), (50, "validation", 4.0)],
        [(20, "validation", 5.0), (30, "test", 3.0), (1990, "validation", 4.0)],
    ],
)
def test_the_end_of_a_long_file_is_enough(tmp_path: Path, evaluated: list[tuple[int, str, float]]) -> None:
    """Compared with reading the whole file. Evaluations are far from the end, but for a later one than the test."""
    run, train = write_run(tmp_path / "run"), {"split": "train", "tokens_per_second": 64.0}
    lines = [{"step": n, **train, "tokens": 128 * n, "filling": 0.123456789012} for n in range(1, 2001)]
    for step, split, loss in reversed(evaluated):
        lines.insert(step, {"step": step, "split": split, "generator_loss": loss})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (run / "metrics.jsonl").stat().st_size > 2 * TAIL
    with lock(run / ".lock"):
        records, job = RunDirectory(run).records(), by_name(tmp_path)["run"]
    assert (job.numbers, job.done) == ({"generator_loss": 3.0}, 2000)
    assert job.numbers["generator_loss"] == last_evaluation(records)["generator_loss"]
    assert job.seconds == training_seconds(records) == 4000
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2001, "spl')
    assert last_records(run / "metrics.jsonl")[-1] == records[-1] == lines[-1]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('it": 1}\n{"step": 2002, "split": "train"}\n')
    with pytest.raises(CheckpointError):
        last_records(run / "metrics.jsonl")


@pytest.mark.parametrize("inside", [0, 1, 14, 40])
def test_an_evaluation_where_the_end_begins_is_read(tmp_path: Path, inside: int) -> None:
    """Some of its bytes are before the end that is read."""
    evaluation = json.dumps({"step": 3, "split": "test", "generator_loss": 3.0})
    last = json.dumps({"step": 4, "split": "train"})
    last = last.replace("{", "{" + " " * (TAIL + inside - len(evaluation) - len(last) - 2))
    (tmp_path / "metrics.jsonl").write_text(f"{evaluation}\n" * 3 + f"{last}\n")
    records = last_records(tmp_path / "metrics.jsonl")
    assert last_evaluation(records) == json.loads(evaluation)
    assert records[-1]["step"] == 4


def test_order(tmp_path: Path) -> None:
    metrics = {"low": {"higher_is_better": False}, "high": {}, "auc": {"comparable": False}}
    for name, low, high in (("c", 1.0, 5.0), ("a", 3.0, 4.0), ("b", 2.0, 6.0)):
        found = {0: {"test": {"low": low, "high": high}}}
        write_finetuned(tmp_path / name, found, metrics=metrics, config={"name": name})
    found = list(jobs(tmp_path))
    found.append(Job(tmp_path / "d", "run", "d", "stopped", written=9e9))
    for by, order in {"low": "cbad", "high": "bcad", "name": "abcd"}.items():
        assert [job.name for job in ordered(found, by)] == list(order)
    assert ordered(found, "newest")[0].name == "d"
    (shown,) = table(found[:1], tmp_path, "high", None).rows
    assert found[0].leading == "low"
    assert any(text.startswith(f"{found[0].numbers['high']:.4g} ") for text in shown)
    for wrong in ("auc", "nothing"):
        with pytest.raises(ConfigError, match=wrong):
            ordered(found, wrong)


def test_filters(tmp_path: Path) -> None:
    job = next(jobs(write_run(tmp_path / "run")))
    for word in ("finished", "run", "gen*", "*/run", "seed=3", "generator.scale=0.5"):
        assert job.matches(word), word
    for word in ("stopped", "ablation", "gen", "seed=4", "seed=[", "other=3"):
        assert not job.matches(word), word


def test_a_listing_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    write_folder(tmp_path / "sweep", SCALES, (0, 1), ["generator.scale"])
    write_finetuned(tmp_path / "tuned", scores("accuracy", 0.5))
    script = (
        "import sys; sys.argv = ['electra-lab', 'list', sys.argv[1]]\nfrom electra_lab.cli import main\ntry: main()\n"
        "finally: print(sorted({'torch', 'numpy', 'pandas'} & {*sys.modules}), file=sys.stderr)"
    )
    done = python("-c", script, str(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert len(done.stdout.splitlines()) == 4


def test_records_and_results_of_another_run_are_not_listed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    head = json.dumps({"step": 0, "split": "run", "id": "another"})
    records = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(f"{head}\n{records}")
    folder = write_finetuned(tmp_path / "tuned", scores("accuracy", 0.5, 0.75))
    (folder / "seed-1" / "results.json").write_bytes((folder / "seed-0" / "results.json").read_bytes())
    assert {name: (job.state, job.numbers) for name, job in by_name(tmp_path).items()} == {
        "run": ("damaged", {}), "tuned": ("damaged", {})
    }  # fmt: skip
    own = json.loads((run / "provenance.json").read_text())["id"]
    (run / "metrics.jsonl").write_text(f"{head.replace('another', own)}\n{records}")
    assert by_name(tmp_path)["run"].state == "finished"
