"""Pieces of work as the tasks of one Slurm job array, submitted by submitit.

A piece writes its outcome to a small JSON file next to its logs; the state of the others comes from Slurm's queue. So
neither the accounting database nor a connection to the nodes is needed, and running pieces survive the launcher.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from pydantic import Field

from electra_lab.launchers._piece import attempt, library, variables
from registry import Outcome, Work, launchers
from registry.errors import ConfigError

LOGS = "slurm"  # folder
LOOK = 0.5  # seconds between two looks for outcomes
LATE = 5.0  # seconds until a file system shows the last file of a job on another machine
SAVING = 90  # seconds between the signal that the time limit is near and the limit
REQUEUES = 100  # a piece that is stopped more often is given up
ENDING = 120.0  # seconds that Slurm may need to end jobs: they have 30 of them to save, by its defaults

# States of a job that does not come back. Others wait, run, end, or will be requeued.
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip


@launchers.register("slurm")
@dataclass(kw_only=True)
class Slurm:
    """Run pieces of work as a Slurm job array, one task each.

    workers    maximum number of tasks at a time
    threads    cores per task
    gpus       GPUs per task; an experiment uses one
    partition, account  as for sbatch; None: the site's default
    minutes    time limit of a task. A longer one is saved shortly before, requeued, and continued
    memory_gb  memory per task; None: the site's default
    setup      shell lines to run before each piece, such as `module load cuda`
    sbatch     other options of sbatch: {qos: long, constraint: a100}

    A task that Slurm preempts or requeues, or whose node fails, is continued. The logs are in slurm/ in the folder,
    which all nodes must see. Start it where sbatch is available.
    """

    workers: Annotated[int, Field(ge=1, le=100_000)] = 8
    threads: Annotated[int, Field(ge=1, le=100_000)] = 1
    gpus: Annotated[int, Field(ge=0, le=100_000)] = 0
    partition: str | None = None
    account: str | None = None
    minutes: Annotated[int, Field(ge=1, le=100_000)] = 240
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    setup: tuple[str, ...] = ()
    sbatch: dict[str, str | int] | None = None

    here = False

    def check(self) -> None:
        _submitit()

    def script(self, folder: str, pieces: int, /) -> str:
        """Return the batch script for a number of pieces, without writing or submitting it. Raises ConfigError."""
        executor = self._executor(_submitit(), Path(folder, LOGS))._executor
        if pieces > 1:
            executor.parameters["map_count"] = pieces  # as submitit does for an array
        text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
        return text

    def _executor(self, submitit: Any, logs: Path) -> Any:
        executor = submitit.AutoExecutor(folder=logs, cluster="slurm")
        optional = {"slurm_partition": self.partition, "slurm_account": self.account, "mem_gb": self.memory_gb,
                    "gpus_per_node": self.gpus or None}  # fmt: skip
        exports = [f"export {name}={value}" for name, value in variables(self.threads).items()]
        # SIGTERM instead of submitit's SIGUSR2, so that a run sees the same signal whoever stops it.
        limit = {"requeue": True, "signal": f"TERM@{min(SAVING, 15 * self.minutes)}"}
        executor.update_parameters(
            name="electra-lab",
            timeout_min=self.minutes,
            cpus_per_task=self.threads,
            slurm_array_parallelism=self.workers,
            slurm_setup=[*exports, *self.setup],
            slurm_srun_args=[f"--cpus-per-task={self.threads}"],  # since 22.05 srun does not take it from the job
            slurm_additional_parameters={**limit, **(self.sbatch or {})},
            **{name: value for name, value in optional.items() if value is not None},
        )
        return executor

    def __call__(self, work: Work, folder: str, ids: Sequence[str], /) -> Iterator[tuple[str, Outcome]]:
        submitit = _submitit()
        if not ids:
            return
        logs = _logs(folder)
        executor = self._executor(submitit, logs)
        try:
            with _outside_of_a_job():
                submitted = executor.submit_array([_Piece(work, folder, piece) for piece in ids])
        except submitit.core.utils.FailedJobError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"launcher 'slurm': sbatch refuses the jobs: {reason}") from None
        array = submitted[0].job_id.split("_")[0]
        try:
            yield from _outcomes(array, {piece: job.job_id for piece, job in zip(ids, submitted, strict=True)}, logs)
        except BaseException:  # closed, or stopped by a signal
            _end(array)
            raise


@dataclass(frozen=True)
class _Piece:
    """A task of the array: a function, given by its name, and its two arguments."""

    work: Work
    folder: str
    piece: str

    def __call__(self) -> None:
        job = _submitit().JobEnvironment()
        file = _logs(self.folder) / f"{job.job_id}.json"
        for stale in (file, job.paths.result_pickle):  # from before it was requeued
            stale.unlink(missing_ok=True)
        with _stops() as stops:
            try:
                outcome = attempt(self.work, self.folder, self.piece)
            except KeyboardInterrupt:
                outcome = Outcome("preempted", "was stopped by Slurm")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one must not interrupt the report
            stopped = outcome.status == "preempted" and stops() > 0
            self._report(job.job_id, file, outcome, stopped)

    def _report(self, job: str, file: Path, outcome: Outcome, stopped: bool) -> None:
        if stopped and int(os.environ.get("SLURM_RESTART_COUNT", "0")) >= REQUEUES:
            outcome, stopped = Outcome("lost", f"was stopped and requeued {REQUEUES} times."), False
        writing = file.with_suffix(".tmp")
        writing.write_text(json.dumps({**asdict(outcome), "stopped": stopped}), encoding="utf-8")
        writing.rename(file)
        # A job that was warned of its time limit or preemption is still running, and must be requeued. One that was
        # cancelled or requeued already is not.
        if stopped and _ask("squeue", "--noheader", f"--jobs={job}", "--format=%T").stdout.strip() == "RUNNING":
            _ask("scontrol", "requeue", job)


@contextmanager
def _stops() -> Iterator[Callable[[], int]]:
    """Turn SIGTERM into KeyboardInterrupt, and count it. A repeated one does nothing.

    Slurm ends a job by one SIGTERM to its processes and another that srun passes on, some milliseconds later. Signals
    that training handled itself do not come here, but Python's wakeup descriptor shows them.
    """
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    number = 0

    def stops() -> int:
        nonlocal number
        with suppress(BlockingIOError):
            number += os.read(reading, 2**16).count(signal.SIGTERM)
        return number

    def stop(_: int, __: FrameType | None) -> None:
        if stops() == 1:
            raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, stop)
    descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield stops
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGTERM, handler)
        os.close(reading)
        os.close(writing)


def _outcomes(array: str, jobs: dict[str, str], logs: Path) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome of each piece once it is known. `jobs` has the id of each piece's job."""
    started = next_question = time.monotonic()
    ended: dict[str, float] = {}  # when Slurm first showed it as ended, without an outcome or likely to come back
    while jobs:
        # Ask Slurm now and then, and look for files of outcomes each time.
        states, now = None, time.monotonic()
        if now >= next_question:
            states = _states(array)
            next_question = now + min(30.0, 1.0 + (now - started) / 20)
        files = set(os.listdir(logs))  # a listing is fresh, while the look-up of one file may come from a cache
        for piece, job in list(jobs.items()):
            report = None
            if f"{job}.json" in files:
                with suppress(FileNotFoundError):  # the job has begun again, and removed it
                    report = json.loads((logs / f"{job}.json").read_text(encoding="utf-8"))
            state = states.get(job, "forgotten") if states is not None else None
            over = state == "forgotten" or state in ENDED
            final = report is not None and not report["stopped"]  # a stopped job may come back
            if not final and not over:
                if state is not None:
                    ended.pop(piece, None)
                continue
            # Slurm may show a job that it requeues as ended for a moment.
            if not final and now - ended.setdefault(piece, now) < LATE:
                next_question = now
                continue
            del jobs[piece]
            yield piece, _outcome(report, state, f"{job}_0_result.pkl" in files, logs / f"{job}_0_log.err")
            for name in (f"{job}.json", f"{job}_submitted.pkl", f"{job}_0_result.pkl"):
                (logs / name).unlink(missing_ok=True)
        time.sleep(LOOK if jobs else 0)


