"""The ELECTRA loss against a plain computation, and against electra-pytorch where it is correct."""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.testing import CLS, MASK, PAD, SEP, vocabulary
from electra_lab.training.random import Streams
from registry import Batch, Masked, objectives, samplers
from tests.electra_lab.objectives.tiny import Fixed, Says, Table, berts, gradients, sentences, total
from tests.helpers import peer

SIZE, AT = 30, [2, 7, 11]  # places that are masked in each of six rows
DRAWN = torch.randint(5, SIZE, (18,), generator=torch.Generator().manual_seed(2)).tolist()


def electra(tie: Any = "tokens", masking: Any = None, sampler: Any = None, **options: Any) -> Any:
    return berts("electra", tie, masking, sampler, **options)


class Wrapped(nn.Module):
    def __init__(self, network: Any, given: Batch, *, tokens: bool) -> None:
        super().__init__()
        self.network, self.given, self.tokens = network, given, tokens

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.network.hidden(tokens, self.given.attention_mask, self.given.segments)
        if not self.tokens:
            return self.network.replaced_logits(hidden)
        return self.network.token_logits(hidden, torch.arange(20).expand(6, -1))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("tie", ["none", "tokens", "embeddings"])
def test_loss_and_gradients_are_those_of_electra_pytorch(monkeypatch, tie: str, dtype, tolerance: float) -> None:
    """With the same masks and samples. (Its own masks and samples are wrong.)"""
    electra_seed = peer("electra_pytorch.electra_pytorch")
    given, mask = sentences(), torch.zeros(6, 20, dtype=torch.bool)
    mask[:, AT] = True
    ours = electra(tie, Fixed(*AT), Says(*DRAWN)).to(dtype).train()
    monkeypatch.setattr(electra_seed, "get_mask_subset_with_prob", lambda *_: mask)
    monkeypatch.setattr(electra_seed, "gumbel_sample", lambda *_, **__: torch.tensor(DRAWN))
    # Its labels are float32 always, which costs a float64 comparison half of its digits.
    exact = SimpleNamespace(
        cross_entropy=F.cross_entropy,
        binary_cross_entropy_with_logits=lambda x, y: F.binary_cross_entropy_with_logits(x, y.to(x.dtype)),
    )
    monkeypatch.setattr(electra_seed, "F", exact)
    theirs = electra_seed.Electra(
        Wrapped(ours.generator, given, tokens=True),
        Wrapped(ours.discriminator, given, tokens=False),
        num_tokens=SIZE, mask_token_id=MASK, pad_token_id=PAD, mask_ignore_token_ids=[CLS, SEP], replace_prob=1.1,
    )  # fmt: skip

    loss, expected = total(ours(given, Streams.of(0, 0, given.example_ids))), theirs(given.tokens).loss
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    found, wanted = gradients(ours, loss), gradients(ours, expected)
    assert found.keys() == wanted.keys() == {name for name, _ in ours.named_parameters()}
    # A key's bias has no effect on attention, so its gradient is only rounding; it is compared with the whole gradient.
    whole = torch.stack([g.norm() for g in wanted.values()]).norm()
    for name in found:
        size = whole if name.endswith("key.bias") else wanted[name].norm()
        assert (found[name] - wanted[name]).norm() <= tolerance * size, name


def test_both_networks_are_told_the_segments() -> None:
    given, objective = sentences(), electra("none", Fixed(*AT), Says(*DRAWN))
    second = Batch(given.tokens, given.attention_mask, torch.ones_like(given.tokens), given.example_ids)
    plain, told = (objective(batch, Streams.of(0, 0, batch.example_ids)).terms for batch in (given, second))
    assert [name for name in plain if plain[name].sum != told[name].sum] == ["generator", "discriminator"]


