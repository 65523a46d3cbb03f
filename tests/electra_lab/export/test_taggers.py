"""The code of a tagger's card gives the tags of the lab with every kind of tokenizer, also outside transformers."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import electra_lab
from electra_lab.export.model_folder import copy_folder, with_head
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.pretrained.hugging_face import read_part
from registry.contracts.data import SPECIAL_TOKENS
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
BERT = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}"
MODERN = "{type: modernbert, dim: 16, depth: 2, heads: 2, local_attention: 8, dropout: 0.0}"
KINDS = {
    "wordpiece": BERT,
    "bpe": BERT,
    "bpe without a space at the beginning": MODERN,
    "unigram": BERT,
    "unigram without a space at the beginning": BERT,
}


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


@pytest.fixture(scope="module", params=KINDS)
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
        copy_folder(path / "seed-0" / "model", folder / "export")
        yield path, folder / "export"


def test_the_code_of_the_card_gives_the_labs_tags(
    tagger: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path, folder = tagger
    monkeypatch.chdir(folder)
    card = Path("README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    own: list[str] = eval(re.search(r"words = (.*)", code)[1])
    model, exported, seen = electra_lab.load(path), electra_lab.load(folder), set()
    for words in [own, *sentences(20), ["%"], ["", "the", "%"]]:
        capsys.readouterr()
        exec(code.replace(repr(own).replace("'", '"'), repr(words)), {})
        tags = eval(capsys.readouterr().out.splitlines()[-1])
        assert tags == model.predict({"words": words}).prediction == exported.predict({"words": words}).prediction
        seen |= {*tags}
    assert len(seen) > 1
    assert "names of special tokens, such as `[SEP]`, as text" in card


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


@torch.no_grad()
def test_words_as_onnxruntime_would_read_them(tagger: tuple[Path, Path]) -> None:
    """With tokenizer.json alone, and the module that is written as ONNX: the first token of each word has its tag."""
    path, folder = tagger
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    module, model = with_head(folder, read_part(folder, "discriminator")).eval(), electra_lab.load(path)
    for words in sentences(12):
        row = tokenizer.encode(words, is_pretokenized=True)
        inputs = (torch.tensor([part]) for part in (row.ids, row.attention_mask, row.type_ids))
        best = module(*inputs)[0][0].argmax(-1).tolist()
        found = [model.job.task.tags[best[row.word_ids.index(number)]] for number in range(len(words))]
        assert found == model.predict({"words": words}).prediction
