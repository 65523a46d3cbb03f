"""`transformer`: its options, one by one and in all pairs, against x-transformers with the same weights."""

from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from x_transformers import Encoder
from x_transformers.x_transformers import Attend, Attention, FeedForward, LayerNorm, RMSNorm

from electra_lab.backbones._head_norm import HeadNorm
from electra_lab.backbones.transformer import KernelAttention, OnePassNorm, Transformer
from electra_lab.model.flops import counted_flops
from electra_lab.model.layers import KERNELS, Kernel, use_kernel
from electra_lab.model.network import initialise
from electra_lab.optimizers.adamw import decayed
from electra_lab.testing import BackboneContract
from tests.helpers import exit_code, line_of, write_experiment


def parts(kind: Any, **options: Any) -> list[Any]:
    found = [module for module in Transformer(96, 2, 2, 32, **options).modules() if isinstance(module, kind)]
    assert found, f"x-transformers has no {kind.__name__} here"
    return found


def test_dropout_acts_on_attention_and_within_the_feed_forward() -> None:
    assert [module.p for module in parts(nn.Dropout, dropout=0.3)] == [0.3] * 4
    assert [attend.dropout for attend in parts(Attend, dropout=0.3)] == [0.3] * 2  # as the fused kernel reads them
    assert {module.p for module in parts(nn.Dropout)} == {0.1}


