"""An experiment with an existing tokenizer: its data, refusals and forecast."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from electra_lab.assembly.build import sketch, vocabulary_size
from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import check
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.tokenizers.pretrained import read_tokenizer
from registry.errors import ConfigError, DataError
from tests.electra_lab.tokenizers.test_pretrained import write_words
from tests.helpers import line_of, write_experiment

# All words of the experiment's corpus; special tokens have other ids than in the lab's own tokenizers.
WORDS_OF_IT = ["the", "cat", "number", "sat", "on", "mat", "and", "saw", "dogs", *"0123456789"]
ODD = ["a", "[PAD]", "[MASK]", "b", "[SEP]", "[UNK]", "[CLS]", *WORDS_OF_IT, *(f"##{digit}" for digit in range(10))]


def write_with(folder: Path, path: str, **sections: str) -> Path:
    return write_experiment(
        folder,
        tokenizer=f"{{type: pretrained, path: {path}}}",
        data=f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}",
        **sections,
    )


def test_an_experiment_reads_with_it(tmp_path: Path) -> None:
    """And no text is lost. For training with it see tests/electra_lab/assembly/test_initial_weights.py."""
    write_words(tmp_path / "model" / "vocab.txt", ODD)
    loaded = load(file := write_with(tmp_path, "model"))
    store = open_data(loaded, lambda _: None)
    assert store.special == {"pad": 1, "cls": 6, "sep": 4, "mask": 2}
    sizes = store.tokenizer.get_vocab_size(), vocabulary_size(loaded), sketch(loaded).model.embeddings.tokens.weight
    assert (*sizes[:2], len(sizes[2])) == (len(ODD),) * 3
    assert f"with a vocabulary of {len(ODD)} (the tokenizer's)" in execute.dry_run(file, [], None, "cpu")
    ids = store.train.read(np.arange(len(store.train))).tolist()
    assert store.tokenizer.token_to_id("[UNK]") not in ids
    documents = store.tokenizer.decode(ids, skip_special_tokens=False).split("[SEP]")
    assert {document.strip() for document in documents[:-1]} <= set((tmp_path / "corpus.txt").read_text().split("\n\n"))


def test_a_tokenizer_that_cannot_be_trained_is_an_error_of_the_data(tmp_path: Path) -> None:
    """The library panics where a regular expression backtracks for long."""
    file = write_experiment(tmp_path, tokenizer="{type: words, pattern: (a+a+)+b}")
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"{n} {'a' * 40}" for n in range(200)))
    with pytest.raises(DataError, match="retry-limit"):
        open_data(load(file), lambda _: None)


def test_the_store_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    def key(path: str) -> str:
        return open_data(load(write_with(tmp_path, path)), lambda _: None).key

    vocabulary = write_words(tmp_path / "one" / "vocab.txt", ODD)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    read_tokenizer(tmp_path / "one").save(str(tmp_path / "saved.json"))
    assert len({key(path) for path in ("one", "one/vocab.txt", "two", "saved.json")}) == 1
    keys = {key("two")}
    write_words(vocabulary, ODD, do_lower_case=False)
    keys.add(key("one"))
    write_words(vocabulary, [*ODD, "c"])
    assert len(keys | {key("one")}) == 3


def test_what_it_refuses_is_at_its_line_before_a_corpus_is_read(tmp_path: Path) -> None:
    file = write_with(tmp_path, "model")
    (tmp_path / "corpus.txt").unlink()
    said = f"^{file}:{line_of('tokenizer')}: tokenizer: pretrained refuses this: {tmp_path}/model"
    for look in (check, lambda loaded: execute.dry_run(file, [], None, "cpu"), vocabulary_size):
        with pytest.raises(ConfigError, match=rf"{said}: cannot be read \("):
            look(load(file))
    write_words(tmp_path / "model" / "vocab.txt", ODD[1:2])
    with pytest.raises(ConfigError, match=rf"{said}/vocab.txt: lacks \[CLS\] or <s>, \[SEP\]"):
        check(load(file))
