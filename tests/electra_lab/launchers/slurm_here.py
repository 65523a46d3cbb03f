"""A Slurm of one node on this machine, for as long as a test session: nothing outside its folder is read or written."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")

# Requeued jobs wait until their credentials have expired, hence cred_expire. Jobs of `low` make room for those of
# `high`, and are notified some seconds before.
CONFIG = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={controller}
SlurmdPort={daemon}
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillWait=10
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=8
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def missing() -> str:
    """Return the reason why Slurm cannot run here, or an empty string."""
    if os.geteuid() != 0:
        return "starting Slurm needs root"
    # Debian installs the daemons outside of users' PATH.
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"needs {', '.join(absent)}: apt-get install slurmctld slurmd munge" if absent else ""


@contextmanager
def slurm_here(folder: Path) -> Iterator[dict[str, str]]:
    """Start Slurm in `folder`; yields the environment for its commands. Ends its daemons by their process ids."""
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    host, (controller, daemon) = socket.gethostname().split(".")[0], _free_ports(2)
    config.write_text(
        CONFIG.format(folder=folder, host=host, controller=controller, daemon=daemon, cpus=min(2, os.cpu_count() or 1))
    )
    environment = {"SLURM_CONF": str(config), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munged += [f"--{what}={folder}/munge.{what.split('-')[0]}" for what in ("socket", "pid-file", "log-file")]
    munged.append(f"--seed-file={folder}/munge.seed")
    with ExitStack() as stack:
        for command in (munged, ["slurmctld", "-D", "-f", str(config)], ["slurmd", "-D", "-f", str(config)]):
            stack.enter_context(_running(command, folder, environment))
            time.sleep(1.0)
        _wait_for_a_node(environment, folder)
        yield environment
        _let_jobs_end(environment)


@contextmanager
def _running(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    with (folder / f"{command[0]}.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_a_node(environment: dict[str, str], folder: Path) -> None:
    for _ in range(60):
        states = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, env=os.environ | environment
        )
        if "idle" in states.stdout:
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.txt"))
    raise RuntimeError(f"Slurm did not start ({states.stdout} {states.stderr}):\n{logs}")


def _let_jobs_end(environment: dict[str, str]) -> None:
    """Job supervisors outlive the daemons, as they wait for them to accept a report."""
    where = os.environ | environment
    subprocess.run(["scancel", "--user=root"], env=where, check=False)
    for _ in range(60):
        if not subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, env=where, check=False).stdout:
            return
        time.sleep(0.5)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]
