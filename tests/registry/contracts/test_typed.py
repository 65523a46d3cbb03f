"""The registries are typed: mypy, with the project's settings, rejects components that break their contract."""

from __future__ import annotations

import re

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
    Batch, Encoder, Generator, Losses, Masked, Metric, Network, Outcome, Packed, Random, Results, Row, Streams, Term,
    TextExample, Tokens, Tracked, Trained, Vocabulary, Work, backbones, corpora, datasets, generators, launchers,
    masking_strategies, measures, objectives, optimizers, packings, samplers, schedules, tasks, tokenizers, trackers,
)
from registry.contracts.packing import IndexArray
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
    length_multiple, positions = 1, "lab"

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

    def learn(self, examples: Sequence[Any]) -> Mapping[str, Any]:
        return {}

    def know(self, facts: Mapping[str, Any]) -> None: ...

    def rows(self, examples: Sequence[Any], encoder: Encoder, length: int) -> list[list[Row]]:
        return []

    def lost(self, examples: Sequence[Any], rows: Sequence[Sequence[Row]]) -> Mapping[str, float]:
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
    param_groups: list[dict[str, Any]] = []

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
# fmt: off
WRONG = {
    "a sampler that returns a tuple":
        ("samplers", "-> Tensor:\n    return ", "-> tuple[Tensor, Tensor]:\n    return logits, "),
    "a sampler of lists": ("samplers", "logits: Tensor", "logits: list[float]"),
    "a masking strategy that returns a tensor":
        ("masking_strategies", "-> Masked:\n    return Masked(tokens, tokens, maskable)",
         "-> Tensor:\n    return tokens"),
    "a backbone without at_step": ("backbones", "def at_step", "def at_stop"),
    "a backbone without layers": ("backbones", "self.layers = nn.ModuleList()", "pass"),
    "a backbone whose positions are a number": ("backbones", '1, "lab"', "1, 0"),
    "an objective without counts": ("objectives", "def counts", "def amounts"),
    "an objective that counts in a list":
        ("objectives", "Mapping[str, Tensor]:\n        return {}", "list[Tensor]:\n        return []"),
    "a generator without logits": ("generators", "def token_logits", "def logits"),
    "a corpus of bytes": ("corpora", 'Iterator[str]:\n        yield "text"', 'Iterator[bytes]:\n        yield b"text"'),
    "a corpus without a fingerprint": ("corpora", "def fingerprint", "def hash"),
    "a dataset without splits": ("datasets", 'splits = ("train", "validation")', "pass"),
    "a dataset whose splits are numbers": ("datasets", '("train", "validation")', "(0, 1)"),
    "a dataset that reads a single example":
        ("datasets", 'Iterator[TextExample]:\n        yield TextExample("text")',
         'TextExample:\n        return TextExample("text")'),
    "a task without a head": ("tasks", "def head", "def top"),
    "a task that returns numbers": ("tasks", "-> Results:\n        return Results({}, [])",
                                    "-> dict[str, float]:\n        return {}"),
    "a tokenizer that returns its path": ("tokenizers", "-> Tokenizer", "-> str"),
    "a packing of lists": ("packings", "rows: IndexArray, /) -> Packed", "rows: list[int], /) -> list[int]"),
    "a packing without a length": ("packings", "def __len__", "def length"),
    "an optimizer without state_bytes": ("optimizers", "def state_bytes", "def bytes_of_state"),
    "a schedule of words": ("schedules", "-> float:\n    return progress", "-> str:\n    return ''"),
    "a measure without metrics": ("measures", 'metrics = {"loss": Metric()}', 'quantities = {"loss": Metric()}'),
    "a measure whose metrics are names": ("measures", '{"loss": Metric()}', '{"loss": "nats"}'),
    "a measure that returns a number":
        ("measures", "-> Mapping[str, float]:\n        return {}", "-> float:\n        return 0.0"),
    "a launcher without check": ("launchers", "def check", "def checked"),
    "a launcher that returns a list":
        ("launchers", 'Iterator[tuple[str, Outcome]]:\n        yield "", Outcome("done")',
         "list[Outcome]:\n        return []"),
    "a tracker without rewinds": ("trackers", "rewinds = False", "pass"),
    "a tracker that cannot be closed": ("trackers", "def close", "def finish"),
    "a tracker whose run has no id": ("trackers", 'str:\n        return ""', "None:\n        return"),
    "a tracker of words": ("trackers", "Mapping[str, float]", "Mapping[str, str]"),
}
# fmt: on


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The errors of mypy in each component, all of them in one file."""
    components = {f"a right one of {kind}": (kind, text) for kind, text in RIGHT.items()}
    for name, (kind, old, new) in WRONG.items():
        assert RIGHT[kind].count(old) == 1, name
        components[name] = kind, RIGHT[kind].replace(old, new)
    text, starts = HEAD, {}
    for number, (name, (kind, component)) in enumerate(components.items()):
        text += "\n\n"
        starts[name] = text.count("\n") + 1
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
    assert verdicts[f"a right one of {kind}"] == []


@pytest.mark.parametrize("name", WRONG)
def test_a_component_that_breaks_its_contract_is_rejected(name: str, verdicts: dict[str, list[str]]) -> None:
    kind = WRONG[name][0]
    contract = next(each.contract for each in registry.ALL if each.plural == kind)
    expected = re.compile(rf'Argument 1 has incompatible type .*; expected ".*\b{contract}\]?"')
    assert any(map(expected.match, verdicts[name])), verdicts[name]


def test_every_kind_is_tried() -> None:
    assert set(RIGHT) == {kind for kind, _, _ in WRONG.values()} == {each.plural for each in registry.ALL}
