"""Searches: Optuna proposes the variants of an ablation, whose cells are trained and resumed like all others."""

from __future__ import annotations

import json
import re
import shutil
import signal
import statistics
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from electra_lab.analysis.results import cell_result, read
from electra_lab.jobs.sweeps import run, search
from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.jobs.sweeps.plan import write_plan
from electra_lab.jobs.sweeps.search import Search, open_study, seed_of
from electra_lab.presentation.search_section import section
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.plan import Trial
from registry import launchers
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.jobs.sweeps.small import HERE, PROCESSES, InProcess, ablate, stamps, start
from tests.helpers import write_experiment

optuna = pytest.importorskip("optuna", reason="needs electra-lab[search]")

RANGE = "{low: 1.0e-4, high: 0.3, log: true}"
FILE = """\
name: rates
base: tiny.yaml
set: {{checkpoint.every: 2, train.log_every: 2, evaluate.every: 2}}
vary: {{train.learning_rate: {range}, generator.scale: [0.5, 1.0]}}
seeds: [0]
budget: {{steps: 6}}
measure: [{{type: pretraining}}]
metric: generator_mask_loss
search: {{trials: {trials}{more}}}
launcher: {launcher}
"""


def write(folder: Path, trials: int = 3, more: str = "", launcher: str = HERE, range: str = RANGE) -> Path:
    write_experiment(folder, data="{sequence_length: 16, held_out: 0.3, store: store}")
    file = folder / "rates.yaml"
    file.write_text(FILE.format(trials=trials, more=more, launcher=launcher, range=range), encoding="utf-8")
    return file


