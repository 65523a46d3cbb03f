"""The tokens of the weights that training starts from: the same as the experiment's, or it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from electra_lab.assembly.experiment import check
from electra_lab.config.load import load
from electra_lab.jobs.pretraining.facts import opening
from tests.electra_lab.assembly.initial_weights import TABLE as THEIR_TABLE
from tests.electra_lab.assembly.initial_weights import discriminator, generator, made, networks, refusal, weights, write
from tests.electra_lab.assembly.test_initial_weights import assert_same

pytestmark = pytest.mark.usefixtures("no_report")


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "number", "sat", "on", "mat", "and", "saw", "dogs"]


def with_tokenizer(folder: Path, *, swapped: bool = False) -> Path:
    """Put a vocab.txt beside the weights: all words of the corpus, two of which may change places."""
    words = [*WORDS, *map(str, range(41))]
    if swapped:
        words[5:7] = "cat", "the"
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words))
    return folder


PRETRAINED = {"tokenizer": "{type: pretrained, path: model}", "init": "{discriminator: model}"}


def test_a_model_goes_on_with_its_own_tokenizer(tmp_path: Path) -> None:
    discriminator(tmp_path / "model", vocab_size=55)
    folder = with_tokenizer(tmp_path / "model")
    experiment = made(write(tmp_path, **PRETRAINED))
    assert experiment.init["discriminator"].tokenizer
    assert experiment.vocabulary.size == 55
    assert experiment.store.tokenizer.encode("the cat", add_special_tokens=False).ids == [5, 6]
    assert_same(weights(networks(experiment)["discriminator"]), load_file(folder / "model.safetensors"))


@pytest.mark.parametrize(
    ("rows", "tokenizer", "reason"),
    [
        (55, "swapped", "has other tokens: 'cat' is token 5 here and token 6 there. Write tokenizer: {{type: "
         "pretrained, path: {model}}}."),
        (53, "model", f"does not fit: {THEIR_TABLE} has the shape [53, 8], not [55, 8]."),
        # more rows than tokens, and nobody knows which tokens they are
        (64, "words", f"does not fit: {THEIR_TABLE} has the shape [64, 8], not [55, 8]."),
    ],
)  # fmt: skip
def test_other_tokens_are_refused_without_the_corpus_if_no_tokenizer_is_trained(tmp_path, rows, tokenizer, reason):
    discriminator(tmp_path / "model", vocab_size=rows)
    if tokenizer != "words":
        with_tokenizer(tmp_path / "model")
    with_tokenizer(tmp_path / tokenizer, swapped=tokenizer == "swapped")
    file = write(tmp_path, **PRETRAINED | {"tokenizer": f"{{type: pretrained, path: {tokenizer}}}"})
    assert refusal(file) == f"{tmp_path / 'model'}: {reason.format(model=tmp_path / 'model')}"


def test_rows_that_no_token_has_are_left_out_and_named(tmp_path: Path) -> None:
    """Some tables are padded to a multiple of 8 or 64."""
    discriminator(tmp_path / "model", vocab_size=64)
    folder = with_tokenizer(tmp_path / "model")
    file = write(tmp_path, **PRETRAINED)
    assert check(load(file)) is None
    experiment = made(file)
    theirs = load_file(folder / "model.safetensors")
    assert torch.equal(networks(experiment)["discriminator"].embeddings.tokens.weight, theirs[THEIR_TABLE][:55])
    assert experiment.init["discriminator"].unused == [f"{THEIR_TABLE}[55:64]"]
    assert f"not used: {THEIR_TABLE}[55:64]\n" in opening(load(file), experiment, tmp_path)


def test_a_head_that_is_not_used_is_named_once(tmp_path: Path) -> None:
    generator(tmp_path / "model", vocab_size=64, hidden_size=16, num_attention_heads=2, intermediate_size=64)
    with_tokenizer(tmp_path / "model")
    unused = made(write(tmp_path, **PRETRAINED)).init["discriminator"].unused
    assert f"{THEIR_TABLE}[55:64]" in unused
    assert [name for name in unused if name.startswith("generator_lm_head")] == ["generator_lm_head.bias"]


def test_rows_of_added_tokens_are_trained_further(tmp_path: Path) -> None:
    discriminator(tmp_path / "model", vocab_size=57)
    folder = with_tokenizer(tmp_path / "model")
    (folder / "added_tokens.json").write_text(json.dumps({"[ENT1]": 55, "[ENT2]": 56}))
    experiment = made(write(tmp_path, **PRETRAINED))
    assert experiment.vocabulary.size == 57
    assert experiment.init["discriminator"].unused == []
    theirs = load_file(folder / "model.safetensors")
    assert torch.equal(networks(experiment)["discriminator"].embeddings.tokens.weight, theirs[THEIR_TABLE])
