"""A fork server: torch and the lab are imported once, and every command runs in a process forked from that.

Reads requests as lines of JSON from standard input, and answers each with a line:

    {"start": {...}}    -> {"pid": N}                               see `_child` for what a start holds
    {"wait": pid, "timeout": seconds}
                        -> {"code": exit code, "seconds": processor time, "megabytes": peak}, or {"timeout": true}
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

from tests.scorecard import hooks as hooks_

# Modules that commands import on demand.
HEAVY = (
    "torch", "torch._dynamo", "numpy", "safetensors.torch", "tokenizers", "filelock", "yaml", "jinja2", "rich.progress",
    "matplotlib.figure", "matplotlib.font_manager", "matplotlib.backends.backend_svg", "sklearn.metrics", "scipy.stats",
    "electra_lab.cli", "electra_lab.jobs.pretraining.execute", "electra_lab.jobs.sweeps.run",
    "electra_lab.jobs.finetuning.run",
    "electra_lab.backbones.bert", "electra_lab.corpora.text_files", "electra_lab.masking.replace_prob",
    "electra_lab.objectives.electra", "electra_lab.optimizers.adamw", "electra_lab.packings.contiguous",
    "electra_lab.samplers.gumbel", "electra_lab.schedules.warmup_linear", "electra_lab.tokenizers.wordpiece",
)  # fmt: skip


def serve() -> None:
    for name in sys.argv[1:] or HEAVY:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    hooks_.no_charts()
    gc.collect()
    gc.freeze()  # children need not scan the objects that exist already
    _answer({"ready": os.getpid()})
    for line in sys.stdin:
        request = json.loads(line)
        _answer({"pid": _fork(request["start"])} if "start" in request else _wait(request["wait"], request["timeout"]))


def _answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _wait(pid: int, timeout: float) -> dict[str, Any]:
    deadline, pause = time.monotonic() + timeout, 0.001
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            seconds = used.ru_utime + used.ru_stime
            return {
                "code": os.waitstatus_to_exitcode(status), "seconds": seconds, "megabytes": used.ru_maxrss / 1024
            }  # fmt: skip
        if time.monotonic() > deadline:
            return {"timeout": True}
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def _fork(start: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code: object = 1
    try:
        code = _child(**start)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except OSError:
                code = 120  # as the interpreter does
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _child(
    *,
    arguments: list[str],
    folder: str,
    out: str,
    err: str,
    faults: dict[str, Any] | None,
    hooks: list[tuple[str, dict[str, Any]]],
    environment: dict[str, str],
    limits: dict[str, int],
) -> object:
    """Run a command in this process.

    arguments    of the command line; or, with the first one ending in `:`, of a function `module:name`
    out, err     the files that get its output
    faults       arguments of faults_set
    hooks        functions of tests/scorecard/hooks.py to call first, with their arguments
    limits       of setrlimit, by name
    """
    os.setsid()  # a separate group, as a shell does
    os.chdir(folder)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, _NEW), (2, err, _NEW)):
        os.dup2(os.open(path, flags, 0o644), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    tempfile.tempdir = None  # it was determined before TMPDIR was set
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    for name, options in hooks:
        getattr(hooks_, name)(**options)
    if faults:
        _set(**faults)
    if ":" in arguments[0]:
        module_name, function = arguments[0].split(":")
        return getattr(importlib.import_module(module_name), function)(*arguments[1:])
    sys.argv = ["electra-lab", *arguments]
    from electra_lab.cli import main

    try:
        main()
    except SystemExit as end:
        return end.code
    except KeyboardInterrupt:
        traceback.print_exc()
        return 128 + signal.SIGINT
    return 0


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _set(below: str, kinds: str, nth: int, action: int, value: int, lasting: bool, journal: str) -> None:
    shim = ctypes.CDLL(None)  # it was imported before everything else
    shim.faults_set(below.encode(), kinds.encode(), ctypes.c_long(nth), action, value, int(lasting), journal.encode())


if __name__ == "__main__":
    serve()
