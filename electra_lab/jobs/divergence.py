"""Roll a diverged run back to a checkpoint, or end it with an error that says how to continue."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from electra_lab.jobs.saving import Saver, restore
from electra_lab.jobs.track import Trackers
from electra_lab.storage.checkpoint import newest_sound
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.divergence import StepRejected
from registry.errors import CheckpointError, DivergedError, command

if TYPE_CHECKING:
    from electra_lab.jobs.lifecycle import Job


def roll_back(job: Job, rejected: StepRejected, saver: Saver, trackers: Trackers | None) -> None:
    """Roll a run back to its newest valid checkpoint, to continue with later batches. All ranks call it.

    The batches from the checkpoint up to the refused step are left out, as in Chowdhery et al. (2022), "PaLM", section
    5.1: divergence is caused by these batches together with the weights. Their number depends on the refused step, not
    on when the refusal was noticed, so that a run that was killed in between repeats it exactly.

    Raises DivergedError if a rollback is not allowed or not possible.
    """
    run, world, most = job.run, job.run.learner.world, job.settings.most_rollbacks
    if job.settings.on_non_finite != "roll_back":
        raise rejected
    if run.rollbacks >= most:
        raise DivergedError(f"{rejected} The run was rolled back {run.rollbacks} times (train.most_rollbacks).")
    # Restore.
    if world.first:
        saver.wait()
    world.wait()
    rollbacks, offset = run.rollbacks + 1, run.offset
    if not restore(job.directory, run, job.console.say):
        raise DivergedError(
            f"{rejected} It cannot be rolled back, as there is no checkpoint yet. Lower checkpoint.every."
        )
    run.rollbacks, run.offset = rollbacks, offset + rejected.step + 1 - run.step
    saver.saved = run.step
    # Drop the history after that step.
    world.wait()  # nobody reads checkpoints any longer
    if world.first:
        job.directory.truncate(run.step)
        if trackers:
            trackers.rewind(run.step)
    job.console.say(
        f"note: {str(rejected).partition('. ')[0]}. Rolled back to step {run.step:,} ({rollbacks} of at most {most} "
        f"times); {run.offset:,} batches left out in total"
    )


def with_cures(error: DivergedError, directory: RunDirectory) -> DivergedError:
    """Add the checkpoint to continue from, and the command that finds the cause."""
    step = None
    with suppress(CheckpointError):  # the first error matters
        step = newest_sound(directory.checkpoints)
    where = "There is no checkpoint." if step is None else f"The newest intact checkpoint is that of step {step:,}."
    return DivergedError(f"{error} {where} To find the cause: {command('replay', directory.path)}")
