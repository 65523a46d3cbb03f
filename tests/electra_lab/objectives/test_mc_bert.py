"""Choices among candidates: MC-BERT against the authors' code, TEAMS against losses assembled by hand, and their draws
against the softmax and Plackett-Luce."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.heads.candidates import CandidateHead
from electra_lab.heads.tokens import TokenHead
from electra_lab.model.network import Embeddings, Network
from electra_lab.objectives import mc_bert
from electra_lab.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, chi_square_p, vocabulary
from registry import Backbone, EmbeddingSizes, Masked, objectives, samplers
from tests.electra_lab.objectives import tiny

WORDS, WIDTH, NEITHER = 14, 6, 13
TEXT = torch.tensor([[2, 5, 6, 7, 8, 3], [2, 9, 10, 11, 12, 3], [2, 6, 8, 3, 0, 0]])
MASKED = torch.tensor([[1, 3], [2, 4], [1, 0]])
DRAWS = torch.randint(5, 13, (3, 6, 4), generator=torch.Generator().manual_seed(9))
DRAWS[0, 1, 0], DRAWS[0, 3, 2], DRAWS[1, 2, 0] = 5, 7, 12  # a hit; the original of a replaced token, twice; a miss

# The authors' code (MC-BERT/MC-BERT at 1e30c2d, model and criterion unmodified) on the same networks, in which every
# tensor is standard normal from the seed given here: the product of its gradient and numbers of the seed 100 + that.
LOSS = 872.9169311523438
GRADIENTS = {
    "table": (1, 197.09330876286214), "bias": (2, 31.20807573146141),
    "discriminator.backbone.a": (3, 200.014705256632), "discriminator.backbone.b": (4, -235.56109576330306),
    "discriminator.heads.candidates.dense.weight": (5, -125.51168232256798),
    "discriminator.heads.candidates.dense.bias": (6, 52.79443294951086),
    "discriminator.heads.candidates.norm.weight": (7, 60.72602280363553),
    "discriminator.heads.candidates.norm.bias": (8, -112.0012147834276),
    "generator.backbone.a": (13, 0.32052961319122003), "generator.backbone.b": (14, 0.16182010065350394),
    "generator.heads.tokens.dense.weight": (15, -1.1138735722186484),
    "generator.heads.tokens.dense.bias": (16, 0.5688055430011156),
    "generator.heads.tokens.norm.weight": (17, -0.37682200879957073),
    "generator.heads.tokens.norm.bias": (18, -0.5058161931401601),
}  # fmt: skip


def normal(seed: int, shape: Any) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Encoder(Backbone, nn.Module):
    layers = ()

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(WIDTH, WIDTH)) for _ in range(2))

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        return torch.tanh(x @ self.a + x.roll(1, 1) @ self.b)


def authors_networks() -> Any:
    """The objective with the authors' numbers; "neither" is the last token there, and a separate vector here."""
    sizes = EmbeddingSizes(WORDS, WIDTH, 6, 0.0)
    table = Embeddings(WORDS, WIDTH, 6, positions=False, dropout=0.0, bare=True)
    guesses, choice = TokenHead(WIDTH, sizes, None), CandidateHead(WIDTH, sizes, None, k=3, reject=True)
    both: Any = {"tokens": guesses}, {"candidates": choice}
    pair = [Network(table, Encoder(), WIDTH, pad_id=PAD, heads=heads) for heads in both]

    def masking(tokens: Tensor, *_: Any, **__: Any) -> Masked:
        valid = torch.tensor([[True, True], [True, True], [True, False]])
        inputs = tokens.clone()
        inputs[(TEXT > 4) & torch.zeros_like(TEXT).scatter_add(1, MASKED, valid.long()).bool()] = MASK
        return Masked(inputs, MASKED, valid)

    drawn = DRAWS[..., 0].gather(1, MASKED).flatten().tolist()
    made = objectives.get("mc_bert").component(*pair, masking, tiny.Says(*drawn), vocabulary(WORDS), k=4).double()
    made._draws = lambda *_: DRAWS[..., 1:]  # theirs has a first one, which becomes the input, then "neither"
    parameters = dict(made.named_parameters())
    with torch.no_grad():
        for name, (seed, _) in GRADIENTS.items():
            if name in parameters:
                parameters[name].copy_(normal(seed, parameters[name].shape))
        table.tokens.weight.copy_(normal(1, (WORDS, WIDTH)))
        bias = normal(2, (WORDS, 1)).flatten()
        guesses.bias.copy_(bias)
        choice.bias.copy_(bias)
        choice.reject.weight.copy_(table.tokens.weight[NEITHER])
        choice.reject.bias.copy_(bias[NEITHER])
    return made


