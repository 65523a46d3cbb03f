"""Measurements of the lab with default options: a function for each `check` of docs/official.yaml."""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import registry
from electra_lab.assembly.build import Built, build, make_optimizer
from electra_lab.config.load import Loaded, load
from electra_lab.config.schema import ExperimentConfig
from electra_lab.config.sections import Of
from electra_lab.data.rows import Rows
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.metrics import PretrainingMetrics
from electra_lab.packings import segments
from electra_lab.testing import CLS, MASK, PAD, SEP, UNK, ArrayTokens, vocabulary
from electra_lab.testing.packings import ORDINARY, Text
from electra_lab.training.random import Streams
from registry import Batch, Detection, Losses, Packed
from tests.electra_lab.objectives.tiny import SIZE, Fixed, Says, berts, rows, streams, tables

# The shortest file that trains ELECTRA: all else is default. The sizes are those of ELECTRA-Small.
SHORTEST: dict[str, Any] = {
    "name": "shortest",
    "corpus": {"type": "docstrings"},
    "tokenizer": {"type": "wordpiece"},
    "discriminator": {"type": "bert", "dim": 256, "depth": 12, "heads": 4},
    "generator": {},
    "masking": {"type": "replace_prob"},
    "sampler": {"type": "gumbel"},
    "objective": {"type": "electra"},
    "train": {"steps": 1_000_000},
}
LENGTH = 128


@cache
def default() -> Loaded:
    return load(SHORTEST)


def component(key: str) -> Any:
    """The component that a section has by default, with its default options."""
    of = next(mark for mark in ExperimentConfig.model_fields[key].metadata if isinstance(mark, Of))
    chosen = getattr(default().config, key)
    return partial(of.registry.get(chosen.type).component, **chosen.keywords())


def built() -> Built:
    """The networks of `default`, but smaller."""
    return copy.deepcopy(_built())


@cache
def _built() -> Built:
    sizes = {"discriminator": {"type": "bert", "dim": 64, "depth": 2, "heads": 2}, "embedding": {"dim": 32}}
    return build(load(SHORTEST | sizes), stand_in_vocabulary(30_522), seed=0)


def full_rows(number: int, length: int = LENGTH, size: int = 50) -> Batch:
    """Rows of [CLS], ordinary tokens and [SEP]."""
    tokens = torch.randint(5, size, (number, length), generator=torch.Generator().manual_seed(0))
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    return Batch(tokens, tokens != PAD, torch.zeros_like(tokens), torch.arange(number))


def masked(batch: Batch, **options: Any) -> Any:
    words = vocabulary(50)
    maskable = batch.attention_mask & ~words.is_special[batch.tokens]
    return component("masking")(batch.tokens, maskable, words, streams(batch)("masking"), **options)


def packed(texts: list[list[int]], name: str | None = None) -> Packed:
    make = registry.packings.get(name).component if name else component("packing")
    made = make(ArrayTokens(texts), LENGTH, vocabulary(50))
    return made.rows(np.arange(len(made)))


def documents_in_a_row(packing: str | None = None) -> int:
    found = packed([[7] * 40] * 30, packing)
    assert found.documents is None, "positions see only their own document"
    return int((found.tokens[0] == SEP).sum())


def kinds_of_rows(packing: str | None = None) -> dict[str, Any]:
    text = np.random.default_rng(0).integers(5, 50, 100_000).tolist()
    found = packed([text], packing)
    real = found.attention_mask.sum(axis=1)[:-2]
    return {"segments": np.unique(found.segments.max(axis=1) + 1).tolist(), "short": bool((real < LENGTH - 1).any())}


def share_kept_by_segments() -> float:
    text = Text([1000] * 20)
    made = registry.packings.get("segments").component(text, LENGTH, vocabulary(text.size))
    tokens = made.rows(np.arange(len(made))).tokens
    return len(np.unique(tokens[tokens >= ORDINARY])) / 20_000


