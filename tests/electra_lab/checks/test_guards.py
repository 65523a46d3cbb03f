"""A component that breaks its contract is refused with its name and line; a correct one passes untouched."""

import re
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.checks.guards import checked, refuse_backbone, refuse_losses
from electra_lab.planning.memory import shapes_only
from electra_lab.testing import CLS, MASK, PAD, vocabulary
from electra_lab.training.random import Streams
from electra_lab.training.scheduled import Configured, FixedSlots
from registry import (
    Backbone,
    Batch,
    Choice,
    Detection,
    Losses,
    Masked,
    Prediction,
    Term,
    backbones,
    masking_strategies,
    objectives,
    samplers,
)
from registry.errors import BadResult

WORDS = vocabulary(20)
LOGITS = torch.randn(6, 20, generator=torch.Generator().manual_seed(0)).masked_fill(WORDS.is_special, float("-inf"))
TOKENS = torch.tensor([[CLS, 7, 8, 9, PAD], [CLS, 5, 6, PAD, PAD]])
MASKABLE = TOKENS > MASK
GUMBEL, REPLACE = samplers.get("gumbel"), masking_strategies.get("replace_prob")


def spoiled(value: Any, **fields: Any) -> Any:
    """Return a copy that breaks the contract, as a plug-in may; a new instance would be checked during construction."""
    made = copy(value)
    for name, field in fields.items():
        object.__setattr__(made, name, field)
    return made


def rng(rows: int) -> Any:
    return Streams.of(0, 0, torch.arange(rows))("test")


def called(component: Configured, *arguments: Any) -> Any:
    """Call a component as the rehearsal does."""
    with checked([component]):
        return component(*arguments)


def sampled(component: Callable[..., Any], logits: Tensor = LOGITS) -> Tensor:
    drawn: Tensor = called(Configured(replace(GUMBEL, component=component)), logits, rng(len(logits)))
    return drawn


def refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(BadResult) as refusal:
        call(*arguments, **options)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("component", "reason"),
    [
        (lambda logits, _: None, "returned a NoneType as tokens, must be a tensor."),
        (lambda logits, _: logits.argmax(-1).int(), "returned tokens [6] of torch.int32, must be [6] of torch.int64."),
        (lambda logits, _: logits.argmax(-1)[1:], "returned tokens [5] of torch.int64, must be [6] of torch.int64."),
        (lambda logits, _: torch.full((6,), 20), "drew the id 20; ids are 0 to 19."),
        (lambda logits, _: torch.full((6,), -1), "drew the id -1; ids are 0 to 19."),
        (lambda logits, _: torch.full((6,), MASK), "drew the id 4, whose logit is -inf: special tokens must never"),
    ],
)
def test_a_sampler_that_breaks_its_contract(component: Callable[..., Any], reason: str) -> None:
    assert re.search(rf"samplers/gumbel\.py:\d+: sampler 'gumbel' {re.escape(reason)}", refused(sampled, component))


def test_what_is_given_must_be_left_as_it_is() -> None:
    def doubles(given: Tensor, _: Any) -> Tensor:
        return given.mul_(2).argmax(-1)

    def spoils(tokens: Tensor, maskable: Tensor, *_: Any, **__: Any) -> Any:
        maskable.logical_not_()

    assert "sampler 'gumbel' changed logits in place" in refused(sampled, doubles, LOGITS.clone())
    masking = FixedSlots(replace(REPLACE, component=spoils), mask_prob=0.5)
    said = refused(called, masking, TOKENS.clone(), MASKABLE.clone(), WORDS, rng(2))
    assert "masking strategy 'replace_prob' changed maskable in place" in said


def test_options_reach_the_component() -> None:
    given: list[dict[str, Any]] = []

    def draws(logits: Tensor, _: Any, **options: Any) -> Tensor:
        given.append(options)
        return logits.argmax(-1)

    def masks(*arguments: Any, **options: Any) -> Any:
        given.append(options)
        return REPLACE.component(*arguments, **options)

    called(Configured(replace(GUMBEL, component=draws), temperature=0.5, k=3), LOGITS, rng(6))
    shares = {"mask_prob": 0.5, "replace_prob": 0.25, "random_prob": 0.125}
    called(FixedSlots(replace(REPLACE, component=masks), **shares), TOKENS, MASKABLE, WORDS, rng(2))
    assert given == [{"temperature": 0.5, "k": 3}, shares]


def test_a_good_sampler_passes_untouched_and_diverged_logits_are_not_its_fault() -> None:
    assert torch.equal(sampled(GUMBEL.component), GUMBEL.component(LOGITS, rng(6)))
    assert sampled(lambda logits, _: torch.zeros(6, dtype=torch.int64), LOGITS * float("nan")).tolist() == [0] * 6
    assert sampled(GUMBEL.component, LOGITS[:0]).shape == (0,)


def without_mask(masked: Masked, other: int) -> Masked:
    return spoiled(masked, inputs=masked.inputs.masked_fill(masked.inputs == MASK, other))


