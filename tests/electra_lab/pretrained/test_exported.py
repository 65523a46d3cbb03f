"""Models of transformers as pairs: their answers, and clear errors for damaged folders."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import ElectraConfig, ElectraForPreTraining

import electra_lab
from electra_lab.assembly import networks
from electra_lab.export.export import export
from electra_lab.interop.hugging_face import models
from electra_lab.model.network import Embeddings
from electra_lab.pretrained.hugging_face import MARK
from electra_lab.tokenizers.wordpiece import wordpiece
from registry.errors import ConfigError, DataError
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run
from tests.electra_lab.pretrained.conftest import DOCUMENTS

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
         "max_position_embeddings": 16}  # fmt: skip
TEXTS = ["the cat sat on the mat", "", "dogs"]


def saved(folder: Path, model: type, config: type, tokenizer: hf.PreTrainedTokenizerFast) -> Any:
    torch.manual_seed(0)
    size = {"embedding_size": 8} if config is hf.ElectraConfig else {}
    made = model(config(vocab_size=len(tokenizer), initializer_range=0.5, **SIZES, **size)).eval()
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return made


@torch.no_grad()
def logits(model: Any, tokenizer: hf.PreTrainedTokenizerFast, text: str) -> torch.Tensor:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    found: torch.Tensor = model(torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]])).logits[0, 1:-1]
    return found


def test_a_discriminator_detects_as_in_transformers(tmp_path: Path, tokenizer: hf.PreTrainedTokenizerFast) -> None:
    model = saved(tmp_path / "model", hf.ElectraForPreTraining, hf.ElectraConfig, tokenizer)
    pair = electra_lab.load(tmp_path / "model", device="cpu")
    assert pair.generator is None
    assert pair.length == 16
    for found, text in zip(pair.detect(TEXTS), TEXTS, strict=True):
        assert found.probabilities == pytest.approx(logits(model, tokenizer, text).sigmoid().tolist(), abs=1e-5)
    with pytest.raises(ConfigError, match=f"{tmp_path / 'model'}: has no generator and no head that predicts tokens"):
        pair.corrupt("the cat")


@pytest.mark.parametrize(
    ("model", "config"), [(hf.ElectraForMaskedLM, hf.ElectraConfig), (hf.BertForMaskedLM, hf.BertConfig)]
)
def test_a_masked_language_model_fills_as_in_transformers(
    tmp_path: Path, tokenizer: hf.PreTrainedTokenizerFast, model: type, config: type
) -> None:
    made = saved(tmp_path / "model", model, config, tokenizer)
    pair = electra_lab.load(str(tmp_path / "model"), device="cpu")
    [candidates] = pair.fill("the [MASK] sat", top=3).candidates
    scores = logits(made, tokenizer, "the [MASK] sat")[1].clone()
    scores[tokenizer.convert_tokens_to_ids(["[PAD]", "[CLS]", "[SEP]", "[MASK]"])] = -torch.inf
    best = scores.softmax(-1).topk(3)
    assert [candidate.token for candidate in candidates] == tokenizer.convert_ids_to_tokens(best.indices.tolist())
    assert [candidate.probability for candidate in candidates] == pytest.approx(best.values.tolist(), abs=1e-5)
    with pytest.raises(ConfigError, match="has no detection head"):
        pair.detect("the cat")


def test_two_folders_are_a_pair(tmp_path: Path, tokenizer: hf.PreTrainedTokenizerFast) -> None:
    saved(tmp_path / "discriminator", hf.ElectraForPreTraining, hf.ElectraConfig, tokenizer)
    saved(tmp_path / "generator", hf.ElectraForMaskedLM, hf.ElectraConfig, tokenizer)
    found = electra_lab.load(tmp_path, device="cpu").corrupt("the cat sat on the mat", mask_prob=0.5)
    assert found.probabilities
    assert sum(found.masked) == 3
    other = wordpiece(DOCUMENTS[:1] * 2, vocab_size=130)
    hf.PreTrainedTokenizerFast(tokenizer_object=other).save_pretrained(tmp_path / "generator")
    with pytest.raises(ConfigError, match="generator and discriminator have different vocabularies"):
        electra_lab.load(tmp_path)


def test_a_step_or_a_tokenizer_that_is_not_there_is_a_sentence(tmp_path: Path, tokenizer: Any) -> None:
    saved(tmp_path, hf.ElectraForPreTraining, hf.ElectraConfig, tokenizer)
    with pytest.raises(ConfigError, match="is not a run directory, so it has no step 3"):
        electra_lab.load(tmp_path, step=3)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(DataError, match=f"{tmp_path}"):
        electra_lab.load(tmp_path)


def test_an_exported_pair_answers_as_its_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also for a text longer than the rows of training, with spare positions; for any backbone; without messages."""
    for kind in ("bert", "transformer"):
        with for_a_module():
            backbone = f"{{type: {kind}, dim: 16, depth: 1, heads: 2}}"
            file = experiment(tmp_path / kind, discriminator=backbone, embedding="{dim: 8, max_length: 32}")
            made = run(file, tmp_path / kind / "run")
        export(made, tmp_path / kind / "exported")
        capfd.readouterr()
        before, after = (electra_lab.load(path, device="cpu") for path in (made, tmp_path / kind / "exported"))
        assert before.length == after.length == 16
        long = " ".join(DOCUMENTS[:4])
        assert after.detect(long).probabilities == pytest.approx(before.detect(long).probabilities, abs=1e-5)
        assert after.corrupt(long).inputs == before.corrupt(long).inputs
        assert capfd.readouterr().err == ""


