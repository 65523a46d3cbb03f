"""One cell: train it, or resume it, and measure it. The command `cell`, which launchers run for each."""

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from electra_lab.analysis.results import cell_result, is_ready
from electra_lab.assembly.budget import Scale
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, load, load_finetuning
from electra_lab.config.source import BUDGETS
from electra_lab.jobs.endings import as_lab_error
from electra_lab.jobs.finetuning.experiment import declared, identity, open_dataset
from electra_lab.jobs.finetuning.run import run_remaining_seeds
from electra_lab.jobs.identity import digest
from electra_lab.jobs.lifecycle import Pruned
from electra_lab.jobs.measured import as_measured, measured, prepare, shared_damage
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.provenance import content
from electra_lab.jobs.sweeps.plan import as_planned
from electra_lab.jobs.sweeps.search import judge_of
from electra_lab.pretrained.opening import open_model
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.checkpoint import damage as checkpoint_damage
from electra_lab.storage.files import disk
from electra_lab.storage.finetuning_folder import FinetuningFolder
from electra_lab.storage.plan import Plan, PlannedMeasure
from electra_lab.training.device import choose_device
from registry import Trained, load_plugin, measures
from registry.component import Component
from registry.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    InUse,
    LabError,
    Preempted,
    Stopped,
    did_you_mean,
)
from registry.signature import validate

EXAMPLES = "the examples have changed since the ablation began, so its cells cannot be compared. Restore them"
# run id -> (Trained, precision context)
Opened = Callable[[str], tuple[Trained, Callable[[], Any]]]


def work(path: Path, id: str, device: str) -> None:
    """Advance a cell as far as possible: train it, then take the measures that can be taken. Repeats nothing.

    Raises the error that prevents it, once it is noted in failed/; Preempted if another process is working on the cell.
    """
    folder = AblationFolder(path)
    plan = folder.plan
    if id not in plan.by_id:
        raise ConfigError(f"{path}: no cell has the id {id!r}.{did_you_mean(id, plan.by_id)}")
    with folder.claimed(id) as is_claimed:
        if not is_claimed:
            raise Preempted(f"another process is working on {id}.")
        try:
            if cell_result(folder, plan, id).missing:
                _train(folder, plan, id, device)
                _measure(folder, plan, id, device)
            folder.note_failure(id, None)
        except Pruned as error:
            folder.note_pruned(id, str(error))
            folder.note_failure(id, None)
        except InUse as error:  # somebody resumes it by hand
            raise Preempted(str(error)) from None
        except (Exception, SystemExit) as error:
            if not isinstance(error, Stopped):
                with suppress(CheckpointError):  # the disk may be full
                    folder.note_failure(id, _sentence(as_lab_error(error) or error))
            raise


def _sentence(error: BaseException) -> str:
    said = str(error).splitlines()[0] if str(error) else ""
    return said if isinstance(error, LabError) else f"{type(error).__name__}: {said}"


def quarantine_damaged(folder: AblationFolder, plan: Plan, say: Callable[[str], None]) -> None:
    """Move everything that is still needed and can no longer be used to damaged/, so that it is recreated."""
    for measure in plan.measures:
        with folder.claimed(f"shared-{measure.key}", wait=True):
            shared = folder.shared(measure)
            if shared.is_dir() and (reason := shared_damage(shared, measure.key)):
                _set_aside(folder, shared, reason, say)
    for id in plan.by_id:
        with folder.claimed(id) as is_claimed, suppress(InUse):  # resumed by hand
            if is_claimed and (reason := _unusable(folder, id, plan)):
                with folder.run(id).locked():
                    _set_aside(folder, folder.run(id).path, reason, say)


