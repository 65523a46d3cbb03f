"""Common parts of objectives: losses of masked tokens, inputs of samplers and networks, options, narrow types."""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from electra_lab.model.network import Network
from electra_lab.objectives._shared import Base, Corrupting, MaskedPrediction, cross_entropy, draw, predict_masked
from electra_lab.testing import CLS, MASK, PAD, SEP, ObjectiveContract, vocabulary
from electra_lab.testing.common import as_batch
from electra_lab.training.device import recompute
from electra_lab.training.random import Streams
from electra_lab.training.step import Learner
from electra_lab.training.step import gradients as step_gradients
from registry import Masked, backbones, load_plugin, objectives
from tests.electra_lab.objectives import tiny
from tests.electra_lab.objectives.tiny import Fixed, Says, tables


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_sampler_is_given_float32_without_autocast_and_gradients(dtype: torch.dtype) -> None:
    words, given = vocabulary(12), []

    def sampler(logits: torch.Tensor, rng: Any) -> torch.Tensor:
        given.append((logits.dtype, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), tuple(logits.shape)))
        assert torch.equal(logits == -math.inf, words.is_special.expand_as(logits))
        return logits.argmax(-1)

    logits = torch.randn(2, 3, 12, dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        drawn = draw(sampler, logits, words, rng=None)
    assert given == [(torch.float32, False, False, (6, 12))]
    assert torch.equal(drawn, logits.float().masked_fill(words.is_special, -math.inf).argmax(-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothing_is_that_of_torch_and_may_be_a_tensor(dtype: torch.dtype, smoothing: float) -> None:
    """With its gradient, over a whole vocabulary, for logits as large as they become."""
    logits = (20 * torch.randn(2, 3, 30_522, generator=torch.Generator().manual_seed(0), dtype=dtype)).requires_grad_()
    originals = torch.randint(30_522, (2, 3), generator=torch.Generator().manual_seed(1))
    flat, targets = logits.flatten(0, 1), originals.flatten()
    expected = F.cross_entropy(flat, targets, reduction="none", label_smoothing=smoothing).view(2, 3)
    masked = Masked(originals, torch.arange(3).expand(2, 3), torch.ones(2, 3, dtype=torch.bool))
    [slope] = torch.autograd.grad(expected.sum(), logits)
    for given in (smoothing, torch.tensor(smoothing, dtype=torch.float64)):
        guess = MaskedPrediction(masked, originals, torch.zeros(2, 3, 1), logits, cross_entropy(logits, originals))
        found = guess.losses(given)
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), logits)[0], slope, rtol=1e-4, atol=1e-8)


NAMES = ["amos", "electra_correct", "electric", "mc_bert", "sas", "teams"]


def made(name: str, **options: Any) -> Any:
    towers = partial(backbones.get("two_towers").component, dropout=0.0) if name == "electric" else None
    return tiny.berts(name, depth=2, build=towers, sampler=lambda logits, _: logits.argmax(-1), **options).train()


@pytest.mark.slow  # losses: tests/.../assembly/test_schedules.py; gradients of electra: tests/.../training
@pytest.mark.parametrize("name", NAMES)
def test_compiled_in_one_graph_it_has_the_same_gradients(name: str) -> None:
    """The generator's layers are recomputed in the backward pass."""
    objective, text = made(name), tiny.sentences()
    expected = tiny.gradients(objective, tiny.total(objective(text, tiny.streams(text))))
    if objective.generator is not None:
        recompute(objective.generator.backbone.layers)
    torch._dynamo.reset()
    compiled = torch.compile(objective, backend="aot_eager", fullgraph=True)
    found = tiny.gradients(objective, tiny.total(compiled(text, tiny.streams(text))))
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-6, msg=parameter)


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in NAMES), ("coco_lm", {"group": 3}), ("electra_correct", {"correction": "copy"})],
)
def test_in_bf16_it_is_the_same_within_bounds(name: str, options: dict[str, Any]) -> None:
    """Losses of the same replacements agree to 0.5 %, as a candidate may differ; of amos to 3 %, as draws may."""
    objective, text = made(name, **options), tiny.sentences()
    whole = objective(text, tiny.streams(text))
    with torch.autocast("cpu", torch.bfloat16):
        narrow = objective(text, tiny.streams(text))
    bound = 0.03 if name in ("amos", "coco_lm", "sas") else 0.005
    for term, exact in whole.terms.items():
        assert narrow.terms[term].sum.dtype == torch.float32
        torch.testing.assert_close(narrow.terms[term].sum, exact.sum, rtol=bound, atol=0.0)
    assert all(gradient.isfinite().all() for gradient in tiny.gradients(objective, tiny.total(narrow)).values())


