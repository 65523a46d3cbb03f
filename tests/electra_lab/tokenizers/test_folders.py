"""Tokenizers of Hugging Face folders: special tokens, settings, classes, added tokens, as transformers reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import (
    AutoTokenizer,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    pipeline,
)

import electra_lab
from electra_lab.data.encoding import encode
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.data.vocabulary import make_vocabulary, special_ids
from electra_lab.jobs.finetuning.facts import dry_run
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.tokenizers.pretrained import read_tokenizer
from registry.errors import ConfigError, DataError
from tests.electra_lab.tokenizers.families import ODD, differences, families, row, save

CLASSES = {name: listed[0] for name, listed in families().items()}
PAGE = (Path(__file__).parents[3] / "docs" / "encoders.md").read_text(encoding="utf-8")
Change = Callable[[dict[str, Any]], dict[str, Any]]
ADDED = {
    "content": "<new>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": True,
    "special": False,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a class of tokenizers, written once."""
    parent = tmp_path_factory.mktemp("folders")

    def folder(name: str) -> Path:
        if not (parent / name).exists():
            save(name, CLASSES[name], parent / name)
        return parent / name

    return folder


def changed(folder: Path, target: Path, change: Change) -> Path:
    """Copy a folder with other settings."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    settings = json.loads((target / "tokenizer_config.json").read_text())
    (target / "tokenizer_config.json").write_text(json.dumps(change(settings)))
    return target


@pytest.mark.parametrize("name", CLASSES)
def test_every_listed_family_is_read_as_by_transformers_or_refused(name: str, saved: Any) -> None:
    """As the table says, in which all families are."""
    written = row(name, saved(name))
    assert f"{written}\n" in PAGE
    assert "equal ids" in written or "refused: " in written


SETTINGS: dict[str, Change] = {
    "lower": lambda old: old | {"do_lower_case": not old.get("do_lower_case", True)},
    "accents": lambda old: old | {"strip_accents": old.get("strip_accents") is False},
    "chinese": lambda old: old | {"tokenize_chinese_chars": False},
    "prefix": lambda old: old | {"add_prefix_space": not old.get("add_prefix_space", False)},
    "kept": lambda old: old | {"keep_accents": not old.get("keep_accents", False)},
    "generic": lambda old: old | {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
    "no_class": lambda old: {key: value for key, value in old.items() if key != "tokenizer_class"},
    "nothing": lambda _: {},
}
BY_KEY = {
    "AlbertTokenizer": {"lower": "do_lower_case", "prefix": "add_prefix_space", "kept": "keep_accents"},
    "XLNetTokenizer": {"lower": "do_lower_case", "kept": "keep_accents"},
    "XLMRobertaTokenizer": {"prefix": "add_prefix_space"},
    "BertTokenizer": {},
    "RobertaTokenizer": {},
}


@pytest.mark.parametrize("change", SETTINGS)
@pytest.mark.parametrize("name", BY_KEY)
def test_settings_are_read_as_by_transformers_or_refused_by_key(
    name: str, change: str, saved: Any, tmp_path: Path
) -> None:
    folder = changed(saved(name), tmp_path / "folder", SETTINGS[change])
    if key := BY_KEY[name].get(change):
        with pytest.raises(DataError, match=f"tokenizer_config.json: {key}: "):
            read_tokenizer(folder)
    else:
        assert differences(folder) == []


@pytest.mark.parametrize("name", ["BertTokenizer", "RobertaTokenizer", "AlbertTokenizer"])
def test_tokens_that_the_settings_add_are_tokens(name: str, saved: Any, tmp_path: Path) -> None:
    size = read_tokenizer(saved(name)).get_vocab_size()
    special = ADDED | {"special": True, "normalized": False}
    decoder = {str(size - 1): special | {"content": "[E1]"}, str(size): ADDED}
    decoder[str(size + 1)] = special | {"content": "[E2]"}
    for number, new in enumerate([
        {"added_tokens_decoder": decoder}, {"extra_special_tokens": ["[E1]", "[E2]"]},
    ]):  # fmt: skip
        folder = changed(saved(name), tmp_path / str(number), lambda old, new=new: old | new)  # type: ignore[misc]
        assert differences(folder, [*ODD, "a <new> thing<new>x", "the [E2] cat[E2]"]) == []
        assert read_tokenizer(folder).encode("the[E2]cat").tokens.count("[E2]") == 1
    folder = changed(saved(name), tmp_path / "older", lambda old: old)
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["[E1]", "[E2]"]}))
    assert differences(folder, ["the [E2] cat[E2]"]) == []


def test_special_tokens_are_those_that_the_folder_names(tmp_path: Path, saved: Any) -> None:
    names = ["cls_token", "sep_token", "mask_token", "pad_token", "unk_token", "bos_token", "eos_token"]
    folder = changed(
        saved("XLNetTokenizer"), tmp_path / "a", lambda old: {key: old[key] for key in old.keys() - {*names}}
    )
    assert differences(folder) == []
    ids = special_ids(read_tokenizer(folder))
    assert [read_tokenizer(folder).id_to_token(ids[role]) for role in ("cls", "sep")] == ["<cls>", "<sep>"]
    # One that is named beats a more common name, in any file; runs and exports keep it.
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        folder = changed(saved("BertTokenizer"), tmp_path / file, lambda old: old)
        state = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = state["model"]["vocab"]
        vocabulary["<m>"] = vocabulary.pop(max(vocabulary, key=vocabulary.__getitem__))
        (folder / "tokenizer.json").write_text(json.dumps(state))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        del settings["mask_token"]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        settings = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        (folder / file).write_text(json.dumps(settings | {"mask_token": "<m>"}))
        read = read_tokenizer(folder)
        assert special_ids(read)["mask"] == read.token_to_id("<m>")
        assert special_ids(Tokenizer.from_str(read.to_str())) == special_ids(read)


@pytest.mark.parametrize(
    ("settings", "config", "reason"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, {}, "BertJapaneseTokenizer"),
        ({}, {"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer"),
        ({"tokenizer_class": "RoFormerTokenizer"}, {}, "RoFormerTokenizer"),
        ({}, {"model_type": "roformer"}, "roformer"),
        ({"auto_map": {"AutoTokenizer": ["tokenization_kobert.KoBERTTokenizer", None]}}, {}, "auto_map"),
        ({"word_tokenizer_type": "mecab"}, {}, "word_tokenizer_type"),
        ({"tokenizer_class": "BertTokenizer"}, {"model_type": "bert"}, ""),
        ({"tokenizer_class": "DistilBertTokenizerFast"}, {}, ""),
        ({}, {"model_type": "megatron-bert"}, ""),
        ({}, {}, ""),
    ],
)
def test_a_vocabulary_of_another_class_is_refused_by_name(
    settings: dict[str, Any], config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, "the", "cat", "##s"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps(config))
    if not reason:
        assert read_tokenizer(tmp_path).encode("The cats").tokens == ["the", "cat", "##s"]
        return
    with pytest.raises(DataError, match=f"{tmp_path}.*{reason}"):
        read_tokenizer(tmp_path)


def test_a_vocabulary_of_sentencepiece_is_refused(tmp_path: Path) -> None:
    """As that of KoBERT, whose folder names no class."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, "\u2581the", "\u2581cat", "\u2581a", "s"]))
    with pytest.raises(DataError, match="SentencePiece"):
        read_tokenizer(tmp_path)


