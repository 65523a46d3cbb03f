"""Padding, and logits at chosen positions."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from x_transformers import Encoder

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import Experiment, assemble
from electra_lab.backbones.bert import Bert
from electra_lab.backbones.reformer import Reformer
from electra_lab.backbones.transformer import Transformer
from electra_lab.config.load import load
from electra_lab.model.layers import visible_in
from electra_lab.model.network import Embeddings, Network, initialise
from electra_lab.model.pair import EmbeddingSizes, make_heads, make_pair
from electra_lab.training.device import recompute
from registry import Backbone
from registry.errors import BadResult
from tests.helpers import write_experiment

VOCABULARY, DIM, MAX_LENGTH, PAD = 30, 16, 32, 3
BACKBONES = {
    "bert": lambda: Bert(DIM, 2, 2, MAX_LENGTH),
    "transformer": lambda: Transformer(DIM, 2, 2, MAX_LENGTH),
    "reformer": lambda: Reformer(DIM, 2, 2, MAX_LENGTH, bucket_size=4, hashes=2),
}


class Recorder(Backbone, nn.Module):
    layers = ()

    def __init__(self, length_multiple: int) -> None:
        super().__init__()
        self.length_multiple = length_multiple

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        self.x, self.mask = x, attention_mask
        return x


def network(backbone: Any, embedding_dim: int = 8) -> Network:
    sizes = EmbeddingSizes(VOCABULARY, embedding_dim, MAX_LENGTH, 0.0)
    embeddings = Embeddings(VOCABULARY, embedding_dim, MAX_LENGTH, positions=backbone.positions == "lab", dropout=0.1)
    return Network(embeddings, backbone, DIM, pad_id=PAD, heads=make_heads(["tokens", "replaced"], DIM, sizes)).eval()


@lru_cache
def of(name: str) -> Network:
    torch.manual_seed(0)
    return network(BACKBONES[name]())


def tokens_and_mask(real: list[int], length: int, left: bool) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(5, VOCABULARY, (len(real), length), generator=torch.Generator().manual_seed(length))
    places = torch.arange(length)
    inside = torch.tensor(real).unsqueeze(1)
    return tokens, places >= length - inside if left else places < inside


@pytest.mark.parametrize(("length", "padded"), [(1, 8), (7, 8), (8, 8), (9, 16)])
def test_the_length_is_padded_to_the_multiple_and_cut_again(length: int, padded: int) -> None:
    """Added positions are padding: the pad token, masked."""
    recorder = Recorder(8)
    made = network(recorder, embedding_dim=DIM)
    tokens, mask = tokens_and_mask([length, length], length, left=False)
    segments = torch.ones_like(tokens)
    states = made.hidden(tokens, mask, segments)
    assert states.shape == (2, length, DIM)
    assert recorder.x.shape == (2, padded, DIM)
    assert recorder.mask.sum(1).tolist() == [length, length]
    assert recorder.mask[:, :length].all()
    added = (0, padded - length)
    whole = made.embeddings(F.pad(tokens, added, value=PAD), F.pad(segments, added))
    assert torch.equal(recorder.x, whole)
    assert torch.equal(states, whole[:, :length])


def test_documents_reach_a_backbone_that_separates_them() -> None:
    """Added positions form a separate document. Without documents: see test_shared.py of the objectives."""

    class Separating(Recorder):
        separates_documents = True

        def forward(self, x: Tensor, attention_mask: Tensor, documents: Tensor) -> Tensor:
            self.documents = documents
            return super().forward(x, attention_mask)

    made, (tokens, mask) = network(Separating(8), embedding_dim=DIM), tokens_and_mask([6, 4], 6, left=False)
    documents = torch.tensor([[0, 0, 1, 1, 2, 2], [0] * 4 + [1] * 2])
    made.hidden(tokens, mask, torch.zeros_like(tokens), documents)
    padded = F.pad(documents, (0, 2), value=-1)
    assert torch.equal(made.backbone.documents, padded)
    read = F.pad(tokens.masked_fill(~mask, PAD), (0, 2), value=PAD)
    assert torch.equal(made.backbone.x, made.embeddings(read, torch.zeros_like(read), padded))


def test_a_backbone_is_given_the_pad_token_whatever_padding_holds_and_documents_only_if_it_can_separate_them() -> None:
    """So that backbones that do not mask completely are safe, too."""
    recorder = Recorder(1)
    made = network(recorder, embedding_dim=DIM)
    tokens, mask = tokens_and_mask([2, 5, 0], 6, left=False)
    made.hidden(tokens, mask, torch.zeros_like(tokens), None)
    assert torch.equal(recorder.x, made.embeddings(tokens.masked_fill(~mask, PAD), torch.zeros_like(tokens)))
    with pytest.raises(BadResult, match=r"test_network\.py:\d+: Recorder cannot separate documents\."):
        made.hidden(tokens, mask, torch.zeros_like(tokens), torch.zeros_like(tokens))


@pytest.mark.parametrize("detach", [False, True])
def test_states_at_depths_are_those_of_layers_called_by_hand(detach: bool) -> None:
    """Also with checkpointed layers; gradients stop at a depth if requested."""
    made = network(Bert(DIM, 4, 2, MAX_LENGTH, dropout=0.0), embedding_dim=DIM)
    inputs = torch.randint(5, VOCABULARY, (2, 9)), torch.arange(9).expand(2, -1) < 7, torch.zeros(2, 9).long()
    visible = visible_in(inputs[1])
    read = made.embeddings(inputs[0].masked_fill(~inputs[1], PAD), inputs[2])
    layers: Any = made.backbone.layers
    two = layers[1](layers[0](read, visible), visible)
    three = layers[2](two.detach() if detach else two, visible)
    four = layers[3](three.detach() if detach else three, visible)

    def slopes(states: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        # Cubes, as the mean square of a LayerNorm's output does not depend on its input.
        loss = sum(((number + 1) * part.pow(3).mean() for number, part in enumerate(states)), torch.zeros(()))
        return torch.autograd.grad(loss, [*made.parameters()], allow_unused=True)

    expected = (two, three, four), slopes((two, three, four))
    recompute(layers)
    layers.train()
    states = made.hidden_at((2, 3, 4), *inputs, detach=detach)
    torch.testing.assert_close((states, slopes(states)), expected, rtol=1e-5, atol=1e-6)


def test_states_at_depths_are_refused_where_there_are_none() -> None:
    inputs = torch.full((1, 4), 7), torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, 4).long()
    with pytest.raises(BadResult, match=r"no states at the depths \[1, 3\]: the network has 2 layers"):
        of("bert").hidden_at((1, 3), *inputs)
    with pytest.raises(BadResult, match=r"Reformer cannot return the states of inner layers"):
        of("reformer").hidden_at((1,), *inputs)


def test_a_head_that_was_not_built_says_so() -> None:
    """The message tells how an objective asks for it."""
    made, states = network(Recorder(1)), torch.zeros(1, 2, DIM)
    made.heads.clear()
    for name, ask in (
        ("tokens", lambda: made.token_logits(states, torch.zeros(1, 1, dtype=torch.long))),
        ("replaced", lambda: made.replaced_logits(states)),
    ):
        with pytest.raises(BadResult, match=rf"has no head '{name}'.* needs = Needs\(heads=\('{name}',\)\)"):
            ask()


TRUNCATED = 0.87962566103423978  # deviation of a standard normal truncated at two deviations: scipy.stats.truncnorm


@pytest.mark.parametrize(
    ("distribution", "deviation", "beyond"), [("official", TRUNCATED, 0.0), ("normal", 1.0, 0.0455)]
)
def test_weights_are_normal(distribution: Any, deviation: float, beyond: float) -> None:
    """Bounds of five standard errors, for 120,000 draws each."""
    assert stats.truncnorm(-2, 2).std() == pytest.approx(TRUNCATED)
    torch.manual_seed(0)
    linear, table = nn.Linear(400, 300), nn.Embedding(300, 400)
    initialise(nn.ModuleList([linear, table]), distribution=distribution)
    for weight in (linear.weight, table.weight):
        number = weight.numel()
        assert abs(weight.mean().item()) < 5 * 0.02 / number**0.5
        assert abs(weight.std().item() / (0.02 * deviation) - 1) < 5 / (2 * number) ** 0.5
        outside = (weight.abs() > 2 * 0.02).float().mean().item()
        assert abs(outside - beyond) <= 5 * (beyond * (1 - beyond) / number) ** 0.5
    assert not linear.bias.any()
    assert not torch.equal(linear.weight, table.weight)


@pytest.mark.parametrize("distribution", ["official", "normal"])
def test_where_the_official_code_names_no_initializer_weights_are_glorot_uniform(distribution: Any) -> None:
    """TensorFlow's default; only for the projection of the embeddings and the last layer of the detection head."""
    sizes = EmbeddingSizes(50, 24, 16, 0.0)
    generator, model = make_pair(Bert(40, 1, 2, 16), 40, Bert(48, 1, 2, 16), 48, sizes, "embeddings", 0)
    assert generator is not None
    torch.manual_seed(0)
    initialise(nn.ModuleList([generator, model]), distribution=distribution)
    head, own = model.heads["replaced"], generator.heads["tokens"]
    for layer in (generator.project, model.project, head.out):
        limit = (6 / sum(layer.weight.shape)) ** 0.5
        if distribution == "official":
            assert 0.8 * limit < layer.weight.abs().max() <= limit
        spread = limit / 3**0.5 if distribution == "official" else 0.02
        assert layer.weight.std().item() == pytest.approx(spread, rel=0.25)
        assert not layer.bias.any()
    for layer in (head.dense, own.dense, model.backbone.layers[0].query, model.embeddings.tokens):
        assert layer.weight.std().item() == pytest.approx(0.0176 if distribution == "official" else 0.02, rel=0.1)