@pytest.mark.parametrize("name", sorted({*objectives.names()} - {"coco_lm"}))  # which refuses separated documents
def test_both_networks_are_told_the_documents(name: str) -> None:
    """They are padded with a separate document; without documents, None is passed."""
    objective, batch = tiny.berts(name, depth=2, **tiny.REQUIRED.get(name, {})).eval(), tiny.sentences(4, 18, 3)
    told: dict[nn.Module, list[torch.Tensor | None]] = {}
    for network in [module for module in objective.modules() if isinstance(module, Network)]:
        network.length_multiple = 4
        network.backbone.register_forward_pre_hook(
            lambda encoder, given: told.setdefault(encoder, []).append(given[2] if len(given) > 2 else None)
        )
    # Two documents in each row, with different boundaries
    documents = (torch.arange(18) >= 5 + torch.arange(4).unsqueeze(1)).long()
    for ids in (documents, None):
        objective(replace(batch, attention_document_ids=ids), tiny.streams(batch))
    expected = nn.functional.pad(documents, (0, 2), value=-1)
    assert told
    for given in told.values():
        passes = len(given) // 2  # some objectives have several per batch
        assert given[passes:] == [None] * passes
        assert all(ids is not None and torch.equal(ids, expected) for ids in given[:passes])


@pytest.mark.parametrize("name", sorted({*objectives.names()} - {"coco_lm"}))
def test_what_it_makes_of_a_document_does_not_depend_on_the_others_in_the_row(name: str) -> None:
    """Its losses may, as they are sums; also a head that attends reads the documents."""
    objective, batch = tiny.berts(name, depth=2, **tiny.REQUIRED.get(name, {})).eval(), tiny.sentences(4, 18, 3)
    documents = (torch.arange(18) >= 7).long().expand(4, -1)
    other = torch.where((documents == 1) & (batch.tokens > SEP), 34 - batch.tokens, batch.tokens)
    found = []
    for tokens in (batch.tokens, other):
        losses = objective(replace(batch, tokens=tokens, attention_document_ids=documents), tiny.streams(batch))
        found.append([asked.loss[asked.valid & (asked.positions < 7)] for asked in losses.predictions.values()])
        found[-1] += [losses.detection.logits[:, :7]] if losses.detection else []
    assert found[0]
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("name", sorted({*objectives.names()} - {"all_tokens_mlm", "electric", "mc_bert"}))
def test_b16_vocabulary_logits_exist_at_the_masked_positions_alone(name: str) -> None:
    """Also with exits, and with layers above a branch."""
    suite, shapes = ObjectiveContract(), list[tuple[int, ...]]()
    suite.name, suite.options, suite.depths = name, tiny.REQUIRED.get(name, {}), (4, 2)
    objective = suite.build().train()
    for part in objective.modules():
        if type(part).__name__ == "TokenHead":
            part.register_forward_hook(lambda _, __, logits: shapes.append(tuple(logits.shape)))
    batch = as_batch(torch.randint(5, suite.size, (4, 20), generator=torch.Generator().manual_seed(0)))
    objective(batch, Streams.of(0, 0, batch.example_ids))
    assert set(shapes) == {(4, math.ceil(0.15 * 20), suite.size)}