def test_a_component_is_checked_in_the_rehearsal_alone() -> None:
    """After it, and after a refusal, the objective calls the component itself."""
    sampler = Configured(replace(GUMBEL, component=lambda logits, _: torch.full((len(logits),), MASK)))
    masking = FixedSlots(replace(REPLACE, component=lambda *_, **__: None), mask_prob=0.5)
    with pytest.raises(BadResult, match="drew the id 4"), checked([masking, sampler]):
        sampler(LOGITS, rng(6))
    assert sampler(LOGITS, rng(6)).tolist() == [MASK] * 6
    assert masking.function is masking.entry.component


def test_results_without_values_are_checked_by_their_shapes() -> None:
    drawn = torch.full((6,), MASK)
    sampler = Configured(
        replace(GUMBEL, component=lambda logits, _: drawn if type(logits) is Tensor else logits[:, 0].long())
    )
    with shapes_only():
        assert called(sampler, torch.zeros(6, 20), rng(6)).shape == (6,)
        assert "must be" in refused(sampled, lambda logits, _: logits, torch.zeros(6, 20))
    assert "drew the id 4" in refused(called, sampler, LOGITS, rng(6))


def masked(change: Callable[[Masked], Any]) -> Masked:
    def component(*arguments: Any, mask_prob: float) -> Any:
        return change(REPLACE.component(*arguments, mask_prob=mask_prob, replace_prob=1.0, random_prob=0.0))

    chosen: Masked = called(
        FixedSlots(replace(REPLACE, component=component), mask_prob=0.5), TOKENS, MASKABLE, WORDS, rng(2)
    )
    return chosen


def at(tensor: Tensor, row: int, column: int, value: int) -> Tensor:
    changed = tensor.clone()
    changed[row, column] = value
    return changed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: (m.inputs, m.positions), "returned a tuple, must be a registry.Masked."),
        (lambda m: spoiled(m, inputs=m.inputs[:, :-1]), "returned inputs [2, 4] of torch.int64, must be [2, 5]"),
        (lambda m: spoiled(m, inputs=m.inputs.float()), "returned inputs [2, 5] of torch.float32, must be [2, 5]"),
        (lambda m: spoiled(m, positions=m.positions[0]), "returned positions [3] of torch.int64, must be [2, 3]"),
        (lambda m: spoiled(m, positions=None), "returned a NoneType as positions, must be a tensor."),
        (lambda m: spoiled(m, valid=m.valid.long()), "returned valid [2, 3] of torch.int64, must be [2, 3] of torch.b"),
        (lambda m: spoiled(m, positions=at(m.positions, 1, 2, 5)), "returned positions outside 0 to 4"),
        (lambda m: spoiled(m, positions=at(m.positions, 1, 2, -1)), "returned positions outside 0 to 4"),
        (lambda m: spoiled(m, positions=m.positions[:, :1].expand(2, 3)), "chose a position twice in one row."),
        (lambda m: spoiled(m, positions=at(m.positions, 0, 0, 0)), "chose a token that may not be masked (padding or"),
        (lambda m: spoiled(m, inputs=at(m.inputs, 1, 4, 9)), "changed inputs at a position that it did not choose."),
        (lambda m: without_mask(m, CLS), "put a special token other than [MASK]"),
        (lambda m: spoiled(m, inputs=TOKENS, valid=m.valid & False), "chose nothing in a row that has tokens to"),
        (lambda m: spoiled(m, positions=m.positions.repeat(1, 2), valid=m.valid.repeat(1, 2)), "returned 6 slots"),
        (lambda m: without_mask(m, 20), "put an id outside 0 to 19 into in"),
        (lambda m: without_mask(m, -1), "put an id outside 0 to 19 into in"),
    ],
)  # fmt: skip
def test_a_masking_strategy_that_breaks_its_contract(change: Callable[[Masked], Any], reason: str) -> None:
    pattern = rf"masking/replace_prob\.py:\d+: masking strategy 'replace_prob' {re.escape(reason)}"
    assert re.search(pattern, refused(masked, change))


def test_a_good_masking_strategy_passes_untouched() -> None:
    assert masked(lambda m: m).valid.sum() == 2 + 1


