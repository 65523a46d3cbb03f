"""Parts that generator and discriminator share."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from electra_lab.backbones.bert import Bert
from electra_lab.backbones.modernbert import ModernBert
from electra_lab.backbones.reformer import Reformer
from electra_lab.backbones.transformer import Transformer
from electra_lab.model.network import Network, initialise
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.optimizers.adamw import AdamW
from electra_lab.storage.checkpoint import load_newest, save, tensors_of
from electra_lab.testing.optimizers import STATE

SIZES = EmbeddingSizes(vocabulary_size=30, dim=16, max_length=32, dropout=0.0)


def bert(dim: int) -> nn.Module:
    return Bert(dim, 1, 2, 32, dropout=0.0)


TIES = ["none", "tokens", "embeddings", "all", "gradient_disentangled", 1]


def pair(tie: Any, generator_dim: int = 8, discriminator_dim: int = 16) -> tuple[Network, Network]:
    torch.manual_seed(0)
    sizes = generator_dim, bert(discriminator_dim), discriminator_dim, SIZES
    return make_pair(bert(generator_dim), *sizes, tie, pad_id=0)


@pytest.mark.parametrize("generator_dim", [8, 16])
@pytest.mark.parametrize("discriminator_dim", [16, 32])
@pytest.mark.parametrize("tie", ["none", "tokens", "embeddings"])
def test_a_projection_exactly_where_widths_differ(tie: str, generator_dim: int, discriminator_dim: int) -> None:
    dims = generator_dim, discriminator_dim
    for network, dim in zip(pair(tie, *dims), dims, strict=True):
        assert network.embeddings.dim == 16
        assert (network.project is None) == (dim == 16)
        assert network.project is None or network.project.weight.shape == (dim, 16)
    generator, discriminator = pair(tie, 8, 8)
    assert generator.project is not discriminator.project


@pytest.mark.parametrize("tie", ["none", "tokens", "embeddings"])
def test_both_networks_are_given_the_sizes_and_the_pad_token(tie: Any) -> None:
    sizes = EmbeddingSizes(vocabulary_size=30, dim=16, max_length=24, dropout=0.3)
    for network in make_pair(bert(8), 8, bert(16), 16, sizes, tie, pad_id=7):
        assert network.pad_id == 7
        assert network.embeddings.dropout.p == 0.3
        assert network.embeddings.tokens.weight.shape == (30, 16)
        assert network.embeddings.positions.weight.shape == (24, 16)


# Gradients of each loss


class Both(nn.Module):
    def __init__(self, tie: Any, head: Any = "replaced", width: int | None = None) -> None:
        super().__init__()
        width = width or (16 if tie in ("all", 1) else 8)
        torch.manual_seed(0)
        self.generator, self.discriminator = make_pair(bert(width), width, bert(16), 16, SIZES, tie, 0, [head])
        initialise(self)
        for name, parameter in self.named_parameters():
            if "difference" not in name:
                parameter.data += 0.2 * torch.randn_like(parameter)

    def teach(self, network: str) -> set[str]:
        self.zero_grad()
        tokens, positions = torch.arange(5, 23).view(2, 9), torch.tensor([[1, 4], [0, 2]])
        student = getattr(self, network)
        states = student.hidden(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens))
        detects = "replaced" in student.heads
        said = student.replaced_logits(states) if detects else student.token_logits(states, positions)
        said.square().sum().backward()
        return {name for name, p in self.named_parameters() if p.grad is not None and p.grad.any()}


DIFFERENCE = "discriminator.embeddings.tokens.difference.weight"
GENERATOR_TABLE, DISCRIMINATOR_TABLE = (f"{n}.embeddings.tokens.weight" for n in ("generator", "discriminator"))


@pytest.mark.parametrize("head", ["replaced", "tokens"])
@pytest.mark.parametrize("tie", TIES)
def test_a_loss_reaches_all_of_its_own_network_and_of_the_other_what_is_shared(tie: str, head: str) -> None:
    """Except the frozen half of a table plus a difference."""
    both = Both(tie, head)
    names = {id(p): name for name, p in both.named_parameters()}
    for network in ("generator", "discriminator"):
        own = {names[id(p)] for p in getattr(both, network).parameters()}
        if network == "discriminator" and tie == "gradient_disentangled":
            own -= {GENERATOR_TABLE}
        assert both.teach(network) == own


SHARED = {
    "none": [],
    "tokens": ["embeddings.tokens.weight"],
    "embeddings": [
        *(f"embeddings.{part}.weight" for part in ("tokens", "positions", "segments", "norm")), "embeddings.norm.bias",
    ],
    "gradient_disentangled": [],
}  # fmt: skip


@pytest.mark.parametrize("tie", TIES)
def test_what_is_shared_is_one_parameter_of_the_optimizer_and_one_tensor_of_a_checkpoint(tmp_path, tie: str) -> None:
    """Under the generator's name; and a checkpoint restores both networks with their tying."""
    both, other = Both(tie), Both(tie)
    encoder = [f"backbone.{name}" for name, _ in bert(16).named_parameters()]
    shared = SHARED["embeddings"] + encoder if tie in ("all", 1) else SHARED[tie]
    studied = set(both.discriminator.parameters())
    frozen = ["embeddings.tokens.weight"] if tie == "gradient_disentangled" else []  # read, but not trained
    found = [name for name, parameter in both.generator.named_parameters() if parameter in studied]
    assert sorted(found) == sorted([*shared, *frozen])
    optimizers = [AdamW(list(module.named_parameters()), 1e-3) for module in (both, other)]
    listed = [p for group in optimizers[0].param_groups for p in group["params"]]
    assert len(listed) == len({id(p) for p in listed}) == len(list(both.parameters()))
    path = save(tmp_path / "checkpoints", 0, tensors_of(both, optimizers[0]), STATE, keep=1)
    written = {name.removeprefix("model.") for name in load_file(path / "state.safetensors")}
    assert written == {name for name, _ in both.named_parameters()}
    for network in (both.generator, both.discriminator):
        assert set(shared) <= {name for name, _ in network.named_parameters()}
    assert not written & {f"discriminator.{name}" for name in shared}
    assert {f"generator.{name}" for name in shared} <= written
    # Both networks are restored from the checkpoint, and from a file with all names of both
    whole = both.state_dict()
    save_file({name: value.clone() for name, value in whole.items()}, tmp_path / "both.safetensors")
    for load in (
        lambda: load_newest(tmp_path / "checkpoints", other, optimizers[1], print),
        lambda: other.load_state_dict(load_file(tmp_path / "both.safetensors")),
    ):
        for parameter in other.parameters():
            parameter.data.zero_()
        load()
        found = other.state_dict()
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)


