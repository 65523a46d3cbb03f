"""Encoders of transformers that the lab has no backbone for: export as plain models, import; generators in files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from torch import Tensor

import electra_lab
from electra_lab.assembly.data import open_data
from electra_lab.assembly.networks import build_network, make_network
from electra_lab.backbones._families import FAMILIES
from electra_lab.config.load import load
from electra_lab.export.export import export
from electra_lab.export.model_folder import with_head
from electra_lab.model.network import Network
from electra_lab.model.weights import account_for, own_tensors
from electra_lab.pretrained.families.hugging_face import HEADS
from electra_lab.pretrained.hugging_face import CONFIG, read_folders, read_part
from electra_lab.pretrained.trained_model import Part
from electra_lab.pretrained.writing import describe, stored_tensors, write_network
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import ConfigError
from tests.electra_lab.assembly.initial_weights import TOKENS
from tests.electra_lab.jobs.pretraining.tiny import experiment, run
from tests.electra_lab.model.theirs import saved
from tests.electra_lab.pretrained.test_encoders import DEBERTA
from tests.electra_lab.pretrained.test_encoders import MODELS as OWN
from tests.electra_lab.tokenizers.families import class_of, trained

pytestmark = pytest.mark.usefixtures("no_report")

SIZE, WIDTH, LENGTH = 37, 32, 24
TRIED = [*FAMILIES] if "ELECTRA_LAB_ENCODERS" in os.environ else ["roberta", "mpnet", "gemma3_text", "albert"]
OWN_BACKBONES = ("bert", "electra", "modernbert")  # the backbones as which files of these families are read
IDLE = ("pooler.", "contact_head.", "inv_freq", "word_embeddings.weight_")  # not needed for states
RENAMED = ("nomic_bert", "jina_embeddings_v3")


def is_idle(key: str) -> bool:
    return any(part in key for part in IDLE)


def tokenizer(*special: str) -> Tokenizer:
    """A tokenizer whose special tokens have the first ids."""
    words = [*special, *(f"w{number}" for number in range(SIZE - len(special)))]
    return Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[-1]))


BERTS = tokenizer("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # in which token 1 may occur in a text
ROBERTAS = tokenizer("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def rows(pad: int) -> tuple[Tensor, Tensor]:
    """Return tokens and the mask of three rows; the first has no padding, and both ids 0 and 1 may occur."""
    tokens = torch.randint(5, SIZE, (3, 20), generator=torch.Generator().manual_seed(1))
    tokens[0, 3] = 1 - pad
    mask = torch.arange(20) < torch.tensor([[20], [11], [5]])
    return tokens.masked_fill(~mask, pad), mask


@torch.no_grad()
def assert_same_states(theirs: Any, ours: Network, pad: int) -> None:
    tokens, mask = rows(pad)
    expected = theirs.eval()(input_ids=tokens, attention_mask=mask.long()).last_hidden_state[mask]
    assert expected.abs().max() > 0.5
    found = ours.eval().hidden(tokens, mask, torch.zeros_like(tokens))[mask]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TRIED)
def test_a_pair_leaves_as_models_of_transformers_and_comes_back(name: str, tmp_path: Path) -> None:
    """Also with token 0 for padding, where models like RoBERTa count positions differently. Heads stay in the file."""
    words, pad = (ROBERTAS, 1) if name == "mpnet" else (BERTS, 0)
    backbone = {"type": "hugging_face", "model_type": name, "dim": WIDTH, "depth": 2, "heads": 4, "ff_mult": 3.0}
    narrow = {"embedding_size": 8} if name == "albert" else {}
    backbone |= {"config": narrow, "ff_mult": 4.0 if len(FAMILIES[name].sizes) == 3 else 3.0}
    embedding = {"dim": 8 if narrow else WIDTH, "max_length": LENGTH, "dropout": 0.1}
    torch.manual_seed(0)
    network = make_network(backbone, embedding, SIZE, pad, ("replaced", "tokens"))
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    part = Part("discriminator", tmp_path, "run", backbone, embedding, SIZE, own_tensors(network), {})
    assert part.family
    if name == "mpnet":  # with another token for padding, transformers would compute other states
        with pytest.raises(ConfigError, match="mpnet"):
            describe(part, BERTS, part.family)
    part = part.family.with_pad(part, pad)
    write_network(tmp_path, describe(part, words, part.family), stored_tensors(part, part.family), part)
    theirs, report = hf.AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert theirs.config.architectures == [type(theirs).__name__]
    assert all(map(is_idle, report["missing_keys"])), report["missing_keys"]
    assert all(key.startswith("electra_lab.heads.") for key in report["unexpected_keys"])
    assert_same_states(theirs, network, pad)
    again = read_part(tmp_path, "discriminator")
    assert again.heads == ("replaced", "tokens")
    assert again.backbone == part.backbone
    assert again.embedding == part.embedding
    back, given = own_tensors(build_network(again, pad)), part.tensors
    assert back.keys() == given.keys()
    assert all(torch.equal(back[key], given[key]) for key in given)


@pytest.mark.parametrize("name", [name for name in TRIED if name not in RENAMED])
def test_a_model_of_transformers_comes_in(name: str, tmp_path: Path) -> None:
    """Its config becomes the section; only its head and pooler are unused, and they are named."""
    kind, config = hf.AutoModel, config_of(name, SIZE)
    narrow = WIDTH if name == "squeezebert" else 8  # the others project narrower embeddings
    values = {"embedding_size": narrow, "input_embedding_size": 8, "num_key_value_heads": 4}
    values |= {f"{role}_token_id": 1 for role in ("pad", "bos", "eos", "cls", "sep", "mask")}
    for key, value in values.items():
        if hasattr(config, key):
            setattr(config, key, value)
    if type(config) in hf.MODEL_FOR_MASKED_LM_MAPPING:
        kind = hf.AutoModelForMaskedLM
    elif type(config) in hf.MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = hf.AutoModelForCausalLM
    torch.manual_seed(0)
    theirs = kind.from_config(config)
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    part = read_part(saved(theirs, tmp_path), "discriminator")
    network = build_network(part, 1)
    assert part.backbone["type"] == (name.replace("electra", "bert") if name in OWN_BACKBONES else "hugging_face")
    assert part.embedding["dim"] == getattr(config, "input_embedding_size", getattr(config, "embedding_size", WIDTH))
    assert_same_states(getattr(theirs, theirs.base_model_prefix, theirs), network, 1)
    unused = set(account_for(part.tensors, own_tensors(network), part.stored_name, part.foreign).unused)
    inside = [key for key in unused if kind is hf.AutoModel or key.startswith(f"{theirs.base_model_prefix}.")]
    assert all(map(is_idle, inside)), inside


def config_of(name: str, size: int, **options: Any) -> Any:
    """Return the config of a small model of a family."""
    family = FAMILIES[name]
    sizes = dict(zip(family.sizes, (WIDTH, 2, 4, 96), strict=False)) | {"vocab_size": size, **family.fixed}
    return hf.CONFIG_MAPPING[name](**options | sizes)


@pytest.mark.parametrize("ending", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"])
@pytest.mark.parametrize("name", [*HEADS] if len(TRIED) > 4 else ["roberta", "distilbert", "albert"])
def test_heads_of_tasks_are_those_of_transformers(name: str, ending: str, tmp_path: Path) -> None:
    """From the tokens on, and from texts on with a tokenizer of the family, as an owner uses both."""
    words = trained({"esm": "BertTokenizer", "xlm-roberta-xl": "XLMRobertaTokenizer"}.get(name, class_of(name)))
    pad = 1 if name == "mpnet" else words.pad_token_id
    torch.manual_seed(0)
    if name == "esm" and ending == "ForQuestionAnswering":
        return  # transformers has no such class
    config = config_of(name, len(words), num_labels=2 if "Question" in ending else 3, pad_token_id=pad)
    if name == "squeezebert":
        config.embedding_size = WIDTH
    theirs = getattr(hf, f"AutoModel{ending}").from_config(config).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    words.save_pretrained(saved(theirs, tmp_path / "model"))
    # From tokens on
    tokens, mask = rows(pad)
    module = with_head(tmp_path / "model", read_part(tmp_path / "model", "discriminator")).eval()
    with torch.no_grad():
        found = module(tokens, mask.long(), torch.zeros_like(tokens))[0]
        expected = theirs(input_ids=tokens, attention_mask=mask.long())[0]
    kept = slice(None) if ending == "ForSequenceClassification" else mask
    torch.testing.assert_close(found[kept], expected[kept], rtol=0, atol=1e-5)
    assert expected[kept].std() > 0.1
    if name == "mpnet" or ending == "ForQuestionAnswering":  # its small tokenizer has another padding; pairs
        return
    # From texts on
    ours, read = (
        electra_lab.load(tmp_path / "model", device="cpu"),
        hf.AutoTokenizer.from_pretrained(tmp_path / "model"),
    )
    text = ["the", "cat", "sat", "on", "[E1]", "7"]
    if ending == "ForSequenceClassification":
        with torch.no_grad():
            logits = theirs(**read(" ".join(text), return_tensors="pt")).logits[0]
        answer = ours.predict(" ".join(text))
        assert [*answer.probabilities.values()] == pytest.approx(logits.softmax(-1).tolist(), abs=1e-6)
        with pytest.raises(ConfigError, match="pairs"):
            ours.predict(("the cat", "sat"))
    else:
        spaced = hf.AutoTokenizer.from_pretrained(tmp_path / "model", add_prefix_space=True)
        given = spaced(text, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            chances = theirs(**given).logits[0].softmax(-1).amax(-1)
        places = given.word_ids()
        expected = [float(chances[places.index(word)]) for word in range(len(text))]
        assert ours.predict(tuple(text)).probabilities == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("name", "ending"), [("distilbert", "QuestionAnswering"), ("xlnet", "TokenClassification")])
def test_heads_that_are_not_read_are_refused(name: str, ending: str, tmp_path: Path) -> None:
    words = trained("BertTokenizer")
    made = getattr(hf, f"AutoModelFor{ending}").from_config(config_of(name, len(words)))
    words.save_pretrained(saved(made, tmp_path / "model"))
    with pytest.raises(ConfigError, match=r"cannot read pairs|no head of a task that the lab reads"):
        electra_lab.load(tmp_path / "model", device="cpu").predict(("the cat", "sat"))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {}, r"is_causal is None.*\"is_causal\": false"),
    ("big_bird", {}, "attention_type is 'block_sparse'"),
    ("longformer", {}, "longformer cannot be a backbone: it looks"),
    ("roberta", {"hidden_size": True}, "hidden_size"),
    ("roberta", {"vocab_size": 1 << 40}, "vocab_size is"),
    ("roberta", {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
    ("roberta", {"electra_lab": 3}, "electra_lab: max_length"),
    ("roberta", {"pad_token_id": None}, "pad_token_id"),
]


@pytest.mark.parametrize(("kind", "values", "reason"), REFUSED)
def test_models_that_compute_otherwise_are_refused(kind: str, values: Any, reason: str, tmp_path: Path) -> None:
    config = hf.CONFIG_MAPPING[kind]().to_dict() | values
    (tmp_path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=rf"{CONFIG}: .*{reason}"):
        read_part(tmp_path, "discriminator")


# Generators in files


def beside(folder: Path, size: int) -> Path:
    """Save a discriminator of DeBERTa-v3 with its generator as the authors do: half as deep, with a mask decoder."""
    kind, config = OWN["deberta-v3 encoder"]
    wide: Any = {**DEBERTA, "vocab_size": size}
    saved(kind(type(config)(**wide)), folder)
    kind, config = OWN["deberta-v3 generator"]
    torch.manual_seed(1)
    theirs = kind(type(config)(**{**wide, "num_hidden_layers": 2}))
    tensors = {**theirs.state_dict(), "deberta.embeddings.position_embeddings.weight": torch.randn(20, 16)}
    torch.save(tensors, folder / "pytorch_model.generator.bin")
    (folder / "generator_config.json").write_text(theirs.config.to_json_string())
    return folder


FILES = {
    "deberta": "{type: deberta, depth: 2, dim: 16, heads: 2, ff_mult: 1.5, buckets: 8, max_distance: 20, "
    "mask_decoder: true}",
    "export": "{type: hugging_face, model_type: roberta, dim: 16, depth: 1, heads: 2}",
}


@pytest.mark.parametrize("name", FILES)
def test_a_frozen_generator_is_any_model_that_predicts_tokens(name: str, tmp_path: Path) -> None:
    """Its tensors are those of the file, also after training; the table may be padded."""
    folder, sections = tmp_path / "model", {"embedding": "{dim: 16, max_length: 20, dropout: 0.0}"}
    if name == "export":
        file = experiment(tmp_path, generator="{scale: 1.0}", discriminator=FILES[name], **sections)
        export(run(file, tmp_path / "run"), folder)
    else:
        beside(folder, TOKENS + 7)
        open_data(load(experiment(tmp_path)), lambda _: None).tokenizer.save(str(folder / "tokenizer.json"))
        assert {*read_folders(str(folder)).parts} == {"discriminator", "generator"}
    expected = read_folders(str(folder), network="generator").part("generator")
    sections["embedding"] = "{dim: 16, max_length: 20, tie: none, dropout: 0.0}"
    sections |= {"objective": f"{{type: frozen_generator, run: {folder}}}", "generator": FILES[name]}
    sections |= {"discriminator": "{type: transformer, dim: 8, depth: 1, heads: 2}"}
    sections["train"] = "{steps: 3, batch_size: 4, precision: fp32}"
    path = run(experiment(tmp_path, **sections), tmp_path / "frozen")
    after = load_file(path / "checkpoints" / "step-00000003" / "state.safetensors")
    given = {f"model.generator.{key}": tensor for key, tensor in expected.tensors.items() if "replaced" not in key}
    assert given.keys() <= after.keys() | {key for key in given if "decoder" in key}
    for key in given.keys() & after.keys():
        held = given[key][: len(after[key])]  # rows that no token has are cut off
        assert torch.equal(after[key][-len(held) :], held), key  # so are those before the first position
    start = RunDirectory(path).provenance().init["generator"]
    assert (start.source, start.sha256) == (str(folder), expected.sums())
