"""The jobs below a folder: their kinds and states, from the files that a job leaves behind."""

import json
import shutil
from pathlib import Path

import pytest

from electra_lab.analysis.catalog import Job, jobs, ordered
from electra_lab.analysis.records import training_seconds
from electra_lab.storage.catalog import TAIL, last_records
from electra_lab.storage.files import lock
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.presentation.finetuned import scores, write_finetuned, write_seed
from tests.electra_lab.presentation.synthetic import CORRUPTION, SCALES, write_cell, write_folder
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
    assert by_name(tmp_path)["diverged"].state == "stopped"
    assert by_name(tmp_path)["diverged"].done == 80


def test_damaged_jobs_are_listed_and_stop_nothing(tmp_path: Path) -> None:
    for name in ("line", "provenance", "gone", "number"):
        write_run(tmp_path / name)
    (tmp_path / "line" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "split": "train"}\n')
    (tmp_path / "provenance" / "provenance.json").write_text("{")
    (tmp_path / "gone" / "config.yaml").unlink()
    (tmp_path / "number" / "metrics.jsonl").write_text('{"step": 1, "split": "test", "generator_loss": "x"}\n')
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


def test_an_ablation_has_its_best_cell(tmp_path: Path) -> None:
    state = {"v1-s1": "unmeasured", "v3-s0": "missing", "v3-s1": "failed"}
    folder = write_folder(tmp_path / "sweep", SCALES, (0, 1), ["generator.scale"], state=state)
    job = by_name(tmp_path)["sweep"]
    measured = {}
    for path in folder.glob("cells/*/measures.json"):
        measured[path.parent.name] = json.loads(path.read_text())["numbers"][CORRUPTION]["reference_auc"]
    best = max(measured, key=measured.__getitem__)
    assert (job.state, job.done, job.total) == ("failed", 5, 8)
    assert job.numbers == {"reference_auc": measured[best]}
    assert job.best == f"{list(SCALES)[int(best[1])]}, seed {best[-1]}"
    (folder / "claims").mkdir()
    with lock(folder / "claims" / "v3-s0"):
        assert by_name(tmp_path)["sweep"].state == "running"


def test_the_end_of_a_long_file_is_enough(tmp_path: Path) -> None:
    """Compared with reading the whole file. The last evaluation is far from the end."""
    run, train = write_run(tmp_path / "run"), {"split": "train", "tokens_per_second": 64.0}
    lines = [{"step": n, **train, "tokens": 128 * n, "filling": 0.123456789012} for n in range(1, 2001)]
    lines.insert(50, {"step": 50, "split": "validation", "generator_loss": 3.0})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (run / "metrics.jsonl").stat().st_size > 2 * TAIL
    records, job = RunDirectory(run).records(), by_name(tmp_path)["run"]
    assert (job.numbers, job.done) == ({"generator_loss": 3.0}, 2000)
    assert job.seconds == training_seconds(records) == 4000
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2001, "spl')
    assert last_records(run / "metrics.jsonl")[-1] == records[-1] == lines[-1]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('it": 1}\n{"step": 2002, "split": "train"}\n')
    with pytest.raises(CheckpointError):
        last_records(run / "metrics.jsonl")


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
