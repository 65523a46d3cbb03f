"""Laws of measures."""

import copy
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from electra_lab.config.load import validated
from electra_lab.config.source import parse
from electra_lab.model.network import initialise
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.testing.common import CLS, MASK, PAD, SEP, Contract, as_batch, vocabulary
from registry import Batch, Metric, MetricWithDocuments, Trained, backbones, measures

EXPERIMENT: Mapping[str, Any] = {
    "name": "law",
    "corpus": {"type": "docstrings"},
    "tokenizer": {"type": "wordpiece", "vocab_size": 200},
    "data": {"sequence_length": 16},
    "discriminator": {"type": "transformer", "dim": 24, "depth": 1, "heads": 3, "rotary": True},
    "generator": {"scale": 1.0},
    "masking": {"type": "replace_prob"},
    "sampler": {"type": "gumbel", "temperature": 2.0},
    "objective": {"type": "electra"},
    "schedules": {
        "learning_rate": {"type": "warmup_linear", "warmup_steps": 0},
        "sampler.temperature": {"type": "linear", "start": 2.0, "end": 1.0},
    },
}
DETECTS = {"discriminator_auc": 0.7, "discriminator_loss": 0.4, "generator_loss": 3.0, "generator_mask_loss": 3.5}
PREDICTS = {"discriminator_token_loss": 3.0, "discriminator_token_mask_loss": 3.5}