def _unusable(folder: AblationFolder, id: str, plan: Plan) -> str | None:
    """Return the reason why a run that is still needed can be neither resumed nor measured."""
    result = cell_result(folder, plan, id)
    run = result.run
    if not result.missing:
        needed = id in plan.references and not folder.is_used(id, plan)
        return checkpoint_damage(run.last_checkpoint()) if needed else None
    if not (run.path / "provenance.json").is_file():
        return None  # it had not begun
    try:
        began = run.provenance()
        run.refuse_other_format(began)
        run.records()
        config = (run.path / "config.yaml").read_bytes()
        if result.plan.task:
            folder.finetuning(id).results(result.plan.seed)
    except (CheckpointError, OSError) as error:
        return f"cannot be read ({_sentence(error)})"
    if hashlib.sha256(config).hexdigest() != began.config_sha256:
        return "config.yaml was changed since it began"
    changed = set[str]().union(*(change.values for change in began.changes))
    if changed & {f"train.{name}" for name in BUDGETS}:
        return "its length was changed by hand"
    folders = list(run.checkpoints.glob("step-*"))
    return "none of its checkpoints is usable" if folders and all(map(checkpoint_damage, folders)) else None


def _set_aside(folder: AblationFolder, path: Path, reason: str, say: Callable[[str], None]) -> None:
    with disk(folder.path):
        (folder.path / "damaged").mkdir(exist_ok=True)
        number = sum(1 for _ in (folder.path / "damaged").glob(f"{glob.escape(path.name)}-*"))
        aside = folder.path / "damaged" / f"{path.name}-{number}"
        path.rename(aside)
        os.utime(aside)  # when it was set aside
    say(f"{path}: {reason}. It was moved to {aside} and will be recreated.")


def _train(folder: AblationFolder, plan: Plan, id: str, device: str) -> None:
    """Train a cell, or resume it. Raises ConfigError if a plug-in is not the one that the plan was made with."""
    result, file = cell_result(folder, plan, id), folder.experiment(id)
    if result.trained and (result.plan.task or checkpoint_damage(result.run.last_checkpoint()) is None):
        return
    loaded: Loaded[Any] = load_finetuning(file) if result.plan.task else load(file)
    if digest(loaded, as_planned(loaded, folder)) != plan.seals.get(id):
        raise ConfigError(f"{file}: a plug-in changed since the plan was made. Start the ablation again.")
    if result.plan.task:
        _refuse_other_examples(folder, plan, loaded)
        _refuse_other_weights(folder, plan, id, loaded)
        _run_seeds(folder.finetuning(id), loaded, choose_device(device))
        return
    judge = judge_of(folder, plan, plan.by_id[id].variant)
    run, scale = folder.run(id), scale_of(plan, load(folder.experiment(plan.cells[0].id)))
    shutil.rmtree(folder.path / "downstream" / id, ignore_errors=True)  # of the weights before these
    if (run.path / "provenance.json").is_file():
        run.provenance()  # that of another cell is refused
        run.forget_lost_checkpoints()  # they were removed to make room
        execute.resume(run.path, device, scale=scale, judge=judge)
        return
    _refuse_other_weights(folder, plan, id, loaded)
    if run.path.exists():  # killed before it had begun
        shutil.rmtree(run.path)
    execute.run(file, [], run.path, device, scale=scale, id=id, judge=judge)


def _refuse_other_examples(folder: AblationFolder, plan: Plan, loaded: Loaded[FinetuningConfig]) -> None:
    """Raise DataError if a cell with this dataset was trained on other examples than the current ones."""
    dataset, now = content(loaded.portable)["dataset"], open_dataset(loaded).fingerprint()
    for cell in plan.cells:
        run = cell_result(folder, plan, cell.id).run
        with suppress(CheckpointError):  # not begun, or damaged and recreated
            then = run.provenance()
            if then.config.get("dataset") == dataset and then.data.store != now:
                raise DataError(f"{run.path}: {EXAMPLES}, or choose another --out.")


def _refuse_other_weights(folder: AblationFolder, plan: Plan, id: str, loaded: Loaded[Any]) -> None:
    """Raise DataError if another seed of a cell's variant started from other weights than its models have now."""
    cell, config = plan.by_id[id], loaded.config
    for network, source in ({config.network: config.model} if cell.task else config.init.models).items():
        step, base = config.step if cell.task else None, folder.experiment(id).parent
        now = {*open_model(source, step=step, base=base, plugins=False).part(network).sums().values()}
        for other in plan.cells:
            with suppress(CheckpointError):  # not begun, or damaged and recreated
                then = cell_result(folder, plan, other.id).run.provenance().init
                if other.variant == cell.variant and not now <= {*then[network].sha256.values()}:
                    cure = "Restore it, or choose another --out."
                    raise DataError(f"{source}: has changed since cell {other.id} began. {cure}")


