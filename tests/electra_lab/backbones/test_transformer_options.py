"""Options of `transformer`, in all pairs, against x-transformers' own encoder with the same weights."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from x_transformers import Encoder

from electra_lab.backbones._head_norm import HeadNorm
from electra_lab.backbones.transformer import Transformer
from electra_lab.model.flops import counted_flops
from electra_lab.model.initialise import initialise
from electra_lab.optimizers._groups import decayed
from electra_lab.testing import BackboneContract
from tests.helpers import exit_code, line_of, write_experiment

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
    """Return the library's encoder with the same weights. Biases that it cannot leave out are zero."""
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
    """Return those of x and of all parameters by name, in one form for both kinds of norms. None may lack one."""
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
    """States and gradients; no parameter is without one, and torch counts as many operations as the formula."""
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
    """However few weights are dropped."""
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
    """Values of the first layer in later ones would carry a gradient past every depth."""
    contract: Any = type("Suite", (BackboneContract,), {"name": "transformer", "options": options})()
    contract.test_states_of_inner_layers("cpu")
    assert not ours(value_residual=True).inner_states