def test_options_reach_their_parts() -> None:
    for choice in (True, False):
        assert [attend.flash for attend in parts(Attend, flash=choice)] == [choice] * 2
        assert len(parts(RMSNorm if choice else LayerNorm, rmsnorm=choice)) == 5  # two a layer, and one at the end
        assert {part.ff[-1].in_features for part in parts(FeedForward, glu=choice, ff_mult=1.5)} == {144}
    assert {(attention.to_q.out_features, attention.heads) for attention in parts(Attention)} == {(96, 2)}
    rotary = Transformer(96, 1, 2, 32, rotary=True)
    assert rotary.encoder.rotary_pos_emb.inv_freq.shape == (96 // 2 // 2,)  # the whole head is turned
    with pytest.raises(ValueError, match=r"local_heads needs flash: true\."):
        Transformer(64, 1, 2, 32, local_heads=1, flash=False)


def computed(model: Transformer, mask: Tensor, documents: Tensor | None) -> list[Tensor]:
    x = torch.randn(*mask.shape, 64, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    model.zero_grad()
    torch.manual_seed(3)
    states = model(x, mask, documents)
    (states * weights)[mask].sum().backward()
    return [states.detach()[mask], x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("by_document", [True, False])
def test_attention_and_norms_are_the_librarys(rotary: bool, by_document: bool) -> None:
    """With padding, a row of only padding, and dropout. States of padding may differ."""
    torch.manual_seed(0)
    ours, theirs = (Transformer(64, 2, 4, 32, rotary=rotary).double() for _ in range(2))
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs.encoder = Encoder(
        dim=64, depth=2, heads=4, attn_dim_head=16, attn_flash=True, attn_dropout=0.1, ff_dropout=0.1,
        rotary_pos_emb=rotary, rotary_emb_dim=16, verbose=False,
    ).double()  # fmt: skip
    theirs.load_state_dict(ours.state_dict())
    theirs.flash = False  # the library computes angles itself
    assert sum(type(module) is KernelAttention for module in ours.modules()) == 2
    assert sum(type(module) is OnePassNorm for module in ours.modules()) == 5
    mask = torch.arange(20) < torch.tensor([[20], [13], [0]])
    documents = (torch.arange(20) // 6).expand(3, -1) if by_document else None
    for found, expected in zip(computed(ours, mask, documents), computed(theirs, mask, documents), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "options", [{"rotary": True}, {}, {"qk_norm": True, "value_residual": True}, {"rotary": True, "softcap": 1.0}]
)
def test_local_heads_that_see_the_whole_row_are_the_others(options: dict[str, Any], kernel: Kernel) -> None:
    """Two adjacent windows cover the row; each head keeps its weights."""
    torch.manual_seed(0)
    heads: Any = {"local_heads": 3, "window": 10}, {}
    near, far = (Transformer(64, 2, 4, 32, dropout=0.0, **options, **local).double() for local in heads)
    near.load_state_dict(far.state_dict())
    assert use_kernel(kernel, near) == ("softcap" not in options)
    mask = torch.arange(20) < torch.tensor([[20], [13], [0]])
    for found, expected in zip(computed(near, mask, None), computed(far, mask, None), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_dropout_acts_on_the_weights_of_local_heads() -> None:
    torch.manual_seed(0)
    model = Transformer(64, 1, 2, 32, local_heads=1, window=4, dropout=0.5)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # of the layers' outputs; attention has its own number
    (attention,) = (module for module in model.modules() if isinstance(module, Attention))
    torch.nn.init.zeros_(attention.to_out.weight[:, 32:])
    x, mask = torch.randn(2, 24, 64), torch.ones(2, 24, dtype=torch.bool)
    assert not torch.equal(model(x, mask), model(x, mask))


def test_flops_of_local_heads() -> None:
    """By hand, for one layer of width 16 with 4 heads of 4, one of them local, over 32 positions in windows of 8."""
    model = Transformer(16, 1, 4, 64, local_heads=1, window=8, ff_mult=2.0)
    projections, feed_forward = 4 * (2 * 32 * 16 * 16), 2 * (2 * 32 * 16 * 32)
    far, local = 2 * (2 * 32 * 32 * 12), 2 * (2 * 32 * 24 * 4)  # two products over all positions, or over three windows
    assert model.flops(32) == projections + feed_forward + far + local


DIM, DEPTH, HEADS, WIDTH, THETA = 32, 3, 4, 8, 160_000.0
ALL: dict[str, Any] = {"rotary": True, "theta": THETA, "rmsnorm": True, "glu": "swiglu", "bias": False,
                       "qk_norm": True, "value_residual": True, "softcap": 2.0}  # fmt: skip
MASK = torch.arange(12) < torch.tensor([[12], [7]])
DOCUMENTS = (torch.arange(12) // 5).expand(2, -1)


def ours(**options: Any) -> Transformer:
    torch.manual_seed(0)
    made = Transformer(DIM, DEPTH, HEADS, 32, **{"dropout": 0.0, **options})
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)
    return made


def librarys(model: Transformer, options: dict[str, Any]) -> Encoder:
    """Return the library's encoder with the same weights. Biases that it always has are zero."""
    capped, bias = bool(options["softcap"]), options["bias"]
    made = Encoder(
        dim=DIM, depth=DEPTH, heads=HEADS, attn_dim_head=WIDTH, verbose=False, use_rmsnorm=options["rmsnorm"],
        rotary_pos_emb=options["rotary"], rotary_emb_dim=WIDTH,
        rotary_base_rescale_factor=(options.get("theta", 1e4) / 1e4) ** ((WIDTH - 2) / WIDTH),
        ff_glu=bool(options["glu"]), ff_swish=options["glu"] == "swiglu", ff_no_bias=not bias,
        attn_qk_rmsnorm=options["qk_norm"], add_value_residual=options["value_residual"],
        attn_flash=not capped, attn_softclamp_logits=capped, attn_logit_softclamp_value=options["softcap"],
    )  # fmt: skip
    given = {name: tensor for name, tensor in model.encoder.state_dict().items() if "inv_freq" not in name}
    for name in [name for name in given if "rmsnorm" in name]:
        given[name.replace("weight", "gamma")] = given.pop(name).view(HEADS, 1, WIDTH) - 1
    lacking, extra = made.load_state_dict(given, strict=False)
    assert not extra
    for name in lacking:
        assert "inv_freq" in name or (not bias and name.endswith("bias")), name
        if name.endswith("bias"):
            made.get_parameter(name).data.zero_()
    return made


def gradients(model: nn.Module, states: Tensor, x: Tensor) -> dict[str, Tensor]:
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(2))
    named = {"x": x, **dict(model.named_parameters())}
    found = torch.autograd.grad((states * weights)[MASK].sum(), list(named.values()))
    return {name.replace("gamma", "weight"): grad.flatten() for name, grad in zip(named, found, strict=True)}


CHOICES: dict[str, list[Any]] = {
    "rotary": [False, True], "rmsnorm": [False, True], "glu": [False, True, "swiglu"], "bias": [True, False],
    "qk_norm": [False, True], "value_residual": [False, True], "softcap": [0.0, 2.0], "documents": [False, True],
}  # fmt: skip


def pairwise() -> list[dict[str, Any]]:
    """Return choices in which any two values of different options occur together at least once."""
    rows = {values: set(combinations(enumerate(values), 2)) for values in product(*CHOICES.values())}
    missing, found = set().union(*rows.values()), []
    while missing:
        best = max(rows, key=lambda values: len(rows[values] & missing))
        found.append(dict(zip(CHOICES, best, strict=True)))
        missing -= rows[best]
    return found


def test_every_pair_is_as_in_the_library() -> None:
    """Same states and gradients; every parameter has a gradient, and torch counts as many operations as the formula."""
    x = torch.randn(2, 12, DIM, generator=torch.Generator().manual_seed(1)).requires_grad_()
    visible = MASK[:, None] & (DOCUMENTS[..., None] == DOCUMENTS[:, None])
    visible = (visible | ~visible.any(-1, keepdim=True))[:, None]
    for options in pairwise():
        documents = DOCUMENTS if options.pop("documents") else None
        options |= {"theta": THETA} if options["rotary"] else {}
        model = ours(**options)
        theirs = librarys(model, options)
        assert options["bias"] or not any("bias" in name for name, _ in model.named_parameters())
        states = model(x, MASK, documents)
        expected = theirs(x, **({"self_attn_kv_mask": MASK} if documents is None else {"attn_mask": visible}))
        torch.testing.assert_close(states[MASK], expected[MASK], rtol=0, atol=2e-5, msg=str(options))
        found, wanted = gradients(model.encoder, states, x), gradients(theirs, expected, x)
        assert all(grad.any() for grad in found.values()), options
        for name, grad in found.items():
            torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=2e-3, msg=f"{name} {options}")
        assert model.flops(12) == counted_flops(model, 12, DIM), options


def test_theta_is_the_librarys_by_default() -> None:
    frequencies = Encoder(dim=DIM, depth=1, rotary_pos_emb=True, rotary_emb_dim=WIDTH).rotary_pos_emb.inv_freq
    assert torch.equal(Transformer(DIM, 1, HEADS, 8, rotary=True).encoder.rotary_pos_emb.inv_freq, frequencies)


def test_what_is_new_begins_neutral_and_scales_do_not_decay() -> None:
    model = Transformer(DIM, DEPTH, HEADS, 32, **ALL | {"bias": True})
    initialise(model)
    assert all((module.weight == 1).all() for module in model.modules() if isinstance(module, HeadNorm))
    gates = [module for name, module in model.named_modules() if name.endswith("to_value_residual_mix")]
    assert len(gates) == DEPTH - 1
    assert all(((gate(torch.randn(2, 12, DIM)) - 0.5).abs() < 0.2).all() for gate in gates)
    still = {id(parameter) for parameter in decayed(list(model.named_parameters()), 0.01)[1]["params"]}
    assert all(id(parameter) in still for name, parameter in model.named_parameters() if "norm" in name)


def test_a_cap_holds_in_long_rows_of_documents_with_dropout() -> None:
    """Even if hardly any weights are dropped."""
    options = ALL | {"theta": 1e4}
    model, x = ours(**options, dropout=1e-9), torch.randn(1, 340, DIM)
    documents = (torch.arange(340) >= 280).long()[None]
    visible = (documents[..., None] == documents[:, None])[:, None]
    found = model(x, torch.ones(1, 340, dtype=torch.bool), documents)
    torch.testing.assert_close(found, librarys(model, options)(x, attn_mask=visible), rtol=0, atol=2e-5)


MODEL = "{type: transformer, dim: 16, depth: 2, heads: 2"


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("discriminator", {"discriminator": f"{MODEL}, theta: 5.0e4}}"}),
        ("generator", {"discriminator": f"{MODEL}, rotary: true, theta: 5.0e4}}", "generator": "{rotary: false}"}),
        ("discriminator", {"discriminator": f"{MODEL}, glu: swish}}"}),
        ("discriminator", {"discriminator": "{type: transformer, dim: 4, depth: 1, heads: 2, rotary: true}"}),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_line(tmp_path: Path, capsys: Any, key: str, sections: Any) -> None:
    file = write_experiment(tmp_path, **sections)
    assert exit_code("check", str(file)) == 2
    assert f"{file}:{line_of(key, file.read_text())}: {key}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [{"local_heads": 1, "window": 4}, {"rotary": True, "flash": False}, {"rmsnorm": True, "rotary": True}]
)
def test_states_of_inner_layers_with_options(options: dict[str, Any]) -> None:
    """If later layers reused values of the first layer, a gradient would bypass every depth."""
    contract: Any = type("Suite", (BackboneContract,), {"name": "transformer", "options": options})()
    contract.test_states_of_inner_layers("cpu")
    assert not ours(value_residual=True).inner_states