def test_a_table_may_be_padded_but_not_too_small(tmp_path: Path, tokenizer: hf.PreTrainedTokenizerFast) -> None:
    size = len(tokenizer)
    for rows, name in ((size + 7, "padded"), (size - 2, "small")):
        config = hf.ElectraConfig(vocab_size=rows, embedding_size=8, **SIZES)
        hf.ElectraForMaskedLM(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    pair = electra_lab.load(tmp_path / "padded", device="cpu")
    assert pair.corrupt("the cat sat on the mat", mask_prob=1.0).inputs
    assert len(pair.fill("the [MASK]", top=10**6).candidates[0]) == size
    with pytest.raises(DataError, match=f"has {size} tokens, but its network only {size - 2}"):
        electra_lab.load(tmp_path / "small")


TEXT = "the cat sat on the mat"
PREFIX = "electra_lab.network."


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> Path:
    """A discriminator around another backbone than `bert`."""
    return ours(tmp_path / "model", tokenizer)


def ours(folder: Path, tokenizer: Any, kind: str = "transformer", length: int = 32, **options: Any) -> Path:
    torch.manual_seed(0)
    backbone = {"type": kind, "dim": 16, "depth": 1, "heads": 2} | options
    embedding = {"dim": 8, "max_length": length, "dropout": 0.0}
    config = models.ElectraLabConfig(vocab_size=len(tokenizer), backbone=backbone, embedding=embedding)
    models.ElectraLabForPreTraining(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def electra(folder: Path, tokenizer: Any) -> Path:
    torch.manual_seed(0)
    config = ElectraConfig(vocab_size=len(tokenizer), embedding_size=8, hidden_size=16, num_hidden_layers=2,
                           num_attention_heads=2, intermediate_size=32, max_position_embeddings=16)  # fmt: skip
    ElectraForPreTraining(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def change(folder: Path, **values: Any) -> None:
    """Change keys of the config; in sections, only the given keys."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for key, value in values.items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    file.write_text(json.dumps(config))


def write(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def as_type(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}


def refusal(source: object) -> str:
    with pytest.raises(DataError) as refused:
        electra_lab.load(str(source), device="cpu")
    return str(refused.value)


OUT = "heads.replaced.out.weight"
MISFITS: list[tuple[str, Any, str]] = [  # the changed tensor, its shape or None, the message
    (OUT, None, f"{OUT} is missing."),
    ("backbone.encoder.final_norm.gamma", None, "backbone.encoder.final_norm.gamma is missing."),
    ("heads.", None, "heads.replaced is missing."),
    (OUT, (1, 9), f"{OUT} has the shape [1, 9], not [1, 16]."),
    ("more", (1,), "more is left over."),
]


@pytest.mark.parametrize(("name", "shape", "reason"), MISFITS)
def test_a_tensor_that_does_not_fit_is_named(folder: Path, name: str, shape: Any, reason: str) -> None:
    """Otherwise the network would compute with uninitialized memory."""
    given = load_file(folder / "model.safetensors")
    kept = {key: tensor for key, tensor in given.items() if not key.startswith(PREFIX + name)}
    write(folder, kept if shape is None else kept | {PREFIX + name: torch.zeros(shape)})
    assert refusal(folder).startswith(f"{folder}: does not fit: {PREFIX}{reason}")


def test_a_second_head_in_the_file_is_used(folder: Path, tokenizer: Any) -> None:
    """As in the exported run; a class of transformers has one head."""
    with pytest.raises(ConfigError, match="no head that predicts tokens"):
        electra_lab.load(folder, device="cpu").fill("the [MASK]")
    config = models.ElectraLabConfig.from_pretrained(folder)
    both = models.make_network(config, ("replaced", "tokens")).state_dict()
    write(folder, {f"{PREFIX}{name}": tensor for name, tensor in both.items()})
    pair = electra_lab.load(folder, device="cpu")
    assert pair.detects
    assert pair.fill("the [MASK]").candidates


@pytest.mark.parametrize("pad", [1000, -1, "0", 3])
def test_rows_are_padded_with_the_pad_token_whatever_the_config_says(
    tmp_path: Path, tokenizer: Any, pad: object
) -> None:
    change(electra(tmp_path / "model", tokenizer), pad_token_id=pad)
    pair = electra_lab.load(tmp_path / "model", device="cpu")
    assert pair.discriminator.pad_id == 0
    assert pair.detect([TEXT, "the"])[1].probabilities == pytest.approx(pair.detect("the").probabilities, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64])
def test_other_than_floating_point_numbers_are_not_converted(tmp_path: Path, tokenizer: Any, dtype: Any) -> None:
    electra(tmp_path / "model", tokenizer)
    write(tmp_path / "model", as_type(tmp_path / "model", dtype))
    assert f"word_embeddings.weight holds {dtype}, not floating-point numbers" in refusal(tmp_path / "model")


# Numbers that are not finite, and wrong sizes


@pytest.mark.parametrize(("dtype", "bad"), [(torch.float32, "nan"), (torch.float16, "inf"), (torch.bfloat16, "-inf")])
@pytest.mark.parametrize("kind", ["electra", "lab"])
def test_numbers_that_are_not_finite_are_named_by_tensor(
    tmp_path: Path, tokenizer: Any, kind: str, dtype: torch.dtype, bad: str
) -> None:
    """Otherwise the answers would be NaN."""
    path = (electra if kind == "electra" else ours)(tmp_path / "model", tokenizer)
    given = as_type(path, dtype)
    write(path, given)
    assert electra_lab.load(path, device="cpu").detects
    for name in sorted(given)[::7]:
        damaged = given[name].clone()
        damaged.view(-1)[-1:].fill_(float(bad))
        write(path, given | {name: damaged})
        assert f"{name} has NaN or infinite numbers (1 of " in refusal(path)


WRONG_SIZES: list[tuple[str, dict[str, Any], str]] = [
    ("electra", {"num_hidden_layers": 3}, "layer.2.attention.self.query.weight is missing"),
    ("electra", {"num_hidden_layers": 1}, "layer.1.attention.output.LayerNorm.bias is left over"),
    ("electra", {"hidden_size": 1 << 15}, "embeddings_project.weight has the shape [16, 8], not [32768, 8]"),
    ("electra", {"vocab_size": 1 << 24}, "word_embeddings.weight has the shape [SIZE, 8], not [16777216, 8]"),
    ("electra", {"embedding_size": 1 << 15}, "word_embeddings.weight has the shape [SIZE, 8], not [SIZE, 32768]"),
    ("electra", {"max_position_embeddings": 1 << 24}, "embeddings.weight has the shape [16, 8], not [16777216, 8]"),
    ("electra", {"intermediate_size": 1 << 13}, "intermediate.dense.weight has the shape [32, 16], not [8192, 16]"),
    ("lab", {"backbone": {"depth": 1 << 24}}, "backbone.depth: "),
    ("lab", {"backbone": {"depth": 0}}, "backbone.depth: "),
    ("lab", {"backbone": {"dim": True}}, "backbone.dim: "),
    ("lab", {"backbone": {"type": "bert", "width": 1}}, "backbone.width: "),
    ("lab", {"backbone": {"dim": 60_000}}, f"{PREFIX}project.weight has the shape [16, 8], not [60000, 8]"),
    ("lab", {"backbone": None}, "config.json: "),
    ("lab", {"vocab_size": 10**13}, "embeddings.tokens.weight has the shape [SIZE, 8], not [10000000000000, 8]"),
    ("lab", {"embedding": {"dim": 60_000}}, "embeddings.tokens.weight has the shape [SIZE, 8], not [SIZE, 60000]"),
    ("lab", {"embedding": {"max_length": 1 << 24}}, "positions.weight has the shape [32, 8], not [16777216"),
    ("lab", {"embedding": {"max_length": "32"}}, "embedding.max_length: "),
    ("lab", {"embedding": {"dropout": None}}, "embedding.dropout: "),
]


@pytest.mark.parametrize(("kind", "values", "said"), WRONG_SIZES)
def test_sizes_are_compared_with_the_tensors_before_memory_is_asked_for(
    tmp_path: Path, tokenizer: Any, kind: str, values: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = (electra if kind == "electra" else ours)(tmp_path / "model", tokenizer)
    change(path, **values)
    make, built = networks.make_network, []
    monkeypatch.setattr(networks, "make_network", lambda *given, **on: built.append(given) or make(*given, **on))
    monkeypatch.setattr(torch.nn.Module, "to_empty", None)
    assert said.replace("SIZE", str(len(tokenizer))) in refusal(path)
    assert said.endswith(": ") or len(built) == 1, "from shapes alone"


def test_a_length_may_be_written_as_a_float(folder: Path) -> None:
    change(folder, embedding={"max_length": 32.0})
    assert len(electra_lab.load(folder, device="cpu").detect(" ".join(DOCUMENTS)).probabilities) > 100


def test_a_component_that_reads_numbers_while_it_is_built_is_built_with_memory(folder: Path, monkeypatch: Any) -> None:
    built = Embeddings.__init__

    def reads(self: Embeddings, *given: Any, **options: Any) -> None:
        built(self, *given, **options)
        self.sum = float(self.segments.weight.detach().sum())

    monkeypatch.setattr(Embeddings, "__init__", reads)
    assert electra_lab.load(folder, device="cpu").detects


def test_inputs_are_no_longer_than_what_the_backbone_pads_them_to(tmp_path: Path, tokenizer: Any) -> None:
    """Of 50 positions Reformer with buckets of 4 can use 48: 49 tokens would be padded to 56."""
    folder = ours(tmp_path / "model", tokenizer, "reformer", 50, bucket_size=4, rotary=False)
    pair = electra_lab.load(folder, device="cpu")
    assert pair.length == 48
    assert pair.detect(" ".join(DOCUMENTS)).probabilities


@pytest.fixture
def exported(run_directory: Path, tmp_path: Path) -> Path:
    return export(run_directory, tmp_path / "pair").path


def mark(exported: Path, **values: Any) -> None:
    (exported / MARK).write_text(json.dumps(json.loads((exported / MARK).read_text()) | values))


def test_a_part_of_a_pair_reads_as_much_as_the_pair(exported: Path, tmp_path: Path) -> None:
    mark(exported, length=9)
    for source in (exported, exported / "discriminator", exported / "generator"):
        assert electra_lab.load(source, device="cpu").length == 9
    shutil.move(exported / "discriminator", tmp_path / "discriminator")
    assert electra_lab.load(tmp_path / "discriminator", device="cpu").length > 9, "without the mark it is unknown"


def test_a_damaged_mark_is_a_sentence(exported: Path) -> None:
    for length in (True, -5, 0, 2, "16", None):
        mark(exported, length=length)
        assert refusal(exported).startswith(f"{exported / MARK}: is damaged: ")
    for content in ("[]", "null"):
        (exported / MARK).write_text(content)
        assert refusal(exported).startswith(f"{exported / MARK}: is damaged: ")


def test_a_home_folder_is_found(run_directory: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (run_directory, folder):
        monkeypatch.setenv("HOME", str(place.parent))
        assert electra_lab.load(f"~/{place.name}", device="cpu").detects


def test_pairs_and_models_of_the_lab_are_found_by_their_name_on_the_hub(
    exported: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    for name, source in {"pair": exported, "part": exported / "discriminator", "lab": folder}.items():
        cached = tmp_path / "cache" / f"models--me--{name}"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text("0123abcd")
        (cached / "snapshots").mkdir()
        shutil.copytree(source, cached / "snapshots" / "0123abcd")
    pair = electra_lab.load("me/pair", device="cpu")
    assert (pair.generator is None, pair.length) == (False, 16)
    assert pair.detect(TEXT).probabilities == electra_lab.load("me/part", device="cpu").detect(TEXT).probabilities
    assert electra_lab.load("me/lab", device="cpu").detects


def test_a_step_that_is_no_number_and_a_path_that_cannot_be_are_refused(run_directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"^step must be a whole number or 'best', is '8'\.$"):
        electra_lab.load(run_directory, step="8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^'a\\x00b': cannot be a path\.$"):
        electra_lab.load("a\0b")