KINDS = ["BertTokenizer", "RobertaTokenizer", "AlbertTokenizer"]


@pytest.mark.parametrize("name", KINDS)
def test_added_markers_are_tokens_everywhere_and_names_of_special_tokens_text(name: str, saved: Any) -> None:
    folder = saved(name)
    ours, theirs = read_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    ours.encode_special_tokens = True  # as in a run
    text = "the [E1] old cat[E1]s"
    ids = theirs(text, add_special_tokens=False)["input_ids"]
    assert ids.count(theirs.convert_tokens_to_ids("[E1]")) == 2
    assert encode(ours, [text], "uint16")[0].tolist() == ids
    vocabulary = make_vocabulary(ours, torch.ones(ours.get_vocab_size(), dtype=torch.int64), torch.device("cpu"))
    encoder = TextEncoder(ours, vocabulary)
    assert encoder.texts([text])[0].ids == ids
    if name == "BertTokenizer":  # the others begin words by a space, which transformers does for the first alone
        words = text.split()
        assert encoder.words([words])[0].ids == theirs(words, is_split_into_words=True)["input_ids"][1:-1]
    for special in (theirs.mask_token, theirs.sep_token, theirs.pad_token):
        assert not {*vocabulary.special_ids} & {*encoder.texts([f"the {special} cat"])[0].ids}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", KINDS)
