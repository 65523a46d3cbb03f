"""Run an ablation: plan, launch missing cells, measure, report."""

import signal
import sys
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from electra_lab.analysis.results import CellResult, cell_result, left_to_do, waiting_work
from electra_lab.assembly.build import sketch
from electra_lab.assembly.data import counted, open_data, prepared
from electra_lab.assembly.launcher import component_of_flag, make_launcher
from electra_lab.assembly.needs import forecast, trial
from electra_lab.config.load import Loaded
from electra_lab.config.source import read_file
from electra_lab.data.store import Store
from electra_lab.jobs.endings import handled, name_of
from electra_lab.jobs.identity import decisive, rows_of
from electra_lab.jobs.lifecycle import Page, enough_memory, live_page, refuse_several_processes
from electra_lab.jobs.provenance import content
from electra_lab.jobs.sweeps.cells import quarantine_damaged, scale_of
from electra_lab.jobs.sweeps.file import Ablation, load_ablation
from electra_lab.jobs.sweeps.plan import as_planned, checked, plan_of, write_plan
from electra_lab.jobs.sweeps.search import Search, is_searched, refuse_missing
from electra_lab.presentation import sweep_summary as summary
from electra_lab.presentation.console import Console, Phases
from electra_lab.presentation.sweep_page import write_report
from electra_lab.storage.ablation_folder import AblationFolder, is_ablation_folder, search_of
from electra_lab.storage.plan import Cell, Plan
from electra_lab.storage.provenance import changes, described
from electra_lab.storage.run_directory import refuse_to_hold
from electra_lab.training.device import choose_device, planned_device, threads
from registry import Launcher, Outcome, launchers
from registry.errors import (
    CellsFailed,
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    Interrupted,
    LabError,
    Preempted,
    command,
)

STOPPED = Preempted.exit_code, Interrupted.exit_code  # or another process is working on it
PATIENCE = 2.0  # seconds between two looks at the cells that other processes are working on


def ablate(
    file: Path, overrides: list[str], out: Path | None, device: str, launcher: str | None, workers: int | None
) -> Path:
    """Run the missing parts of an ablation; returns its folder. Raises LabError: CellsFailed if some cells failed."""
    refuse_several_processes()
    ablation, launch, path = _prepared(file, overrides, out, launcher, workers)
    console = Console()
    if _lacks_data(ablation) and _is_done(AblationFolder(path), ablation):
        write_report(path)
        console.say(summary.opening(AblationFolder(path).plan, (), path))
        console.say(summary.closing(path))
        return path
    if ablation.config.search or left_to_do(AblationFolder(path), plan_of(ablation)):
        launch.check()
    if launch.here:
        choose_device(device)  # once, and not by each cell
    if ablation.config.search:
        _search(file, overrides, path, launch, device, console)
    else:
        _carry_out(ablation, path, launch, device, console)
    return path


def _carry_out(ablation: Ablation, path: Path, launch: Launcher, device: str, console: Console) -> None:
    """Do the missing parts of an ablation. Raises LabError."""
    folder = AblationFolder.create(path)
    _tokenize(ablation, folder, console)
    with folder.claimed("plan", wait=True):  # another launcher may have come while the text was read
        _refuse_other(folder, ablation)
        plan = write_plan(ablation, folder)
    quarantine_damaged(folder, plan, console.say)
    console.say(summary.opening(plan, left_to_do(folder, plan), path))
    for line in summary.gaps(plan):
        console.say(line)
    with _reported(folder, console) as page:
        _work(folder, plan, None, ablation.config.retries, launch, device, console, page)
    console.say(summary.closing(folder.path))
    _refuse_unfinished(folder, plan)


