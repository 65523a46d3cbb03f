"""Plug-in files are loaded once, never partially, and refused with file:line."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from registry import discovery, load_plugin, samplers
from registry.errors import BadSignature, DuplicateName, PluginError, Signalled

GOOD = """\
from registry import samplers


@samplers.register("plugged")
def plugged(logits, rng, /, *, heat: float = 1.0):
    \"\"\"Version one.\"\"\"
"""


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discovery, "_loaded", {})
    before = set(sys.modules)
    with samplers.isolated():
        yield
    for name in set(sys.modules) - before:
        if name.startswith("electra_lab_plugin_"):
            del sys.modules[name]


NO_MESSAGE = "class Own(RuntimeError):\n    def __str__(self):\n        "


def written(folder: Path, text: str, name: str = "plug.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def plugin_modules() -> list[str]:
    return [name for name in sys.modules if name.startswith("electra_lab_plugin_")]


def test_a_plug_in_registers_like_a_built_in(tmp_path: Path):
    path = written(tmp_path, GOOD)
    plugin = load_plugin(path)
    assert (plugin.file, plugin.sha256) == (path, hashlib.sha256(GOOD.encode()).hexdigest())
    entry = samplers.get("plugged")
    assert (entry.file, entry.line, entry.summary) == (path, 4, "Version one.")
    assert sys.modules[entry.component.__module__].plugged is entry.component
    assert os.listdir(tmp_path) == ["plug.py"]  # no __pycache__ next to the user's files


def test_loading_twice_runs_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path, GOOD)
    first = load_plugin(path)
    monkeypatch.chdir(tmp_path)
    assert load_plugin(Path("plug.py")) is first
    assert len(plugin_modules()) == 1


def test_a_file_that_changed_since_it_was_loaded_is_refused(tmp_path: Path):
    path = written(tmp_path, GOOD)
    load_plugin(path)
    written(tmp_path, GOOD.replace("one", "two"))
    with pytest.raises(PluginError, match=r"plug\.py: .*changed since this process loaded it\. Start a new process"):
        load_plugin(path)
    assert samplers.get("plugged").summary == "Version one."


def test_the_hashed_source_runs_and_never_a_stale_cache(tmp_path: Path):
    import py_compile

    path = written(tmp_path, GOOD)
    stamp = path.stat().st_mtime_ns
    py_compile.compile(str(path))
    written(tmp_path, GOOD.replace("one", "two"))  # the same size, in the same second
    os.utime(path, ns=(stamp, stamp))
    load_plugin(path)
    assert samplers.get("plugged").component.__doc__ == "Version two."


def test_two_files_of_equal_content_are_two_plug_ins(tmp_path: Path):
    load_plugin(written(tmp_path, GOOD, "a.py"))
    with pytest.raises(DuplicateName, match=r"b\.py:4: sampler 'plugged' is already defined at .*a\.py:4"):
        load_plugin(written(tmp_path, GOOD, "b.py"))
    assert samplers.get("plugged").file.name == "a.py"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("x = 1\ndef (:\n", 2, "SyntaxError: invalid syntax"),
        ("x = 1\n\nraise RuntimeError('no luck')\n", 3, "RuntimeError: no luck"),
        ("import no_such_module_here\n", 1, "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("def f():\n    return 1 / 0\n\n\nf()\n", 2, "ZeroDivisionError: division by zero"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: "),
        ("x = 1\nimport sys\nsys.exit(0)\n", 3, "SystemExit: 0"),
        ("x = 1\nraise GeneratorExit\n", 2, "GeneratorExit: "),
        ("class Own(BaseException): ...\nraise Own('no')\n", 2, "Own: no"), ("raise SyntaxError\n", 1, "SyntaxError: "),
        (f"{NO_MESSAGE}return 1 / 0\nraise Own\n", 4, "Own: its message cannot be shown (ZeroDivisionError)"),
        (f"{NO_MESSAGE}raise SystemExit\nraise Own\n", 4, "Own: its message cannot be shown (SystemExit)"),
    ],
)  # fmt: skip
def test_a_failing_import_is_reported_with_file_and_line(tmp_path: Path, text: str, line: int, reason: str):
    path = written(tmp_path, text)
    with pytest.raises(PluginError) as refused:
        load_plugin(path)
    assert str(refused.value).startswith(f"{path}:{line}: {reason}")
    assert not plugin_modules()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Signalled(15)])
def test_an_interrupt_stays_one_and_the_file_is_not_loaded(tmp_path: Path, error: BaseException, monkeypatch) -> None:
    monkeypatch.setattr("registry.error", error, raising=False)
    with pytest.raises(type(error)):
        load_plugin(written(tmp_path, f"{GOOD}\nimport registry\nraise registry.error\n"))
    assert "plugged" not in samplers.names()
    assert not plugin_modules()


def test_a_syntax_error_in_an_imported_file_is_reported_at_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path, "\n\n\n\n\n\ndef (:\n", "broken_helper_of_a_plugin.py")
    path = written(tmp_path, "x = 1\nimport broken_helper_of_a_plugin\n")
    with pytest.raises(PluginError, match=r"plug\.py:2: SyntaxError"):
        load_plugin(path)


@pytest.mark.parametrize(
    ("end", "refused"),
    [("raise ValueError('late')", PluginError), ("import sys; sys.exit(1)", PluginError),
     ("samplers.register('no name')(plugged)", BadSignature)],
)  # fmt: skip
def test_a_half_registered_file_leaves_nothing_and_can_be_mended(tmp_path: Path, end: str, refused: type[Exception]):
    path = written(tmp_path, f"{GOOD}\n{end}\n")
    with pytest.raises(refused):
        load_plugin(path)
    assert "plugged" not in samplers.names()
    assert not plugin_modules()
    written(tmp_path, GOOD)
    load_plugin(path)
    assert samplers.get("plugged").summary == "Version one."


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("none.py", None, r"none\.py: the plug-in cannot be read \(No such file or directory\)"),
        ("", None, "cannot be read"), ("plug.txt", GOOD.encode(), r"plug\.txt: a plug-in is a Python file"),
        ("plug.pyc", GOOD.encode(), r"plug\.pyc: a plug-in is a Python file"),
        ("plug.py", b"x = 'a\x00b'\n", r"plug\.py:\d+: "), ("plug.py", b"\xff\xfe\n", r"plug\.py:\d+: "),
    ],
)  # fmt: skip
def test_what_is_no_python_file_is_refused(tmp_path: Path, name: str, data: bytes | None, reason: str):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(PluginError, match=reason):
        load_plugin(tmp_path / name)