def test_loss_and_gradients_are_those_of_the_authors_code() -> None:
    """With a hit, a replaced token whose original is drawn again, and padding. Theirs computes losses in float32."""
    objective, batch = authors_networks(), tiny.rows(*TEXT[0].tolist(), number=3)
    batch.tokens.copy_(TEXT)
    batch.attention_mask.copy_(TEXT != PAD)
    losses = objective.train()(batch, tiny.streams(batch))
    assert {name: int(term.count) for name, term in losses.terms.items()} == {"generator": 5, "choice": 16}
    assert float(tiny.total(losses)) * 5 == pytest.approx(LOSS, rel=1e-6)
    found = tiny.gradients(objective, tiny.total(losses))
    # Theirs has one bias, and one table with "neither" in it.
    head = "discriminator.heads.candidates"
    found["table"] = found.pop("generator.embeddings.tokens.weight")
    found["table"][NEITHER] += found.pop(f"{head}.reject.weight")[0]
    found["bias"] = found.pop("generator.heads.tokens.bias") + found.pop(f"{head}.bias")
    found["bias"][NEITHER] += found.pop(f"{head}.reject.bias")[0]
    assert found.keys() == GRADIENTS.keys()
    for name, (seed, expected) in GRADIENTS.items():
        product = (found[name].flatten() * normal(100 + seed, (found[name].numel(),))).sum()
        assert float(product) == pytest.approx(expected, rel=1e-5), name
    assert torch.equal(losses.terms["choice"].count, objective.counts(batch, tiny.streams(batch))["choice"])