def scale_of(plan: Plan, first: Loaded) -> Scale:
    """Return the first cell's numbers, by which `auto` means the same for all that is compared."""
    return Scale.of(first, int(plan.cells[0].flops or 0))


def _run_seeds(folder: FinetuningFolder, loaded: Loaded[FinetuningConfig], device: torch.device) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.locked():
        run_remaining_seeds(folder, loaded, device)


def _measure(folder: AblationFolder, plan: Plan, id: str, device: str) -> None:
    """Take the missing measures that are ready; a failing measure does not prevent the others."""
    result, errors = cell_result(folder, plan, id), list[BaseException]()
    if task := result.plan.task:  # the leading metric of a fine-tuning is its only measure
        if result.missing:
            tuned, loaded, seed = folder.finetuning(id), load_finetuning(folder.experiment(id)), result.plan.seed
            numbers = {task: _leading(tuned, loaded, tuned.path)[seed]}
            for name in plan.metrics[task].baselines:  # the task and its metric's name
                if by_seed := tuned.judged_by(name.removeprefix(f"{task}_")):
                    numbers[name] = by_seed[seed]
            folder.note_measure(id, result.run.provenance().steps, task, numbers)
        return
    opened = cache(lambda id: as_measured(folder.run(id), device, partial(_finetune, folder, id, device)))
    for file in plan.imports:
        load_plugin(folder.path / file)
    for planned in plan.measures:
        if planned.key not in result.missing or not is_ready(folder, plan, planned):
            continue
        try:
            entry = measures.get(planned.type)
            options = Component(entry.name, validate(entry.schema, planned.options)).keywords()
            measure = entry.component(**options)
            shared = _shared(folder, planned, measure, id, opened)
            numbers, documents = measured(entry, measure, *opened(id), shared)
            folder.note_measure(id, result.run.provenance().steps, planned.key, numbers, documents)
        except Stopped:
            raise
        except (Exception, SystemExit) as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _leading(folder: FinetuningFolder, loaded: Loaded[FinetuningConfig], place: Path) -> dict[int, float]:
    """Return, by seed, the leading metric on the first held-out split with labels. Raises DataError, at `place`."""
    leading = next(iter(declared(loaded)))
    if by_seed := folder.judged_by(leading):
        return by_seed
    raise DataError(f"{place}: no held-out split has labels, so there is no {leading}.")


def _shared(folder: AblationFolder, planned: PlannedMeasure, measure: Any, id: str, opened: Opened) -> Path:
    """Return the folder that all cells share for a measure: the first cell makes it, whole or not at all.

    In the precision of the first reference, so that it does not matter which cell comes first.
    """
    final = folder.shared(planned)
    if final.is_dir():
        return final
    with folder.claimed(f"shared-{planned.key}", wait=True):
        if not final.is_dir():
            run, references = opened(id)[0], {name: opened(other)[0] for name, other in planned.references.items()}
            _, precision = opened(next(iter(planned.references.values()), id))
            prepare(measure, planned.key, final, run, references, precision)
    return final


def _finetune(folder: AblationFolder, id: str, name: str, file: Path) -> float:
    """Fine-tune a cell, or resume it; returns the mean of the leading metric over the seeds."""
    loaded = load_finetuning(file, [f"model={json.dumps(os.path.relpath(folder.run(id).path))}"])
    if not any(identity(loaded) in measure.finetunings for measure in folder.plan.measures):
        raise DataError(f"{file}: {EXAMPLES}, or run the ablation again, which measures all cells again.")
    device = choose_device(name)
    tuned = FinetuningFolder(folder.path / "downstream" / id / f"{loaded.config.name}-{identity(loaded)}")
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        _run_seeds(tuned, loaded, device)
    by_seed = _leading(tuned, loaded, file)
    return sum(by_seed.values()) / len(by_seed)
