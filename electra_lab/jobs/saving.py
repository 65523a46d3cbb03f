"""Write and restore the checkpoints of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from electra_lab.storage.checkpoint import (
    BestUpTo,
    checkpoint_path,
    load_newest,
    not_finite,
    prune,
    save,
    steps,
    sweep,
    tensors_of,
)
from electra_lab.storage.records import AUTO, Best, ranked
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.execution import non_finite_weights
from electra_lab.training.loop import Run

if TYPE_CHECKING:
    from electra_lab.jobs.lifecycle import Job


def restore(directory: RunDirectory, run: Run, say: Callable[[str], None]) -> bool:
    """Restore a run from its newest valid checkpoint; False if there is none. Raises CheckpointError."""
    id = directory.provenance().id
    state = load_newest(directory.checkpoints, run.learner.objective, run.optimizer, say, id)
    if state is None:
        return False
    run.restore(state)
    return True


class Saver:
    """Writes the checkpoints of a run. All processes of a run have one and call `save` together; rank 0 writes.

    A context manager: when it exits, the last checkpoint is on the disk.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._directory, self._run, options = job, job.directory, job.run, job.config.checkpoint
        self._every, self._keep, self._minutes = options.every, options.keep, getattr(options, "minutes", None)
        self._pool = ThreadPoolExecutor(1, "checkpoint") if getattr(options, "asynchronous", False) else None
        self._writing: Future[None] | None = None
        self._last = time.monotonic()
        self.saved = job.run.step if job.directory.has_checkpoint(job.run.step) else None  # the newest step that is

    def __enter__(self) -> Self:
        self.prune()
        return self

    def due(self, step: int) -> bool:
        """Return True if a checkpoint is due after `step`, by the count of steps."""
        return step % self._every == 0 or step in self._job.milestones

    def overdue(self) -> bool:
        """Return True, once, if `checkpoint.minutes` have passed since the last checkpoint."""
        if self._minutes is None or time.monotonic() - self._last < 60 * self._minutes:
            return False
        self._last = time.monotonic()
        return True

    def is_best(self, record: Mapping[str, Any]) -> bool:
        """Return True if a record, which rank 0 has written, makes this step the best, so that it must be saved.

        With `auto` only checkpoints that are saved anyway are compared: training does not take longer.
        """
        if self._job.best is None:
            return False
        world = self._run.learner.world
        if self._job.best == AUTO:
            if world.first and self.saved == record["step"]:
                self._pool.submit(self._note_best) if self._pool else self._note_best()  # one after the other
            return False
        return world.once(lambda: str(self._best()(record["step"]) == record["step"])) == "True"

    def save(self) -> None:
        """Save the run, with all its records on the disk first. Raises DivergedError, CheckpointError."""
        run = self._run
        if self.saved == run.step:
            self.prune()
            return
        state, learner = {"run": self._directory.provenance().id, **run.state(self._job.settings)}, run.learner
        tensors = tensors_of(learner.objective, run.optimizer, keep=learner.world.first)
        # Rank 0 alone has tensors that are divided.
        names = learner.world.once(lambda: "\n".join(not_finite(tensors, learner.objective)))
        if names:
            raise non_finite_weights([name.removeprefix("model.") for name in names.split("\n")], run.step)
        if learner.world.first:
            self.wait()
            self._directory.refuse_intruders()
            if self._pool is None:
                self._write(run.step, tensors, state)
            else:
                copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
                self._writing = self._pool.submit(self._write, run.step, copies, state)
        learner.world.wait()  # no rank continues before the checkpoint exists
        self.saved, self._last = run.step, time.monotonic()

    def save_before_the_end(self, say: Callable[[str], None]) -> None:
        """Save the run before an error ends it, unless an update is half done."""
        learner, step = self._run.learner, self._run.step
        if learner.updating or learner.world.size > 1:
            return
        try:
            self.save()
            self.wait()
            say(f"saved after step {step}, before this error:")
        except Exception as other:  # the first error matters
            say(f"note: nothing could be saved after step {step} ({other})")

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is on the disk. Raises CheckpointError."""
        if self._writing:
            writing, self._writing = self._writing, None
            writing.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception:
            if error is None:
                raise
        finally:
            if self._pool:
                self._pool.shutdown()
            if self._run.learner.world.first and not (self._directory.lock and self._directory.lock.is_lost):
                sweep(self._directory.checkpoints)  # again: the disk may have refused to remove something

    def prune(self) -> None:
        """Remove checkpoints that are no longer needed, for example those left by a killed process."""
        if self._run.learner.world.first and self.saved is not None:
            self.wait()
            prune(self._directory.checkpoints, self.saved, self._keep, self._job.milestones, self._best())
            self._note_best()

    def _write(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self._directory.flush()
        save(self._directory.checkpoints, step, tensors, state, self._keep, self._job.milestones, self._best())
        self._directory.mark_saved(step)
        self._note_best()

    def best_step(self) -> int:
        """Return the first step of the best value of the chosen metric on validation text."""
        return min(self._ranked()).step

    def _ranked(self, among: Collection[int] | None = None) -> list[Best]:
        bests = ranked(self._directory.records(), self._job.best, self._job.metrics)
        return [best for best in bests if among is None or best.step in among]

    def _note_best(self) -> None:
        """Write best.json, which says which checkpoint is the best."""
        directory = self._directory
        if best := min(self._ranked(steps(directory.checkpoints)), default=None):
            path = checkpoint_path(directory.checkpoints, best.step).relative_to(directory.path)
            content = {"checkpoint": path.as_posix(), "step": best.step, "metric": best.metric, "value": best.value}
            directory.write_json("best.json", content)
        else:
            with suppress(OSError):
                (directory.path / "best.json").unlink(missing_ok=True)

    def _best(self) -> BestUpTo:
        """Find the best of the available steps: those with a checkpoint, and the current one."""
        available = self._ranked({self._run.step, *steps(self._directory.checkpoints)})

        def up_to(last: int) -> int | None:
            best = min((best for best in available if best.step <= last), default=None)
            return best.step if best else None

        return up_to