DRAWING = [
    "electra", "electra_correct", "electra_masked_only", "replace_mlm", "all_tokens_mlm", "two_stage",
    "frozen_generator",
]  # fmt: skip


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize("disallow_correct", [True, False])
def test_disallow_correct_takes_the_original_out_of_the_softmax(name: str, disallow_correct: bool) -> None:
    """The sampler gets the softmax over ordinary tokens, without the original and renormalised."""
    sampler, batch = tiny.Says(5, 6), tiny.rows(CLS, 7, 8, 9, SEP, number=3)
    objective = tiny.tables(
        name, tiny.Fixed(1, 3), sampler, 5, disallow_correct=disallow_correct, **tiny.REQUIRED.get(name, {})
    )
    objective(batch, tiny.streams(batch))
    for slot, (position, original) in enumerate([(1, 7), (3, 9)]):
        expected = objective.generator.guesses[position].detach().exp()
        expected[[PAD, CLS, SEP, MASK]] = 0
        if disallow_correct:
            expected[original] = 0
        seen = sampler.logits[slot::2].double().softmax(-1)
        torch.testing.assert_close(seen, (expected / expected.sum()).expand(3, -1), rtol=1e-5, atol=0)


OTHER_VALUES: dict[str, Any] = {  # of options that objectives inherit
    "correction": "copy", "correction_weight": 3.0, "disallow_correct": True, "discriminator_smoothing": 0.3,
    "discriminator_weight": 3.0, "generator_smoothing": 0.3, "generator_weight": 3.0, "z_loss": 0.5,
}  # fmt: skip


def inherited() -> Iterator[tuple[str, str]]:
    """Yield each objective that derives from another one, with each option that it inherits."""
    kinds: dict[str, Any] = {name: objectives.get(name).component for name in objectives.names()}
    for name, kind in kinds.items():
        parents = {base for base in kind.__mro__[1:] if base in kinds.values()}
        options = {field.name for parent in parents for field in fields(parent)} - {
            field.name for field in fields(Base)
        }
        yield from ((name, option) for option in sorted(options))


@pytest.mark.parametrize(("name", "option"), inherited())
def test_an_inherited_option_changes_the_loss_of_a_derived_objective(name: str, option: str) -> None:
    def loss(**options: Any) -> float:
        batch = tiny.sentences(60)
        required = {"group": 3} if name == "coco_lm" else {}
        objective = tiny.berts(name, **required, **options)
        return float(tiny.total(objective.train()(batch, tiny.streams(batch))))

    assert loss(**{option: OTHER_VALUES[option]}) != loss()


def test_generator_smoothing_is_that_of_torch_and_metrics_know_nothing_of_it() -> None:
    batch = tiny.rows(CLS, 7, 8, 9, number=2)
    objective = tiny.tables("electra", tiny.Fixed(1, 3, empty=1), tiny.Says(5, 6, 5), 4, generator_smoothing=0.3)
    losses = objective(batch, tiny.streams(batch))
    logits, originals = objective.generator.guesses[[1, 3] * 2], torch.tensor([7, 9] * 2)
    smooth = F.cross_entropy(logits, originals, label_smoothing=0.3, reduction="sum")
    torch.testing.assert_close(losses.terms["generator"].sum, smooth)
    asked = losses.predictions["generator"]
    plain = asked.loss[asked.valid].sum()
    torch.testing.assert_close(plain, F.cross_entropy(logits, originals, reduction="sum"))
    assert not torch.isclose(smooth, plain, rtol=0.02)


def test_discriminator_smoothing_by_hand() -> None:
    """-log sigmoid(2) = 0.126928 and -log sigmoid(-2) = 2.126928; smoothing 0.2 makes the labels 0.9 and 0.1."""
    batch = tiny.rows(CLS, 7)
    objective = tiny.tables("electra", tiny.Fixed(1), tiny.Says(5), 2, discriminator_smoothing=0.2)
    objective.discriminator.scores.data.fill_(2.0)
    term = objective(batch, tiny.streams(batch)).terms["discriminator"]
    original, replaced = 0.1 * 0.126928 + 0.9 * 2.126928, 0.9 * 0.126928 + 0.1 * 2.126928
    assert float(term.sum.detach()) == pytest.approx(original + replaced, abs=1e-5)
    assert int(term.count) == 2


SMOOTH = {"electra": {"generator_smoothing": 0.2}, "mlm": {"smoothing": 0.2}, "teams": {"depth": 2}}