def trials_of(out: Path) -> list[Trial]:
    planned = AblationFolder(out).plan.search
    assert planned
    return planned.begun


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A search with pruned trials, and its confirmation. Tests must not change it."""
    folder = tmp_path_factory.mktemp("search")
    file = write(folder, 8, ", prune: true, confirm: [5, 6]")
    return file, ablate(file, folder / "out")


def validation(out: Path, label: str) -> dict[int, float]:
    """Return the loss at [MASK] on validation text by step."""
    (cell,) = (cell for cell in AblationFolder(out).plan.cells if cell.variant == label)
    records = AblationFolder(out).run(cell.id).records()
    return {record["step"]: record["generator_mask_loss"] for record in records if record["split"] == "validation"}


def test_trials_are_pruned_by_the_median_of_finished_ones(searched: tuple[Path, Path]) -> None:
    """An oracle from the records: the best loss so far against the median of the finished trials at that step."""
    finished, pruned = list[dict[int, float]](), 0
    for trial in trials_of(searched[1]):
        if trial.variant != f"trial {trial.number}":  # values that were tried before
            continue
        losses = validation(searched[1], trial.variant)
        expected = None
        for step in sorted(losses):
            best = min(loss for at, loss in losses.items() if at <= step)
            if len(finished) >= 5 and step < 6 and best > statistics.median(other[step] for other in finished):
                expected = step
                break
        if trial.state == "pruned":
            assert max(losses) == expected
            pruned += 1
        else:
            assert (trial.state, expected) == ("done", None)
            finished.append(losses)
    assert pruned
    assert len(finished) > 5


def test_a_trial_is_a_cell_like_all_others_and_its_value_is_the_metric(searched: tuple[Path, Path]) -> None:
    out = searched[1]
    results, trials = read(out), trials_of(out)
    assert len(trials) == 8
    for trial in trials:
        (cell,) = results.of(trial.variant)
        assert cell.status == trial.state
        assert trial.value == cell.metrics.get("generator_mask_loss")
        config = AblationFolder(out).run(cell.plan.id).provenance().config
        if trial.variant != "base":
            assert config["train"]["learning_rate"] == trial.values["train.learning_rate"]
            assert len(f"{trial.values['train.learning_rate']:.15g}".lstrip("0.")) <= 4
    best = min((trial for trial in trials if trial.value), key=lambda trial: trial.value or 0)
    assert AblationFolder(out).plan.search.confirmation == f"confirm/{best.variant.replace(' ', '-')}"
    assert not results.count("failed")


def test_the_best_trial_is_compared_with_the_base_on_fresh_seeds(searched: tuple[Path, Path]) -> None:
    out = searched[1]
    folder = out / AblationFolder(out).plan.search.confirmation
    confirmed, best = read(folder), folder.name.replace("-", " ")
    assert [cell.plan.seed for cell in confirmed.cells] == [5, 5, 6, 6]
    assert all(cell.status == "done" for cell in confirmed.cells)
    values = confirmed.values("generator_mask_loss")
    difference = statistics.mean(values[best][seed] - values["base"][seed] for seed in (5, 6))
    part = section(read(out))
    assert f"{difference:+.4f}"[:5] in part.confirmed[0]
    text = (out / "report.html").read_text()
    assert part.confirmed[0] in text
    assert f'href="confirm/{folder.name}/report.html"' in text
    assert len(part.trials.rows) == 8
    shares = AblationFolder(out).plan.search.importances
    assert {*shares} == {"train.learning_rate", "generator.scale"}
    assert sum(shares.values()) == pytest.approx(1)


def test_nothing_is_done_twice_and_more_trials_are_added(searched: tuple[Path, Path], tmp_path: Path) -> None:
    out = Path(shutil.copytree(searched[1], tmp_path / "out"))
    before, trials = stamps(out), trials_of(out)
    ablate(searched[0], out)
    assert stamps(out) == before
    run.ablate(searched[0], ["search.trials=9"], out, "cpu", None, None)
    assert trials_of(out)[:8] == trials
    assert len(trials_of(out)) == 9
    assert before.items() <= stamps(out).items()
    file = write(tmp_path, 8)
    changes = ("train.clip_norm=0.5", "seeds=[0, 1]", "metric=generator_loss")
    for change in changes:
        with pytest.raises(ConfigError, match="another plan"):
            run.ablate(file, [change], out, "cpu", None, None)
    with pytest.raises(ConfigError, match="another plan"):
        ablate(write(tmp_path, 8, range=RANGE.replace("0.3", "0.2")), out)


def test_a_finished_search_needs_no_text_and_continues_its_confirmation(
    searched: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(searched[1], tmp_path / "out"))
    before = stamps(out)
    confirmation = out / AblationFolder(out).plan.search.confirmation
    with pytest.raises(ConfigError, match="belongs to a search") as refused:
        ablate(confirmation / "ablation.yaml", confirmation)
    assert str(out / "ablation.yaml") in str(refused.value)
    monkeypatch.setattr(run, "_lacks_data", lambda _: True)
    monkeypatch.setattr(run, "_tokenize", lambda *_: pytest.fail("needs the text"))
    (out / "report.html").unlink()
    ablate(out / "ablation.yaml", out)
    assert stamps(out) == before
    assert (out / "report.html").is_file()
    (confirmation / "plan.json").unlink()
    assert not run._is_done(AblationFolder(out), load_ablation(out / "ablation.yaml"))


def test_a_lost_plan_is_recreated_and_a_damaged_journal_is_named(searched: tuple[Path, Path], tmp_path: Path) -> None:
    out = Path(shutil.copytree(searched[1], tmp_path / "out"))
    before, trials, cells = stamps(out), trials_of(out), AblationFolder(out).plan.cells
    (out / "plan.json").unlink()
    ablate(searched[0], out)
    assert (trials_of(out), AblationFolder(out).plan.cells) == (trials, cells)
    assert stamps(out) == before
    journal = out / "study.log"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:3], '{"op_code":\n', *lines[4:]]))
    with pytest.raises(CheckpointError, match=r"study\.log: is damaged"):
        ablate(searched[0], out)


def test_a_search_goes_on_wherever_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after the first plan was written, and right after that of the second trial."""
    file, out = write(tmp_path, 2), tmp_path / "out"
    for number in (1, 3):  # begin, then one plan a trial
        plans = count()

        def killed(*arguments: Any, plans: Any = plans, number: int = number) -> Any:
            plan = write_plan(*arguments)
            if next(plans) + 1 == number:
                raise MemoryError
            return plan

        with monkeypatch.context() as patched:
            patched.setattr(search, "write_plan", killed)
            with pytest.raises(MemoryError):
                ablate(file, out)
        assert AblationFolder(out).plan.search
    ablate(file, out)
    assert [trial.state for trial in trials_of(out)] == ["done", "done"]


