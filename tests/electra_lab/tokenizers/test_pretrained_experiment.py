"""An experiment with a tokenizer that exists already: its data, its refusals, its forecast."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from electra_lab.assembly.build import sketch, vocabulary_size
from electra_lab.assembly.experiment import check, open_data
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.tokenizers.pretrained import read_tokenizer
from registry.errors import ConfigError
from tests.electra_lab.tokenizers.test_pretrained import write_words
from tests.helpers import line_of, write_experiment

# All words of the experiment's corpus; no special token has the id that it has in the lab's own tokenizers.
WORDS_OF_IT = ["the", "cat", "number", "sat", "on", "mat", "and", "saw", "dogs", *"0123456789"]
ODD = ["a", "[PAD]", "[MASK]", "b", "[SEP]", "[UNK]", "[CLS]", *WORDS_OF_IT, *(f"##{digit}" for digit in range(10))]


def write_with(folder: Path, path: str, **sections: str) -> Path:
    return write_experiment(
        folder,
        tokenizer=f"{{type: pretrained, path: {path}}}",
        data=f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}",
        **sections,
    )


def test_an_experiment_trains_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run directory has the tokenizer, and no text is lost on the way."""
    monkeypatch.setattr(execute, "write_report", lambda directory: directory.path / "report.html")
    write_words(tmp_path / "model" / "vocab.txt", ODD)
    out = execute.run(write_with(tmp_path, "model", train="{steps: 2, batch_size: 2}"), [], tmp_path / "out", "cpu")
    assert RunDirectory(out).records()[-1]["step"] == 2
    loaded, experiment = execute.reopen(out, "cpu")
    assert loaded.config.tokenizer.keywords() == {"path": tmp_path / "model"}
    vocabulary, tokenizer = experiment.vocabulary, experiment.store.tokenizer
    assert vocabulary.size == len(ODD) == experiment.model.embeddings.tokens.num_embeddings
    assert vocabulary.special_ids == (1, 2, 4, 6)
    assert (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id) == (1, 6, 4, 2)
    train = experiment.store.train
    ids = train.read(np.arange(len(train))).tolist()
    assert tokenizer.token_to_id("[UNK]") not in ids
    documents = tokenizer.decode(ids, skip_special_tokens=False).split("[SEP]")
    assert {document.strip() for document in documents[:-1]} <= set((tmp_path / "corpus.txt").read_text().split("\n\n"))


def key(file: Path) -> str:
    return open_data(load(file), lambda _: None).key


def test_the_store_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    write_words(tmp_path / "one" / "vocab.txt", ODD)
    first = key(write_with(tmp_path, "one"))
    assert first == key(write_with(tmp_path, "one/vocab.txt"))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert first == key(write_with(tmp_path, "two"))
    read_tokenizer(tmp_path / "one").save(str(tmp_path / "saved.json"))
    assert first == key(write_with(tmp_path, "saved.json"))
    write_words(tmp_path / "one" / "vocab.txt", ODD, do_lower_case=False)
    second = key(write_with(tmp_path, "one"))
    write_words(tmp_path / "one" / "vocab.txt", [*ODD, "c"])
    third = key(write_with(tmp_path, "one"))
    assert len({first, second, third}) == 3


def test_what_it_refuses_is_at_its_line_before_a_corpus_is_read(tmp_path: Path) -> None:
    file = write_with(tmp_path, "model")
    sentence = f"{file}:{line_of('tokenizer')}: tokenizer: pretrained refuses this: {tmp_path}/model: cannot be read ("
    (tmp_path / "corpus.txt").unlink()
    for look in (check, lambda loaded: execute.dry_run(file, [], None, "cpu"), vocabulary_size):
        with pytest.raises(ConfigError) as refused:
            look(load(file))
        assert str(refused.value).startswith(sentence)
    write_words(tmp_path / "model" / "vocab.txt", ODD[1:2])
    with pytest.raises(ConfigError, match=rf"refuses this: {tmp_path}/model/vocab.txt: lacks \[CLS\] or <s>, \[SEP\]"):
        check(load(file))


def test_the_forecast_knows_the_size_of_its_vocabulary(tmp_path: Path) -> None:
    write_words(tmp_path / "model" / "vocab.txt", ODD)
    loaded = load(file := write_with(tmp_path, "model"))
    assert vocabulary_size(loaded) == len(ODD) == sketch(loaded).model.embeddings.tokens.num_embeddings
    assert f"with a vocabulary of {len(ODD)} (the tokenizer's)" in execute.dry_run(file, [], None, "cpu")
