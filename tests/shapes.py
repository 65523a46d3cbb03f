"""Shapes and types in signatures, checked at run time while the tests run, by jaxtyping and beartype.

`install()` wraps every function, method and dataclass of the lab whose annotations use jaxtyping, as its module is
imported. All annotations of one call are checked together, so that the axis `B` is the same number in all of them. A
value that does not fit raises ShapeError. Checking every call would take a fifth of the time of tests that train, so
each test checks the first calls of every function, and some of those that follow. ELECTRA_LAB_SHAPES=0 turns the
checks off.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from beartype._check.code import codemain
from jaxtyping import jaxtyped

import registry

OTHERS = ("data", "interop", "metrics", "model", "testing", "training")
ROOMS = (*(kind.home for kind in registry.ALL), *(f"electra_lab.{room}" for room in OTHERS), "registry.contracts")

PLUGINS = "electra_lab_plugin_"  # modules of plug-in files, whose mistakes the lab itself reports

ShapeError = jaxtyping.TypeCheckError
# Beartype checks a random element of a list; it must not draw from the global generator for that.
codemain.getrandbits = random.Random(0).getrandbits  # type: ignore[attr-defined]
# Beartype's numeric tower accepts an int for a float, as mypy does.
check = jaxtyped(typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))

# The checked functions, each with its module and its annotations that use jaxtyping.
covered: list[tuple[Any, str, dict[str, Any]]] = []
# How often a test has called each of them, by number: the first FIRST calls are checked, then every EVERY-th.
calls: Counter[int] = Counter()
FIRST, EVERY = 8, 16
# Sizes of calls that passed, by types and numbers of axes: such calls need no second check.
_right: dict[Any, list[list[int]]] = {}
# The result of a call that is checked without calling the function again.
_results: list[Any] = []


def install() -> None:
    """Check the modules of the lab from now on, as they are imported, and those that already are."""
    if os.environ.get("ELECTRA_LAB_SHAPES") == "0" or any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder())
    for name, module in list(sys.modules.items()):
        if is_covered(name):
            check_module(module)


def is_covered(name: str) -> bool:
    return name.startswith(tuple(f"{room}." for room in ROOMS)) or name in ROOMS


class Finder(MetaPathFinder):
    """Find modules as all other finders do, pytest's assertion rewriting included, and check them once imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not is_covered(fullname):
            return None
        for finder in sys.meta_path:
            if not isinstance(finder, Finder) and (spec := finder.find_spec(fullname, path, target)):
                spec.loader = _Loader(spec.loader) if spec.loader else None
                return spec
        return None


class _Loader(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        check_module(module)


def check_module(module: ModuleType) -> None:
    """Wrap the functions and classes that a module defines, in place, and the components that it has registered."""
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            check_class(value)
        elif inspect.isfunction(value) and (wrapped := checked(value, module.__name__)) is not value:
            setattr(module, name, wrapped)
            for components in registry.ALL:
                for entry in components._entries.values():
                    if entry.component is value:
                        object.__setattr__(entry, "component", wrapped)


def check_class(kind: Any) -> None:
    """Wrap the methods of a class, in place; for a dataclass, its construction."""
    if getattr(kind, "_is_protocol", False):
        return
    for name, member in list(vars(kind).items()):
        if isinstance(member, staticmethod | classmethod):
            setattr(kind, name, type(member)(checked(member.__func__, kind.__module__)))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, member.getter(checked(member.fget, kind.__module__)))
        elif inspect.isfunction(member):
            of_fields = name == "__init__" and dataclasses.is_dataclass(kind)
            setattr(kind, name, checked(member, kind.__module__, from_plugins=not of_fields))


