"""A training step of a DeBERTa-v3 pair equals one that is written with transformers' encoders."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.testing import CLS, PAD, SEP, vocabulary
from electra_lab.training.loop import Run
from electra_lab.training.step import Learner, by_network, gradients, training_step
from registry import Batch, objectives, optimizers
from tests.electra_lab.backbones.test_deberta import DIM, VOCABULARY, ours, pairs, theirs
from tests.electra_lab.objectives.tiny import Fixed, Says, sentences

WEIGHT, RATE, EPSILON, DECAY, CLIP, RATIO = 10.0, 0.03, 0.01, 0.2, 0.5, 0.4
MASKED = (2, 7, 11)


class Theirs(nn.Module):
    """Both encoders of transformers, with heads of their own; D reads G's table plus a difference of its own."""

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
        by_network(optimizer, set(objective.generator.parameters()), RATIO, apart=True)
    learner = Learner(objective.train())
    Run(learner, optimizer)
    sums, counts, _ = gradients(learner, batch, 0, 0, rows, "fp32", None)
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
