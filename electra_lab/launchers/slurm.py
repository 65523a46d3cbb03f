"""Commands as the tasks of one Slurm job array.

The script of a task writes the exit code of its command to a small file; the state of the others comes from Slurm's
queue. So neither the accounting database nor a connection to the nodes is needed, and running commands survive the
launcher.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from electra_lab.launchers._command import ended, log_of, signals_held, variables
from registry import Command, Outcome, launchers
from registry.errors import ConfigError

LOOK = 0.5  # seconds between two looks for exit codes
LATE = 5.0  # seconds until a file system shows the last file of a job on another machine
SAVING = 90  # seconds between the signal that the time limit is near and the limit
ENDING = 120.0  # seconds that Slurm may need to end jobs: they have 30 of them to save, by its defaults

# States of a job that does not come back. Others wait, run, end, or will be requeued.
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip

# If the time limit is near, or at the beginning of a preemption, only the command gets SIGTERM: it saves, and its exit
# code says so. If Slurm ends or requeues the job, all processes get it; then the state of the job says what happens.
SCRIPT = """\
#!/bin/sh
{options}
{setup}
case $SLURM_ARRAY_TASK_ID in
{commands}
esac
trap stopped=yes TERM
srun --cpus-per-task={threads} "$@" >> "$log" 2>&1
code=$?
[ "$stopped" ] && exit
end={logs}/${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
echo $code > "$end.part" && mv "$end.part" "$end.code"
"""


Word = Annotated[str, Field(pattern=r"^\S+$")]  # what follows a line break would be shell lines


@launchers.register("slurm")
@dataclass(kw_only=True)
class Slurm:
    """Run commands as a Slurm job array, one task each.

    workers    maximum number of tasks at a time
    threads    cores per task
    gpus       GPUs per task; an experiment uses one
    partition, account  options of sbatch; None: the site's default
    minutes    time limit of a task. A longer one is saved shortly before, and continued in another job
    memory_gb  memory per task; None: the site's default
    setup      shell lines to run before each command, such as `module load cuda`
    sbatch     other options of sbatch: {qos: long, constraint: a100}

    A task that Slurm preempts or requeues, or whose node fails, is continued. Slurm may send SIGTERM twice. What setup
    prints is in slurm/ in the folder, which all nodes must see. Start it where sbatch is available.
    """

    workers: Annotated[int, Field(ge=1, le=100_000)] = 8
    threads: Annotated[int, Field(ge=1, le=100_000)] = 1
    gpus: Annotated[int, Field(ge=0, le=100_000)] = 0
    partition: Word | None = None
    account: Word | None = None
    minutes: Annotated[int, Field(ge=1, le=100_000)] = 240
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    setup: tuple[str, ...] = ()
    sbatch: dict[str, str | int] | None = None

    here = False

    def check(self) -> None:
        for program in ("sbatch", "srun", "squeue", "scancel"):
            if shutil.which(program) is None:
                raise ConfigError(
                    f"launcher 'slurm' finds no {program} here. Start it on a machine that can submit jobs to Slurm; "
                    "without such a cluster, use launcher 'local' or 'ray'."
                )

    def script(self, commands: Mapping[str, Command], folder: Path, /) -> str:
        """Return the batch script for some commands, without writing or submitting anything."""
        logs = (folder / "slurm").absolute()
        options = {
            "job-name": "electra-lab", "array": f"0-{len(commands) - 1}%{self.workers}", "nodes": 1, "ntasks": 1,
            "cpus-per-task": self.threads, "gpus-per-node": self.gpus or None, "partition": self.partition,
            "account": self.account, "time": self.minutes,
            "mem": self.memory_gb and f"{round(1024 * self.memory_gb)}M", "output": f"{logs}/%A_%a.txt",
            "open-mode": "append", "requeue": "", "signal": f"TERM@{min(SAVING, 15 * self.minutes)}",
            **(self.sbatch or {}),
        }  # fmt: skip
        chosen = [(name, value) for name, value in options.items() if value is not None]
        cases = []
        for number, (name, command) in enumerate(commands.items()):
            log = shlex.quote(str((folder / "logs" / f"{name}.txt").absolute()))
            cases.append(f"{number}) log={log}; set -- {shlex.join(command)} ;;")
        exports = [f"export {name}={value}" for name, value in variables(self.threads).items()]
        return SCRIPT.format(
            options="\n".join(f"#SBATCH --{name}{'=' if value != '' else ''}{value}" for name, value in chosen),
            setup="\n".join([*exports, *self.setup]), commands="\n".join(cases), threads=self.threads,
            logs=shlex.quote(str(logs)),
        )  # fmt: skip

    def __call__(self, commands: Mapping[str, Command], folder: Path, /) -> Iterator[tuple[str, Outcome]]:
        self.check()
        if not commands:
            return
        logs = {name: log_of(folder, name) for name in commands}
        (folder / "slurm").mkdir(exist_ok=True)
        array = ""
        try:
            with signals_held():
                array = _submit(self.script(commands, folder))
            yield from _outcomes(array, logs, folder / "slurm")
        except BaseException:  # refused, closed, or stopped by a signal
            if array:
                _end(array)
            raise


def _submit(script: str) -> str:
    """Submit a job array and return its id. Raises ConfigError if Slurm refuses it."""
    # Without the launcher's own job, if it is one.
    environment = {name: text for name, text in os.environ.items() if name == "SLURM_CONF" or name[:6] != "SLURM_"}
    submitted = _ask("sbatch", "--parsable", text=script, environment=environment, tries=1)  # never two arrays
    if submitted.returncode:
        reason = " ".join(submitted.stderr.split())
        raise ConfigError(f"launcher 'slurm': sbatch refuses the jobs: {reason}")
    return submitted.stdout.strip().partition(";")[0]  # without the name of the cluster


def _outcomes(array: str, logs: Mapping[str, Path], folder: Path) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome of each command once it is known. `logs` has the log of each, in the order of the array."""
    jobs = {name: f"{array}_{number}" for number, name in enumerate(logs)}
    started = next_question = time.monotonic()
    over: dict[str, float] = {}  # when Slurm first showed a job as ended, without an exit code
    while jobs:
        # Ask Slurm now and then, and look for exit codes each time.
        states, now = None, time.monotonic()
        if now >= next_question:
            states = _states(array)
            next_question = now + min(30.0, 1.0 + (now - started) / 20)
        files = set(os.listdir(folder))  # a listing is fresh, while the look-up of one file may come from a cache
        for name, job in list(jobs.items()):
            if f"{job}.code" in files:
                outcome = ended(int((folder / f"{job}.code").read_text()), logs[name])
                (folder / f"{job}.code").unlink()
            elif states is None:
                continue
            elif (state := states.get(job, "")) and state not in ENDED:
                over.pop(name, None)
                continue
            elif now - over.setdefault(name, now) < LATE:  # Slurm may show a job that it requeues as ended for a moment
                next_question = now
                continue
            else:
                end = f"its job ended as {state}" if state else "Slurm has forgotten its job"
                outcome = Outcome(None, f"{end}; its output is in {logs[name]}.")
            del jobs[name]
            yield name, outcome
        time.sleep(LOOK if jobs else 0)


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


def _ask(
    *command: str, text: str = "", environment: Mapping[str, str] | None = None, tries: int = 3
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands, again if a signal to the whole job interrupts it."""
    for _ in range(tries):
        done = subprocess.run(
            command, capture_output=True, text=True, input=text, env=environment, check=False,
            start_new_session=True,  # protects it from the terminal's Ctrl-C, which the launcher handles
        )  # fmt: skip
        if done.returncode >= 0:
            break
    if done.returncode:
        print(f"{shlex.join(command)}: {done.stderr.strip()}", file=sys.stderr)
    return done
