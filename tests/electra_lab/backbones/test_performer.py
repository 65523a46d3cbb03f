"""FAVOR+ against exact softmax attention, the distribution and error of its features, and their redrawing."""

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from electra_lab.backbones import performer as module
from electra_lab.backbones.performer import Performer, favor_attention, random_features, rotate

WIDTH, LENGTH, DIM, DEPTH, HEADS = 16, 24, 32, 2, 2


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attention_inputs(scale: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values. Small ones: the variance of the estimate grows exponentially with their norms."""
    query, key, value = torch.randn(3, 2, 2, LENGTH, WIDTH, generator=seeded(0), dtype=torch.float64)
    return query * scale, key * scale, value


def masks(padding: int) -> Tensor:
    """The first row is padded on the right, the second one on the left."""
    visible = torch.ones(2, LENGTH, dtype=torch.bool)
    visible[0, LENGTH - padding :] = visible[1, :padding] = False
    return visible


def performer(dim: int = DIM, **options: Any) -> Performer:
    torch.manual_seed(0)
    return Performer(dim, DEPTH, HEADS, 64, **{"features": 8, "dropout": 0.0, **options})


def error(features: int, seed: int, visible: Tensor) -> float:
    query, key, value = attention_inputs()
    exact = F.scaled_dot_product_attention(query, key, value, attn_mask=visible[:, None, None, :])
    estimate = favor_attention(query, key, value, visible, random_features(features, WIDTH, seeded(seed)))
    return float((estimate - exact).norm() / exact.norm())


@pytest.mark.parametrize("padding", [0, 7])
def test_the_error_falls_with_the_number_of_features(padding: int) -> None:
    """With the inverse square root: sixteen times the features, a quarter of the error; padding has no effect."""
    means = []
    for features in (32, 512, 8192):
        means.append(sum(error(features, seed, masks(padding)) for seed in range(10)) / 10)
    assert all(2.4 < few / many < 6 for few, many in pairwise(means)), means
    assert means[-1] < 0.04


def test_features_are_orthogonal_within_a_block() -> None:
    features = random_features(40, WIDTH, seeded(0))
    assert features.shape == (40, WIDTH)
    for block in features.split(WIDTH):
        directions = F.normalize(block, dim=-1)
        torch.testing.assert_close(directions @ directions.T, torch.eye(len(block)), atol=1e-5, rtol=0)


def test_each_feature_is_gaussian() -> None:
    """At every position of its block: mean 0, covariance I, and chi-square distributed squared norms.

    The diagonal of Q in a QR decomposition is biased; bounds are six standard errors.
    """
    blocks = 10_000
    features = random_features(blocks * WIDTH, WIDTH, seeded(0)).view(blocks, WIDTH, WIDTH).double()
    assert features.mean(0).abs().max() < 6 / blocks**0.5
    assert (features.var(0) - 1).abs().max() < 6 * (2 / blocks) ** 0.5
    everything = features.flatten(0, 1)
    assert (everything.T @ everything / len(everything) - torch.eye(WIDTH)).abs().max() < 6 * (2 / blocks) ** 0.5
    squares = everything.square().sum(-1)
    assert float(squares.mean()) == pytest.approx(WIDTH, rel=0.01)
    assert float(squares.var()) == pytest.approx(2 * WIDTH, rel=0.05)


@pytest.mark.parametrize("padding", [0, 7])
def test_gradients_are_those_of_the_plain_formula(padding: int) -> None:
    """The shifts against overflow cancel, in the gradient too."""
    projection, visible = random_features(32, WIDTH, seeded(3)).double(), masks(padding)
    inputs = [t.requires_grad_() for t in attention_inputs()]

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        both = query / WIDTH**0.25, key / WIDTH**0.25
        q, k = ((x @ projection.T - x.square().sum(-1, keepdim=True) / 2).exp() for x in both)
        weights = (q @ k.transpose(-1, -2)) * visible[:, None, None, :]
        return (weights / weights.sum(-1, keepdim=True)) @ value

    directions = torch.randn(2, 2, LENGTH, WIDTH, generator=seeded(4), dtype=torch.float64)
    found, expected = favor_attention(*inputs, visible, projection), plain(*inputs)
    torch.testing.assert_close(found, expected)
    slopes = (torch.autograd.grad((given * directions).sum(), inputs) for given in (found, expected))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("scale", [0.1, 10, 1e3, 1e6])
def test_weights_add_up_to_one_however_large_the_inputs(scale: float) -> None:
    """So the mean of ones is one, and gradients are finite: no division by almost zero."""
    query, key, value = (t.float().requires_grad_() for t in attention_inputs(scale))
    projection = random_features(64, WIDTH, seeded(0))
    ones = favor_attention(query, key, torch.ones_like(value), masks(7), projection)
    torch.testing.assert_close(ones, torch.ones_like(ones))
    favor_attention(query, key, value, masks(7), projection).square().sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))
    assert value.grad.abs().max() > 0


def test_exponentials_are_float32_under_autocast() -> None:
    """Given bfloat16 inputs, attention has float32 precision."""
    query, key, value = (t.bfloat16() for t in attention_inputs(2.0))
    projection = random_features(64, WIDTH, seeded(0))
    expected = favor_attention(query.double(), key.double(), value.double(), masks(3), projection)
    with torch.autocast("cpu", torch.bfloat16):
        found = favor_attention(query, key, value, masks(3), projection)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_the_whole_encoder_nears_softmax_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    x, mask = torch.randn(2, LENGTH, DIM, generator=seeded(1)), masks(5)
    errors = []
    for features in (8, 4096):
        model = performer(features=features).eval().requires_grad_(False)
        estimate = model(x, mask)
        with monkeypatch.context() as patch:
            exactly = lambda q, k, v, visible, _: F.scaled_dot_product_attention(q, k, v, visible[:, None, None, :])  # noqa: E731
            patch.setattr(module, "favor_attention", exactly)
            exact = model(x, mask)
        errors.append(float((estimate - exact)[mask].norm() / (exact - x)[mask].norm()))
    assert errors[1] < 0.04
    assert errors[0] > 5 * errors[1]


def test_the_encoder_turns_queries_and_keys_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same vector at every position, their products depend only on the distance."""
    products = []

    def spy(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
        products.append(query @ key.transpose(-1, -2))
        return value

    monkeypatch.setattr(module, "favor_attention", spy)
    performer().eval()(torch.randn(DIM, generator=seeded(1)).expand(1, LENGTH, DIM), masks(0)[:1])
    for head in products[0][0]:
        for distance in (-5, 0, 1, 7):
            same = head.diagonal(distance)
            torch.testing.assert_close(same, same[:1].expand_as(same), rtol=0, atol=1e-5)
        assert head[0].std() > 0.01
    angles, query = performer()._angles(torch.zeros(1, LENGTH, DIM)), attention_inputs()[0]
    torch.testing.assert_close(rotate(query, angles).norm(dim=-1), query.norm(dim=-1))
    # In one step: one radian, down to about a ten-thousandth
    assert (angles.shape, float(angles[1, 0])) == ((LENGTH, WIDTH // 2), 1.0)
    assert angles[1, -1] == pytest.approx(10_000 ** -(1 - 2 / WIDTH))


def test_flops_of_local_heads() -> None:
    """By hand, for one layer of width 16 with 4 heads of 4, one of them local, over 32 positions in windows of 8."""
    with pytest.raises(ValueError, match=r"ff_mult 0\.001 leaves the feed-forward no width at dim 32"):
        performer(ff_mult=0.001)
    model = Performer(16, 1, 4, 64, features=5, local_heads=1, window=8, ff_mult=2.0)
    projections, feed_forward = 4 * (2 * 32 * 16 * 16), 2 * (2 * 32 * 16 * 32)
    estimated = 3 * (4 * (2 * 32 * 4 * 5) + 2 * 32 * 5)  # heads of features; four products and the normaliser
    local = 2 * (2 * 32 * 24 * 4)  # two products over three windows
    assert model.flops(32) == projections + feed_forward + estimated + local
    assert (model.features.shape, model.layers[0].expand.out_features) == ((1, 5, 4), 32)


def features_at(model: Performer, seed: int, step: int) -> Tensor:
    model.at_step(seed, step)
    return model.features.clone()


def test_features_are_redrawn_at_their_interval_alone() -> None:
    """Independent of earlier draws and of torch's global generator, whose state does not change."""
    model = performer(redraw_every=10)
    first, second = features_at(model, 0, 0), features_at(model, 0, 10)
    assert not torch.equal(second, first)
    assert torch.equal(features_at(model, 0, 19), second)
    assert torch.equal(features_at(model, 0, 9), first)
    assert not torch.equal(features_at(model, 1, 9), first)
    assert not torch.equal(features_at(model, 0, 20), second)
    torch.manual_seed(99)
    resumed = performer(redraw_every=10)
    state = torch.get_rng_state()
    assert torch.equal(features_at(resumed, 0, 17), second)
    assert torch.equal(torch.get_rng_state(), state)
    never = performer(redraw_every=0)
    first = never.features.clone()
    assert torch.equal(features_at(never, 5, 100_000), first)


def test_a_checkpoint_holds_the_features_that_its_weights_know() -> None:
    """Loaded and evaluated without a step, the states are the same; so they are after the next step."""
    trained, loaded = performer(redraw_every=10), performer(redraw_every=10)
    x = torch.randn(2, LENGTH, DIM, generator=seeded(1))
    untrained = trained.eval()(x, masks(0))
    trained.at_step(3, 25)
    assert (trained(x, masks(0)) - untrained).abs().max() > 1e-3, "features affect the states"
    loaded.load_state_dict(trained.state_dict())
    assert torch.equal(loaded.eval()(x, masks(0)), trained.eval()(x, masks(0)))
    loaded.at_step(3, 26)
    assert torch.equal(loaded.features, trained.features)
    loaded.load_state_dict(trained.state_dict())
    fresh = performer(redraw_every=10)
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(features_at(fresh, 0, 0), features_at(performer(redraw_every=10), 0, 0)), "not the checkpoint's"


def test_networks_are_built_on_the_meta_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `check` does; nothing is drawn there, so the first real step still has to."""
    with torch.device("meta"), monkeypatch.context() as patch:
        patch.setattr(module, "random_features", None)
        model = performer(redraw_every=10)
        model.at_step(0, 25)
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
    model.to_empty(device="cpu")
    assert torch.equal(features_at(model, 0, 25), features_at(performer(redraw_every=10), 0, 25))


def test_dropout_acts_in_training_alone() -> None:
    model = performer(dropout=0.5).train()
    x = torch.randn(2, LENGTH, DIM, generator=seeded(1))
    assert not torch.equal(model(x, masks(0)), model(x, masks(0)))
    assert torch.equal(model.eval()(x, masks(0)), model(x, masks(0)))


def test_features_that_were_loaded_from_another_interval_are_redrawn() -> None:
    """For example after a rollback to a checkpoint of the previous interval."""
    model = performer(redraw_every=10)
    drawn = features_at(model, 0, 25)
    model.features.zero_()
    assert torch.equal(features_at(model, 0, 25), drawn)


TEXT = " ".join((Performer.__doc__ or "").split())


def mean_error(deviation: float, features: int, draws: int = 4) -> float:
    found = []
    for seed in range(draws):
        numbers = torch.Generator().manual_seed(seed)
        query, key, value = torch.randn(3, 2, 4, 128, 32, generator=numbers)
        query, key = deviation * query, deviation * key
        exact = F.scaled_dot_product_attention(query, key, value)
        visible = torch.ones(2, 128, dtype=torch.bool)
        estimate = favor_attention(query, key, value, visible, random_features(features, 32, numbers))
        found.append(float((estimate - exact).norm() / exact.norm()))
    return sum(found) / draws


def test_the_errors_are_those_that_the_docstring_states() -> None:
    sentence = TEXT[TEXT.index("Example: a width of 32, 128 positions and ") :]
    numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d.,]*\d|\d", sentence)]
    few, once, twice, thrice, near, nearer, far, _, many, last = numbers[2:12]
    for stated, deviation, features in zip(
        (near, nearer, far, last), (once, twice, thrice, thrice), (few, few, few, many), strict=True
    ):
        assert mean_error(deviation, int(features)) == pytest.approx(stated, rel=0.12)
    assert min(far, last) > 1, "returning nothing has an error of 1"


def test_networks_of_equal_head_width_share_their_features() -> None:
    """In the layers that both have, for any network width, also after a redraw. Layers do not share features."""
    assert "generator and discriminator share them if their heads are of equal width" in TEXT
    wide, narrow, other = (Performer(*sizes, 64) for sizes in ((128, 3, 4), (64, 2, 2), (64, 2, 1)))
    first = wide.features.clone()
    assert torch.equal(wide.features[:2], narrow.features)
    for backbone in (wide, narrow, other):
        backbone.at_step(1, 1000)
    assert torch.equal(wide.features[:2], narrow.features)
    assert not torch.equal(wide.features, first)
    assert not torch.equal(wide.features[0], wide.features[1])
    assert other.features.shape[-1] != narrow.features.shape[-1]