def _outcome(report: Mapping[str, Any] | None, state: str | None, began: bool, log: Path) -> Outcome:
    if report and not (report["stopped"] and state == "CANCELLED"):
        return Outcome(report["status"], report["error"])
    if began and not report:  # submitit caught an exception from outside the piece
        return Outcome("failed", f"the job could not start its work; the log is {log}.")
    end = "Slurm has forgotten its job" if state == "forgotten" else f"its job ended as {state}"
    return Outcome("lost", f"{end}{', after it was saved' if report else ''}; the log is {log}.")


def _states(array: str) -> dict[str, str] | None:
    """Return the state of each task of the array that Slurm still knows; None if it does not answer."""
    done = _ask("squeue", "--noheader", "--array", "--states=all", f"--jobs={array}", "--format=%i %T")
    if done.returncode:
        return {} if "Invalid job id" in done.stderr else None
    return dict(line.split() for line in done.stdout.splitlines() if line.strip())


def _end(array: str) -> None:
    """Cancel the tasks and wait for their end. Slurm sends SIGTERM, and waits before it kills."""
    _ask("scancel", array)
    deadline = time.monotonic() + ENDING
    while time.monotonic() < deadline:
        states = _states(array)
        if states is not None and ENDED.issuperset(states.values()):
            return
        time.sleep(LOOK)
    warnings.warn(f"Slurm has not ended job {array}; see squeue --jobs={array}", stacklevel=2)


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands, again if a signal to the whole job interrupts it."""
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode >= 0:
            break
    if done.returncode:
        print(f"{' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
    return done


def _submitit() -> Any:
    submitit = library("slurm", "submitit")
    for program in ("sbatch", "srun", "squeue", "scancel", "scontrol"):
        if shutil.which(program) is None:
            raise ConfigError(
                f"launcher 'slurm' finds no {program} here. Start it on a machine that can submit jobs to Slurm; "
                "without such a cluster, use launcher 'local' or 'ray'."
            )
    return submitit


@contextmanager
def _outside_of_a_job() -> Iterator[None]:
    """Hide the launcher's own job, if it is one, from the jobs that it submits."""
    names = [name for name in os.environ if name.startswith(("SLURM_", "SUBMITIT_")) and name != "SLURM_CONF"]
    own = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(own)


def _logs(folder: str) -> Path:
    path = Path(folder, LOGS)
    path.mkdir(parents=True, exist_ok=True)
    return path