@pytest.mark.parametrize("duplicates", ["keep", "redraw"])
def test_candidates_follow_the_softmax_at_every_position(duplicates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is masked, for any number of positions at a time, and never a special token."""
    batch, replaced = tiny.rows(CLS, 7, 8, SEP, PAD, number=1500), tiny.Says(5, 8)  # 7, and not 8
    objective = tiny.tables("mc_bert", tiny.Fixed(1, 2), replaced, 5, k=4, duplicates=duplicates)
    choice = objective(batch, tiny.streams(batch)).choice
    assert choice.answer.tolist() == [[0, 1, 0, 0, 0]] * 1500
    assert (choice.candidates[:, 1, 0] == 7).all()
    for place in range(5):
        expected = objective.generator.guesses[place].detach().exp()
        expected[[PAD, CLS, SEP, MASK]] = 0
        fresh = choice.candidates[:, place, place == 1 :]
        if place == 1 and duplicates == "redraw":
            expected[7] = 0
        drawn = fresh.flatten().bincount(minlength=tiny.SIZE)
        assert not drawn[expected == 0].any()
        assert chi_square_p(drawn[expected > 0], (expected / expected.sum())[expected > 0]) > SIGNIFICANCE
        together = fresh[:, 0] * tiny.SIZE + fresh[:, 1]  # draws are independent
        pairs = torch.outer(expected, expected).flatten() / expected.sum() ** 2
        counts = together.bincount(minlength=tiny.SIZE**2)
        assert chi_square_p(counts[pairs > 0], pairs[pairs > 0]) > SIGNIFICANCE
    monkeypatch.setattr(mc_bert, "AT_ONCE", 1500)
    assert torch.equal(objective(batch, tiny.streams(batch)).choice.candidates, choice.candidates)


def test_detection_is_the_odds_of_any_candidate_against_none() -> None:
    batch = tiny.rows(CLS, 7, 8, SEP, number=3)
    losses = tiny.tables("mc_bert", tiny.Fixed(1), tiny.Says(5), 4)(batch, tiny.streams(batch))
    logits = losses.choice.logits
    chance = 1 - logits.softmax(-1)[..., 0]
    torch.testing.assert_close(losses.detection.logits.sigmoid(), chance)
    assert torch.equal(losses.detection.replaced, losses.detection.inputs != batch.tokens)
    assert losses.detection.inputs.tolist() == [[CLS, 5, 8, SEP]] * 3


def stacked(network: Any, layers: Any, x: Tensor, mask: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x, mask[:, None, None, :])
    return x


def embedded(network: Any, tokens: Tensor, batch: Any) -> Tensor:
    x = network.embeddings(tokens, batch.segments)
    return x if network.project is None else network.project(x)


def vectors(head: Any, hidden: Tensor) -> Tensor:
    return head.norm(F.gelu(head.dense(hidden)))


@pytest.mark.parametrize(
    ("below_top", "branch", "own"), [(1, "as_meant", 1), (2, "as_meant", 2), (2, "as_released", 1)]
)
def test_losses_and_gradients_by_hand(below_top: int, branch: str, own: int) -> None:
    """Layer by layer, with logits over the whole vocabulary and a candidate's softmax taken from them."""
    sampler = samplers.get("temperature").component
    objective = tiny.berts("teams", 1, sampler=sampler, equal=True, depth=3, below_top=below_top, branch=branch, k=4)
    objective, batch = objective.double().eval(), tiny.sentences()
    losses = objective(batch, tiny.streams(batch))
    seen, choice, asked = losses.detection, losses.choice, losses.predictions["generator"]
    mask, real = batch.attention_mask, batch.attention_mask
    model, at = objective.discriminator, choice.positions
    head, chooser = model.heads["replaced_branch"], model.heads["candidates"]
    assert len(head.encoder.layers) == own
    originals = batch.tokens.gather(1, at)

    # The candidates: the original, and others that are distinct and not special.
    assert torch.equal(choice.candidates[..., 0], originals)
    assert all(len(set(slot)) == 4 for slot in choice.candidates.flatten(0, 1).tolist())
    assert choice.candidates.min() > 4 or set(choice.candidates.unique().tolist()) <= {1, *range(5, 30)}

    # Detection: the branch leaves some layers below the top.
    bottom, top = model.backbone.layers[: 3 - below_top], model.backbone.layers[3 - below_top :]
    inner = stacked(model, bottom, embedded(model, seen.inputs, batch), mask)
    x = stacked(model, head.encoder.layers, inner, mask)
    logits = head.out(F.gelu(head.dense(x))).squeeze(-1)
    labels = (seen.inputs != batch.tokens).double()
    signs = 2 * labels - 1
    detection = -(F.logsigmoid(signs * logits)[real]).mean()

    # Choice: at the top.
    hidden = stacked(model, top, inner, mask)
    whole = vectors(chooser, hidden) @ model.embeddings.tokens.weight.T
    place = at.unsqueeze(-1).expand(-1, -1, whole.shape[-1])
    few = whole.gather(1, place).gather(-1, choice.candidates)
    chosen = (few.logsumexp(-1) - few[..., 0])[asked.valid].mean()

    # The generator's loss on its input, the same as in `electra`.
    mlm = losses.terms["generator"].sum / losses.terms["generator"].count
    expected = mlm + 5 * detection + 2 * chosen
    assert {name: int(t.count) for name, t in losses.terms.items()} == {
        "generator": int(asked.valid.sum()), "discriminator": int(real.sum()), "choice": int(asked.valid.sum())
    }  # fmt: skip
    torch.testing.assert_close(tiny.total(losses), expected, rtol=1e-9, atol=1e-12)
    tiny.assert_close(tiny.gradients(objective, tiny.total(losses)), tiny.gradients(objective, expected))
    beforehand = objective.counts(batch, tiny.streams(batch))
    assert {name: int(n) for name, n in beforehand.items()} == {n: int(t.count) for n, t in losses.terms.items()}


def test_candidates_follow_plackett_luce_without_the_original() -> None:
    """Every ordered pair, of a generator whose original is the likeliest; special tokens are never drawn."""
    batch = tiny.rows(CLS, 7, 8, SEP, number=6000)
    objective = tiny.tables("teams", tiny.Fixed(1), tiny.Says(5), 4, k=3)
    objective.generator.guesses.data[1, 7] = 3.0
    drawn = objective._draws(objective.guess(batch, tiny.streams(batch)), tiny.streams(batch))[:, 0]
    weights = objective.generator.guesses[1].detach().exp()
    weights[[PAD, CLS, SEP, MASK, 7]] = 0
    pairs = weights.unsqueeze(1) * weights / (weights.sum() - weights).unsqueeze(1) / weights.sum()
    pairs.fill_diagonal_(0)
    counts = (drawn[:, 0] * tiny.SIZE + drawn[:, 1]).bincount(minlength=tiny.SIZE**2)
    chances = pairs.flatten()
    assert not counts[chances == 0].any()
    assert chi_square_p(counts[chances > 0], chances[chances > 0]) > SIGNIFICANCE


def test_a_branch_of_one_layer_is_the_same_as_released() -> None:
    assert tiny.needs_of("teams", branch="as_released") == tiny.needs_of("teams", branch="as_meant")
    assert tiny.needs_of("teams", branch="as_released", below_top=3) != tiny.needs_of("teams", below_top=3)
