"""MC-BERT: against the authors' code, and what is drawn against the softmax."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.heads.candidates import CandidateHead
from electra_lab.heads.tokens import TokenHead
from electra_lab.model.embeddings import Embeddings
from electra_lab.model.network import Network
from electra_lab.objectives import mc_bert
from electra_lab.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, chi_square_p, vocabulary
from registry import EmbeddingSizes, Masked, objectives
from tests.electra_lab.objectives.tiny import SIZE, Fixed, Says, gradients, rows, streams, tables, total

WORDS, WIDTH, NEITHER = 14, 6, 13
TEXT = torch.tensor([[2, 5, 6, 7, 8, 3], [2, 9, 10, 11, 12, 3], [2, 6, 8, 3, 0, 0]])
MASKED = torch.tensor([[1, 3], [2, 4], [1, 0]])
DRAWS = torch.randint(5, 13, (3, 6, 4), generator=torch.Generator().manual_seed(9))
DRAWS[0, 1, 0], DRAWS[0, 3, 2], DRAWS[1, 2, 0] = 5, 7, 12  # a hit; the original of a replaced token, twice; a miss

# The authors' code (MC-BERT/MC-BERT at 1e30c2d, model and criterion as they are) on the same networks, in which every
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


class Encoder(nn.Module):
    length_multiple = 1

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
    pair = [
        Network(table, Encoder(), WIDTH, pad_id=PAD, heads=heads)
        for heads in ({"tokens": guesses}, {"candidates": choice})
    ]

    def masking(tokens: Tensor, *_: Any, **__: Any) -> Masked:
        valid = torch.tensor([[True, True], [True, True], [True, False]])
        inputs = tokens.clone()
        inputs[(TEXT > 4) & torch.zeros_like(TEXT).scatter_add(1, MASKED, valid.long()).bool()] = MASK
        return Masked(inputs, MASKED, valid)

    drawn = DRAWS[..., 0].gather(1, MASKED).flatten().tolist()
    made = objectives.get("mc_bert").component(*pair, masking, Says(*drawn), vocabulary(WORDS), k=4).double()
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
    objective, batch = authors_networks(), rows(*TEXT[0].tolist(), number=3)
    batch.tokens.copy_(TEXT)
    batch.attention_mask.copy_(TEXT != PAD)
    losses = objective.train()(batch, streams(batch))
    assert {name: int(term.count) for name, term in losses.terms.items()} == {"generator": 5, "choice": 16}
    assert float(total(losses)) * 5 == pytest.approx(LOSS, rel=1e-6)
    found = gradients(objective, total(losses))
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
    assert torch.equal(losses.terms["choice"].count, objective.counts(batch, streams(batch))["choice"])


@pytest.mark.parametrize("duplicates", ["keep", "redraw"])
def test_candidates_follow_the_softmax_at_every_position(duplicates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is masked, whatever number of positions is worked on at a time, and never a special token."""
    batch, number = rows(CLS, 7, 8, SEP, PAD, number=1500), 4
    objective = tables("mc_bert", Fixed(1, 2), Says(5, 8), 5, k=number, duplicates=duplicates)  # 7 is replaced
    choice = objective(batch, streams(batch)).choice
    assert choice.answer.tolist() == [[0, 1, 0, 0, 0]] * 1500
    assert (choice.candidates[:, 1, 0] == 7).all()
    for place in range(5):
        expected = objective.generator.guesses[place].detach().exp()
        expected[[PAD, CLS, SEP, MASK]] = 0
        fresh = choice.candidates[:, place, place == 1 :]
        if place == 1 and duplicates == "redraw":
            expected[7] = 0
        drawn = fresh.flatten().bincount(minlength=SIZE)
        assert not drawn[expected == 0].any()
        assert chi_square_p(drawn[expected > 0], (expected / expected.sum())[expected > 0]) > SIGNIFICANCE
        together = fresh[:, 0] * SIZE + fresh[:, 1]  # draws are independent
        pairs = torch.outer(expected, expected).flatten() / expected.sum() ** 2
        counts = together.bincount(minlength=SIZE**2)
        assert chi_square_p(counts[pairs > 0], pairs[pairs > 0]) > SIGNIFICANCE
    monkeypatch.setattr(mc_bert, "AT_ONCE", 1500)
    assert torch.equal(objective(batch, streams(batch)).choice.candidates, choice.candidates)


def test_detection_is_the_odds_of_any_candidate_against_none() -> None:
    batch = rows(CLS, 7, 8, SEP, number=3)
    losses = tables("mc_bert", Fixed(1), Says(5), 4)(batch, streams(batch))
    logits = losses.choice.logits
    chance = 1 - logits.softmax(-1)[..., 0]
    torch.testing.assert_close(losses.detection.logits.sigmoid(), chance)
    assert torch.equal(losses.detection.replaced, losses.detection.inputs != batch.tokens)
    assert losses.detection.inputs.tolist() == [[CLS, 5, 8, SEP]] * 3
