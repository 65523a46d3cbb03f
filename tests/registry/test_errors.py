"""Errors have exit codes and suggest the intended name."""

import errno
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from registry import errors
from registry.errors import LabError, command, did_you_mean, is_shortage, shown

KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, LabError)}


def test_exit_codes_are_those_of_the_design() -> None:
    assert {name: kind.exit_code for name, kind in KINDS.items()} == {
        "LabError": 1, "Reported": 1,
        "ConfigError": 2, "InUse": 2, "UnknownName": 2, "DuplicateName": 2, "BadSignature": 2, "PluginError": 2,
        "BadResult": 2,
        "DataError": 3, "CheckpointError": 4, "DivergedError": 5, "OutOfMemoryError": 6, "CellsFailed": 7,
        "Stopped": 1, "Preempted": 75, "Interrupted": 130,
    }  # fmt: skip


def test_the_help_of_the_command_line_lists_every_exit_code() -> None:
    from electra_lab.cli import app
    from electra_lab.cli._streams import CLOSED_PIPE

    listed = [int(code) for code in re.findall(r"(\d+) \w", str(app.info.epilog))]
    assert listed == sorted({0, *(kind.exit_code for kind in KINDS.values()), CLOSED_PIPE, 128 + signal.SIGTERM})


@pytest.mark.parametrize(
    ("word", "known", "tail"),
    [
        ("gumbl", ["top_k", "gumbel"], " Did you mean 'gumbel'? Known: gumbel, top_k."),
        ("qqq", ["top_k", "gumbel"], " Known: gumbel, top_k."),
        ("qqq", [], " Known: none."),
        ("top", ["top_k_and_more", "gumbel"], " Did you mean 'top_k_and_more'? Known: gumbel, top_k_and_more."),
        ("alpa", {"alpha": 1, "beta": 2}, " Did you mean 'alpha'? Known: alpha, beta."),
    ],
)
def test_a_suggestion_names_the_nearest_word_and_all_of_them(word: str, known: list[str], tail: str) -> None:
    assert did_you_mean(word, known) == tail


def test_of_very_many_or_long_names_a_few_are_shown() -> None:
    """The nearest is suggested, and all of a hundred are listed."""
    many = [f"name_{number:06}" for number in range(100_000)]
    tail = did_you_mean("nam_000123", many)
    assert "'name_000123'" in tail
    assert "name_000099, ... (100,000 in all)." in tail
    assert len(tail) < 2000
    assert did_you_mean("x", many[:100]) == f" Known: {', '.join(many[:100])}."
    assert len(did_you_mean("a", ["a" * 10**6, "b" * 10**6])) < 400


@pytest.mark.parametrize("name", ["run", "a b", "$(touch x)", "it's", 'a"b', "-rf", "a\nb", "x;y", "~", "*"])
def test_a_command_survives_a_shell(name: str, tmp_path: Path) -> None:
    printed = command("resume", Path(name), "--set", f"a={name}")
    script = f'electra-lab() {{ printf "%s\\0" "$@"; }}; {printed}'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    verb, path, option, value, _ = done.stdout.split("\0")
    assert (verb, option, value) == ("resume", "--set", f"a={name}")
    assert path == ("./-rf" if name == "-rf" else name)
    assert not list(tmp_path.iterdir())


def test_control_characters_are_shown_and_layout_stays() -> None:
    assert shown("a\tb\nc é [MASK]") == "a\tb\nc é [MASK]"
    assert shown("a\u202eb\u2069") == r"a\u202eb\u2069"  # text that is read from right to left
    assert shown("\x1b]0;owned\x07\r\x00\x7f\x9b31m\udce9") == r"\x1b]0;owned\x07\r\x00\x7f\x9b31m\udce9"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(), RuntimeError("could not create a primitive"), OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), RuntimeError("CUDA error: out of memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype("float64")),
        pa.lib.ArrowMemoryError("malloc of size 1099511627776 failed"),
    ],
    ids=lambda error: str(error)[:30],
)  # fmt: skip
def test_every_librarys_words_for_want_of_memory_are_known(error: BaseException) -> None:
    assert is_shortage(error)
    assert not is_shortage(RuntimeError("shapes do not match"))
    assert not is_shortage(ValueError("out of memory"))
    assert not is_shortage(OSError(errno.ENOENT, "No such file or directory"))