class Dying(InProcess):
    """Ends its process, as far as the search can tell, when a cell is trained but not yet told."""

    after = 2

    def __call__(self, commands: Any, folder: Path, /) -> Any:
        yield from super().__call__(commands, folder)
        Dying.after -= len(commands)
        if Dying.after <= 0:
            raise MemoryError


def test_a_search_that_died_goes_on_with_the_same_trials(tmp_path: Path) -> None:
    """Also after half a line of the journal, and when a trial was begun, but not in the plan yet."""
    file = write(tmp_path, 4)
    whole = trials_of(ablate(file, tmp_path / "whole"))
    assert len({json.dumps(trial.values) for trial in whole}) == 4
    with launchers.isolated():
        launchers.register("dying")(Dying)
        with pytest.raises(MemoryError):
            ablate(file, tmp_path / "out", launcher="dying")
    plan = AblationFolder(tmp_path / "out").plan
    assert [trial.state for trial in plan.search.begun][-1] == "running"
    open_study(AblationFolder(tmp_path / "out"), plan, seed=seed_of(0, len(plan.search.begun))).ask()
    with (tmp_path / "out" / "study.log").open("a") as journal:
        journal.write('{"op_code":5,"worker')
    out = ablate(file, tmp_path / "out")
    assert trials_of(out) == whole
    assert trials_of(ablate(write(tmp_path, 2, ", seed: 1"), tmp_path / "other"))[0].values != whole[0].values


def test_a_trial_of_another_process_is_left_to_it(tmp_path: Path) -> None:
    file = write(tmp_path, 3)
    out = tmp_path / "out"
    run.ablate(file, ["search.trials=1"], out, "cpu", None, None)
    folder = AblationFolder(out)
    open_study(folder, folder.plan, seed=seed_of(0, 1)).ask()
    searching = Search(file, [], folder, load_ablation(file, [], {}), print, lambda _: None)
    with AblationFolder(out).claimed("trial-1"), ExitStack() as claims:
        _, ids = searching.take(1, claims)
        taken = {cell.variant for cell in folder.plan.cells if cell.id in ids}
        assert taken == {"trial 2"}
        assert not AblationFolder(out).is_claimed("trial-0")
        assert AblationFolder(out).is_claimed("trial-2")
    assert searching.others()  # trials 1 and 2 are left