def test_gains_and_other_parameters_are_left_alone() -> None:
    norm, free = nn.LayerNorm(8), nn.Parameter(torch.randn(3, 3))
    norm.weight.data.uniform_()
    norm.bias.data.uniform_()
    module = nn.Module()
    module.norm, module.free, module.conv = norm, free, nn.Conv1d(2, 3, 1)
    before = {name: p.clone() for name, p in module.named_parameters()}
    initialise(module)
    assert all(torch.equal(before[name], p) for name, p in module.named_parameters())


def test_what_a_library_made_zero_stays() -> None:
    """x-transformers' zero output projections, gates that begin open (zero weight, bias 10), gains as offsets."""
    encoder = Encoder(
        dim=32, depth=2, heads=2, zero_init_branch_output=True, attn_gate_value_heads=True, attn_head_scale=True,
        ff_glu=True, scale_residual=True,
    )  # fmt: skip
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    assert any(p.flatten()[0] == 10 for p in before.values()), "x-transformers' gates no longer begin open"
    initialise(encoder)
    products = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.Linear)}
    drawn = {name: module for name, module in products.items() if before[f"{name}.weight"].any()}
    assert len(products) - len(drawn) >= 4
    assert len(drawn) >= 8
    for name, parameter in encoder.named_parameters():
        layer, _, kind = name.rpartition(".")
        if layer not in drawn:
            assert torch.equal(parameter, before[name]), name
        elif kind == "weight":
            assert 0.013 < parameter.std() < 0.022
        else:
            assert not parameter.any()