@pytest.mark.parametrize(
    "name",
    ["electra", "electra_correct", "mlm", "replace_mlm", "all_tokens_mlm", "two_stage", "mc_bert", "teams", "amos"],
)
def test_the_z_loss_is_the_plain_formula_with_its_gradient_in_any_micro_batches(name: str) -> None:
    """Mean of log^2 sum exp(logits) over the masked tokens of the whole batch, which micro-batches hold unevenly."""
    options = {**tiny.REQUIRED.get(name, {}), **SMOOTH.get(name, {})}
    off, on = tiny.berts(name, **options).double().train(), tiny.berts(name, z_loss=0.3, **options).double().train()
    batch = tiny.sentences()
    batch.attention_mask[0, 4:] = False  # the first row has fewer masked tokens than the others
    found = []
    for objective, micro in ((off, 6), (on, 6), (on, 4)):
        learner = Learner(objective)
        learner.at_step(0, 0, batch.example_ids.numpy())
        sums, counts, _ = step_gradients(learner, batch, micro, "fp32", None)
        found.append({name: p.grad for name, p in objective.named_parameters() if p.grad is not None})
        objective.zero_grad(set_to_none=True)
    # Plainly
    rng = tiny.streams(batch)
    objective = on if name != "mlm" else Corrupting(on.discriminator, None, on.masking, None, on.vocabulary)
    guess = objective.guess(batch, rng)
    logits = {"generator" if name != "mlm" else "discriminator": guess.logits}
    if name in ("electra_correct", "replace_mlm"):
        read = predict_masked(
            on.discriminator, Masked(on.replace(guess, batch, rng), *list(vars(guess.masked).values())[1:]), batch
        )
        logits["discriminator"] = read.logits
    if name == "amos":
        masked = guess.masked
        read = on.generator.hidden_at(on.depths, masked.inputs, batch.attention_mask, batch.segments, detach=True)
        exits = zip(on.depths, read, strict=True)
        logits = {
            f"generator_{depth}": predict_masked(on.generator, masked, batch, states).logits for depth, states in exits
        }
    squares = {network: said.logsumexp(-1)[guess.masked.valid] ** 2 for network, said in logits.items()}
    assert {key for key in sums if key.endswith("_z")} == {f"{network}_z" for network in squares}
    for network, values in squares.items():
        torch.testing.assert_close(sums[f"{network}_z"] / counts[f"{network}_z"], values.mean().detach())
    slopes = tiny.gradients(on, 0.3 * sum(values.mean() for values in squares.values()))
    expected = {key: off + slopes.get(key, 0) for key, off in found[0].items()}
    tiny.assert_close(found[1], expected)
    tiny.assert_close(found[2], expected)
    assert max(float(slope.abs().max()) for slope in slopes.values()) > 1e-3


@pytest.mark.parametrize("decorator", ["", "@dataclass", "@dataclass(kw_only=True)", "@dataclass(eq=False)"])
def test_options_of_a_derived_objective_are_the_annotations_of_its_class(tmp_path: Path, decorator: str) -> None:
    """With or without a decorator of dataclasses: with the options of its parents, and hashable, as modules are."""
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from dataclasses import dataclass\n"
        "from electra_lab.objectives.electra import Electra\n"
        "from registry import objectives\n\n\n"
        f"@objectives.register('sharper')\n{decorator}\n"
        "class Sharper(Electra):\n"
        "    'Another weight.'\n\n"
        "    sharpness: float = 2.0\n",
        encoding="utf-8",
    )
    with objectives.isolated():
        load_plugin(plugin)
        entry = objectives.get("sharper")
        parent = objectives.get("electra").schema.model_fields
        assert {*entry.schema.model_fields} == {*parent, "sharpness"}
        made = tables("sharper", Fixed(1, 3), Says(6), 6, sharpness=3.0, generator_weight=0.5)
        other = tables("sharper", Fixed(1, 3), Says(6), 6, sharpness=3.0, generator_weight=0.5)
    assert (made.sharpness, made.generator_weight, made.discriminator_weight) == (3.0, 0.5, 50.0)
    assert made in {made}
    assert made != other
    assert repr(made).startswith("Sharper(\n")  # as torch shows a module
    with pytest.raises(TypeError):
        entry.component(*[None] * 5, 3.0)  # options are named