def segments_options() -> list[float]:
    options = registry.packings.get("segments").schema().model_dump()
    made = registry.packings.get("segments").component(ArrayTokens([[7] * 500_000]), LENGTH, vocabulary(50))
    assert min(made.lengths(np.arange(len(made) - 1))) == segments.SHORTEST
    return [options["single"], options["short"], segments.SHORTEST]


def order() -> str:
    """For 2,000 rows in batches of 100: every row comes once, and rows of a batch come from anywhere in the text."""
    text = Text([2000 * (LENGTH - 2) - 1])
    data = Rows(component("packing")(text, LENGTH, vocabulary(text.size)))
    batches = [data.training_batch(0, step, 100, torch.device("cpu")).tokens[:, 1] for step in range(20)]
    read = [((batch - ORDINARY) // (LENGTH - 2)).sort().values for batch in batches]
    assert torch.equal(torch.cat(read).sort().values, torch.arange(2000)), "an epoch does not read every row once"
    return "any distance" if all(batch[-1] - batch[0] > 1500 for batch in read) else "neighbours"


def distinct_positions() -> float:
    chosen = masked(full_rows(500))
    rows_ = [torch.unique(row[valid]) for row, valid in zip(chosen.positions, chosen.valid, strict=True)]
    return sum(map(len, rows_)) / len(rows_)


LENGTHS = (5, 9, 16, 20, 30, 128)


def mask_counts() -> list[int]:
    whole = full_rows(len(LENGTHS)).tokens
    sizes, places = torch.tensor(LENGTHS).unsqueeze(1), torch.arange(LENGTH)
    tokens = torch.where(places == sizes - 1, SEP, whole).masked_fill(places >= sizes, PAD)
    batch = Batch(tokens, tokens != PAD, torch.zeros_like(tokens), torch.arange(len(LENGTHS)))
    return masked(batch).valid.sum(-1).tolist()  # type: ignore[no-any-return]


def never_masked() -> list[str]:
    batch = rows(CLS, UNK, 6, MASK, SEP, PAD)
    whole = partial(component("masking"), mask_prob=1.0, replace_prob=0.0, random_prob=1.0)
    seen: list[Any] = []
    objective = tables("electra", lambda *given: seen.append(whole(*given)) or seen[-1], Says(9), 6)
    objective(batch, streams(batch))
    chosen = set(batch.tokens[0, seen[0].positions[seen[0].valid]].tolist())
    names = {PAD: "[PAD]", UNK: "[UNK]", CLS: "[CLS]", SEP: "[SEP]", MASK: "[MASK]"}
    assert 6 in chosen
    return sorted(name for token, name in names.items() if token not in chosen)


def corrupted(batch: Batch, masking: Any, sampler: Any) -> Detection:
    found = tables("electra", masking, sampler, batch.tokens.shape[1])(batch, streams(batch)).detection
    assert found is not None
    return found


def kept_tokens_are_replaced() -> bool:
    batch = rows(CLS, 6, 7, 8, SEP)
    keeping = partial(component("masking"), mask_prob=1.0, replace_prob=0.0)
    return corrupted(batch, keeping, Says(9)).inputs[0, 1:4].tolist() == [9, 9, 9]


def lucky_samples() -> str:
    batch = rows(CLS, 6, 7, SEP)
    labels = corrupted(batch, Fixed(1, 2), Says(6, 9)).replaced[0].tolist()
    assert labels[2], "a sample that differs must be called replaced"
    return "replaced" if labels[1] else "original"


def special_tokens_sampled() -> bool:
    """The generator is certain of special tokens."""
    batch, special = rows(CLS, 6, 7, SEP, number=200), [PAD, CLS, SEP, MASK]
    objective = tables("electra", Fixed(1, 2), component("sampler"), 4)
    objective.generator.guesses.data[:, special] += 100.0
    drawn = objective(batch, streams(batch)).detection.inputs[:, 1:3]
    return bool(torch.isin(drawn, torch.tensor(special)).any())


def judged() -> str:
    batch, words = rows(CLS, 6, 7, SEP, PAD), vocabulary(SIZE)
    inputs = batch.tokens.clone()
    inputs[0, 1] = 8
    metrics = PretrainingMetrics(words)
    metrics.update(batch, Losses({}, {}, Detection(inputs, inputs != batch.tokens, torch.zeros(1, 5))))
    kinds = {1 / 2: "maskable", 1 / 4: "all but padding", 1 / 5: "all, padding as original"}
    return kinds[metrics.values()["replaced_share"]]


def logits_at() -> str:
    """Every row has the same number of slots, so that one of them may be empty."""
    objective, batch = built().learner.objective, full_rows(2)
    shapes: list[torch.Size] = []
    head = objective.generator.heads["tokens"]
    head.register_forward_hook(lambda _, __, logits: shapes.append(logits.shape))
    objective(batch, Streams.of(0, 0, batch.example_ids))
    assert len(shapes) == 1
    slots, number = shapes[0][1], int(masked(batch).valid[0].sum())
    return "masked positions" if 0 <= slots - number <= 1 else f"{slots} positions"


def averaged_over() -> dict[str, int]:
    batch = rows(CLS, 5, 6, 7, 8, SEP, PAD, PAD)
    terms = tables("electra", Fixed(3, empty=2), Says(9, 9, 9), 8)(batch, streams(batch)).terms
    return {name: int(term.count) for name, term in terms.items()}


def samples_pass_gradients() -> bool:
    objective, batch = berts("electra", tie="none"), full_rows(4, 20, 30)
    objective(batch, streams(batch)).terms["discriminator"].sum.backward()
    assert all(p.grad is not None for p in objective.discriminator.parameters())
    return any(p.grad is not None and bool(p.grad.any()) for p in objective.generator.parameters())


def shared() -> list[str]:
    generator, discriminator = built().networks.values()
    own = {id(p) for p in generator.parameters()}
    names = [name.split(".") for name, p in discriminator.named_parameters() if id(p) in own]
    assert all(name[0] == "embeddings" for name in names)
    return sorted({"LayerNorm" if name[1] == "norm" else name[1] for name in names})


def matrices(module: nn.Module) -> list[list[int]]:
    return [list(p.shape) for p in module.parameters() if p.ndim > 1]


def projections() -> dict[str, list[int]]:
    return {name: list(network.project.weight.shape) for name, network in built().networks.items()}


def token_head() -> list[list[int]]:
    return matrices(built().networks["generator"].heads["tokens"])


def detection_head() -> list[list[int]]:
    return matrices(built().networks["discriminator"].heads["replaced"])


def activation() -> list[float]:
    """Let layers always return 1, and return the inputs of the layers after them: the activation of 1."""
    found: set[float] = set()

    def pair(before: nn.Linear, after: nn.Module) -> None:
        nn.init.zeros_(before.weight)
        nn.init.ones_(before.bias)
        after.register_forward_pre_hook(lambda _, x: found.update(round(v, 5) for v in x[0].unique().tolist()))

    objective, batch = built().learner.objective.eval(), full_rows(2)
    generator, discriminator = objective.generator, objective.discriminator
    for layer in (*generator.backbone.layers, *discriminator.backbone.layers):
        pair(layer.expand, layer.contract)
    pair(generator.heads["tokens"].dense, generator.heads["tokens"].norm)
    pair(discriminator.heads["replaced"].dense, discriminator.heads["replaced"].out)
    objective(batch, streams(batch))
    return sorted(found)


def layer_norm_epsilon() -> list[float]:
    modules = [module for network in built().networks.values() for module in network.modules()]
    return sorted({module.eps for module in modules if isinstance(module, nn.LayerNorm)})


def states(network: Any, batch: Batch) -> Tensor:
    hidden: Tensor = network.hidden(batch.tokens, batch.attention_mask, batch.segments)
    return hidden


def normalised_states() -> bool:
    """LayerNorm leaves normalised states as they are."""
    found = [states(network.eval(), full_rows(2)) for network in built().networks.values()]
    return all(torch.allclose(F.layer_norm(x, x.shape[-1:]), x, atol=1e-3) for x in found)


def dropout_in_training() -> list[str]:
    batch, found = full_rows(2), []
    for name, network in built().networks.items():
        network.eval()
        assert torch.equal(states(network, batch), states(network, batch))
        network.train()
        if not torch.equal(states(network, batch), states(network, batch)):
            found.append(name)
    return sorted(found)


EDGE = 2 * 0.02 + 1e-7  # two deviations


def weights() -> dict[str, Tensor]:
    return {
        f"{network}.{name}": part.weight.detach()
        for network, module in built().networks.items()
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear | nn.Embedding)
    }


def glorot_layers() -> list[str]:
    """Layers with a weight beyond EDGE; their weights must be uniform within Glorot's bounds."""
    found = {name: weight for name, weight in weights().items() if weight.abs().max() > EDGE}
    for name, weight in found.items():
        bound = (6 / sum(weight.shape)) ** 0.5
        assert 0.8 * bound < weight.abs().max() <= bound, name
        assert abs(float(weight.std()) * 3**0.5 / bound - 1) < 0.2, name
    return sorted(found)


def deviation() -> float:
    within = [weight.flatten() for weight in weights().values() if weight.abs().max() <= EDGE]
    return round(float(torch.cat(within).std()), 4)


def largest_bias() -> float:
    named = [parameter for network in built().networks.values() for parameter in network.named_parameters()]
    return max(float(p.detach().abs().max()) for name, p in named if name.endswith("bias"))


def rate(step: int) -> float:
    chosen = default().config.schedules["learning_rate"]
    return float(registry.schedules.get(chosen.type).component(step, 1_000_000, **chosen.keywords()))


def first_rate() -> float:
    return rate(0)


def rates() -> list[float]:
    return [float(f"{rate(step):.3g}") for step in (5_000, 250_000, 500_000, 999_999)]


def after_a_step(weight: Tensor, gradient: float, learning_rate: float) -> float:
    parameter = nn.Parameter(weight)
    parameter.grad = torch.full_like(weight, gradient)
    component("optimizer")([("weight", parameter)], learning_rate).step()
    return float(parameter.detach().mean())


def first_update() -> float:
    return round((1 - after_a_step(torch.ones(2), 3.0, 0.1)) / 0.1, 2)


def decay_without_gradient() -> float:
    return round(after_a_step(torch.ones(2, 2), 0.0, 0.1), 6)


def not_decayed() -> list[str]:
    made = built()
    groups = make_optimizer(default(), made).param_groups
    names = {id(p): name for name, p in made.learner.objective.named_parameters()}

    def kind(parameter: Tensor) -> str:
        name = names[id(parameter)]
        return "LayerNorm" if "norm" in name else "bias" if name.endswith("bias") else "weight"

    decayed, free = ({kind(p) for g in groups if bool(g["weight_decay"]) == yes for p in g["params"]} for yes in (1, 0))
    assert decayed == {"weight"}
    return sorted(free)


@cache
def tokenizer() -> Any:
    chosen = default().config.tokenizer
    text = ["banana bandana " + "a" * 300] * 3
    return registry.tokenizers.get(chosen.type).component(text, **(chosen.keywords() | {"vocab_size": 100}))


def longest_word() -> int:
    sizes = (50, 100, 101, 200, 201, 300)
    return max(size for size in sizes if "[UNK]" not in tokenizer().encode("a" * size).tokens)


def normalised() -> int:
    return len(tokenizer().normalizer.normalize_str("한"))


def without_accents() -> str:
    return str(tokenizer().normalizer.normalize_str("Café"))
