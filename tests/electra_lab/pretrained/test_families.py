"""Weights of transformers' ELECTRA and BERT in the lab's networks and back: same logits, all tensors accounted for."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor, nn

from electra_lab.model.network import Shifted
from electra_lab.model.weights import own_tensors
from tests.electra_lab.model.theirs import (
    TINY,
    from_transformers,
    inputs,
    logits,
    model,
    network,
    saved,
    to_transformers,
)

HEAD = {hf.ElectraForPreTraining: "replaced", hf.ElectraForMaskedLM: "tokens", hf.BertForMaskedLM: "tokens"}
TABLE = "electra.embeddings.word_embeddings.weight"


@pytest.mark.parametrize("kind", HEAD, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("embedding_dim", [8, 16, 24])
def test_all_tensors_of_a_file_are_ours_and_go_back_to_it(tmp_path: Path, kind: type, embedding_dim: int) -> None:
    theirs = model(kind, embedding_size=embedding_dim)
    given = load_file(saved(theirs, tmp_path) / "model.safetensors")
    ours = network(theirs.config.to_dict(), HEAD[kind])
    account = from_transformers(given, ours, theirs.config.model_type)
    assert (account.new, account.unused) == ((), ())
    own = own_tensors(ours)
    assert len(own) == len(given)
    torch.testing.assert_close(logits(ours, HEAD[kind], 37), logits(theirs, HEAD[kind], 37), rtol=1e-5, atol=1e-5)
    if kind is not hf.BertForMaskedLM:  # BERT becomes ELECTRA
        back = to_transformers(ours)
        assert back.keys() == given.keys()
        assert all(torch.equal(back[name], given[name]) for name in given)
        other = model(kind, embedding_size=embedding_dim, seed=5)
        assert not other.load_state_dict(back, strict=False).unexpected_keys
        torch.testing.assert_close(logits(other, HEAD[kind], 37), logits(theirs, HEAD[kind], 37), rtol=0, atol=0)


def electra() -> dict[str, Tensor]:
    return tensors(model(hf.ElectraForPreTraining))


def tensors(made: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in made.named_parameters()}


def refused(given: dict[str, Tensor], *heads: str, sizes: Any = TINY, kind: Any = "electra") -> str:
    """Return the error, after checking that nothing was copied."""
    ours = network(sizes, *heads)
    before = {name: t.clone() for name, t in own_tensors(ours).items()}
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the sentence is compared by the callers
        from_transformers(given, ours, kind)
    assert all(torch.equal(before[name], t) for name, t in own_tensors(ours).items())
    return str(error.value)


LAYER = "electra.encoder.layer"
POSITIONS = "electra.embeddings.position_embeddings.weight"
MISFITS: list[tuple[str, Any, str]] = [  # a tensor, its shape or None, the message
    (TABLE, None, " is missing."),
    (f"{LAYER}.1.output.dense.bias", None, " is missing."),
    ("discriminator_predictions.dense_prediction.bias", None, " is missing."),
    (TABLE, (38, 8), " has the shape [38, 8], not [37, 8]."),
    (POSITIONS, (21, 8), " has the shape [21, 8], not [20, 8]."),
    (f"{LAYER}.0.crossattention.self.query.weight", (2,), " is left over."),
    ("discriminator_predictions.more.bias", (2,), " is left over."),
    ("scale", (), " is left over."),
    ("electra.embeddings.LayerNorm.gamma", (8,), " appears twice, under an old name and a new one."),
]


@pytest.mark.parametrize(("name", "shape", "reason"), MISFITS)
def test_every_misfit_is_named_and_then_nothing_is_copied(name: str, shape: Any, reason: str) -> None:
    given = electra()
    given.pop(name, None)
    if shape is not None:
        given[name] = torch.zeros(shape)
    assert refused(given, "replaced") == f"{name.replace('gamma', 'weight')}{reason}"


def test_all_misfits_are_counted() -> None:
    deeper = refused(tensors(model(hf.ElectraForPreTraining, num_hidden_layers=3)), "replaced")
    assert deeper.count("electra.encoder.layer.2.") == 8
    assert deeper.endswith(" is left over; and 8 more.")


@pytest.mark.parametrize("kind", [hf.ElectraForMaskedLM, hf.BertForMaskedLM])
def test_an_output_table_of_its_own_is_refused_where_it_matters(kind: type) -> None:
    theirs = model(kind)
    given, sizes, family = tensors(theirs), theirs.config.to_dict(), theirs.config.model_type
    name = "generator_lm_head.weight" if family == "electra" else "cls.predictions.decoder.weight"
    given[name] = given[f"{family}.embeddings.word_embeddings.weight"] + 1
    assert refused(given, "tokens", sizes=sizes, kind=family) == f"{name} is not tied to the token table."
    assert name in from_transformers(given, network(sizes, "replaced"), family).unused


COPIES = {
    hf.ElectraForMaskedLM: {"generator_lm_head.weight": TABLE},
    hf.BertForMaskedLM: {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
}


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("first_too", [True, False])
def test_second_names_of_a_tensor_are_the_tensor(kind: type, first_too: bool) -> None:
    theirs = model(kind)
    given = tensors(theirs)
    for copy, first in COPIES[kind].items():
        given[copy] = given[first] if first_too else given.pop(first)
    ours = network(theirs.config.to_dict(), "tokens")
    account = from_transformers(given, ours, theirs.config.model_type)
    assert (account.new, account.unused) == ((), ())
    torch.testing.assert_close(logits(ours, "tokens", 37), logits(theirs, "tokens", 37), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [hf.BertModel, hf.ElectraModel])
def test_names_of_old_files_and_of_base_models(kind: type) -> None:
    theirs = model(kind)
    given = {"embeddings.position_ids": torch.arange(20)[None]}
    for name, tensor in tensors(theirs).items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        given[old] = tensor
    ours = network(theirs.config.to_dict(), "replaced")
    account = from_transformers(given, ours, theirs.config.model_type)
    assert {name.split(".")[1] for name in account.new} == {"replaced"}
    assert len(account.new) == 4
    assert account.unused == (("bert.pooler.dense.bias", "bert.pooler.dense.weight") if kind is hf.BertModel else ())
    tokens, mask, segments = inputs(37)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=mask.long(), token_type_ids=segments).last_hidden_state
        torch.testing.assert_close(ours.hidden(tokens, mask, segments)[mask], expected[mask], rtol=1e-5, atol=1e-5)


def test_a_bert_starts_either_network_and_what_it_lacks_or_leaves_is_listed() -> None:
    given, sizes = tensors(model(hf.BertForPreTraining)), model(hf.BertForPreTraining).config.to_dict()
    generator, discriminator = network(sizes, "tokens"), network(sizes, "replaced")
    others = ("bert.pooler.dense.bias", "bert.pooler.dense.weight", "cls.seq_relationship.bias",
              "cls.seq_relationship.weight")  # fmt: skip
    account = from_transformers(given, generator, "bert")
    assert (account.new, account.unused) == ((), others)
    before = discriminator.heads["replaced"].out.weight.clone()
    account = from_transformers(given, discriminator, "bert")
    assert account.new == tuple(name for name in own_tensors(discriminator) if name.startswith("heads."))
    predictions = {name for name in given if name.startswith("cls.predictions.")}
    assert len(predictions) == 5
    assert set(account.unused) == {*others, *predictions}
    assert torch.equal(discriminator.heads["replaced"].out.weight, before)


LEFT_OUT = {
    hf.ElectraForSequenceClassification: {"classifier"},
    hf.ElectraForTokenClassification: {"classifier"},
    hf.ElectraForQuestionAnswering: {"qa_outputs"},
    hf.ElectraForMultipleChoice: {"classifier", "sequence_summary"},
    hf.ElectraForMaskedLM: {"generator_predictions", "generator_lm_head"},
    hf.BertForSequenceClassification: {"classifier", "bert"},
    hf.BertForNextSentencePrediction: {"cls", "bert"},
}


@pytest.mark.parametrize(("kind", "parts"), LEFT_OUT.items())
def test_heads_of_other_tasks_are_left_out_and_listed(kind: type, parts: set[str]) -> None:
    theirs = model(kind)
    given = tensors(theirs)
    ours = network(theirs.config.to_dict(), "replaced")
    account = from_transformers(given, ours, theirs.config.model_type)
    assert {name.split(".")[0] for name in account.unused} == parts
    assert len(given) == len(own_tensors(ours)) - len(account.new) + len(account.unused)


def test_a_network_without_heads_leaves_both_out() -> None:
    account = from_transformers(electra(), network(TINY), "electra")
    assert account.new == ()
    assert {name.split(".")[0] for name in account.unused} == {"discriminator_predictions"}


def test_a_table_that_is_a_sum_is_written_and_read_as_one() -> None:
    """With tie: gradient_disentangled; the generator's part does not change."""
    ours, given = network(TINY, "replaced"), electra()
    table = nn.Embedding(37, 8)
    before = table.weight.clone()
    ours.embeddings.tokens = Shifted(table)
    from_transformers(given, ours, "electra")
    assert torch.equal(table.weight, before)
    torch.testing.assert_close(ours.embeddings.tokens.weight, given[TABLE], rtol=0, atol=1e-6)
    back = to_transformers(ours)
    assert back.keys() == given.keys()
    torch.testing.assert_close(back[TABLE], given[TABLE], rtol=0, atol=1e-6)
    assert not any(t.requires_grad for t in back.values())
