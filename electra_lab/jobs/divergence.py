"""What becomes of a run that diverges: it is put back to a checkpoint, or ends with a sentence that says what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from electra_lab.jobs.saving import Saver
from electra_lab.storage.checkpoint import load_newest, newest_sound
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.divergence import Refused
from electra_lab.training.loop import Run, Settings
from registry.errors import CheckpointError, DivergedError, command


class RollBack:
    """Puts a run back to its newest sound checkpoint, from which it continues with later batches.

    The batches from the checkpoint up to the refused step are left out, as in Chowdhery et al. (2022), "PaLM", section
    5.1: it is these together with the weights that cause trouble. How many they are follows from the step that was
    refused, not from when this was noticed, so that a run that was killed in between repeats it exactly.
    """

    def __init__(
        self,
        directory: RunDirectory,
        run: Run,
        settings: Settings,
        saver: Saver,
        say: Callable[[str], None],
        rewind: Callable[[int], None],
    ) -> None:
        self._directory, self._run, self._settings, self._saver = directory, run, settings, saver
        self._say, self._rewind = say, rewind

    def __call__(self, refused: Refused) -> None:
        """Put it back. Raises DivergedError if it may not be, or cannot. All ranks must call it."""
        run, world, most = self._run, self._run.learner.world, self._settings.most_rollbacks
        if self._settings.on_non_finite != "roll_back":
            raise refused
        if run.rollbacks >= most:
            raise DivergedError(f"{refused} The run was rolled back {run.rollbacks} times (train.most_rollbacks).")
        if world.first:
            self._saver.wait()
        world.wait()
        rollbacks, offset = run.rollbacks + 1, run.offset
        state = load_newest(self._directory.checkpoints, run.learner.objective, run.optimizer, self._say)
        if state is None:
            raise DivergedError(
                f"{refused} It cannot be rolled back, as there is no checkpoint yet. Lower checkpoint.every."
            )
        run.restore(state)
        run.rollbacks, run.offset = rollbacks, offset + refused.step + 1 - run.step
        self._saver.saved = run.step
        world.wait()  # nobody reads checkpoints any longer
        if world.first:
            self._directory.truncate(run.step)
            self._rewind(run.step)
        self._say(
            f"note: {str(refused).partition('. ')[0]}. Rolled back to step {run.step:,} ({rollbacks} of at most {most} "
            f"times); {run.offset:,} batches are left out so far"
        )


@contextmanager
def telling(directory: RunDirectory) -> Iterator[None]:
    """Say in a DivergedError from which checkpoint a run can be continued, and how its cause is found."""
    try:
        yield
    except DivergedError as error:
        step = None
        with suppress(CheckpointError):  # the first error matters
            step = newest_sound(directory.checkpoints)
        where = "There is no checkpoint." if step is None else f"The newest sound checkpoint is that of step {step:,}."
        raise DivergedError(f"{error} {where} To find the cause: {command('replay', directory.path)}") from None
