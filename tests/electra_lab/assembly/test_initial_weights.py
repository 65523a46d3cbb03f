"""Initial weights from models: the right tensors in the right network, a step equal to transformers', refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import BertForPreTraining

from electra_lab.assembly.experiment import check
from electra_lab.config.load import dump, load
from electra_lab.jobs.identity import content_of
from electra_lab.jobs.pretraining.facts import opening
from electra_lab.pretrained.families import FAMILIES
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.random import Streams
from electra_lab.training.step import backward
from registry.errors import ConfigError, DataError
from tests.electra_lab.assembly.initial_weights import (
    BOTH,
    DISCRIMINATOR,
    SAME_SIZES,
    TABLE,
    TIES,
    discriminator,
    files,
    generator,
    made,
    networks,
    refusal,
    resaved,
    weights,
    write,
)
from tests.electra_lab.jobs.pretraining.tiny import run
from tests.electra_lab.model.theirs import model, saved
from tests.helpers import line_of

pytestmark = pytest.mark.usefixtures("no_report")


def assert_same(given: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], atol: float = 0.0) -> None:
    assert given.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(given[name], expected[name], rtol=0, atol=atol, msg=name)


# Models in Hugging Face format


@pytest.mark.parametrize(("name", "folder"), [("discriminator", "pair"), ("generator", "pair/generator")])
def test_a_network_that_is_not_named_keeps_the_weights_of_its_seed(tmp_path, pair, name, folder) -> None:
    usual = networks(made(write(tmp_path)))
    found = networks(made(write(tmp_path, init=f"{{{name}: {folder}}}")))
    assert_same(weights(found.pop(name)), files(tmp_path)[name])
    ((other, network),) = found.items()
    assert_same(weights(network), weights(usual[other]))


@pytest.mark.parametrize("tie", ["none", "embeddings"])
def test_a_step_has_the_losses_and_gradients_of_transformers(tmp_path: Path, tie: str) -> None:
    detects = discriminator(tmp_path / "pair" / "discriminator")
    guesses = generator(tmp_path / "pair" / "generator", detects if tie == "embeddings" else None)
    experiment = made(write(tmp_path, tie=tie, init=BOTH))
    learner, ours = experiment.run.learner, networks(experiment)
    seen: dict[str, torch.Tensor] = {}
    for name, network in ours.items():
        watch(network, name, seen)
    batch = experiment.train.training_batch(0, 0, len(experiment.train), experiment.device)
    learner.objective.train()
    terms = learner.losses(batch, Streams.of(0, 0, batch.example_ids), "fp32").terms
    backward(terms)

    masked = learner.objective.mask(batch, Streams.of(0, 0, batch.example_ids))
    inputs = {"attention_mask": batch.attention_mask.long(), "token_type_ids": batch.segments}
    logits = guesses.train()(input_ids=masked.inputs, **inputs).logits
    rows = torch.arange(len(batch))[:, None].expand_as(masked.positions)[masked.valid]
    places = masked.positions[masked.valid]
    mlm = F.cross_entropy(logits[rows, places], batch.tokens[rows, places])
    real, replaced = batch.attention_mask, seen["discriminator"] != batch.tokens
    logits = detects.train()(input_ids=seen["discriminator"], **inputs).logits
    rtd = F.binary_cross_entropy_with_logits(logits[real], replaced[real].float())
    (mlm + 50 * rtd).backward()

    assert torch.equal(seen["generator"], masked.inputs)
    assert replaced.any()
    assert not real.all()
    for name, expected in {"generator": mlm, "discriminator": rtd}.items():
        assert (terms[name].sum / terms[name].count).item() == pytest.approx(expected.item(), abs=1e-5), name
    compared = set()
    for theirs, network in ((guesses, ours["generator"]), (detects, ours["discriminator"])):
        gradients = {name: p.grad for name, p in theirs.named_parameters()}
        for name, parameter in network.named_parameters():
            expected = gradients.pop(FAMILIES["electra"].names("").stored_name(name))
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-5, msg=name)
            compared.add(name)
        assert not gradients
    assert len(compared) == 32


def watch(network: Any, name: str, seen: dict[str, torch.Tensor]) -> None:
    hidden = network.hidden

    def noted(tokens: torch.Tensor, *others: Any) -> torch.Tensor:
        seen[name] = tokens
        states: torch.Tensor = hidden(tokens, *others)
        return states

    network.hidden = noted


# Tying


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("name", ["discriminator", "generator"])
def test_of_one_model_the_shared_part_is_in_both_networks(tmp_path: Path, tie: str, name: str) -> None:
    discriminator(tmp_path / "pair" / "discriminator")
    generator(tmp_path / "pair" / "generator", **DISCRIMINATOR)
    found = networks(made(write(tmp_path, tie=tie, init=f"{{{name}: pair}}", **SAME_SIZES)))
    given = files(tmp_path)[name]
    assert_same(weights(found.pop(name)), given, 1e-6)
    ((_, network),) = found.items()
    other = weights(network)
    shared = {"none": (), "tokens": TABLE, "embeddings": "electra.embeddings.", "all": "electra.",
              "gradient_disentangled": TABLE if name == "generator" else (),
              "{layers: 1}": ("electra.embeddings", "electra.encoder.layer.0.")}[tie]  # fmt: skip
    same = {n for n in other.keys() & given.keys() if torch.equal(other[n], given[n])}
    assert same == {n for n in other if n.startswith(shared)}


@pytest.mark.parametrize("tie", TIES)
def test_two_models_must_agree_on_what_is_shared(tmp_path: Path, tie: str) -> None:
    detects = discriminator(tmp_path / "pair" / "discriminator")
    guesses = generator(tmp_path / "pair" / "generator", detects, **DISCRIMINATOR)
    if tie == "all":
        guesses.electra = detects.electra
        guesses.save_pretrained(tmp_path / "pair" / "generator")
    if tie == "{layers: 1}":
        guesses.electra.embeddings_project = detects.electra.embeddings_project
        guesses.electra.encoder.layer[0] = detects.electra.encoder.layer[0]
        guesses.save_pretrained(tmp_path / "pair" / "generator")
    file = write(tmp_path, tie=tie, init=BOTH, **SAME_SIZES)
    assert check(load(file)) is None
    found = networks(made(file))
    for name, expected in files(tmp_path).items():
        assert_same(weights(found[name]), expected, 1e-6)
    given = files(tmp_path)["generator"]
    given[TABLE][3, 3] += 1e-3
    save_file(given, tmp_path / "pair" / "generator" / "model.safetensors")
    if tie in ("none", "gradient_disentangled"):
        assert check(load(file)) is None
    else:
        said = "the two models have different values of embeddings.tokens.weight, which both networks share "
        assert refusal(file).startswith(f"{said}(embedding.tie: {tie}). ")


# Refusals


BIAS = "electra.encoder.layer.0.output.dense.bias"
# Sizes of the model, a change of its tensors, sections of the experiment, and the reason; {model} is its folder.
REFUSED: dict[str, tuple[dict[str, Any], Callable[[Any], object] | None, dict[str, str], str]] = {
    "heads, which no tensor shows": ({"num_attention_heads": 4}, None, {}, "discriminator.heads is 2 here and 4 there"),
    "feed-forward": ({"intermediate_size": 48}, None, {}, "discriminator.ff_mult is 4.0 here and 3.0 there"),
    "embeddings": ({"embedding_size": 16}, None, {}, "embedding.dim is 8 here and 16 there"),
    "positions": ({"max_position_embeddings": 32}, None, {}, "embedding.max_length is 16 here and 32 there"),
    "backbone": ({}, None, {"discriminator": "{type: transformer, dim: 16, depth: 3, heads: 2}"},
                 "discriminator.type is transformer here and bert there. "),  # no other option
    "vocabulary": ({"vocab_size": 201}, None, {}, "has 201 tokens, but tokenizer.vocab_size is 200. Write tokenizer: "
                   "{{type: pretrained, path: {model}}}."),
    "shape": ({}, lambda given: given.update({BIAS: torch.zeros(3), "more": torch.zeros(1)}), {},
              f"does not fit: {BIAS} has the shape [3], not [16]; more is left over."),
    "no rows": ({}, lambda given: given.update({TABLE: torch.tensor(1.0)}), {},
                f"does not fit: {TABLE} has the shape [], not [200, 8]."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_does_not_fit_is_refused_without_the_corpus(tmp_path: Path, case: str) -> None:
    sizes, change, sections, reason = REFUSED[case]
    folder = tmp_path / "model"
    discriminator(folder, **sizes)
    if change is not None:
        resaved(folder, change)
    file = write(tmp_path, init="{discriminator: model}", **sections)
    (tmp_path / "corpus.txt").unlink()
    said = refusal(file).removeprefix(f"{folder}: ").removeprefix("does not fit this network: ")
    assert said.startswith(reason.format(model=folder))


def test_a_feed_forward_of_the_same_width_is_the_same_whatever_its_multiple(tmp_path: Path) -> None:
    discriminator(tmp_path / "model", intermediate_size=21)
    section = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0, ff_mult: 1.3}"  # 20.8
    assert check(load(write(tmp_path, init="{discriminator: model}", discriminator=section))) is None


def test_what_is_not_there_is_a_note_of_check_after_mistakes_of_the_file_and_stops_a_run(tmp_path: Path, pair) -> None:
    for other in ("null", "pair", "./nothing"):
        said = refusal(write(tmp_path, init=f"{{discriminator: {other}, generator: ./none}}"), DataError, "generator")
        assert said == f"{tmp_path}/none: does not exist."
    discriminator(tmp_path / "model", num_hidden_layers=2)
    said = refusal(write(tmp_path, init="{discriminator: model, generator: ./none}"))
    assert said.startswith(f"{tmp_path / 'model'}: does not fit this network: ")


@pytest.mark.parametrize(
    ("key", "reason", "sections"),
    [
        ("generator", "uniform learns nothing, ", {"generator": "{type: uniform}"}),
        ("generator", "there is no generator, ", {"generator": "null", "objective": "{type: mlm}", "sampler": "null"}),
        ("discriminator", "two_stage starts the discr", {"objective": "{type: two_stage, generator_steps: 1}"}),
    ],
)  # fmt: skip
def test_a_network_that_starts_from_nothing_or_by_itself_has_no_init(tmp_path, pair, key, reason, sections) -> None:
    file = write(tmp_path, init=f"{{{key}: pair}}", **sections)
    place = f"{file}:{line_of('init', file.read_text())}: init.{key}: "
    with pytest.raises(ConfigError, match=f"^{place}{reason}"):
        load(file)


# New parts


def test_a_bert_starts_the_discriminator_and_what_is_new_is_said_and_recorded(tmp_path: Path, capsys) -> None:
    bert = model(BertForPreTraining, **DISCRIMINATOR)
    saved(bert, tmp_path / "bert")
    wide = "{dim: 16, max_length: 16, tie: none, dropout: 0.0}"
    path = run(write(tmp_path, embedding=wide, init="{discriminator: bert}"), tmp_path / "run")
    said = capsys.readouterr().err
    assert said.count("init.") == 1
    assert (
        f"\n  init.discriminator {tmp_path / 'bert'}: new: heads.replaced; not used: bert.pooler, "
        "cls.seq_relationship, cls.predictions; it has no tokenizer, so its tokens were not compared\n"
    ) in said
    start = RunDirectory(path).provenance().init["discriminator"]
    assert start.source == str(tmp_path / "bert")
    assert [name.startswith("heads.replaced.") for name in start.new] == [True] * 4
    assert "cls.seq_relationship.weight" in start.unused
    found, usual = (networks(made(write(tmp_path, embedding=wide, **init)))["discriminator"]
                    for init in ({"init": "{discriminator: bert}"}, {}))  # fmt: skip
    assert torch.equal(found.embeddings.tokens.weight, bert.bert.embeddings.word_embeddings.weight)
    for name, parameter in found.heads.named_parameters():
        assert torch.equal(parameter, usual.heads.get_parameter(name)), "new parts are drawn from the seed as usual"


def test_parameters_of_the_objective_itself_are_new(tmp_path: Path, pair: dict[str, Any]) -> None:
    file = write(tmp_path, objective="{type: all_tokens_mlm}", init="{discriminator: pair}")
    new = {name.rpartition(".")[0] for name in made(file).init["discriminator"].new}
    assert new == {"heads.tokens", "heads.tokens.dense", "heads.tokens.norm", "objective.copy"}


# The file


def test_the_stored_config_has_whole_paths_and_names_as_they_are(tmp_path: Path) -> None:
    """A folder is relative to the file that names it, which need not be the file that is run."""
    discriminator(tmp_path / "base" / "model")
    write(tmp_path / "base", init="{discriminator: model, generator: google/electra-small-generator}")
    (tmp_path / "run.yaml").write_text("extends: base/tiny.yaml\n")
    config = load(tmp_path / "run.yaml").config
    stored = tmp_path / "stored.yaml"
    stored.write_text(dump(config))
    assert f"  discriminator: {tmp_path / 'base/model'}\n  generator: google/electra-small-generator\n" in dump(config)
    assert load(stored).config == config


@pytest.mark.parametrize("init", ["{}", "{discriminator: null}", "null"])
def test_an_init_that_names_no_model_starts_from_random_weights(tmp_path: Path, init: str) -> None:
    config = load(write(tmp_path, init=init)).config
    assert config.init == load(write(tmp_path)).config.init
    assert config.init.models == {}


def test_what_training_starts_from_is_part_of_a_cells_identity(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    started = load(write(tmp_path, init="{discriminator: model, distribution: normal}"))
    mine = {"distribution": "normal", "discriminator": "model", "generator": None}  # as seen from the file
    assert json.loads(content_of(started))["init"] == mine


# A model is refused unless its tokens are the experiment's


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "number", "sat", "on", "mat", "and", "saw", "dogs"]


def with_tokenizer(folder: Path, *, swapped: bool = False) -> Path:
    """Put a vocab.txt next to the weights, with all words of the corpus; two of them may be swapped."""
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
        (53, "model", f"does not fit: {TABLE} has the shape [53, 8], not [55, 8]."),
        # more rows than tokens, and it is unknown which tokens they are
        (64, "words", f"does not fit: {TABLE} has the shape [64, 8], not [55, 8]."),
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
    assert torch.equal(networks(experiment)["discriminator"].embeddings.tokens.weight, theirs[TABLE][:55])
    assert experiment.init["discriminator"].unused == [f"{TABLE}[55:64]"]
    assert f"not used: {TABLE}[55:64]\n" in opening(load(file), experiment, tmp_path)


def test_a_head_that_is_not_used_is_named_once(tmp_path: Path) -> None:
    generator(tmp_path / "model", vocab_size=64, hidden_size=16, num_attention_heads=2, intermediate_size=64)
    with_tokenizer(tmp_path / "model")
    unused = made(write(tmp_path, **PRETRAINED)).init["discriminator"].unused
    assert f"{TABLE}[55:64]" in unused
    assert [name for name in unused if name.startswith("generator_lm_head")] == ["generator_lm_head.bias"]


def test_rows_of_added_tokens_are_trained_further(tmp_path: Path) -> None:
    discriminator(tmp_path / "model", vocab_size=57)
    folder = with_tokenizer(tmp_path / "model")
    (folder / "added_tokens.json").write_text(json.dumps({"[ENT1]": 55, "[ENT2]": 56}))
    experiment = made(write(tmp_path, **PRETRAINED))
    assert experiment.vocabulary.size == 57
    assert experiment.init["discriminator"].unused == []
    theirs = load_file(folder / "model.safetensors")
    assert torch.equal(networks(experiment)["discriminator"].embeddings.tokens.weight, theirs[TABLE])