class Good(Backbone, nn.Module):
    layers, positions = (), "own"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"length_multiple": 0}, "has the length_multiple 0, must be an integer above 0."),
        ({"length_multiple": True}, "has the length_multiple True, must be"),
        ({"at_step": lambda self, step: None},
         "cannot be called as at_step(seed, step): too many positional arguments."),
        ({"forward": lambda self, x: x},
         "cannot be called as forward(x, attention_mask): too many positional arguments."),
        ({"separates_documents": True},
         "cannot be called as forward(x, attention_mask, documents): too many positional arguments."),
        ({"inner_states": True},
         "cannot be called as forward(x, attention_mask, depths, detach): got an unexpected keyword argument"),
        ({"flops": lambda self: 1}, "cannot be called as flops(length): too many positional arguments."),
        ({"flops": lambda self, length: 1.5}, "returned 1.5 from flops(1), must be an integer."),
        ({"shared_flops": lambda self: 1}, "cannot be called as shared_flops(length): too many positional arguments."),
        ({"shared_flops": lambda self, length: 1.5}, "returned 1.5 from shared_flops(1), must be an integer."),
        ({"parameters": lambda self: iter(())}, "has no parameters: there is nothing to train."),
        ({"positions": "learned"}, "has the positions 'learned', must be 'lab' or 'own'."),
        ({"positions": "lab", "bare_embeddings": True}, "takes bare embeddings, so its positions must be 'own'."),
        ({"bare_embeddings": True}, "takes bare embeddings, so it must have an nn.Dropout `embedding_dropout`."),
    ],
)  # fmt: skip
def test_a_backbone_without_what_the_lab_reads(members: dict[str, Any], reason: str) -> None:
    entry = backbones.get("bert")
    refuse_backbone(Good(), entry)
    said = refused(refuse_backbone, type("Bad", (Good,), members)(), entry)
    assert re.search(rf"bert\.py:\d+: backbone 'bert' {re.escape(reason)}", said)


def test_a_backbone_that_lacks_members_or_is_not_a_module() -> None:
    class Bare(Backbone, nn.Module):
        pass

    assert "has no layers; see" in refused(refuse_backbone, Bare(), backbones.get("bert"))
    for other in (nn.Linear(1, 1), Backbone(), object()):
        said = refused(refuse_backbone, other, backbones.get("bert"))
        assert "must be a class derived from registry.Backbone and torch.nn.Module" in said


BATCH = Batch(TOKENS, TOKENS > PAD, TOKENS * 0, torch.arange(2))
SLOTS = torch.zeros(2, 3, dtype=torch.long)
ASKED = Prediction(SLOTS, SLOTS > 0, SLOTS > 0, SLOTS.float(), SLOTS > 0)
SEEN = Detection(TOKENS, TOKENS > 7, TOKENS.float())
PICKED = Choice(SLOTS, SLOTS > 0, SLOTS.unsqueeze(-1), torch.zeros(2, 3, 2), SLOTS)  # one candidate, or none
TERM = Term(torch.tensor(1.0), torch.tensor(1), 1.0)


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        (torch.tensor(1.0), "returned a Tensor, must be a registry.Losses."),
        (Losses({"a": (1.0, 1)}), "returned 'a', which is not a registry.Term of a scalar sum and a scalar count."),
        (Losses({"a": spoiled(TERM, sum=torch.ones(2))}), "returned 'a', which is not"),
        (Losses({"a": spoiled(TERM, sum=torch.tensor(1))}), "returned 'a', which is not"),
        (Losses({"a": spoiled(TERM, count=torch.ones(1))}), "returned 'a', which is not"),
        (Losses({"a": spoiled(TERM, weight="1")}), "returned 'a' with the weight '1', must be a number."),
        (Losses({"a": TERM}, {"mine": ASKED}), "returned a prediction of 'mine', must be of 'generator' or"),
        (Losses({"a": TERM}, {"generator": spoiled(ASKED, positions=SLOTS[0])}), "returned a prediction whose posit"),
        (Losses({"a": TERM}, {"generator": spoiled(ASKED, loss=SLOTS.float()[:, :2])}),
         "returned a prediction with a loss"),
        (Losses({"a": TERM}, {"generator": spoiled(ASKED, valid=SLOTS.float())}), "returned a prediction with a v"),
        (Losses({"a": TERM}, {}, spoiled(SEEN, logits=TOKENS.float()[:, :-1])), "returned a detection with a log"),
        (Losses({"a": TERM}, {}, spoiled(SEEN, replaced=None)), "returned a detection with a replaced that is not"),
        (Losses({"a": TERM}, choice=spoiled(PICKED, positions=None)), "returned a choice with a positions that is not"),
        (Losses({"a": TERM}, choice=spoiled(PICKED, candidates=SLOTS)), "returned a choice with a candidates that is"),
        (Losses({"a": TERM}, choice=spoiled(PICKED, logits=torch.zeros(2, 3, 3))), "returned a choice with a logits"),
        (Losses({"a": TERM}, choice=spoiled(PICKED, answer=SLOTS[:, :2])), "returned a choice with a answer that is"),
        (Losses({"b": TERM}), "returned the terms ['b'], but its counts() has ['a']."),
        (Losses({}), "returned the terms [], but its counts() has ['a']."),
    ],
)  # fmt: skip
def test_an_objective_that_breaks_its_contract(losses: Any, reason: str) -> None:
    given = ({"a": TERM.count}, objectives.get("electra"), BATCH)
    refuse_losses(Losses({"a": TERM}, choice=PICKED), *given)
    said = refused(refuse_losses, losses, *given)
    assert re.search(rf"electra\.py:\d+: objective 'electra' {re.escape(reason)}", said)
