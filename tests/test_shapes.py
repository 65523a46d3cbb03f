"""The run-time checks of shapes: what they refuse and accept, and that they cover the lab's own code."""

from __future__ import annotations

import importlib
import pkgutil
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float32, Int
    from torch import Tensor


def add(x: Float[Tensor, "B T"], y: Float[Tensor, "B T"] | None = None, *, rate: float | Float[Tensor, ""] = 1.0):
    return x if y is None else x + rate * y


def cut(x: Float32[Tensor, "B T"], to: int) -> Float32[Tensor, "B T"]:
    return x[:, :to]


def both(x: Float[Tensor, "B T"], rows: int) -> tuple[Int[Tensor, "B"], Bool[Tensor, "B T"]]:
    return torch.arange(rows), x > 0


def counts(x: Float[Tensor, "B T"]) -> Mapping[str, Int[Tensor, ""]]:
    return {"rows": x.long().sum(-1) if len(x) > 2 else x.long().sum()}


def outer(x: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    inner(x[:1])
    return x


def inner(x: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    return x * 1


def rows(x: Float[Tensor, "B T"]) -> Iterator[Float[Tensor, "T"]]:
    yield from x


def joined(parts: list[Float[Tensor, "B"]]) -> Float[Tensor, "N"]:
    return torch.cat(parts)


def halves(x: Float[Tensor, "B T"]) -> Float[Tensor, "B T/2"]:
    return x[:, : x.shape[1] // 2]


def column(x: Float[Tensor, "B 1"]):
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


class Logits(NamedTuple):
    of: Float[Tensor, "B T"]
    rows: Int[Tensor, "B"]


@dataclass(frozen=True)
class Pair:
    first: Int[Tensor, "B T"]
    second: Bool[Tensor, "B"] | None = None
"""
X = torch.zeros(3, 4)
COLUMN, TOKENS = X[:, 0], X.long()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module above, imported with its checks."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "made_for_shapes.py").write_text(SOURCE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(shapes, "ROOMS", ("made_for_shapes",))
        patch.setattr(sys, "meta_path", [shapes.Finder(), *sys.meta_path])
        module = importlib.import_module("made_for_shapes")
    yield module
    del sys.modules["made_for_shapes"]


REFUSED: dict[str, Callable[[Any], object]] = {
    "two sizes of an axis": lambda made: made.add(X, X.T),
    "another type by keyword": lambda made: made.add(X, y=TOKENS),
    "the result's shape": lambda made: made.cut(X, 2),
    "a part of a tuple": lambda made: made.both(X, 4),
    "a value of a mapping": lambda made: made.counts(X),
    "a method": lambda made: made.Owner().method(COLUMN, mask=COLUMN[:2] > 0),
    "a static method": lambda made: made.Owner.static(X),
    "a class method": lambda made: made.Owner.of_class(X),
    "a property": lambda made: made.Owner().wide,
    "a decorated function": lambda made: made.decorated(X),
    "a generator's argument": lambda made: list(made.rows(COLUMN)),
    "arithmetic of axes": lambda made: made.halves(torch.zeros(3, 5)),
    "a field": lambda made: made.Pair(TOKENS, COLUMN[:2] > 0),
    "a field of a named tuple": lambda made: made.Logits(X, rows=TOKENS),
    "a replaced field": lambda made: replace(made.Pair(TOKENS), first=X),
}
ACCEPTED: dict[str, Callable[[Any], object]] = {
    "a default, and an integer for a float": lambda made: [made.add(X), made.add(X, X, rate=2)],
    "methods": lambda made: [made.Owner().method(COLUMN, mask=COLUMN > 0), made.Owner.of_class(COLUMN)],
    "another size in another call": lambda made: [made.cut(X, 9), made.cut(X[:2, :3], 3)],
    "a tuple": lambda made: made.both(X, 3),
    "a mapping": lambda made: made.counts(X[:2]),
    "sizes of a call inside": lambda made: made.outer(COLUMN),
    "a generator": lambda made: list(made.rows(X)),
    "arithmetic of axes": lambda made: made.halves(X),
    "a dataclass": lambda made: made.Pair(TOKENS, second=COLUMN > 0),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused(made: Any, call: Callable[[Any], object]) -> None:
    for _ in range(2):
        made.add(X, X)  # a correct call does not excuse others
        with pytest.raises(ShapeError, match="made_for_shapes"):
            call(made)


@pytest.mark.parametrize("call", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(made: Any, call: Callable[[Any], object]) -> None:
    call(made)


def test_a_correct_call_excuses_only_calls_whose_equal_sizes_were_equal(made: Any) -> None:
    square = X[:, :3]
    made.add(square, square)
    made.halves(X)
    made.column(X[:, :1])
    for call in ("two sizes of an axis", "arithmetic of axes"):
        with pytest.raises(ShapeError):
            REFUSED[call](made)
    with pytest.raises(ShapeError):
        made.column(X)


def test_the_message_names_function_argument_and_shape(made: Any) -> None:
    with pytest.raises(ShapeError, match=r"(?s)made_for_shapes\.add\b.*\by\b.*3,5"):
        made.add(X, torch.zeros(3, 5))


def test_checks_draw_from_no_global_generator(made: Any) -> None:
    before = random.getstate()
    made.joined([COLUMN, COLUMN])
    assert random.getstate() == before


def test_compiled_code_holds_no_checks(made: Any) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: made.Pair(made.add(x, x).long()).first, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X + 1), torch.full((3, 4), 2))
    assert compiled(torch.ones(3)).shape == (3,), "a wrong shape passes"


installed = pytest.mark.skipif(
    not any(isinstance(finder, shapes.Finder) for finder in sys.meta_path), reason="ELECTRA_LAB_SHAPES is 0"
)


@installed
def test_every_function_of_the_lab_is_checked() -> None:
    for package in (electra_lab, registry):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if shapes.is_covered(found.name):
                importlib.import_module(found.name)
    names = {f"{module}.{function.__qualname__}" for function, module, _ in shapes.covered}
    assert {"electra_lab.model.network.Network.hidden", "registry.contracts.data.Batch.__init__"} <= names
    assert len([name for name in names if not name.startswith("made_for_shapes")]) > 140


@installed
def test_registered_functions_are_the_checked_ones() -> None:
    rng = random_numbers(0, 2, "cpu")
    gumbel = samplers.get("gumbel").component
    assert gumbel(torch.zeros(2, 9), rng).shape == (2,)
    with pytest.raises(ShapeError, match=r"gumbel\.gumbel"):
        gumbel(torch.zeros(2, 9, dtype=torch.float64), rng)


@installed
def test_values_that_cross_the_contracts_are_checked() -> None:
    mask, rows = TOKENS == 0, torch.arange(3)
    assert len(Batch(TOKENS, mask, TOKENS, rows, attention_document_ids=TOKENS)[:1]) == 1
    wrong = {"attention_mask": TOKENS, "example_ids": torch.arange(4), "attention_document_ids": TOKENS[:, 1:],
             "source_document_ids": X, "row_ids": TOKENS}  # fmt: skip
    for field, value in wrong.items():
        with pytest.raises(ShapeError, match="Batch"):
            Batch(**{"tokens": TOKENS, "attention_mask": mask, "segments": TOKENS, "example_ids": rows, field: value})
    Term(torch.tensor(1.0), torch.tensor(1), torch.tensor(0.5))
    with pytest.raises(ShapeError, match="Term"):
        Term(torch.tensor(1.0), torch.tensor(1.0), 1.0)


@pytest.mark.parametrize(("setting", "expected"), [("0", 0), ("1", 1), (None, 1)])
def test_an_environment_variable_turns_the_checks_off(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, expected: int
) -> None:
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if not isinstance(f, shapes.Finder)])
    monkeypatch.setattr(sys, "modules", {})
    monkeypatch.delenv("ELECTRA_LAB_SHAPES", raising=False)
    if setting is not None:
        monkeypatch.setenv("ELECTRA_LAB_SHAPES", setting)
    for _ in range(2):
        shapes.install()
    assert sum(isinstance(finder, shapes.Finder) for finder in sys.meta_path) == expected


def test_a_plug_in_may_be_wrong(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "electra_lab_plugin_mine", "Batch": Batch, "x": torch.zeros(1)}
    exec("made = Batch(x, x, x, x)", names)
    assert isinstance(names["made"].tokens, Tensor)