def test_ids_that_differ_by_two_to_the_sixteenth_are_different_tokens() -> None:
    """In the labels, in the input of the discriminator, and where the generator is right."""
    size = 65_536 + 20
    component, words = objectives.get("electra").component, vocabulary(size)
    table = Table(3, size=size)
    table.guesses.data[1, 65_536 + 7] = 1e3
    objective = component(table, table, Fixed(1), Says(65_536 + 7), words).eval()
    tokens = torch.tensor([[CLS, 7, SEP], [CLS, 65_536 + 7, SEP]])
    losses = objective(Batch(tokens, tokens > 0, tokens * 0, torch.arange(2)), Streams.of(0, 0, torch.arange(2)))
    assert losses.detection.inputs[:, 1].tolist() == [65_536 + 7] * 2
    assert losses.detection.replaced[:, 1].tolist() == [True, False]
    assert losses.predictions["generator"].correct[:, 0].tolist() == [False, True]


def test_weights_that_are_set_are_those_of_the_terms() -> None:
    terms = electra(generator_weight=0.5, discriminator_weight=7.0)(
        sentences(), Streams.of(0, 0, torch.arange(6))
    ).terms
    assert {name: term.weight for name, term in terms.items()} == {"generator": 0.5, "discriminator": 7.0}


@pytest.mark.parametrize("autocast", [True, False])
def test_losses_are_computed_in_float32_whatever_networks_return(autocast: bool) -> None:
    given, objective = sentences(), electra().eval().to(torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        losses = objective(given, Streams.of(0, 0, given.example_ids))
    found = losses.predictions["generator"].loss, losses.detection.logits, *(term.sum for term in losses.terms.values())
    assert {tensor.dtype for tensor in found} == {torch.float32}


def test_what_metrics_are_told_of_the_generator() -> None:
    """saw_mask: it read [MASK]. correct: its most likely token, not the drawn one, is the original."""
    given, objective = sentences(), electra().eval()
    shown: list[Masked] = []
    strategy = objective.masking
    objective.masking = lambda *arguments: shown.append(strategy(*arguments, mask_prob=1.0)) or shown[-1]
    asked = objective(given, Streams.of(0, 0, given.example_ids)).predictions["generator"]
    inputs = shown[0].inputs
    assert torch.equal(asked.saw_mask, inputs.gather(1, asked.positions) == MASK)
    hidden = objective.generator.hidden(inputs, given.attention_mask, given.segments)
    likely = objective.generator.token_logits(hidden, asked.positions).argmax(-1)
    assert torch.equal(asked.correct, likely == given.tokens.gather(1, asked.positions))
    assert asked.correct.any()
    assert asked.saw_mask[asked.valid].float().mean() == pytest.approx(0.85, abs=0.1)


def test_training_and_evaluation_give_the_same_terms() -> None:
    given, objective = sentences(), electra()
    trained = objective.train()(given, Streams.of(0, 0, given.example_ids))
    evaluated = objective.eval()(given, Streams.of(0, 0, given.example_ids))
    assert trained.detection is None
    for name in trained.terms:
        assert torch.equal(evaluated.terms[name].sum, trained.terms[name].sum)


class Wide(TorchDispatchMode):
    """Track tensors as wide as the vocabulary until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function.is_view:  # such as the transposed table
            return made
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor) and tensor.dim() > 1 and tensor.shape[-1] == SIZE:
                self.alive.add(tensor.untyped_storage())
        return made


@pytest.mark.parametrize("sampler", ["gumbel", "temperature", "top_k"])
def test_only_the_softmax_waits_for_the_discriminator(sampler: str) -> None:
    """Logits, noise and other tensors of samplers, the largest of a step, have been freed by then."""
    objective = electra(sampler=samplers.get(sampler).component).train()
    given, found = sentences(), list[int]()
    with Wide() as wide:
        objective.discriminator.backbone.register_forward_pre_hook(lambda *_: found.append(len(wide.alive)))
        objective(given, Streams.of(0, 0, given.example_ids))
    assert found == [1]
