"""Consume the records of a training: write and print them, save checkpoints, stop when asked to."""

import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from electra_lab.parallel.world import ALONE, World
from electra_lab.runs.console import Console
from electra_lab.storage.checkpoint import save
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.loop import Record, Run, Settings
from registry import Metric
from registry.errors import Interrupted, Preempted

TERMINATIONS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]  # Windows has no SIGHUP


def follow(
    records: Iterable[Record],
    directory: RunDirectory,
    console: Console,
    *,
    steps: int,
    done: int,
    metrics: Mapping[str, Metric],
    is_kept: Callable[[int], bool],
    keep: Callable[[], object],
    show: Callable[[Record], None],
    track: Callable[[Mapping[str, Any]], None],
    resume: Path | None = None,
    world: World = ALONE,
) -> None:
    """Consume the records of a training up to its last step. Raises Interrupted or Preempted after a signal.

    done     the step at which it begins
    is_kept  whether a checkpoint is due after a step
    keep     writes one; also called after the last step, and before the end that a signal asks for
    show     is given every record with values first
    track    is given its values last
    resume   what `electra-lab resume` is to be called with; by default the directory
    world    the processes that train together: rank 0 writes, and a signal to one of them stops all after one step
    """
    with _signals(console.say, alone=world.size == 1) as arrived, console.progress(done, steps):
        for record in records:
            if record.values and not world.first:
                continue
            if record.values:
                show(record)
                directory.append(record.values)
                console.record(record.values, metrics)
                track(record.values)
                continue
            console.advance(record.step)
            last, stop = record.step == steps, world.agreed(arrived[0] if arrived else 0)
            if last or stop or is_kept(record.step):
                keep()
            if stop and not last:
                kind = Interrupted if stop == signal.SIGINT else Preempted
                cure = f"Resume with: electra-lab resume {resume or directory.path}"
                raise kind(f"stopped and saved after step {record.step}. {cure}")


def keep_checkpoint(
    directory: RunDirectory, run: Run, settings: Settings, keep: int, milestones: Collection[int] = ()
) -> None:
    """Save a checkpoint, with all records before it on the disk. Raises DivergedError, CheckpointError."""
    state, learner = run.state(settings.on_non_finite), run.learner
    directory.flush()
    save(
        directory.checkpoints, run.step, learner.objective, run.optimizer, state, keep, milestones,
        writes=learner.world.first,
    )  # fmt: skip
    learner.world.wait()  # so that nobody stops, or is waited for, before it is there


@contextmanager
def _signals(say: Callable[[str], None], *, alone: bool) -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP, to be acted on between two steps. A second one acts at once.

    alone  False for one of several processes, to which launchers pass on what the terminal or the cluster has sent it
           already: a second one is the first one's echo
    """
    arrived: list[int] = []
    can = threading.current_thread() is threading.main_thread()  # signals are handled only there
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, *TERMINATIONS) if can}
    before = {each: handler for each, handler in handlers.items() if handler is not signal.SIG_IGN}  # as under nohup

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def note(number: int, _: FrameType | None) -> None:
        arrived.append(number)
        if alone:
            restore()
        elif len(arrived) > 1:
            return
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        with suppress(RuntimeError, OSError):  # the signal may have interrupted a write to the same stream
            say(f"{name}: saving after this step{'; a second one stops without saving' if alone else ''}")

    for each in before:
        signal.signal(each, note)
    try:
        yield arrived
    finally:
        restore()