def test_refused_and_diverging_trials_are_results_and_a_budget_ends_a_search(tmp_path: Path, capfd) -> None:
    file = write(tmp_path, 6, range="{low: 1.0e+30, high: 1.0e+36, log: true}")
    out = ablate(file, tmp_path / "out")
    assert {trial.state for trial in trials_of(out)} == {"pruned"}
    assert "finite" in trials_of(out)[0].note
    bound = "{low: 1, high: 3}, discriminator.depth: {low: 1, high: 2}"
    write(tmp_path, 4)
    text = file.read_text().replace(f"train.learning_rate: {RANGE}", f"discriminator.heads: {bound}")
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"heads=3"):  # the ends of a range are checked first
        ablate(file, tmp_path / "heads")
    file = write(tmp_path, 8, ", budget: 1")
    capfd.readouterr()
    out = ablate(file, tmp_path / "budget")
    assert len(trials_of(out)) == 1
    told = capfd.readouterr().err.splitlines()[-1]
    plan = AblationFolder(out).plan
    records = cell_result(AblationFolder(out), plan, plan.cells[-1].id).run.records()
    spent = max(record.get("flops", 0.0) for record in records)
    assert re.search(rf"^1 of at most 8 .*{re.escape(f'{spent:.3g}')} FLOPs of a budget of 1\.$", told)
    assert "budget of 1." in (out / "report.html").read_text()
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "corpus.txt").unlink()
    capfd.readouterr()
    assert len(trials_of(ablate(file, out))) == 1  # what is finished needs no text
    assert f"{len(plan.cells)} cells, {len(plan.cells)} already done" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("vary: {train.learning_rate: {low: 1, high: 1}}\nsearch: {trials: 2}", "vary.train.learning_rate.high"),
        ("vary: {train.learning_rate: {low: 0, high: 1, log: true}}\nsearch: {trials: 2}", "learning_rate.low"),
        ("vary: {train.learning_rate: {low: 0.1, high: 1, base: 2}}\nsearch: {trials: 2}", "learning_rate.base"),
        ("vary: {train.learning_rate: {low: 0.1, high: 1}}", "vary.train.learning_rate"),
        ("vary: {a: {train.learning_rate: 0.1}}\nsearch: {trials: 2}", "vary.a"),
        ("vary: {train.learning_rate: [0.1]}\nsearch: {trials: 2, confirm: [3, 0]}", "search.confirm"),
        ("vary: {train.learning_rate: [0.1]}\nsearch: {trials: 2, type: random}", "search.type"),
        ("vary: {train.learning_rate: [0.1]}\nsearch: {trials: 2}\nbaseline: base", "baseline"),
        ("vary: {train.learning_rat: {low: 0.1, high: 1}}\nsearch: {trials: 2}", "learning_rat"),
    ],
)
def test_mistakes(tmp_path: Path, line: str, wrong: str) -> None:
    write_experiment(tmp_path)
    file = tmp_path / "rates.yaml"
    file.write_text(f"name: rates\nbase: tiny.yaml\nseeds: [0]\n{line}\n")
    with pytest.raises(ConfigError) as error:
        load_ablation(file)
    assert re.search(rf"rates\.yaml:[456]: (.*: )?.*{re.escape(wrong)}", str(error.value))
    file.write_text(
        f"name: rates\nbase: tiny.yaml\nseeds: [0, 1]\n{line.replace('trials: 2', 'trials: 2, prune: true')}\n"
    )
    if "search" in line:
        with pytest.raises(ConfigError, match=r"rates\.yaml:[456]: "):
            load_ablation(file)


def test_the_dry_run_says_the_cost(tmp_path: Path) -> None:
    file = write(tmp_path, 5, ", confirm: [3, 4]")
    text = run.dry_run(file, [], tmp_path / "out", "cpu", None, None, tries=False)
    assert not (tmp_path / "out").exists()
    flops = [float(number) for number in re.findall(r"compute: (\S+) to (\S+) FLOPs", text)[0]]
    costs = {}
    for cell in run.plan_of(run.checked(load_ablation(file))).cells:
        costs[cell.variant] = cell.flops
    runs = 5 + 1 + 4
    assert flops == [
        pytest.approx(runs * min(costs.values()), rel=0.01),
        pytest.approx(runs * max(costs.values()), rel=0.01),
    ]
    assert len(set(costs.values())) > 1
    limited = run.dry_run(file, ["search.budget=2.5e9"], tmp_path / "out", "cpu", None, None, tries=False)
    assert "after 2.5e+09 FLOPs of trials" in limited
    assert "FLOPs of trials" not in text


@pytest.mark.slow
def test_two_processes_share_a_search_and_one_may_be_killed(tmp_path: Path) -> None:
    file = write(tmp_path, 6, launcher=PROCESSES.replace("workers: 2", "workers: 1"))
    first, second = start(file, tmp_path / "out"), start(file, tmp_path / "out")
    journal = tmp_path / "out" / "study.log"
    deadline = time.monotonic() + 120
    while not (journal.is_file() and journal.read_text().count('"op_code":4') >= 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    _, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    trials = trials_of(tmp_path / "out")
    assert [trial.state for trial in trials] == ["done"] * 6
    before = stamps(tmp_path / "out")
    assert start(file, tmp_path / "out").wait(120) == 0
    assert stamps(tmp_path / "out") == before