def _search(file: Path, overrides: list[str], path: Path, launch: Launcher, device: str, console: Console) -> None:
    """Do the missing trials of a search, then its confirmation. Raises LabError."""
    base = checked(load_ablation(file, overrides, {}))
    folder, at_once = AblationFolder.create(path), getattr(launch, "workers", 1)
    search = Search(file, overrides, folder, base, console.say, lambda new: _tokenize(new, folder, console))
    search.begin()
    quarantine_damaged(folder, folder.plan, console.say)
    console.say(f"{folder.plan.name}: a search, in {path}")
    with _reported(folder, console) as page:
        while True:
            with ExitStack() as claims:
                plan, ids = search.take(max(1, at_once // len(base.cells)), claims)
                _work(folder, plan, ids, base.config.retries, launch, device, console, page)
            search.note_failures(plan)
            if not ids and not search.others():
                break
            if not ids:
                time.sleep(PATIENCE)
    console.say(f"{summary.closing(folder.path)}\n{summary.progress(folder.plan)}")
    if confirmed := search.confirmation():
        _carry_out(*confirmed, launch, device, console)
        write_report(folder.path)
    _refuse_unfinished(folder, folder.plan)


@contextmanager
def _reported(folder: AblationFolder, console: Console) -> Iterator[Page]:
    """Write the page of an ablation during its work and at its end. Raises Preempted or Interrupted."""
    with live_page(lambda unfinished: write_report(folder.path, unfinished), console.say) as page, handled(_stop):
        try:
            yield page
        except (KeyboardInterrupt, Preempted) as error:
            kind = Preempted if isinstance(error, Preempted) else Interrupted
            raise kind(f"stopped; trained cells are saved in {folder.path}. Run the same command again.") from None
        write_report(folder.path)


def check(file: Path, overrides: Sequence[str]) -> tuple[str, LabError | None]:
    """Describe a valid ablation; also return the error that a run would raise on this machine. Raises ConfigError."""
    ablation = checked(load_ablation(file, overrides))
    names = {id: cell.variant for id, cell in ablation.served.items()}
    return summary.overview(plan_of(ablation), ablation.config.launcher.type, names), ablation.absent


def dry_run(
    file: Path,
    overrides: list[str],
    out: Path | None,
    device: str,
    launcher: str | None,
    workers: int | None,
    *,
    tries: bool = True,
) -> str:
    """Describe the work of `ablate`. Tokenizes nothing, writes nothing. Raises LabError.

    tries  estimate the time from some steps of each variant
    """
    ablation, launch, path = _prepared(file, overrides, out, launcher, workers)
    if _lacks_data(ablation) and _is_done(AblationFolder(path), ablation):
        plan = AblationFolder(path).plan
        return summary.forecast(plan, {}, dict.fromkeys(plan.wanted, ()), path, 1)
    target = planned_device(device)
    folder, needs, stores = AblationFolder(path), dict[str, summary.Need](), dict[str, Store | None]()
    for label in ablation.sketches:
        loaded = _sketched(ablation, label)
        if (text := _text_of(loaded)) not in stores:
            stores[text] = prepared(loaded)
        _count(ablation, label, stores[text])
    plan = plan_of(ablation)
    first = ablation.loaded[plan.cells[0].id]
    for label in ablation.sketches:
        loaded = _sketched(ablation, label)
        store = stores[_text_of(loaded)]
        need = forecast(loaded, target, store)
        with threads(getattr(launch, "threads", None)), enough_memory():
            time = trial(loaded, need, target, store, scale_of(plan, first)) if tries else ""
        title = label if label in ablation.firsts else ablation.served[label].variant
        costs = need.parameters, need.steps, need.total_flops, need.bytes
        needs[label] = summary.Need(title, *costs, None if isinstance(time, str) else time.total)
    if search := ablation.config.search:
        begun = folder.plan.search if is_ablation_folder(path) else None
        left = search.trials - sum(trial.state != "running" for trial in begun.begun) if begun else search.trials
        confirmed = 2 * len(search.confirm or [])
        at_once = getattr(launch, "workers", workers or 1)
        return summary.search_forecast(plan, needs, left, confirmed, path, at_once, search.prune, search.budget)
    missing = {id: cell_result(folder, plan, id).missing for id in plan.wanted}
    text = summary.forecast(plan, needs, missing, path, getattr(launch, "workers", workers or 1))
    first_jobs = waiting_work(folder, plan, list(left_to_do(folder, plan)))
    if first_jobs and hasattr(launch, "script"):
        script = launch.script(_commands(folder, first_jobs, device), path)
        text += f"\n\n  The first jobs would be submitted by this script:\n\n{script}"
    return text


def _prepared(
    file: Path, overrides: list[str], out: Path | None, launcher: str | None, workers: int | None
) -> tuple[Ablation, Launcher, Path]:
    """Return the checked ablation, its launcher, and the folder. Raises LabError."""
    if search := search_of(file.parent):
        raise ConfigError(f"{file}: belongs to a search. To continue it: {command('ablate', search / 'ablation.yaml')}")
    ablation = load_ablation(file, overrides)
    is_in_folder = file.name == "ablation.yaml" and is_ablation_folder(file.parent)
    path = out or (file.parent if is_in_folder else Path("runs") / ablation.config.name)
    if ablation.config.search:
        refuse_missing()
    else:
        _refuse_other(AblationFolder(path), ablation)
    if not (ablation.finetunes or is_ablation_folder(path)):
        refuse_to_hold(out, ablation.base.config.data.store)
    chosen = ablation.config.launcher
    if launcher and launcher != chosen.type:
        chosen = component_of_flag(launcher, "--launcher", launchers)
    ablation, launch = checked(ablation), make_launcher(chosen, **({"workers": workers} if workers else {}))
    if ablation.absent and not _is_done(AblationFolder(path), ablation):
        raise ablation.absent
    return ablation, launch, path


def _lacks_data(ablation: Ablation) -> bool:
    """Return True if text, examples or models are not on this machine."""
    return bool(ablation.absent or ablation.gaps)


def _is_done(folder: AblationFolder, ablation: Ablation) -> bool:
    """Return True if a folder has all cells and metrics, even of tasks whose data is not here: no data is needed then.

    The keys of measures depend on data, so the folder's plan has to have the same cells and metrics.
    """
    if not is_ablation_folder(folder.path):
        return False
    plan = folder.plan
    if ablation.config.search:
        return is_searched(folder, plan, ablation.config.search)
    now = plan_of(ablation)
    same = [cell.id for cell in plan.cells] == [cell.id for cell in now.cells] and plan.metrics == now.metrics
    return same and not left_to_do(folder, plan)


def _refuse_other(folder: AblationFolder, ablation: Ablation) -> None:
    """Raise ConfigError if the folder holds another plan, with the keys that differ."""

    def differs(id: str) -> str:
        try:
            before: Any = read_file(folder.experiment(id)).plain()
        except ConfigError:
            return ""
        by_cell = []
        for cell in ablation.cells:
            by_cell.append(changes(decisive(before), decisive(content(as_planned(ablation.loaded[cell.id], folder)))))
        # The most similar cell is the one that was changed.
        return f": {described(min(by_cell, key=len)) or 'its plug-ins differ from their copies in cells/*/plugins'}"

    folder.refuse_other({cell.id for cell in ablation.cells}, differs)


def _tokenize(ablation: Ablation, folder: AblationFolder, console: Console) -> None:
    """Tokenize each text once, here, and not by workers that wait for each other."""
    if ablation.finetunes:
        return
    by_text = dict[str, list[Cell]]()
    for cell in ablation.pieces:
        by_text.setdefault(_text_of(ablation.loaded[cell.id]), []).append(cell)
    for cells in by_text.values():
        with Phases(console) as progress:
            store = open_data(ablation.loaded[cells[0].id], console.say, progress)
        for cell in cells:
            _refuse_other_text(folder, cell, store.key)
            _count(ablation, cell.id if cell.id in ablation.served else cell.variant, store)


def _count(ablation: Ablation, label: str, store: Store | None) -> None:
    """Give the sketch of a variant or reference the steps of its epochs."""
    if store and ablation.sketches[label].steps is None:
        ablation.sketches[label] = sketch(counted(_sketched(ablation, label), store))


def _sketched(ablation: Ablation, label: str) -> Loaded:
    """Return the experiment of a variant or reference."""
    cell = ablation.firsts.get(label) or ablation.served[label]
    return ablation.loaded[cell.id]


def _text_of(loaded: Loaded[Any]) -> str:
    """Return everything that a token store and its place depend on."""
    return str([rows_of(loaded), loaded.config.data.store])


def _refuse_other_text(folder: AblationFolder, cell: Cell, key: str) -> None:
    """Raise DataError if a cell was trained on other text than the current one."""
    run = folder.run(cell.id)
    if not (run.path / "provenance.json").is_file():
        return
    with suppress(CheckpointError):  # damaged: the parts that are still needed are recreated
        if (then := run.provenance().data.store) != key:
            raise DataError(
                f"{run.path}: was trained on other text (token store {then}, now {key}). The cause may be changed "
                "files, another version of tokenizers or, for corpus docstrings, of Python or torch. Choose another "
                "--out."
            )


def _refuse_unfinished(folder: AblationFolder, plan: Plan) -> None:
    """Raise CellsFailed if something is left to do."""
    if not (left := left_to_do(folder, plan)):
        return
    failed = sum(result.status == "failed" for result in left.values())
    lacking = len(left) - failed
    others = f", so {lacking} {'others lack' if lacking > 1 else 'other lacks'} a measure" if lacking else ""
    raise CellsFailed(
        f"{failed} of {len(plan.by_id)} runs failed{others}. The reasons are in {folder.path / 'report.html'}, the "
        f"logs in {folder.path / 'logs'}. Run the same command again to retry."
    )


def _work(
    folder: AblationFolder,
    plan: Plan,
    ids: Collection[str] | None,
    retries: int,
    launch: Launcher,
    device: str,
    console: Console,
    page: Page,
) -> None:
    """Launch missing work until all is done, or the rest has failed more often than `retries` allows.

    ids  of the cells and references to work on, by default all
    """
    left, attempts, names = list(left_to_do(folder, plan)), dict.fromkeys(plan.by_id, 0), dict[str, str]()
    left = left if ids is None else [id for id in left if id in ids]
    for cell in plan.by_id.values():
        task = f" on {cell.task}" if cell.task else ""
        names[cell.id] = cell.id if cell.id in plan.references else f"{cell.variant}{task}, seed {cell.seed}"
    for id in left:  # a new command is a new attempt
        if not folder.is_claimed(id):
            folder.note_failure(id, None)

    def failed(id: str, code: int | None, error: str) -> None:
        attempts[id] += 1
        if attempts[id] > retries or code == DivergedError.exit_code:  # as it would again
            left.remove(id)
            folder.note_failure(id, error, attempts[id])
        else:
            folder.note_failure(id, None)
        console.say(f"{names[id]}: {error}{' Trying again.' if id in left else ''}")

    with console.progress(len(names) - len(left), len(names), "ablation", "cells"):
        while waiting := waiting_work(folder, plan, left):
            moved = False
            free = [id for id in waiting if not folder.is_claimed(id)]
            for id, outcome in _launched(launch, folder, free, device):
                if outcome.code in STOPPED:
                    continue
                moved, result = True, cell_result(folder, plan, id)
                if outcome.code != 0:
                    note = folder.failure(id) if outcome.code and outcome.code > 0 else None
                    failed(id, outcome.code, note.error if note else outcome.error)
                elif not result.missing:
                    left.remove(id)
                    console.say(f"{names[id]}: {_reached(result, plan)}")
                    page()
                elif result.missing == waiting[id]:
                    failed(id, None, f"came back without {result.missing[0]}.")
                console.advance(len(names) - len(left))
            if not moved:  # another launcher is working on all of them
                time.sleep(PATIENCE)
                left = [id for id in left if cell_result(folder, plan, id).missing]


def _reached(result: CellResult, plan: Plan) -> str:
    metric = result.plan.task or plan.metric
    if result.pruned:
        return "pruned"
    return f"{metric} {result.metrics[metric]:.4f}" if metric in result.metrics else "trained"


def _commands(folder: AblationFolder, ids: Iterable[str], device: str) -> dict[str, list[str]]:
    cell = [sys.executable, "-P", "-m", "electra_lab", "cell", "--device", device, "--", str(folder.path.resolve())]
    return {id: [*cell, id] for id in ids}


def _launched(launch: Launcher, folder: AblationFolder, ids: list[str], device: str) -> Iterator[tuple[str, Outcome]]:
    outcomes = launch(_commands(folder, ids, device), folder.path)
    with closing(outcomes) if isinstance(outcomes, Generator) else nullcontext():
        yield from outcomes


def _stop(number: int) -> None:
    """End an ablation: signals of schedulers have another exit code than Ctrl-C."""
    raise KeyboardInterrupt if number == signal.SIGINT else Preempted(f"stopped by {name_of(number)}")
