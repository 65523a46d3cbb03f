"""Numbers that change during training: their progress, and components that take them as tensors."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from electra_lab.checks.guards import checked
from electra_lab.testing import vocabulary
from electra_lab.training.random import Streams
from electra_lab.training.scheduled import Configured, FixedSlots, Number, Schedules
from registry import Masked, masking_strategies, samplers
from registry.errors import BadResult


def test_the_first_step_has_the_start_the_last_the_end_and_evaluation_always_the_end() -> None:
    got: list[float] = []
    scheduled = Schedules([Number(lambda progress: 10 * progress, lambda number: got.append(float(number)))], steps=5)
    for step in range(5):
        scheduled.at_step(step)
    assert got == [0.0, 2.5, 5.0, 7.5, 10.0]
    scheduled.at_step(1)
    scheduled.at_end()
    scheduled.at_step(1)
    assert got[5:] == [2.5, 10.0, 2.5]
    scheduled.at_step(9)  # a step after the last has the final value
    assert got[-1] == 10.0
    schedules = Schedules([Number(lambda progress: progress, lambda number: got.append(float(number)))], steps=1)
    schedules.at_step(0)
    assert got[-1] == 0.0


def test_every_number_is_put_in_double_precision() -> None:
    got: dict[str, Tensor] = {}
    numbers = [Number(lambda p, k=k: (k + 1) / 3 + p * 0, partial(got.__setitem__, str(k))) for k in range(3)]
    Schedules(numbers, 2).at_step(0)
    assert [(float(t), t.dtype, t.dim()) for t in got.values()] == [(k / 3, torch.float64, 0) for k in (1, 2, 3)]


def test_numbers_arrive_as_tensors_and_compiled_code_is_compiled_once() -> None:
    held: dict[str, Any] = {}
    scheduled = Schedules([Number(lambda progress: 1 + progress, partial(held.__setitem__, "heat"))], steps=4)

    compiled = torch.compile(lambda x: x / held["heat"], backend="eager", fullgraph=True)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(4):
            scheduled.at_step(step)
            assert isinstance(held["heat"], Tensor)
            assert float(compiled(torch.tensor(6.0))) == pytest.approx(6 / (1 + step / 3))


def masked(now: float, largest: float) -> Any:
    component = FixedSlots(masking_strategies.get("replace_prob"), largest, mask_prob=now, replace_prob=1.0)
    tokens = torch.full((64, 40), 7)
    return component(
        tokens, torch.ones_like(tokens, dtype=torch.bool), vocabulary(20), Streams.of(0, 0, torch.arange(64))("m")
    )


def test_a_changing_mask_prob_keeps_the_shapes_and_the_law() -> None:
    """Slots suffice for the largest mask_prob; exactly count(mask_prob) are valid, at distinct positions."""
    for now, number in ((0.1, 4), (0.3, 12), (0.5, 20), (0.6, 20)):
        found = masked(torch.tensor(now, dtype=torch.float64), 0.5)
        assert found.positions.shape == found.valid.shape == (64, 20)
        assert found.valid.sum(1).tolist() == [number] * 64
        chosen = [len(set(row[keep].tolist())) for row, keep in zip(found.positions, found.valid, strict=True)]
        assert chosen == [number] * 64
        assert int((found.inputs != 7).sum()) == 64 * number


@pytest.mark.parametrize("name", masking_strategies.names())
def test_a_changing_mask_prob_is_compiled_once_into_one_graph(name: str) -> None:
    entry = masking_strategies.get(name)
    component = FixedSlots(entry, 0.5, mask_prob=0.5, replace_prob=0.7, random_prob=0.1)
    tokens, words = torch.arange(5, 53).view(4, 12) % 50, vocabulary(50)
    maskable = ~words.is_special[tokens]

    def numbers() -> Any:
        return Streams.of(0, 0, torch.arange(4))("masking")

    torch._dynamo.reset()
    compiled = torch.compile(component, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for now in (0.5, 0.3, 0.1):
            component.options["mask_prob"] = torch.tensor(now, dtype=torch.float64)
            found = compiled(tokens, maskable, words, numbers())
            expected = entry.component(
                tokens, maskable, words, numbers(), mask_prob=now, replace_prob=0.7, random_prob=0.1
            )
            assert found.positions.shape == (4, 6)
            assert torch.equal(found.inputs, expected.inputs)
            assert int(found.valid.sum()) == int(expected.valid.sum()) > 0


def test_slots_that_count_must_not_come_after_the_last_one() -> None:
    def late(*arguments: Any, **options: Any) -> Masked:
        found: Masked = masking_strategies.get("replace_prob").component(*arguments, **options)
        return Masked(found.inputs, found.positions.flip(1), found.valid.flip(1))

    entry = replace(masking_strategies.get("replace_prob"), component=late)
    component = FixedSlots(entry, 0.5, mask_prob=torch.tensor(0.2, dtype=torch.float64))
    tokens = torch.full((2, 10), 7)
    with pytest.raises(BadResult, match="slots after the first 5 "), checked([component]):
        component(tokens, tokens == 7, vocabulary(20), Streams.of(0, 0, torch.arange(2))("m"))


def numbers_of(name: str) -> list[str]:
    fields = samplers.get(name).schema.model_fields
    return [key for key, field in fields.items() if field.annotation is float]


@pytest.mark.parametrize("name", [name for name in samplers.names() if numbers_of(name)])
def test_every_number_of_a_sampler_is_compiled_once(name: str) -> None:
    numbers, entry, logits = numbers_of(name), samplers.get(name), torch.randn(8, 20)
    component = Configured(entry)

    def at(step: int) -> Any:
        return Streams.of(0, step, torch.arange(8))("sampling")

    torch._dynamo.reset()
    compiled = torch.compile(component, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step, now in enumerate((0.5, 0.3, 0.1)):
            for key in numbers:
                component.options[key] = torch.tensor(now, dtype=torch.float64)
            expected = entry.component(logits, at(step), **dict.fromkeys(component.options, now))
            assert torch.equal(compiled(logits, at(step)), expected)