def checked(function: Callable[..., Any], module: str, from_plugins: bool = True) -> Callable[..., Any]:
    """Return the function with its checks around it; the function itself if no annotation uses jaxtyping.

    Without `from_plugins`, calls that a plug-in file makes are not checked. Other types are mypy's.
    """
    annotations = getattr(function, "__annotations__", {})
    written = {name: hint for name, hint in annotations.items() if "[Tensor, " in _text(hint)}
    if inspect.isgeneratorfunction(inspect.unwrap(function)):
        written.pop("return", None)  # the annotation describes the iterator
    if not written:
        return function
    number = len(covered)
    covered.append((function, module, written))

    # torch.compile reads every variable of a closure, so these are simple.
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if not from_plugins and sys._getframe(1).f_globals["__name__"].startswith(PLUGINS):
            return function(*args, **kwargs)
        calls[number] += 1
        if calls[number] > FIRST and calls[number] % EVERY:
            return function(*args, **kwargs)
        return _call(number, args, kwargs)

    wrapper.__kwdefaults__ = getattr(function, "__kwdefaults__", None)
    return wrapper


def _call(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function and check it, unless arguments and results of the same shapes and types have passed before."""
    function, sizes = covered[number][0], list[int]()
    given = number, _kind(args, sizes), tuple(kwargs), _kind(kwargs, sizes)
    if _is_right(given, sizes):
        result = function(*args, **kwargs)
        whole = given, _kind(result, sizes)
        if not _is_right(whole, sizes):
            _results.append(result)
            _with_checks(number)(*args, **kwargs)
            _remember(whole, sizes)
    else:
        result = _with_checks(number)(*args, **kwargs)
        _remember(given, sizes)
        _remember((given, _kind(result, sizes)), sizes)
    return result


def _kind(value: Any, sizes: list[int]) -> Any:
    """Return the type of a value, or of each part of a tuple or mapping; the sizes of its axes go to `sizes`."""
    if isinstance(value, tuple | list):
        return tuple([_kind(part, sizes) for part in value])
    if isinstance(value, dict):
        return tuple([_kind(part, sizes) for part in value.values()])
    shape = getattr(value, "shape", ())
    sizes.extend(shape)
    return type(value), getattr(value, "dtype", None), len(shape)


def _is_right(kind: Any, sizes: list[int]) -> bool:
    """Whether sizes have passed that differ wherever these differ: so do these, unless an annotation has numbers."""
    for known in _right.get(kind, ()):
        if sizes == known:
            return True
        if not _has_numbers(kind[0] if isinstance(kind[0], int) else kind[0][0]):
            here = {0: 0, 1: 1}  # an axis of one element may be broadcast
            if all(here.setdefault(there, size) == size for there, size in zip(known, sizes, strict=True)):
                return True
    return False


def _remember(kind: Any, sizes: list[int]) -> None:
    _right.setdefault(kind, []).append(list(sizes))


@functools.cache
def _has_numbers(number: int) -> bool:
    """Whether a shape in the annotations of a function has a number or arithmetic, as "B 3" or "B T/2"."""
    shapes = re.findall(r"Tensor, ['\"](.*?)['\"]", " ".join(map(_text, covered[number][2].values())))
    return any(re.search(r"\b\d|[^\w\s*#.]", shape) for shape in shapes)


@functools.cache
def _with_checks(number: int) -> Callable[..., Any]:
    """Read the annotations of a function at its first call, as its module may be incomplete before."""
    function, module, written = covered[number]
    names = vars(sys.modules[module]) | _for_type_checkers(module)
    hints: dict[str, Any] = {}
    for name, hint in written.items():
        hints[name] = eval(_text(hint), names) if isinstance(hint, str | ForwardRef) else hint

    @functools.wraps(function)
    def copy(*args: Any, **kwargs: Any) -> Any:
        return _results.pop() if _results else function(*args, **kwargs)

    # Other types are mypy's, so the copy has the annotations of tensors alone.
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=hints.get(p.name, p.empty)) for p in signature.parameters.values()]
    copy.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=hints.get("return", signature.empty)
    )
    copy.__annotations__ = hints
    strict: Callable[..., Any] = check(copy)
    return strict


def _text(annotation: Any) -> str:
    """Return an annotation as text; those of a NamedTuple are wrapped."""
    return str(getattr(annotation, "__forward_arg__", annotation))


@functools.cache
def _for_type_checkers(module: str) -> dict[str, Any]:
    """Return the names that a module imports under TYPE_CHECKING."""
    file = str(sys.modules[module].__file__)
    names: dict[str, Any] = {}
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            exec(compile(ast.Module(node.body, type_ignores=[]), file, "exec"), names)
    return names