def test_predictions_obey_markers_and_the_side_that_is_cut(name: str, side: str, saved: Any, tmp_path: Path) -> None:
    folder = changed(saved(name), tmp_path / "a", lambda old: old | {"model_max_length": 16, "truncation_side": side})
    model = with_model(folder, ElectraForSequenceClassification, num_labels=3)
    theirs, ours = AutoTokenizer.from_pretrained(folder), electra_lab.load(folder, device="cpu")
    long = f"the [E1] cat [E1] {' '.join(f'sat {number} dogs' for number in range(9))} on the mat"
    items: list[Any] = [long, "the [E1] cat"]
    pairs = [(long, "the mat"), ("the mat", long)]
    if name != "BertTokenizer":  # Roberta's has two </s> between them, and Albert's no segments
        with pytest.raises(ConfigError, match="pairs"):
            ours.predict(pairs[0])
    else:
        items += pairs
    for item in items:
        texts = [item] if isinstance(item, str) else item
        with torch.no_grad():
            expected = model(**theirs(*texts, truncation=True, return_tensors="pt")).logits.softmax(-1)[0].tolist()
        assert [*ours.predict(item).probabilities.values()] == pytest.approx(expected, abs=1e-6)  # type: ignore[union-attr]


def with_model(folder: Path, kind: Any, **options: Any) -> Any:
    """Save a small ELECTRA with large random weights for the tokenizer of a folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = {"hidden_size": 16, "embedding_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    sizes |= {"num_hidden_layers": 1, "max_position_embeddings": 32, "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    made = kind(ElectraConfig(initializer_range=0.5, pad_token_id=tokenizer.pad_token_id, **sizes, **options)).eval()
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("name", KINDS)
def test_masks_are_read_as_by_their_owner(name: str, saved: Any, tmp_path: Path) -> None:
    """With the space before them or without."""
    folder = changed(saved(name), tmp_path / "a", lambda old: old)
    model, theirs = with_model(folder, ElectraForMaskedLM), AutoTokenizer.from_pretrained(folder)
    pair = electra_lab.load(folder, device="cpu")
    for text in ("the {} sat", "{} [E1]{} a"):
        text = text.replace("{}", theirs.mask_token)
        read = theirs(text, return_tensors="pt")
        with torch.no_grad():
            logits = model(**read).logits[read["input_ids"] == theirs.mask_token_id]
        best = logits.masked_fill(pair.vocabulary.is_special, -torch.inf).softmax(-1).amax(-1).tolist()
        assert [found[0].probability for found in pair.fill(text).candidates] == pytest.approx(best, abs=1e-6)


ROWS = {"nothing": ("$A", "$A $B"), "no end": ("[CLS] $A", "[CLS] $A $B"), "end first": ("$A [SEP] [CLS]", "$A $B"),
        "as usual": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]")}  # fmt: skip


@pytest.mark.parametrize("rows", [None, *ROWS])
def test_a_model_with_other_rows_is_refused_in_use(rows: str | None, saved: Any, tmp_path: Path) -> None:
    """Here it may be trained further."""
    generic = {"tokenizer_class": "PreTrainedTokenizerFast"}
    folder = changed(saved("BertTokenizer"), tmp_path / "a", lambda old: old | generic)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = None
    if rows:
        ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        single, pair = ROWS[rows]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    with_model(folder, ElectraForSequenceClassification)
    theirs = AutoTokenizer.from_pretrained(folder)
    ids = read_tokenizer(folder).encode("the cat", add_special_tokens=False).ids
    if rows == "as usual":
        ours = electra_lab.load(folder, device="cpu")
        assert ours.predict("the cat")
        with pytest.raises(ConfigError, match="pairs"):
            ours.predict(("the", "cat"))
    else:
        assert theirs("the cat")["input_ids"] != [theirs.cls_token_id, *ids, theirs.sep_token_id]
        with pytest.raises(ConfigError, match=str(folder)):
            electra_lab.load(folder, device="cpu")
    if rows == "as usual":
        with_model(folder, ElectraForQuestionAnswering)
        with pytest.raises(ConfigError, match=f"{folder}: cannot read pairs"):
            electra_lab.load(folder, device="cpu").predict(("who", "the cat"))


@pytest.mark.parametrize("name", ["XLNetTokenizer", "GemmaTokenizer"])
def test_rows_of_some_families_are_refused_in_use(name: str, saved: Any, tmp_path: Path) -> None:
    """Those of XLNet end with <sep> and <cls>, which its folder names; Gemma's small tokenizer adds nothing."""
    folder = changed(saved(name), tmp_path / "a", lambda old: old)
    with_model(folder, ElectraForPreTraining)
    with pytest.raises(ConfigError, match=str(folder)):
        electra_lab.load(folder, device="cpu")


