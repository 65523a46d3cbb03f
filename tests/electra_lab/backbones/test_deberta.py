"""`deberta` against DeBERTa-v2 of transformers, with the same weights: states, the decoder, the head, and steps."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DebertaV2Config, DebertaV2Model

from electra_lab.backbones.deberta import Deberta
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.testing import CLS, PAD, SEP, vocabulary
from electra_lab.training.loop import Run
from electra_lab.training.step import Learner, by_network, gradients, training_step
from registry import Batch, objectives, optimizers
from tests.electra_lab.objectives.tiny import Fixed, Says, sentences

VOCABULARY, DIM, DEPTH, HEADS, BUCKETS = 50, 32, 3, 2, 32


def theirs(**changes: Any) -> DebertaV2Model:
    options = {"position_buckets": BUCKETS, "share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 0,
               "max_position_embeddings": 64, **changes}  # fmt: skip
    config = DebertaV2Config(
        vocab_size=VOCABULARY, hidden_size=DIM, intermediate_size=2 * DIM, num_hidden_layers=DEPTH,
        num_attention_heads=HEADS, relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
        type_vocab_size=0, conv_act="gelu", pad_token_id=0, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    model = DebertaV2Model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def ours(model: Any, **changes: Any) -> Deberta:
    config = model.config
    options = {"share_projections": config.share_att_key, "convolution": config.conv_kernel_size,
               "normalize_positions": config.norm_rel_ebd == "layer_norm", **changes}  # fmt: skip
    backbone: Any = Deberta(
        DIM, DEPTH, HEADS, 200, ff_mult=2, buckets=BUCKETS, max_distance=config.max_position_embeddings, **options
    ).eval()
    for mine, its in pairs(backbone, model):
        mine.load_state_dict(its.state_dict())
    return backbone


def pairs(backbone: Any, model: Any) -> list[tuple[nn.Module, nn.Module]]:
    pairs = [(backbone.embedding_norm, model.embeddings.LayerNorm),
             (backbone.relative_positions, model.encoder.rel_embeddings)]  # fmt: skip
    if backbone.position_norm:
        pairs.append((backbone.position_norm, model.encoder.LayerNorm))
    if backbone.convolution:
        pairs.append((backbone.convolution.conv, model.encoder.conv.conv))
        pairs.append((backbone.convolution.norm, model.encoder.conv.LayerNorm))
    for layer, other in zip(backbone.layers, model.encoder.layer, strict=True):
        attention = other.attention.self
        pairs += [(layer.query, attention.query_proj), (layer.key, attention.key_proj)]
        pairs += [(layer.value, attention.value_proj), (layer.attended, other.attention.output.dense)]
        pairs += [(layer.attention_norm, other.attention.output.LayerNorm), (layer.expand, other.intermediate.dense)]
        pairs += [(layer.contract, other.output.dense), (layer.output_norm, other.output.LayerNorm)]
        if layer.position_key:
            pairs += [(layer.position_key, attention.pos_key_proj), (layer.position_query, attention.pos_query_proj)]
    return pairs


def rows(length: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(length) < torch.tensor([[length], [length // 2], [5]])
    return torch.randint(3, VOCABULARY, (3, length)) * mask, mask


@pytest.mark.parametrize(
    "changes",
    [{}, {"share_att_key": False}, {"conv_kernel_size": 3}, {"norm_rel_ebd": "none"}, {"max_position_embeddings": 40}],
    ids=lambda changes: next(iter(changes), "v3"),
)
@pytest.mark.parametrize("length", [7, 40, 150])
def test_states_and_gradients_are_those_of_transformers(length: int, changes: dict[str, Any]) -> None:
    """In rows within the exact buckets, within the longest distance, and beyond it."""
    model = theirs(**changes)
    backbone, (tokens, mask) = ours(model), rows(length)
    expected = model(input_ids=tokens, attention_mask=mask.long()).last_hidden_state[mask]
    found = backbone(model.embeddings.word_embeddings(tokens).detach(), mask)[mask]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    target = torch.randn_like(expected)
    (found * target).sum().backward()
    (expected * target).sum().backward()
    layer, other = backbone.layers[0], model.encoder.layer[0].attention.self
    for mine, its in ((backbone.relative_positions, model.encoder.rel_embeddings), (layer.query, other.query_proj),
                      (layer.key, other.key_proj)):  # fmt: skip
        torch.testing.assert_close(mine.weight.grad, its.weight.grad, atol=1e-3, rtol=1e-3)


def test_blocks_are_the_same_attention_with_the_same_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, compared with gathered scores, as in compiled code; some keys are too far from all of a block."""
    torch.manual_seed(0)
    backbone: Any = Deberta(16, 2, 2, 400, ff_mult=2, buckets=32, max_distance=40, mask_decoder=True).double()
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    x, numbers = torch.randn(2, 350, 16, dtype=torch.float64), (torch.arange(350) >= 300).long().expand(2, -1)
    mask = torch.arange(350) < torch.tensor([[350], [190]])
    found = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        torch.manual_seed(1)
        backbone.zero_grad()
        states = backbone(x, mask, numbers)[mask]
        states.square().sum().backward()
        found.append([states.detach(), *(parameter.grad.clone() for parameter in backbone.parameters())])
    for blocks, gathered in zip(*found, strict=True):
        torch.testing.assert_close(blocks, gathered)


