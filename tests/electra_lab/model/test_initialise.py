"""Initial weights: their distributions, and nothing else is touched."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn
from x_transformers import Encoder

from electra_lab.assembly.experiment import Experiment, assemble, open_data
from electra_lab.backbones.bert import Bert
from electra_lab.config.load import load
from electra_lab.model.initialise import initialise
from electra_lab.model.pair import EmbeddingSizes, make_pair
from tests.helpers import write_experiment

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
    """TensorFlow's default, for the projection of the embeddings and the last layer of the detection head alone."""
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
    """Else it would take draws from the parts after it."""
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
    """Whatever torch's global generator has done, which assembling leaves as it was."""
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
