"""Shapes and types in signatures, checked at run time while the tests run.

`install()` wraps every function, method and dataclass of the lab whose annotations use jaxtyping, as its module is
imported. All annotations of one call are checked together, so that the axis `B` is the same number in all of them. A
value that does not fit raises ShapeError. ELECTRA_LAB_SHAPES=0 turns the checks off.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Union

from jaxtyping import AbstractArray, jaxtyped

import registry

ROOMS = (
    *sorted(each.home for each in registry.ALL),
    "electra_lab.data",
    "electra_lab.interop",
    "electra_lab.metrics",
    "electra_lab.model",
    "electra_lab.testing",
    "electra_lab.training",
    "registry.contracts",
)

PLUGINS = "electra_lab_plugin_"  # modules of plug-in files: their mistakes are for the lab to name

Fits = Callable[[object], bool]


class ShapeError(TypeError):
    """A value does not have the shape or the type that a signature promises."""


def install() -> None:
    """Check the modules of the lab from now on, as they are imported, and those that already are."""
    if os.environ.get("ELECTRA_LAB_SHAPES") == "0" or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, module in list(sys.modules.items()):
        if is_covered(name):
            check_module(module)


def is_covered(name: str) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in ROOMS)


class _Finder(MetaPathFinder):
    """Find modules as all other finders do, pytest's assertion rewriting included, and check them once imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not is_covered(fullname):
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
        spec = next((found for each in others if (found := each.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


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
    evaluate = _Evaluate(module)
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            check_class(value, evaluate)
        elif inspect.isfunction(value) and (wrapped := checked(value, evaluate)) is not value:
            setattr(module, name, wrapped)
            for each in registry.ALL:
                for entry in each._entries.values():
                    if entry.component is value:
                        object.__setattr__(entry, "component", wrapped)


def check_class(kind: type, evaluate: _Evaluate) -> None:
    """Wrap the methods of a class, in place; of a dataclass with such fields the construction."""
    if getattr(kind, "_is_protocol", False):
        return
    if dataclasses.is_dataclass(kind):
        kind.__init__ = _constructor(kind, evaluate)
    for name, member in list(vars(kind).items()):
        if isinstance(member, staticmethod | classmethod):
            setattr(kind, name, type(member)(checked(member.__func__, evaluate)))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, property(checked(member.fget, evaluate), member.fset, member.fdel, member.__doc__))
        elif inspect.isfunction(member) and not (name == "__init__" and dataclasses.is_dataclass(kind)):
            setattr(kind, name, checked(member, evaluate))


def checked(function: Callable[..., Any], evaluate: _Evaluate) -> Callable[..., Any]:
    """Return the function with its checks around it; the function itself if no annotation uses jaxtyping."""
    written = {name: each for name, each in getattr(function, "__annotations__", {}).items() if _uses_shapes(each)}
    if not written:
        return function
    number = _remember(_Promises(f"{function.__module__}.{function.__qualname__}", written, evaluate, function))

    # torch.compile reads the variables of a closure even where it does not need them, so these two are simple.
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        import torch

        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        __tracebackhide__ = True
        promises = _promises[number]
        kinds = promises.kinds(args, kwargs)
        if kinds not in promises.right:
            promises.refuse(promises.given(args, kwargs))
            promises.right.add(kinds)
        result = function(*args, **kwargs)
        if promises.returns:
            both = kinds, _kind(result)
            if both not in promises.kept:
                promises.refuse({**promises.given(args, kwargs), "return": result})
                promises.kept.add(both)
        return result

    wrapper.__kwdefaults__ = getattr(function, "__kwdefaults__", None)
    return wrapper


def _constructor(kind: Any, evaluate: _Evaluate) -> Callable[..., None]:
    """Return the __init__ of a dataclass, which checks the fields of what it has built."""
    build: Callable[..., None] = kind.__init__
    written = {field.name: field.type for field in dataclasses.fields(kind) if _uses_shapes(field.type)}
    if not written:
        return build
    number = _remember(_Promises(f"{kind.__module__}.{kind.__qualname__}", written, evaluate))

    @functools.wraps(build)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # it takes the place of one
        import torch

        build(self, *args, **kwargs)
        if torch.compiler.is_compiling():
            return
        __tracebackhide__ = True
        promises, values = _promises[number], vars(self)
        kinds = tuple([_kind(values[name]) for name in promises.written])
        if kinds not in promises.right and not sys._getframe(1).f_globals["__name__"].startswith(PLUGINS):
            promises.refuse(values)
            promises.right.add(kinds)

    return __init__


class _Promises:
    """The annotations of a function, or of the fields of a dataclass. They are evaluated when they are first needed,
    as a module may not be complete before that."""

    def __init__(
        self, name: str, written: Mapping[str, Any], evaluate: _Evaluate, function: Callable[..., Any] | None = None
    ) -> None:
        self.name, self.written, self.evaluate = name, dict(written), evaluate
        if inspect.isgeneratorfunction(function):  # what it returns is not what its annotation says
            self.written.pop("return", None)
        self.returns = "return" in self.written
        places = enumerate(inspect.signature(function).parameters) if function else ()
        self.places = [(each, place) for place, each in places if each in written]
        # What is known to be right, by shapes and types: arguments, and arguments with the result.
        self.right: set[Any] = set()
        self.kept: set[Any] = set()

    @functools.cached_property
    def rules(self) -> dict[str, Fits]:
        return {name: fits(self.evaluate(each)) for name, each in self.written.items()}

    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the annotated arguments of a call by name; omitted ones have their defaults and are left out."""
        values = {name: args[place] for name, place in self.places if place < len(args)}
        return values | {name: kwargs[name] for name, _ in self.places if name in kwargs}

    def kinds(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what decides whether the arguments of a call fit. Every call asks: this is all that most calls pay."""
        count = len(args)
        found = [_kind(args[place]) for _, place in self.places if place < count]
        if kwargs:
            found += [(name, _kind(kwargs[name])) for name, _ in self.places if name in kwargs]
        return tuple(found)

    def refuse(self, values: Mapping[str, Any]) -> None:
        """Raise ShapeError for the first value that does not fit, all in one binding of axis names."""
        __tracebackhide__ = True
        with jaxtyped("context"):
            for name, fit in self.rules.items():
                if name in values and not fit(values[name]):
                    what = "the result" if name == "return" else f"'{name}'"
                    wanted = _text(self.written[name])
                    others = [f"{key} {_brief(values[key])}" for key in self.rules if key in values and key != name]
                    seen = f" (with {', '.join(others)})" if others else ""
                    raise ShapeError(f"{self.name}: {what} must be {wanted}, is {_brief(values[name])}{seen}")


_promises: list[_Promises] = []
_PLAIN = frozenset({types.NoneType, bool, int, float, str})
_SEQUENCES = (tuple, list)


def _remember(promises: _Promises) -> int:
    _promises.append(promises)
    return len(_promises) - 1


def _kind(value: Any) -> Any:
    """Return what decides whether a value fits: shapes and types, of each part of a tuple or mapping."""
    kind = type(value)
    if kind in _PLAIN:
        return kind
    if isinstance(value, _SEQUENCES):
        return tuple([_kind(each) for each in value])
    try:
        return kind, value.dtype, value.shape
    except AttributeError:
        return tuple([_kind(each) for each in value.values()]) if isinstance(value, Mapping) else kind


def _uses_shapes(annotation: Any) -> bool:
    return "[Tensor, " in _text(annotation)


def _text(annotation: Any) -> str:
    """Return an annotation as it is written; those of a NamedTuple are wrapped."""
    return str(getattr(annotation, "__forward_arg__", annotation))


class _Evaluate:
    """Evaluates annotations in a module, with the names that it imports for type checkers alone."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    @functools.cached_property
    def names(self) -> dict[str, Any]:
        file = str(self.module.__file__)
        names: dict[str, Any] = {}
        for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.If) and _is_type_checking(node.test):
                exec(compile(ast.Module(node.body, type_ignores=[]), file, "exec"), names)
        return names

    def __call__(self, annotation: Any) -> Any:
        written = isinstance(annotation, str | typing.ForwardRef)
        return eval(_text(annotation), vars(self.module), self.names) if written else annotation


def _is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


def fits(annotation: Any) -> Fits:
    """Return a function that tells whether a value fits an annotation, as far as tensors are concerned.

    Anything that is not a tensor fits an annotation without shapes: other types are mypy's.
    """
    import torch

    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return lambda value: isinstance(value, annotation)
    if origin in (Union, types.UnionType):
        members = [fits(each) for each in arguments]
        return lambda value: any(member(value) for member in members)
    if origin is tuple and Ellipsis not in arguments:
        parts = [fits(each) for each in arguments]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(f(v) for f, v in zip(parts, value, strict=True))
        )
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        inside = fits(arguments[1])
        return lambda value: isinstance(value, Mapping) and all(inside(each) for each in value.values())
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        inside = fits(arguments[0])
        return lambda value: isinstance(value, Sequence) and all(inside(each) for each in value)
    if annotation is None or annotation is type(None):
        return lambda value: value is None
    if annotation in (torch.Tensor, Any, object):
        return lambda value: True
    return lambda value: not isinstance(value, torch.Tensor)


def _brief(value: object) -> str:
    """Describe a value by type and shape."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_brief, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_brief(each)}' for key, each in value.items())}}}"
    return "None" if value is None else type(value).__name__