class MeasureContract(Contract):
    """Laws of measures, on tiny BERTs over 37 test and 45 training rows, some of which hold no ordinary token."""

    registry = measures
    size = 40

    def text(self, rows: int, device: str, *, padding: int = PAD) -> Batch:
        """Return rows of 0 to 10 ordinary tokens between [CLS] and [SEP], followed by `padding`."""
        tokens = torch.randint(5, self.size, (rows, 12), generator=torch.Generator().manual_seed(rows))
        ends = 1 + torch.arange(rows).unsqueeze(1) * 7 % 11
        places = torch.arange(12)
        tokens[:, 0] = CLS
        tokens = tokens.masked_fill(places == ends, SEP).masked_fill(places > ends, padding)
        return as_batch(tokens.to(device), (places <= ends).to(device))

    def trained(self, device: str = "cpu", *, detects: bool = True, seed: int = 0, padding: int = PAD) -> Trained:
        """Return a run whose weights depend on `seed` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed CUDA's, too
            sizes = EmbeddingSizes(self.size, 16, 16, 0.1)
            encoder: Any = backbones.get("bert").component(16, 1, 2, 16, dropout=0.1)
            model = make_pair(None, 0, encoder, 16, sizes, "none", PAD, ["replaced" if detects else "tokens"])[1]
            initialise(model)
            for parameter in model.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
        return Trained(
            model=model.eval().to(device),
            detects=detects,
            test=reader(self.text(37, device, padding=padding)),
            train=picker(self.text(45, device, padding=padding)),
            train_rows=45,
            vocabulary=vocabulary(self.size, device),
            metrics={"step": 3, "split": "test", "loss": 1.0, **(DETECTS if detects else PREDICTS)},
            finetune=lambda file: 0.5 + seed / 100,
        )

    def experiment(self, **train: float) -> dict[str, Any]:
        """Return a complete config, as `references` receives it."""
        values = {**EXPERIMENT, "train": train}
        return validated(parse(json.dumps(values), "law", Path.cwd(), one_line=True)).config.model_dump(mode="json")

    def prepared(self, folder: Path, run: Trained, device: str = "cpu") -> Any:
        """Return a measure that has prepared its folder, with the references that it needs."""
        measure = self.component()()
        references = {}
        for number, name in enumerate(measure.references(self.experiment(steps=3))):
            other = self.trained(device, detects=False, seed=9 + number)
            references[name] = replace(other, test=run.test, train=run.train, train_rows=run.train_rows)
        folder.mkdir(exist_ok=True)
        with torch.no_grad():
            assert measure.prepare(run, references, folder) is None
        return measure

    def numbers(self, run: Trained, folder: Path, device: str = "cpu") -> dict[str, float]:
        """Return the numbers of a fresh measure for a run, with a folder that it has prepared."""
        measure = self.prepared(folder, run, device)
        with torch.no_grad():
            return self.lawful(measure(run, folder))

    def lawful(self, numbers: Mapping[str, float]) -> dict[str, float]:
        unknown = numbers.keys() - self.component()().metrics.keys()
        assert not unknown, f"metrics that it does not declare: {unknown}"
        assert all(type(value) in (float, MetricWithDocuments) for value in numbers.values()), f"not a float: {numbers}"
        assert all(map(math.isfinite, numbers.values())), f"a missing metric is left out, never NaN: {numbers}"
        for name, value in numbers.items():
            if documents := value.documents if isinstance(value, MetricWithDocuments) else ():
                assert all(map(math.isfinite, documents)), f"{name}: contributions are not finite: {documents}"
                away = abs(math.fsum(documents) / len(documents) - value)
                spread = max(documents) - min(documents)
                assert away <= spread + 1e-9, f"{name} is {value}, far from the mean contribution of the documents"
        for name, metric in self.component()().metrics.items():
            if metric.parts and name in numbers:
                assert numbers.keys() >= set(metric.parts), f"{name} is a mean over parts that are missing: {numbers}"
                mean = sum(numbers[part] for part in metric.parts) / len(metric.parts)
                assert numbers[name] == pytest.approx(mean), f"{name} is not the mean of its parts: {numbers}"
        return dict(numbers)

    def test_metrics_are_declared_with_a_summary(self) -> None:
        assert self.component()().metrics
        assert all(isinstance(metric, Metric) and metric.summary for metric in self.component()().metrics.values())
        assert isinstance(self.component()().same_rows, bool)

    def test_parts_of_a_mean_have_one_unit_and_direction(self) -> None:
        metrics = self.component()().metrics
        for name, metric in metrics.items():
            assert metrics.keys() >= set(metric.parts), f"{name} is the mean of metrics that are not declared"
            assert name not in metric.parts
            assert len(set(metric.parts)) == len(metric.parts) != 1
            for part in map(metrics.__getitem__, metric.parts):
                same = (part.higher_is_better, part.unit) == (metric.higher_is_better, metric.unit)
                assert same, f"{name} has another direction or unit than its parts"

    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_gives_finite_numbers_that_it_declares(self, device: str, precision: str, tmp_path: Path) -> None:
        """For a model that detects and one that predicts tokens; for at least one of them it has some."""
        numbers: dict[str, float] = {}
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            for detects in (True, False):
                numbers |= self.numbers(self.trained(device, detects=detects), tmp_path, device)
        assert numbers, "a measure returned no number at all"

    @pytest.mark.parametrize("detects", [True, False])
    def test_equal_weights_give_equal_numbers(self, device: str, detects: bool, tmp_path: Path) -> None:
        """The same run twice, and another run with the same weights, whatever the global generators hold."""
        run = self.trained(device, detects=detects)
        measure = self.prepared(tmp_path, run, device)
        results = []
        for number, same in enumerate((run, run, self.trained(device, detects=detects))):
            reseed(number)
            with torch.no_grad():
                results.append(self.lawful(measure(same, tmp_path)))
        assert results[0] == results[1] == results[2]

    def test_prepares_the_same_bytes_with_any_cell(self, device: str, tmp_path: Path) -> None:
        """The shared folder depends on no cell: neither on its weights nor on its predictions."""
        cells = [*(self.trained(device, seed=seed) for seed in (0, 0, 1)), self.trained(device, detects=False)]
        folders = [tmp_path / str(number) for number in range(len(cells))]
        for number, (cell, folder) in enumerate(zip(cells, folders, strict=True)):
            reseed(number)
            self.prepared(folder, cell, device)
        assert all(contents(folder) == contents(folders[0]) for folder in folders)

    @pytest.mark.parametrize("detects", [True, False])
    def test_leaves_all_as_it_was(self, device: str, detects: bool, tmp_path: Path) -> None:
        """Weights, modes, text, the shared folder and the global generators stay unchanged."""
        run = self.trained(device, detects=detects)
        network: Any = run.model
        weights, text = copy.deepcopy(network.state_dict()), [batch.tokens.clone() for batch in run.test(64)]
        self.numbers(run, tmp_path / "first", device)  # a library may draw while it is imported
        before = generators()
        measure = self.prepared(tmp_path, run, device)
        shared = contents(tmp_path)
        with torch.no_grad():
            measure(run, tmp_path)
        assert generators() == before, "a measure drew from a global generator"
        assert contents(tmp_path) == shared, "a measure wrote into the folder that all cells share"
        assert not any(module.training for module in network.modules()), "a measure put the model into training mode"
        assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())
        after = network.state_dict()
        assert all(torch.equal(after[name], weight) for name, weight in weights.items()), "a measure changed a weight"
        assert all(torch.equal(b.tokens, old) for b, old in zip(run.test(64), text, strict=True))

    @pytest.mark.parametrize("detects", [True, False])
    def test_reads_the_same_rows_of_training_text_for_every_cell(self, detects: bool, tmp_path: Path) -> None:
        """Whichever weights it has; and none that are not there."""
        asked: list[list[int]] = []
        for seed in (0, 1):
            run, rows = self.trained(detects=detects, seed=seed), list[int]()

            def noted(number: int, some: Sequence[int], run: Trained = run, rows: list[int] = rows) -> Any:
                rows.extend(some)
                return run.train(number, some)

            self.numbers(replace(run, train=noted), tmp_path)
            asked.append(rows)
        assert asked[0] == asked[1], "the rows of training text depend on the cell"
        assert set(asked[0]) <= set(range(45)), "a row that is not there"

    @pytest.mark.parametrize("detects", [True, False])
    def test_what_padding_holds_changes_nothing(self, detects: bool, tmp_path: Path) -> None:
        """The lab's networks do not see it, so a difference comes from the measure."""
        clean, dirty = (self.trained(detects=detects, padding=token) for token in (PAD, 7))
        with_pad, with_token = self.numbers(clean, tmp_path / "clean"), self.numbers(dirty, tmp_path / "dirty")
        assert with_pad == pytest.approx(with_token, abs=1e-6)

    @pytest.mark.parametrize("detects", [True, False])
    def test_text_without_ordinary_tokens(self, detects: bool, tmp_path: Path) -> None:
        """There is nothing to evaluate; that is not an error."""
        tokens = torch.tensor([[CLS, SEP, PAD], [CLS, MASK, SEP]])
        rows = as_batch(tokens, tokens != PAD)
        run = self.trained(detects=detects)
        self.numbers(replace(run, test=reader(rows), train=picker(rows), train_rows=len(rows)), tmp_path)

    @pytest.mark.parametrize("detects", [True, False])
    def test_a_model_without_finite_numbers(self, detects: bool, tmp_path: Path) -> None:
        """A run that diverged at its end has fewer metrics, or none; that is not an error."""
        run = self.trained(detects=detects)
        network: Any = run.model
        nn.init.constant_(network.embeddings.tokens.weight, math.nan)
        self.numbers(replace(run, metrics=dict.fromkeys(run.metrics)), tmp_path)
        self.numbers(replace(run, metrics={**run.metrics, "discriminator_loss": math.nan}), tmp_path)
        self.numbers(replace(run, metrics={}), tmp_path)

    @pytest.mark.parametrize("budget", [{"steps": 10}, {"tokens": 1e6}, {"flops": 1e12}], ids=lambda b: next(iter(b)))
    def test_its_references_are_experiments(self, budget: dict[str, float]) -> None:
        """Their sections are valid in place of the base's, the same each time; the base is left as it was."""
        base = self.experiment(**budget)
        copied = copy.deepcopy(base)
        references = self.component()().references(copied)
        assert copied == base, "a measure changed the base"
        assert references == self.component()().references(copied)
        configs = []
        for name, sections in references.items():
            assert re.fullmatch(r"[a-z0-9_.]+", name), f"not a short name: {name!r}"
            assert sections.keys() <= base.keys()
            config = validated(parse(json.dumps({**base, **sections}), "law", Path.cwd(), one_line=True)).config
            filled = config.model_dump(mode="json")
            if self.component()().same_rows:
                assert all(filled[key] == base[key] for key in ("corpus", "tokenizer", "data")), "it reads other rows"
            assert filled not in configs, f"{name} is the same experiment as another reference"
            configs.append(filled)


def reader(text: Batch) -> Callable[[int], Iterator[Batch]]:
    """Return a reader of the text, some rows at a time; the last batch may be smaller."""
    return lambda number: (text[start : start + number] for start in range(0, len(text), number))


def picker(text: Batch) -> Callable[[int, Sequence[int]], Iterator[Batch]]:
    """Return a reader of some rows of the text."""

    def picked(rows: Sequence[int]) -> Batch:
        return text[torch.tensor(rows, dtype=torch.int64)]  # type: ignore[index]

    return lambda number, rows: (picked(rows[start : start + number]) for start in range(0, len(rows), number))


def reseed(number: int) -> None:
    """Change the state of the global generators."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def generators() -> Any:
    """Return the state of torch's, numpy's and Python's global generators, to compare."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    torchs, numpys = [torch.get_rng_state(), *cuda], np.random.get_state(legacy=False)["state"]
    return [state.tolist() for state in torchs], numpys["key"].tolist(), numpys["pos"], random.getstate()