def test_a_shared_module_is_set_once() -> None:
    """Otherwise it would shift the draws of later parts."""
    shared, after = nn.Linear(4, 4), nn.Linear(4, 4)
    torch.manual_seed(0)
    initialise(nn.ModuleList([shared, after]))
    expected = [shared.weight.clone(), after.weight.clone()]
    torch.manual_seed(0)
    initialise(nn.ModuleList([shared, nn.Sequential(shared), shared, after]))
    assert torch.equal(shared.weight, expected[0])
    assert torch.equal(after.weight, expected[1])


def assembled(folder: Path, seed: int) -> Experiment:
    data = f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}"
    loaded = load(write_experiment(folder, data=data, seed=seed))
    return assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))


def test_a_seed_means_the_same_weights(tmp_path: Path) -> None:
    """Independent of torch's global generator, whose state assembling does not change."""
    torch.manual_seed(1)
    first = assembled(tmp_path, 0).run.learner.objective.state_dict()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = assembled(tmp_path, 0).run.learner.objective.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert 0.016 < first["generator.embeddings.tokens.weight"].std() < 0.0195  # assembled with the deviation
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = assembled(tmp_path, 1).run.learner.objective.state_dict()
    matrices = [name for name, value in first.items() if value.ndim >= 2]
    assert not any(torch.equal(first[name], other[name]) for name in matrices), "a matrix does not depend on the seed"