# all


def test_all_shares_the_encoder_the_projection_and_the_embeddings_and_keeps_the_heads_apart() -> None:
    generator, discriminator = pair("all", 8, 8)
    assert generator.project is discriminator.project is not None
    assert generator.backbone is discriminator.backbone
    assert generator.embeddings is discriminator.embeddings
    shared = set(generator.parameters()) & set(discriminator.parameters())
    for network, head in ((generator, "tokens"), (discriminator, "replaced")):
        own = {name.split(".")[0] for name, p in network.named_parameters() if p not in shared}
        assert (own, list(network.heads)) == ({"heads"}, [head])
    tokens = torch.arange(5, 23).view(2, 9)
    states = [network.hidden(tokens, tokens > 0, tokens * 0) for network in (generator, discriminator)]
    assert torch.equal(*states)
    heads = make_pair(bert(8), 8, bert(8), 8, SIZES, "all", 0, ["tokens"])
    assert heads[0] is not None
    assert heads[0].heads["tokens"] is not heads[1].heads["tokens"]


def reformer(reversible: bool = True, depth: int = 1) -> Any:
    return Reformer(16, depth, 2, 32, bucket_size=4, reversible=reversible)


def test_a_reversible_encoder_cannot_run_twice_before_one_backward_pass() -> None:
    """Other encoders can be shared, and two reversible ones may share embeddings."""
    make_pair(reformer(), 16, reformer(), 16, SIZES, "embeddings", pad_id=0)
    two = reformer(False)
    generator, discriminator = make_pair(reformer(False), 16, two, 16, SIZES, "all", pad_id=0)
    assert generator is not None
    assert generator.backbone is discriminator.backbone is two


# Layers


STACKS: dict[str, Any] = {
    "bert": lambda depth: Bert(16, depth, 2, 32, dropout=0.0),
    "transformer": lambda depth: Transformer(16, depth, 2, 32, dropout=0.0),
    "modernbert": lambda depth: ModernBert(16, depth, 2, 32),
}


