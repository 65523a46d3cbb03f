"""The registries are typed: mypy, with the project's settings, rejects components that break their contract."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain
from unittest import mock

import pytest
from mypy import api

import registry
from tests.helpers import ROOT

HEAD = """\
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor, nn

from registry import (
    Batch, EmbeddingSizes, Encoder, Generator, Losses, Masked, Metric, Network, Outcome, Packed, Random, Results, Row,
    Streams, Term, TextExample, Tokens, Tracked, Trained, Vocabulary, Work, backbones, corpora, datasets, generators,
    heads, launchers, masking_strategies, measures, objectives, optimizers, packings, samplers, schedules, tasks,
    tokenizers, trackers,
)
from registry.contracts.packing import IndexArray


class Wrong: ...
"""

# A component of each kind that follows its contract. A wrong one is a right one with a part replaced.
RIGHT = {
    "samplers": """
def sampler(logits: Tensor, rng: Random, /, *, heat: float = 1.0) -> Tensor:
    return logits.argmax(-1)
""",
    "masking_strategies": """
def strategy(tokens: Tensor, maskable: Tensor, vocabulary: Vocabulary, rng: Random, /, *,
             mask_prob: float, replace_prob: float, random_prob: float) -> Masked:
    return Masked(tokens, tokens, maskable)
""",
    "backbones": """
class Backbone(nn.Module):
    length_multiple = 1
    positions = "lab"

    def __init__(self, dim: int, depth: int, heads: int, max_length: int, /) -> None:
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return x

    def at_step(self, seed: int, step: int) -> None: ...
""",
    "objectives": """
class Objective(nn.Module):
    def __init__(self, generator: Generator, discriminator: Network, masking: Any, sampler: Any,
                 vocabulary: Vocabulary, /) -> None:
        super().__init__()

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        return Losses({})

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Tensor]:
        return {}
""",
    "generators": """
class Guesser(nn.Module):
    dim = 1

    def __init__(self, vocabulary: Vocabulary, /) -> None:
        super().__init__()

    def hidden(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor, documents: Tensor | None = None
               ) -> Tensor:
        return tokens

    def token_logits(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return hidden
""",
    "heads": """
class Head(nn.Module):
    def __init__(self, dim: int, sizes: EmbeddingSizes, vocabulary: Vocabulary | None, /) -> None:
        super().__init__()

    def forward(self, states: Tensor) -> Tensor:
        return states

    def flops(self, length: int, masked: int) -> int:
        return 0
""",
    "corpora": """
class Text:
    def __init__(self, /) -> None: ...

    def __iter__(self) -> Iterator[str]:
        yield "text"

    def fingerprint(self) -> str:
        return ""
""",
    "datasets": """
class Examples:
    splits = ("train", "validation")

    def __init__(self, /) -> None: ...

    def read(self, split: str) -> Iterator[TextExample]:
        yield TextExample("text")

    def fingerprint(self) -> str:
        return ""
""",
    "tasks": """
class Labels:
    metrics = {"accuracy": Metric()}

    def __init__(self, /) -> None: ...

    def fit_labels(self, examples: Sequence[Any]) -> Mapping[str, Any]:
        return {}

    def set_labels(self, facts: Mapping[str, Any]) -> None: ...

    def rows(self, examples: Sequence[Any], encoder: Encoder, length: int) -> list[list[Row]]:
        return []

    def truncation(self, examples: Sequence[Any], rows: Sequence[Sequence[Row]]) -> Mapping[str, float]:
        return {}

    def head(self, dim: int, dropout: float) -> nn.Module:
        return nn.Linear(dim, 1)

    def losses(self, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Term]:
        return {}

    def results(self, examples: Sequence[Any], rows: Sequence[Sequence[Row]], outputs: Sequence[Sequence[Any]]
                ) -> Results:
        return Results({}, [])
""",
    "tokenizers": """
def trained(documents: Iterable[str], /, *, vocab_size: int = 10) -> Tokenizer:
    return Tokenizer.from_str("")
""",
    "packings": """
class Packing:
    def __init__(self, tokens: Tokens, length: int, vocabulary: Vocabulary, /) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, rows: IndexArray, /) -> Packed:
        return Packed(rows, rows > 0, rows)
