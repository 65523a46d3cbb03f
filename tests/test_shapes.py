"""The run-time checks of shapes: what they catch, what they let pass, and that the lab's own code is under them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import electra_lab
import registry
from electra_lab.testing import random_numbers
from registry import Batch, Term, samplers
from tests import shapes
from tests.shapes import ShapeError

SOURCE = """
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float32, Int
    from torch import Tensor


def add(x: Float[Tensor, "B T"], y: Float[Tensor, "B T"] | None = None, *, rate: float | Float[Tensor, ""] = 1.0):
    return x if y is None else x + rate * y


def cut(x: Float32[Tensor, "B T"], to: int) -> Float32[Tensor, "B T"]:
    return x[:, :to]


def as_int(x: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    return x.long()


def nothing(x: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    return None


def both(x: Float[Tensor, "B T"], rows: int) -> tuple[Int[Tensor, "B"], Bool[Tensor, "B T"]]:
    return torch.arange(rows), x > 0


def three(x: Float[Tensor, "B"]) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    return x, x, x


def counts(x: Float[Tensor, "B T"]) -> Mapping[str, Int[Tensor, ""]]:
    return {"rows": torch.tensor(len(x)), "other": x.long().sum(-1) if len(x) > 2 else x.long().sum()}


def maybe(x: Float[Tensor, "B"]) -> Float[Tensor, "B"] | None:
    return x if len(x) > 1 else None


def outer(x: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    inner(x[:1])
    return x


def inner(x: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    if len(x) > 5:
        raise LookupError
    return x * 1


def each(x: Float[Tensor, "B T"]) -> Iterator[Float[Tensor, "T"]]:
    yield from x


def halves(x: Float[Tensor, "B T"]) -> Float[Tensor, "B T/2"]:
    return x[:, : x.shape[1] // 2]


def unbound(x: Float[Tensor, "B T"]) -> Float[Tensor, "B D/2"]:
    return x


@torch.no_grad()
def decorated(x: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    return x


class Owner:
    def method(self, x: Float[Tensor, "B"], mask: Bool[Tensor, "B"]) -> Float[Tensor, "B"]:
        return x

    @staticmethod
    def static(x: Float[Tensor, "B"]) -> None: ...

    @classmethod
    def of_class(cls, x: Float[Tensor, "B"]) -> type:
        return cls

    @property
    def wide(self) -> Float[Tensor, "B"]:
        return torch.zeros(1, 1)


@dataclass(frozen=True)
class Pair:
    first: Int[Tensor, "B T"]
    second: Bool[Tensor, "B"] | None = None
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module above, imported with its checks."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "made_for_shapes.py").write_text(SOURCE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(shapes, "ROOMS", ("made_for_shapes",))
        patch.setattr(sys, "meta_path", [shapes._Finder(), *sys.meta_path])
        module = importlib.import_module("made_for_shapes")
    yield module
    del sys.modules["made_for_shapes"]


X = torch.zeros(3, 4)


def refuse(sentence: str) -> Any:
    return pytest.raises(ShapeError, match=sentence)


def test_a_wrong_shape_and_a_wrong_type_are_named(made: Any) -> None:
    """With the function, the argument, what it must be, what it is, and the other arguments."""
    with refuse(r"^made_for_shapes\.add: 'x' must be Float\[Tensor, .B T.\], is float32\[3\]$"):
        made.add(X[:, 0])
    with refuse(r"^made_for_shapes\.add: 'x' must be Float\[.*, is int64\[3, 4\]$"):
        made.add(X.long())
    with refuse(r"^made_for_shapes\.cut: 'x' must be Float32\[.*, is float64\[3, 4\]$"):
        made.cut(X.double(), 4)
    with refuse(r"'x' must be Float\[Tensor, .B T.\], is float$"):
        made.add(1.0)
    with refuse(r"'x' must be Float\[Tensor, .B T.\], is None$"):
        made.add(None)


def test_an_axis_is_the_same_number_in_one_call(made: Any) -> None:
    with refuse(r"add: 'y' must be Float\[Tensor, .B T.\] \| None, is float32\[3, 5\] \(with x float32\[3, 4\]\)"):
        made.add(X, torch.zeros(3, 5))
    with refuse("cut: the result must be .*, is float32.3, 2. .with x float32.3, 4..$"):
        made.cut(X, 2)
    assert made.cut(X, 4).shape == (3, 4)
    assert made.cut(X, 9).shape == (3, 4), "another call may have other sizes"
    assert made.cut(X[:2, :3], 3).shape == (2, 3)


def test_a_call_that_was_right_excuses_no_other(made: Any) -> None:
    for _ in range(2):
        made.add(X, X)
        with refuse("'y'"):
            made.add(X, X.T)
        with refuse("'y'"):
            made.add(X, y=X.long())


@pytest.mark.parametrize("name", ["as_int", "nothing"])
def test_a_wrong_result(made: Any, name: str) -> None:
    with refuse(rf"{name}: the result must be Float\[Tensor, .\*N.\], is (int64\[3, 4\]|None) \(with x float32"):
        getattr(made, name)(X)


def test_tuples_and_mappings_are_checked_part_by_part(made: Any) -> None:
    assert len(made.both(X, 3)) == 2
    with refuse(r"is \(int64\[4\], bool\[3, 4\]\)"):
        made.both(X, 4)
    with refuse(r"is \(float32\[3\], float32\[3\], float32\[3\]\)"):
        made.three(X[:, 0])
    assert made.counts(X[:2])["rows"] == 2
    with refuse(r"is {rows: int64\[\], other: int64\[3\]}"):
        made.counts(X)


def test_unions_take_any_of_their_members(made: Any) -> None:
    assert made.maybe(X[:1, 0]) is None
    assert made.maybe(X[:, 0]) is not None
    for rate in (2.0, 2, torch.tensor(2.0), torch.tensor(2.0, dtype=torch.float64)):
        made.add(X, X, rate=rate)
    for rate in (torch.ones(1), torch.tensor(2)):
        with refuse(r"'rate' must be float \| Float\[Tensor, ..\]"):
            made.add(X, X, rate=rate)


def test_calls_inside_have_sizes_of_their_own_and_an_error_leaves_nothing_behind(made: Any) -> None:
    assert made.outer(X[:, 0]).shape == (3,)
    with pytest.raises(LookupError):
        made.inner(torch.zeros(6))
    assert made.outer(X[:2, 0]).shape == (2,)


def test_methods_of_all_kinds(made: Any) -> None:
    owner = made.Owner()
    owner.method(X[:, 0], mask=X[:, 0] > 0)
    with refuse(r"Owner\.method: 'mask' must be"):
        owner.method(X[:, 0], mask=X[:2, 0] > 0)
    with refuse(r"Owner\.static: 'x'"):
        owner.static(X)
    assert made.Owner.of_class(X[0]) is made.Owner
    with refuse(r"Owner\.of_class: 'x'"):
        made.Owner.of_class(X)
    with refuse(r"Owner\.wide: the result"):
        _ = owner.wide
    with refuse(r"decorated: 'x'"):
        made.decorated(X)


def test_what_a_generator_yields_is_its_own_affair_and_its_arguments_are_not(made: Any) -> None:
    assert len(list(made.each(X))) == 3
    with refuse("each: 'x'"):
        made.each(X[0])


def test_arithmetic_of_axes(made: Any) -> None:
    assert made.halves(X).shape == (3, 2)
    with refuse("halves: the result"):
        made.halves(torch.zeros(3, 5))
    with pytest.raises(Exception, match="symbolic axis"):
        made.unbound(X)


def test_a_dataclass_is_checked_when_it_is_constructed(made: Any) -> None:
    tokens = torch.zeros(3, 4, dtype=torch.long)
    pair = made.Pair(tokens, second=tokens[:, 0] > 0)
    assert made.Pair(tokens).second is None
    with refuse(
        r"^made_for_shapes\.Pair: 'second' must be Bool\[Tensor, .B.\] \| None, is bool\[2\] \(with first int64"
    ):
        made.Pair(tokens, tokens[:2, 0] > 0)
    with refuse("'first' must be Int"):
        replace(pair, first=X)


def test_compiled_code_holds_no_checks(made: Any) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: made.Pair(made.add(x, x).long()).first, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X + 1), torch.full((3, 4), 2))
    assert compiled(torch.ones(3)).shape == (3,), "a wrong shape passes"


def test_names_and_defaults_stay(made: Any) -> None:
    assert made.add.__name__ == "add"
    assert list(inspect.signature(made.add).parameters) == ["x", "y", "rate"]
    assert made.add.__kwdefaults__ == {"rate": 1.0}
    assert not hasattr(made.Owner.__init__, "__wrapped__")


# The lab itself

installed = pytest.mark.skipif(
    not any(isinstance(finder, shapes._Finder) for finder in sys.meta_path), reason="ELECTRA_LAB_SHAPES is 0"
)


def modules() -> list[ModuleType]:
    found = [module for package in (electra_lab, registry)
             for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]  # fmt: skip
    absent = ("electra_lab.launchers._worker",)
    return [importlib.import_module(m.name) for m in found if shapes.is_covered(m.name) and m.name not in absent]


@installed
def test_every_function_of_the_lab_is_checked_and_all_annotations_can_be_read() -> None:
    """Other than those that a decorator has turned into something else, and Protocols."""
    seen = 0
    for module in modules():
        for owner in (module, *(value for value in vars(module).values() if inspect.isclass(value))):
            if getattr(owner, "__module__", module.__name__) != module.__name__ or getattr(
                owner, "_is_protocol", False
            ):
                continue
            for function in filter(inspect.isfunction, vars(owner).values()):
                written = map(shapes._uses_shapes, getattr(function, "__annotations__", {}).values())
                if function.__module__ == module.__name__ and any(written):
                    assert hasattr(function, "__wrapped__"), f"{module.__name__}.{function.__qualname__}"
                    seen += 1
    assert seen > 90
    for promises in shapes._promises:
        if not promises.name.startswith("made_for_shapes"):
            assert promises.rules.keys() == promises.written.keys()


@installed
def test_registered_functions_are_the_checked_ones() -> None:
    rng = random_numbers(0, 2, "cpu")
    gumbel = samplers.get("gumbel").component
    assert gumbel(torch.zeros(2, 9), rng).shape == (2,)
    with refuse(
        r"electra_lab\.samplers\.gumbel\.gumbel: 'logits' must be .*Float32\[Tensor, .N V.\].*, is float64\[2, 9\]"
    ):
        gumbel(torch.zeros(2, 9, dtype=torch.float64), rng)


@installed
def test_values_that_cross_the_contracts_are_checked() -> None:
    tokens = torch.zeros(2, 5, dtype=torch.long)
    mask, rows = tokens == 0, torch.arange(2)
    assert len(Batch(tokens, mask, tokens, rows)) == 2
    assert len(Batch(tokens, mask, tokens, rows, documents=tokens)[:1]) == 1
    with refuse(r"Batch: 'attention_mask' must be Bool\[Tensor, .B T.\], is int64\[2, 5\]"):
        Batch(tokens, tokens, tokens, rows)
    with refuse("Batch: 'example_ids'"):
        Batch(tokens, mask, tokens, torch.arange(3))
    with refuse("Batch: 'documents'"):
        Batch(tokens, mask, tokens, rows, documents=tokens[:, 1:])
    with refuse("Batch: 'sources'"):
        Batch(tokens, mask, tokens, rows, sources=tokens[:, 1:])
    Term(torch.tensor(1.0), torch.tensor(1), torch.tensor(0.5))
    with refuse("Term: 'count'"):
        Term(torch.tensor(1.0), torch.tensor(1.0), 1.0)


@pytest.mark.parametrize(("setting", "expected"), [("0", 0), ("1", 1), (None, 1)])
def test_an_environment_variable_turns_the_checks_off(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, expected: int
) -> None:
    """And they are installed once, however often they are asked for."""
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, shapes._Finder)])
    monkeypatch.setattr(sys, "modules", {})
    monkeypatch.delenv("ELECTRA_LAB_SHAPES", raising=False)
    if setting is not None:
        monkeypatch.setenv("ELECTRA_LAB_SHAPES", setting)
    for _ in range(2):
        shapes.install()
    assert sum(isinstance(each, shapes._Finder) for each in sys.meta_path) == expected


def test_a_plug_in_may_be_wrong(tmp_path: Path) -> None:
    """Its mistakes are for the lab to name, which other tests look at."""
    names: dict[str, Any] = {"__name__": "electra_lab_plugin_mine", "Batch": Batch, "x": torch.zeros(1)}
    exec("made = Batch(x, x, x, x)", names)
    assert isinstance(names["made"].tokens, Tensor)
