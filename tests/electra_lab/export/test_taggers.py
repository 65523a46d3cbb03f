"""The code of a tagger's card gives the tags of the lab with every kind of tokenizer, also without transformers."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import electra_lab
from electra_lab.export.model_folder import copy_folder
from electra_lab.jobs.finetuning.run import finetune
from registry.contracts.data import SPECIAL_TOKENS
from tests.electra_lab.export.carded import pasted, serving
from tests.electra_lab.jobs.finetuning.small import pretrained, write_finetuning
from tests.electra_lab.jobs.pretraining.tiny import for_a_module

WORDS = [
    "the",
    "cat",
    "cats",
    "didn't",
    "3,000",
    "%",
    "(",
    ")",
    "Ärger",
    "mat",
    "number",
    "--",
    "$",
    "sat",
    "zebra-like",
]
SPACED = [  # white space around a word is no part of it, of whatever kind
    ["\tthe", "cat "],
    ["the", "  %", "\u00a0%"],
    ["\u3000mat", "sat\x1c", "\u2028%"],
    ["the", " ", "%"],
    ["\u2028"],
    ["\u00a0", "\u3000", "\t"],
]
BERT = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}"
MODERN = "{type: modernbert, dim: 16, depth: 2, heads: 2, local_attention: 8, dropout: 0.0}"
KINDS = {
    "wordpiece": BERT,
    "bpe": BERT,
    "bpe without a space at the beginning": MODERN,
    "unigram": BERT,
    "unigram without a space at the beginning": BERT,
}
WITH_ONNX = {"wordpiece", *(kind for kind in KINDS if "without" in kind)}
CASES = [
    pytest.param(kind, marks=() if kind in WITH_ONNX else pytest.mark.slow) for kind in KINDS
]  # the others add little


def sentences(number: int) -> list[list[str]]:
    draw = random.Random(number)
    return [draw.choices(WORDS, k=draw.randrange(1, 12)) for _ in range(number)]


def without_space(kind: str, folder: Path) -> str:
    """Write a tokenizer that puts no space before the first word, as ModernBERT's; `%` is a space mark and a sign."""
    byte_level = kind.startswith("bpe")
    tokenizer = Tokenizer(models.BPE() if byte_level else models.Unigram())
    special = [names[0] for names in SPECIAL_TOKENS.values()] + ["[UNK]"]
    size: dict[str, Any] = {"special_tokens": special, "show_progress": False}
    trainer: Any = trainers.UnigramTrainer(vocab_size=120, unk_token="[UNK]", **size)
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), vocab_size=290, **size)
    else:
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer.train_from_iterator([" ".join(words).replace(" %", "") for words in sentences(40)], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return f"{{type: pretrained, path: {folder / 'tokenizer.json'}}}"


@pytest.fixture(scope="module", params=CASES)
def tagger(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A fine-tuning whose rows hold all sentences but one, and its export."""
    kind, folder = request.param, tmp_path_factory.mktemp("tagger")
    with for_a_module():
        size = {"wordpiece": 120, "bpe": 300, "unigram": 110}.get(kind)
        tokenizer = f"{{type: {kind}, vocab_size: {size}}}" if size else without_space(kind, folder)
        data = f"{{sequence_length: 16, held_out: 0.3, overlap: 1.0, store: {folder / 'store'}}}"
        sections = {"tokenizer": tokenizer, "embedding": "{dim: 16, max_length: 128}", "discriminator": KINDS[kind]}
        model = pretrained(folder, generator="{scale: 1.0}", data=data, **sections)
        draw, paths = random.Random(1), {}
        for split, read in (("train", sentences(40)), ("validation", [*sentences(14), ["[SEP]", "the"], ["mat"] * 99])):
            lines = ["".join(f"{word} {draw.choice(['B-X', 'O', 'B-Y', 'B-Z'])}\n" for word in words) for words in read]
            paths[split] = f"{split}.conll"
            (folder / paths[split]).write_text("\n".join(lines))
        train = {"epochs": 4, "batch_size": 8, "learning_rate": 3e-2, "precision": "fp32"}
        task = {"type": "token_classification", **({"head": "transformers"} if KINDS[kind] == MODERN else {})}
        given = {"task": task, "dataset": {"type": "conll", **paths}, "train": train, "data": {"max_length": 64}}
        file = write_finetuning(folder, model, imports=[], evaluate=None, checkpoint=None, seeds=[0], **given)
        path = finetune(file, [], folder / "out", "cpu")
        copy_folder(path / "seed-0" / "model", folder / "export", onnx=kind in WITH_ONNX)
        yield path, folder / "export"


def test_the_code_of_the_card_gives_the_labs_tags(
    request: Any, tagger: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tagger
    model, exported, seen = electra_lab.load(path), electra_lab.load(folder), set()
    functions = pasted(folder, monkeypatch)
    assert ("onnxruntime" in functions) == (request.node.callspec.params["tagger"] in WITH_ONNX)
    # Names of special tokens are text, but with Unigram, which has them among its pieces.
    named = [["[SEP]", "the", "[MASK]"], ["[UNK]", "[PAD]", "[CLS]"]]
    if "unigram" in request.node.callspec.id:
        line = next(line for line in (folder / "README.md").read_text().splitlines() if "as special tokens" in line)
        assert {*re.findall(r"`(\[.+?\])`", line)} == {word for words in named for word in words if word != "the"}
        named.clear()
    else:
        assert "as special tokens" not in (folder / "README.md").read_text()
    for words in [*sentences(20), ["%"], ["", "the", "%"], [], *SPACED, *named]:
        tags = model.predict({"words": words}).prediction
        assert exported.predict({"words": words}).prediction == tags
        assert {library: predict(words) for library, predict in functions.items()} == dict.fromkeys(functions, tags)
        seen |= {*tags}
    assert len(seen) > 1
    for predict in functions.values():
        with pytest.raises(ValueError, match="at most 64"):
            predict(["the"] * 63)
        assert len(predict(["mat"] * 10)) == 10


def test_words_of_plain_text_have_no_white_space(tagger: tuple[Path, Path]) -> None:
    model = electra_lab.load(tagger[0])
    for text in (
        "the number is % 5",
        "the  cat",
        " the\tmat \n\n%  ",
        "sat\u00a0%\u3000 mat\u2028",
        " [SEP]  (the)",
        " \u3000 ",
        "",
    ):
        found = model.predict(text)
        words = found.given["words"]
        assert words == [text[start:end] for start, end in found.offsets]
        assert all(words)
        assert words == [word.strip() for word in words]
        assert "".join("".join(words).split()) == "".join(text.split())
        assert [entity["text"] for entity in found.more["entities"]] == [
            text[entity["start"] : entity["end"]].strip() for entity in found.more["entities"]
        ]


def test_the_example_serves_the_labs_tags(request: Any, tagger: tuple[Path, Path]) -> None:
    if request.node.callspec.params["tagger"] not in WITH_ONNX:
        pytest.skip("has no ONNX")
    path, folder = tagger
    model = electra_lab.load(path)
    short = [words for words in sentences(30) if len(model.encoder.words([words])[0].ids) <= 62]
    asked = [*short, ["%"], ["", "the", "%"], *SPACED]
    with serving(folder) as post:
        expected = [answer.prediction for answer in model.predict([{"words": words} for words in asked])]
        assert post(asked) == (200, expected)
        assert [post([["mat"] * 8, ["the"] * number])[0] for number in (63, 1_000_000)] == [413, 413]
        wrong = [[], ["the cat"], [["the", 3]], [["mat"]] * 257, [["\ud83d"]], float("nan"), [[float("nan")]]]
        assert [post(inputs)[0] for inputs in wrong] == [422] * len(wrong)


def test_texts_keep_the_tokens_of_the_run(tmp_path: Path) -> None:
    """A space at the beginning is for words alone: a classifier was trained without it."""
    with for_a_module():
        data = f"{{sequence_length: 16, held_out: 0.3, overlap: 1.0, store: {tmp_path / 'store'}}}"
        tokenizer = without_space("bpe without", tmp_path)
        model = pretrained(tmp_path, tokenizer=tokenizer, data=data, generator="{type: unigram}")
        path = finetune(write_finetuning(tmp_path, model, seeds=[0]), ["task.head=dense"], tmp_path / "out", "cpu")
    own, written = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), path / "seed-0" / "model" / "tokenizer.json"
    for text in ("the cat", " the", "% mat"):
        exported = Tokenizer.from_file(str(written)).encode(text, add_special_tokens=False)
        assert exported.ids == own.encode(text, add_special_tokens=False).ids
