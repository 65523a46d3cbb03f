"""All tensors of a network: compared by name and shape, also under other names, and copied."""

import re

import pytest
import torch
from torch import Tensor, nn

from electra_lab.model.network import Shifted
from electra_lab.model.weights import TABLE, Account, account_for, fill, own_tensors
from tests.electra_lab.model.theirs import TINY, network


def shapes(**sizes: int) -> dict[str, Tensor]:
    """Return tensors by the lab's names: `heads_tokens_bias=3` is heads.tokens.bias of shape [3]."""
    return {name.replace("_", "."): torch.zeros(size) for name, size in sizes.items()}


OWN = shapes(backbone_a=2, backbone_b=3, heads_replaced_out=1, heads_tokens_bias=4)


def test_parameters_and_saved_buffers_are_own_tensors_the_objects_themselves() -> None:
    made = network(TINY, "tokens")
    made.backbone.register_buffer("projection", torch.ones(2))
    made.backbone.register_buffer("passing", torch.ones(2), persistent=False)
    own = own_tensors(made)
    assert own.keys() == dict(made.named_parameters()).keys() | {"backbone.projection"}
    assert all(own[name] is p for name, p in made.named_parameters())
    fill(made, {"backbone.projection": torch.tensor([3.0, 4.0])})
    assert made.backbone.get_buffer("projection").tolist() == [3.0, 4.0]


def test_a_tensor_that_both_names_of_a_module_lead_to_is_there_under_both() -> None:
    """With tie: all, the generator's backbone is the discriminator's."""
    first, second = network(TINY, "tokens"), network(TINY, "replaced")
    first.embeddings, first.backbone = second.embeddings, second.backbone
    shared = [name for name, t in own_tensors(first).items() if t is own_tensors(second).get(name)]
    assert {name.split(".")[0] for name in shared} == {"embeddings", "backbone"}
    assert len(shared) == len([n for n in own_tensors(first) if n.startswith(("embeddings.", "backbone."))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_counted_by_tensor(bad: float, dtype: torch.dtype) -> None:
    """Also in unused heads. A buffer may be infinite, as in a causal mask, but not NaN."""
    made = network(TINY, "tokens")
    made.backbone.register_buffer("mask", torch.zeros(4))
    own = own_tensors(made)
    given = {name: tensor.detach().clone() for name, tensor in own.items()} | {"heads.other.bias": torch.zeros(3)}
    for name in ("project.weight", TABLE, "heads.tokens.bias", "heads.other.bias", "backbone.mask"):
        spoilt = given[name].clone().to(dtype)
        spoilt.view(-1)[1:3] = bad
        if name == "backbone.mask" and bad == bad:
            assert account_for({**given, name: spoilt}, own).unused == ("heads.other.bias",)
            continue
        with pytest.raises(ValueError, match=rf"^{name} has NaN or infinite numbers \(2 of {spoilt.numel()}\)\.$"):
            account_for({**given, name: spoilt}, own)


def test_a_number_that_float32_does_not_hold_is_not_finite() -> None:
    own = own_tensors(network(TINY))
    given = {name: tensor.detach().double() for name, tensor in own.items()}
    given["project.bias"][3] = 1e39
    with pytest.raises(ValueError, match=r"^project\.bias has NaN or infinite numbers \(1 of 16\)\.$"):
        account_for(given, own)


def test_only_whole_heads_may_be_new_or_unused() -> None:
    assert account_for(OWN, OWN) == Account((), ())
    given = {name: t for name, t in OWN.items() if "replaced" not in name}
    assert account_for(given, OWN) == Account(("heads.replaced.out",), ())
    assert account_for(OWN, given) == Account((), ("heads.replaced.out",))
    half = OWN | shapes(heads_replaced_dense=1)
    with pytest.raises(ValueError, match=r"^heads\.replaced\.dense is missing\.$"):
        account_for(OWN, half)
    with pytest.raises(ValueError, match=r"^heads\.replaced\.dense is left over\.$"):
        account_for(half, OWN)


def test_foreign_parts_are_left_out_and_names_are_those_that_are_known() -> None:
    given = OWN | shapes(pooler_dense=1)
    account = account_for(given, OWN, str.upper, re.compile(r"pooler\..*"))
    assert account == Account((), ("POOLER.DENSE",))
    with pytest.raises(ValueError, match=r"^POOLER\.DENSE is left over\.$"):
        account_for(given, OWN, str.upper)
    other = {"backbone.a": torch.zeros(1), "other": torch.zeros(1)}
    sentence = "BACKBONE.B is missing; BACKBONE.A has the shape [1], not [2]; OTHER is left over."
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        account_for(other, OWN, str.upper)


@pytest.mark.parametrize("name", ["heads.tokens.weight", "heads.tokens.decoder.weight"])
def test_an_output_table_matters_only_to_a_network_that_has_the_head(name: str) -> None:
    given = OWN | {name: torch.zeros(4)}
    with pytest.raises(ValueError, match=rf"^{re.escape(name)} is not tied to the token table\.$"):
        account_for(given, OWN)
    assert account_for(given, shapes(backbone_a=2, backbone_b=3, heads_replaced_out=1)).unused[1] == name


def test_a_table_that_is_a_sum_takes_what_it_lacks_to_be_the_given_one() -> None:
    made = network(TINY, "replaced")
    table = nn.Embedding(37, 8)
    made.embeddings.tokens = Shifted(table)
    given = torch.randn(37, 8)
    fill(made, {TABLE: given})
    torch.testing.assert_close(made.embeddings.tokens.weight, given, rtol=0, atol=1e-6)
    assert [n for n in own_tensors(made) if n.startswith("embeddings.tokens")] == [TABLE]
    assert torch.equal(own_tensors(made)[TABLE], made.embeddings.tokens.weight)


def test_filling_keeps_parameters_what_they_are_and_skips_what_is_not_given() -> None:
    made = network(TINY, "replaced")
    before = own_tensors(made)
    fill(made, {"heads.replaced.out.bias": torch.full((1,), 7.0, dtype=torch.float64), "other": torch.zeros(1)})
    after = own_tensors(made)
    assert all(after[name] is before[name] for name in before)
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in after.values())
    assert (after["heads.replaced.out.bias"].item(), after["heads.replaced.out.bias"].dtype) == (7.0, torch.float32)
    assert all((t == 0.5).all() for name, t in after.items() if name != "heads.replaced.out.bias")