@pytest.mark.parametrize("name", KINDS)
def test_without_a_class_the_kind_of_model_has_to_fit(name: str, saved: Any, tmp_path: Path) -> None:
    """Transformers would take that of ELECTRA, which is BERT's."""
    folder = changed(saved(name), tmp_path / "a", SETTINGS["no_class"])
    (folder / "config.json").write_text('{"model_type": "electra"}')
    if name == "BertTokenizer":
        assert differences(folder) == []
    else:
        with pytest.raises(DataError, match=r"tokenizer_config\.json: tokenizer_class: electra"):
            read_tokenizer(folder)


@pytest.mark.parametrize("name", KINDS)
def test_padding_that_is_another_token_too_is_refused(name: str, saved: Any, tmp_path: Path) -> None:
    folder = changed(saved(name), tmp_path / "a", lambda old: old | {"pad_token": old["sep_token"]})
    with pytest.raises(DataError, match=str(folder)):
        read_tokenizer(folder)


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("name", KINDS)
def test_labels_of_a_fine_tuned_model_have_the_order_of_their_numbers(name: str, saved: Any, tmp_path: Path) -> None:
    """Twelve of them, for transformers too."""
    folder = changed(saved(name), tmp_path / "model", lambda old: old)
    with_model(folder, ElectraForPreTraining)
    texts = [f"the cat [E1] saw {n} dogs" for n in range(12)]
    rows = "".join(f"{text},{n}\n" for n, text in enumerate(texts))
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows.replace('dogs', f'dogs {split}')}")
    (tmp_path / "f.yaml").write_text(
        f"name: f\nmodel: {folder}\ntask: {{type: text_classification, head: transformers}}\nseeds: [0]\n"
        "dataset: {type: table, train: train.csv, validation: validation.csv, text: text, label: label}\n"
        "train: {epochs: 1, batch_size: 4, precision: fp32}\n"
    )
    model = finetune(tmp_path / "f.yaml", [], tmp_path / "out", "cpu") / "seed-0" / "model"
    classify = pipeline("text-classification", model=str(model), device="cpu")
    assert list(classify.model.config.id2label.values()) == [*map(str, range(12))]
    ours = electra_lab.load(model, device="cpu").predict(texts)
    for answer, scores in zip(ours, classify(texts, top_k=None), strict=True):
        theirs = {score["label"]: score["score"] for score in scores}
        assert answer.probabilities == pytest.approx(theirs, abs=1e-6)
        assert len({round(score, 4) for score in theirs.values()}) > 9  # that another order would swap


def test_the_side_stays_in_saved_tokenizers(saved: Any, tmp_path: Path) -> None:
    folder = changed(saved("BertTokenizer"), tmp_path / "a", lambda old: old | {"truncation_side": "left"})
    read = Tokenizer.from_str(read_tokenizer(folder).to_str())
    vocabulary = make_vocabulary(read, torch.ones(read.get_vocab_size(), dtype=torch.int64), torch.device("cpu"))
    encoder = TextEncoder(read, vocabulary)
    (text,) = encoder.texts(["The cat sat"])
    assert [text.cut(size) for size in (0, 2, 50)] == [[], text.ids[-2:], text.ids]


def test_the_opening_says_which_names_are_tokens(saved: Any, tmp_path: Path) -> None:
    folder = changed(saved("BertTokenizer"), tmp_path / "a", lambda old: old)
    sizes = {"hidden_size": 8, "embedding_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    size = read_tokenizer(folder).get_vocab_size()
    config = ElectraConfig(vocab_size=size, num_hidden_layers=1, max_position_embeddings=32, **sizes)
    ElectraForSequenceClassification(config).save_pretrained(folder)
    for split in ("a", "b"):
        (tmp_path / f"{split}.csv").write_text(f"text,label\nthe [E1] cat {split},a\nthe dogs {split},b\n")
    (tmp_path / "f.yaml").write_text(
        f"name: f\nmodel: {folder}\ntask: {{type: text_classification}}\nseeds: [0]\ntrain: {{epochs: 1}}\n"
        "dataset: {type: table, train: a.csv, validation: b.csv, text: text, label: label}\n"
    )
    assert "[E1] are tokens" in dry_run(tmp_path / "f.yaml", [], None, "cpu", tries=False)