""",
    "optimizers": """
class Optimizer:
    param_groups = list[dict[str, Any]]()

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], learning_rate: float, /) -> None: ...

    def step(self) -> None: ...

    def state_bytes(self, parameter: Tensor) -> int:
        return 0
""",
    "schedules": """
def number(progress: float, /) -> float:
    return progress
""",
    "measures": """
class Measure:
    metrics = {"loss": Metric()}
    same_rows = False

    def __init__(self, /) -> None: ...

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None: ...

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        return {}
""",
    "launchers": """
class Launcher:
    here = True

    def __init__(self, /, *, workers: int, threads: int) -> None: ...

    def check(self) -> None: ...

    def __call__(self, work: Work, folder: str, ids: Sequence[str], /) -> Iterator[tuple[str, Outcome]]:
        yield "", Outcome("done")
""",
    "trackers": """
class Tracker:
    rewinds = False

    def __init__(self, /) -> None: ...

    def check(self) -> None: ...

    def start(self, run: Tracked, /) -> str:
        return ""

    def record(self, step: int, values: Mapping[str, float], /) -> None: ...

    def close(self, outcome: str, /) -> None: ...
""",
}


def wrong(kind: str) -> Iterator[tuple[str, str]]:
    """Yield components that break their contract in one place: a member is missing, or has another type."""
    component = ast.parse(RIGHT[kind]).body[0]
    members = [component] if isinstance(component, ast.FunctionDef) else component.body
    for member in members:
        if isinstance(member, ast.Assign):
            with mock.patch.object(member, "value", ast.parse("object()").body[0].value):
                yield f"{kind}: {member.targets[0].id}", ast.unparse(component)
        elif isinstance(member, ast.FunctionDef) and member.name not in (
            "__init__",
            "forward",
        ):  # nn.Module's accepts everything
            if member is not component:
                with mock.patch.object(member, "name", f"not_{member.name}"):
                    yield f"{kind}: {member.name}", ast.unparse(component)
            if not (isinstance(member.returns, ast.Constant) and member.returns.value is None):
                with mock.patch.object(member, "returns", ast.Name("Wrong")):
                    yield f"{kind}: {member.name} returns", ast.unparse(component)


WRONG = dict(chain.from_iterable(map(wrong, RIGHT)))


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The errors of mypy in each component, all of them in one file."""
    text, starts = HEAD, {}
    for number, (name, component) in enumerate((RIGHT | WRONG).items()):
        text += "\n\n"
        starts[name] = text.count("\n") + 1
        kind = name.partition(":")[0]
        renamed = re.sub(r"(def|class) (\w+)", rf"\1 \g<2>_{number}", component.strip("\n"), count=1)
        text += f'@{kind}.register("mine_{number}")\n{renamed}\n'
    file = tmp_path_factory.mktemp("typed") / "components.py"
    file.write_text(text, encoding="utf-8")
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    out, err, _ = api.run([*settings, "--no-error-summary", "--hide-error-context", str(file)])
    assert not err, err
    found: dict[str, list[str]] = {name: [] for name in starts}
    for line, message in re.findall(r"^.*?components\.py:(\d+): error: (.*)$", out, flags=re.M):
        owner = max((name for name in starts if starts[name] <= int(line)), key=starts.__getitem__)
        found[owner].append(message)
    return found


@pytest.mark.parametrize("kind", RIGHT)
def test_a_component_that_follows_its_contract_is_accepted(kind: str, verdicts: dict[str, list[str]]) -> None:
    assert verdicts[kind] == []


@pytest.mark.parametrize("name", WRONG)
def test_a_component_that_breaks_its_contract_is_rejected(name: str, verdicts: dict[str, list[str]]) -> None:
    contract = next(known.contract for known in registry.ALL if known.plural == name.partition(":")[0])
    expected = re.compile(rf'Argument 1 has incompatible type .*; expected ".*\b{contract}\]?"')
    assert any(map(expected.match, verdicts[name])), verdicts[name]


def test_every_kind_is_tried() -> None:
    assert set(RIGHT) == {name.partition(":")[0] for name in WRONG} == {known.plural for known in registry.ALL}