@pytest.mark.parametrize("mask_decoder", [False, True])
def test_a_document_is_read_as_if_it_were_alone(mask_decoder: bool) -> None:
    backbone = ours(theirs(), mask_decoder=mask_decoder)
    numbers = torch.tensor([[0] * 31 + [1] * 4 + [7] * 25, [3] * 60])
    x, mask = torch.randn(2, 60, DIM), torch.ones(2, 60, dtype=torch.bool)
    together = backbone(x, mask, numbers)
    for part in (slice(0, 31), slice(31, 35), slice(35, 60)):
        alone = backbone(x[:1, part], mask[:1, part])
        torch.testing.assert_close(together[:1, part], alone, atol=1e-5, rtol=0)


def test_position_tables_are_not_repeated_for_rows() -> None:
    """Twice the rows keep less than twice the memory of the tables: no tensor [B, H, R, d] is saved."""
    backbone = Deberta(DIM, 1, HEADS, 64, dropout=0.0, attention_dropout=0.0)
    sizes: list[tuple[int, ...]] = []
    x, mask = torch.randn(5, 24, DIM), torch.ones(5, 24, dtype=torch.bool)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(tuple(t.shape)), t)[1], lambda t: t):
        backbone(x, mask)
    reached = 47
    assert any(reached in shape for shape in sizes)
    assert not [shape for shape in sizes if shape[0] in (5, 10) and shape[-2:] == (reached, DIM // HEADS)]


@pytest.mark.parametrize("options", [{"max_distance": 17, "buckets": 32}, {"convolution": 2}, {"ff_mult": 0.001}])
def test_a_shape_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    assert not Deberta(DIM, 1, HEADS, 64, convolution=3).separates_documents
    with pytest.raises(ValueError, match=r"\d"):
        Deberta(DIM, 1, HEADS, 64, **options)


WEIGHT, RATE, EPSILON, DECAY, CLIP, RATIO = 10.0, 0.03, 0.01, 0.2, 0.5, 0.4
MASKED = (2, 7, 11)


class Theirs(nn.Module):
    """Both encoders of transformers, with separate heads; D reads G's table plus a difference."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = theirs(), theirs()
        self.generator.embeddings.word_embeddings.weight.requires_grad_(False)
        torch.manual_seed(1)
        for parameter in self.discriminator.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        self.table, self.difference = (nn.Parameter(torch.randn(VOCABULARY, DIM)) for _ in range(2))
        self.places = nn.Embedding(200, DIM)
        self.lm, self.rtd = (nn.ModuleList([nn.Linear(DIM, DIM), nn.LayerNorm(DIM, eps=1e-7)]) for _ in range(2))
        self.bias, self.classifier = nn.Parameter(torch.randn(VOCABULARY)), nn.Linear(DIM, 1)

    def guess(self, inputs: Tensor, mask: Tensor) -> Tensor:
        encoder = self.generator.encoder
        x = F.embedding(inputs, self.table)
        below = self.generator(inputs_embeds=x, attention_mask=mask.long(), output_hidden_states=True).hidden_states[-2]
        seen = (mask[:, None, :] & mask[:, :, None]).unsqueeze(1)
        queries = below + self.places.weight[: inputs.shape[1]]
        for _ in range(2):
            queries = encoder.layer[-1](
                below, seen, query_states=queries, rel_embeddings=encoder.get_rel_embedding(),
                relative_pos=encoder.get_rel_pos(below),
            )[0]  # fmt: skip
        dense, norm = self.lm
        logits: Tensor = norm(F.gelu(dense(queries[:, list(MASKED)]))) @ self.table.T + self.bias
        return logits

    def detect(self, inputs: Tensor, mask: Tensor) -> Tensor:
        x = F.embedding(inputs, self.table.detach() + self.difference)
        states = self.discriminator(inputs_embeds=x, attention_mask=mask.long()).last_hidden_state
        dense, norm = self.rtd
        logits: Tensor = self.classifier(F.gelu(dense(norm(states + states[:, :1])))).squeeze(-1)
        return logits

    def losses(self, batch: Batch, masked: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        mask, originals = batch.attention_mask, batch.tokens[:, list(MASKED)]
        corrupt = batch.tokens.clone()
        corrupt[:, list(MASKED)] = drawn
        guess = F.cross_entropy(self.guess(masked, mask).flatten(0, 1), originals.flatten())
        found, labels = self.detect(corrupt, mask)[mask], (corrupt != batch.tokens)[mask].float()
        return guess, F.binary_cross_entropy_with_logits(found, labels)

    def parts(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        modules = (self.generator, self.places, self.lm), (self.discriminator, self.rtd, self.classifier)
        tables = [self.table, self.bias], [self.difference]
        g, d = (t + list(nn.ModuleList(m).parameters()) for t, m in zip(tables, modules, strict=True))
        return [p for p in g if p.requires_grad], [p for p in d if p.grad is not None or p is self.difference]


def lab_pair(them: Theirs, batch: Batch, drawn: Tensor) -> tuple[Any, list[tuple[str, nn.Parameter, nn.Parameter]]]:
    still = {"dropout": 0.0, "attention_dropout": 0.0}
    backbones = [ours(them.generator, mask_decoder=True, **still), ours(them.discriminator, **still)]
    sizes, tie = EmbeddingSizes(VOCABULARY, DIM, 200, 0.0), "gradient_disentangled"
    g, d = make_pair(backbones[0], DIM, backbones[1], DIM, sizes, tie, PAD)
    sampler = Says(*drawn.flatten().tolist())
    objective = objectives.get("electra").component(
        g, d, Fixed(*MASKED), sampler, vocabulary(VOCABULARY), discriminator_weight=WEIGHT
    )
    g, d = objective.generator, objective.discriminator
    lm, rtd = g.heads["tokens"], d.heads["replaced"]
    modules = [(f"generator.{i}", *pair) for i, pair in enumerate(pairs(g.backbone, them.generator))]
    modules += [(f"discriminator.{i}", *pair) for i, pair in enumerate(pairs(d.backbone, them.discriminator))]
    modules += [("lm.dense", lm.dense, them.lm[0]), ("lm.norm", lm.norm, them.lm[1])]
    modules += [("rtd.dense", rtd.dense, them.rtd[0]), ("rtd.norm", rtd.norm, them.rtd[1])]
    modules += [("rtd.out", rtd.out, them.classifier), ("places", g.backbone.absolute_positions, them.places)]
    found = [("table", g.embeddings.tokens.weight, them.table), ("lm.bias", lm.bias, them.bias)]
    found.append(("difference", d.embeddings.tokens.difference.weight, them.difference))
    for name, mine, its in modules:
        found += [(f"{name}.{key}", p, its.get_parameter(key)) for key, p in mine.named_parameters()]
    for _, mine, its in found:
        mine.data.copy_(its.data)
    assert {mine for _, mine, _ in found} == set(objective.parameters())
    return objective, found


@pytest.mark.parametrize("apart", [False, True], ids=["one optimizer", "two optimizers"])
def test_a_step_is_that_of_transformers(apart: bool) -> None:
    batch, rows = sentences(size=VOCABULARY), 6
    drawn = torch.randint(5, VOCABULARY, (len(batch), len(MASKED)), generator=torch.Generator().manual_seed(2))
    drawn[0, 0] = batch.tokens[0, MASKED[0]]  # a draw that is right
    assert not {CLS, SEP} & set(drawn.flatten().tolist())
    them = Theirs()
    objective, both = lab_pair(them, batch, drawn)
    # Theirs
    guess, found = them.losses(batch, Fixed(*MASKED)(batch.tokens).inputs, drawn)
    (guess + WEIGHT * found).backward()
    parts = them.parts()
    # Ours
    optimizer = optimizers.get("adamw").component(
        list(objective.named_parameters()), RATE, weight_decay=DECAY, epsilon=EPSILON
    )
    if apart:
        by_network(optimizer, set(objective.generator.parameters()), RATIO, clip_each=True)
    learner = Learner(objective.train())
    Run(learner, optimizer)
    learner.at_step(0, 0, batch.example_ids.numpy())
    sums, counts, _ = gradients(learner, batch, rows, "fp32", None)
    # Losses and gradients
    for name, expected in (("generator", guess), ("discriminator", found)):
        torch.testing.assert_close(sums[name] / counts[name], expected, atol=2e-5, rtol=0)
    for name, mine, its in both:
        torch.testing.assert_close(mine.grad, its.grad, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    # Weights after the update
    optimizer.zero_grad()
    training_step(
        learner, optimizer, batch, seed=0, step=0, rate=1.0, clip_norm=CLIP, micro_batch_size=6, precision="fp32"
    )
    rates = (RATIO, 1.0) if apart else (1.0,)
    for part, rate in zip(parts if apart else [parts[0] + parts[1]], rates, strict=True):
        norm = nn.utils.clip_grad_norm_(part, CLIP)
        assert norm > CLIP
        for wide, decay in ((True, DECAY), (False, 0.0)):
            group = [p for p in part if (p.ndim > 1) == wide]
            torch.optim.AdamW(group, lr=RATE * rate, eps=EPSILON, weight_decay=decay).step()
    for name, mine, its in both:
        torch.testing.assert_close(mine, its, atol=2e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