@pytest.mark.parametrize("kind", STACKS)
def test_the_lowest_layers_are_shared_with_the_embeddings_and_their_projection(kind: str) -> None:
    """And nothing else; also for an embedding of another width, which has a projection."""
    sizes = EmbeddingSizes(vocabulary_size=30, dim=8, max_length=32, dropout=0.0)
    generator, discriminator = make_pair(STACKS[kind](3), 16, STACKS[kind](4), 16, sizes, 2, pad_id=0)
    assert generator is not None
    shared = set(generator.parameters()) & set(discriminator.parameters())
    expected = {*discriminator.embeddings.parameters(), *discriminator.project.parameters()}
    for layer in discriminator.backbone.layers[:2]:
        expected |= set(layer.parameters())
    assert shared == expected
    tokens = torch.arange(5, 23).view(2, 9)
    layer = next(iter(discriminator.backbone.layers[1].parameters()))
    before = generator.hidden(tokens, tokens > 0, tokens * 0)
    layer.data += 1.0
    assert not torch.equal(generator.hidden(tokens, tokens > 0, tokens * 0), before)


DIFFER = r"the two backbones differ\. Write generator: {scale: 1\.0}"
ALIKE = "Use tie: tokens, or two backbones of the same kind"
# The parts to share, two encoders and their widths, and why they cannot share them.
REFUSED: list[tuple[Any, Any, int, Any, int, str]] = [
    ("all", Bert(8, 1, 2, 32), 8, bert(16), 16, DIFFER),
    ("all", Bert(16, 2, 2, 32), 16, bert(16), 16, DIFFER),
    ("all", Transformer(64, 1, 2, 32), 64, bert(64), 64, DIFFER),
    ("all", reformer(), 16, reformer(), 16, "Use reversible: false, or tie: embeddings"),
    (3, Bert(16, 2, 2, 32), 16, Bert(16, 4, 2, 32), 16, "the generator has 2 and the discriminator 4"),
    (3, Bert(16, 4, 2, 32), 16, Bert(16, 3, 2, 32), 16, "the generator has 4 and the discriminator 3"),
    (2, reformer(depth=2), 16, reformer(depth=2), 16, "Use reversible: false"),
    (3, Bert(16, 3, 2, 32, ff_mult=2), 16, Bert(16, 4, 2, 32), 16, "the same parameters"),
]
KNOWING, BARE = Transformer(64, 1, 2, 32, rotary=True), ModernBert(64, 1, 2, 32)  # of positions, of embeddings


@pytest.mark.parametrize(("tie", "left", "width", "right", "other", "reason"), REFUSED)
def test_what_cannot_be_one_is_refused(tie: Any, left: Any, width: int, right: Any, other: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_pair(left, width, right, other, SIZES, tie, pad_id=0)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("left", "right"), [(KNOWING, Transformer(64, 1, 2, 32)), (BARE, KNOWING)])
def test_positions_and_a_norm_cannot_be_shared_by_one(left: Any, right: Any, first: bool) -> None:
    """Token tables can be shared."""
    backbones = [left, right] if first else [right, left]
    with pytest.raises(ValueError, match=ALIKE):
        make_pair(backbones[0], 64, backbones[1], 64, SIZES, "embeddings", pad_id=0)
    networks = make_pair(backbones[0], 64, backbones[1], 64, SIZES, "tokens", pad_id=0)
    placed = [network.embeddings.positions is not None for network in networks]
    assert placed == [backbone not in (KNOWING, BARE) for backbone in backbones]
    assert [network.embeddings.bare for network in networks] == [backbone is BARE for backbone in backbones]
    assert networks[0].embeddings.tokens is networks[1].embeddings.tokens


# gradient_disentangled


def test_a_difference_gets_the_gradient_that_a_table_of_its_own_would_get() -> None:
    both, apart = Both("gradient_disentangled"), Both("none")
    with torch.no_grad():
        for name, parameter in apart.named_parameters():
            parameter.copy_(dict(both.named_parameters())[GENERATOR_TABLE if name == DISCRIMINATOR_TABLE else name])
    both.teach("discriminator")
    apart.teach("discriminator")
    found, expected = both.get_parameter(DIFFERENCE).grad, apart.get_parameter(DISCRIMINATOR_TABLE).grad
    torch.testing.assert_close(found, expected)


def test_without_a_generator_there_is_one_network_with_the_head_that_is_asked_for() -> None:
    for tie in TIES:
        nobody, studied = make_pair(None, 0, bert(16), 16, SIZES, tie, 0, ["tokens"])
        assert nobody is None
        assert isinstance(studied.embeddings.tokens, nn.Embedding)
        assert list(studied.heads) == ["tokens"]
