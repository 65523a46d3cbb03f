"""Text in use is changed as the corpus changed it, and what remains unknown is pointed out."""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import electra_lab
from electra_lab.corpora.fasta import LETTERS, Fasta
from electra_lab.data import encoding
from electra_lab.data.encoding import encode
from electra_lab.data.texts import tokenize
from electra_lab.data.vocabulary import with_changes
from registry import Document, tokenizers
from registry.errors import DataError, UnknownText
from tests.electra_lab.cli.conftest import Lab, lab  # noqa: F401
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run

TOKENIZERS: dict[str, dict[str, Any]] = {
    "characters": {},
    "bytes": {},
    "kmers": {"k": 3, "alphabet": "ACGTU"},
    "words": {"pattern": "[A-Za-z*-]{3}|.", "min_frequency": 1},
    "bpe": {"vocab_size": 300},
    "unigram": {"vocab_size": 120},
    "wordpiece": {"vocab_size": 120, "lowercase": False, "strip_accents": False},
}
CORPORA: list[dict[str, Any]] = [
    {"letters": letters, "lower_case": case, "kmers": kmers}
    for letters, case, kmers in product(LETTERS, ("raise", "keep"), (None, 3))
]


@pytest.mark.parametrize("options", CORPORA, ids=lambda options: "-".join(map(str, options.values())))
def test_sequences_in_use_are_read_as_those_of_the_corpus(options: dict[str, Any], tmp_path: Path) -> None:
    draw = random.Random(0)
    letters = LETTERS[options["letters"]]
    sequences = ["".join(draw.choices(letters + letters.lower(), k=40)) for _ in range(20)]
    (tmp_path / "a.fa").write_text("".join(f">{n}\n{text}\n" for n, text in enumerate(sequences)))
    corpus = Fasta(paths=[tmp_path / "a.fa"], longest_gap=None, **options)
    written = [document.text for document in corpus if isinstance(document, Document)]
    wrapped = ["\n".join([text[:13], text[13:26] + " \t", text[26:]]) for text in sequences]
    for name, given in TOKENIZERS.items():
        tokenizer = with_changes(tokenizers.get(name).component(written, **given), corpus.changes())
        trained, lengths, _ = encode(tokenizer, written, "uint16")
        for texts in (sequences, wrapped, written):
            used = tokenize(tokenizer, texts)
            assert [len(text.ids) for text in used] == lengths.tolist(), name
            assert [id for text in used for id in text.ids] == trained.tolist(), name
            for text, words in zip(texts, used, strict=True):
                covered = "".join(text[start:end] for start, end in dict.fromkeys(words.offsets))
                assert texts is written or "".join(covered.split()) == "".join(text.split()), name


def test_a_k_mer_is_one_token_and_a_longer_word_unknown_to_others(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(">a\nACGTNACGTACG\n")
    corpus = Fasta(paths=[tmp_path / "a.fa"], kmers=6)
    tokenizer = with_changes(tokenizers.get("kmers").component((), k=6), corpus.changes())
    (text,) = tokenize(tokenizer, ["ACGTNACGTACG"])
    assert text.tokens == ["[UNK]"] * 5 + ["ACGTAC", "CGTACG"]
    assert text.offsets == [(n, n + 1) for n in range(6)] + [(6, 12)]
    assert text.unknown == 5 / 12
    assert tokenizer.encode("ACGTACGTACGT acgtac").tokens == ["[UNK]", "ACGTAC"]  # as transformers would read it
    masked = tokenize(tokenizer, ["ACG [MASK] ACG", "acgtac[MASK]CGTACG ACGTNN"], with_masks=True)
    assert [text.tokens[3] for text in masked] == ["[MASK]", "[UNK]"]
    assert masked[1].tokens == ["ACGTAC", "[MASK]", "CGTACG", "[UNK]"]
    assert [text.unknown for text in masked] == [0, 6 / 24]
    for sequence in ("ACGTACG[MASK]ACGTAC", "ACGTAC [MASK] ACG\nTACG", "[MASK]ACGT?ACG"):
        with pytest.raises(DataError, match="6-mers"):
            tokenize(tokenizer, ["ACG", sequence], with_masks=True)


def test_unknown_characters_of_many_texts_are_counted_in_some(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizers.get("wordpiece").component(["the cat sat on the mat"], vocab_size=100)
    texts = [
        "the \u4e00\u4e01 cat \u0416\u0416\u0416\u0416",
        "the cat",
        "the \u0416\u0416 \u0416\u0416\u0416\u0416",
    ] * 40
    exact = encode(tokenizer, texts, "uint16")[2]
    assert exact.sum() == 40 * 12
    monkeypatch.setattr(encoding, "SAMPLE", 200)
    some = encode(tokenizer, texts, "uint16")[2]
    assert some.tolist() != exact.tolist()
    assert some.sum() == pytest.approx(exact.sum(), rel=0.2)


@pytest.fixture(scope="module")
def dna(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on DNA with repeats in lower case."""
    folder, draw = tmp_path_factory.mktemp("dna"), random.Random(0)
    records = ["".join(draw.choices("ACGTacgt", k=60)) for _ in range(40)]
    (folder / "a.fa").write_text("".join(f">r{n}\n{text}\n" for n, text in enumerate(records)))
    sections = {
        "corpus": f"{{type: fasta, paths: [{folder / 'a.fa'}]}}",
        "tokenizer": "{type: characters}",
        "train": "{steps: 3, batch_size: 2, precision: fp32}",
        "data": f"{{sequence_length: 16, held_out: 0.3, overlap: 1, store: {folder / 'store'}}}",
    }
    with for_a_module():
        return run(experiment(folder, **sections), folder / "run")


def test_lower_case_is_read_and_unknown_text_pointed_out(dna: Path) -> None:
    pair = electra_lab.load(dna, device="cpu")
    states = pair.embed(["acgt", "tgca", "ACGT"])
    assert (states[0] - states[1]).abs().max() > 1e-3
    assert states[0].equal(states[2])
    for verb in (pair.detect, pair.score, pair.corrupt):
        with pytest.warns(UnknownText, match="25%"):
            assert verb("ACGU acgu").unknown == 0.25
        assert verb("ACGTACGTAU").unknown == 0.1  # not above a tenth
    with pytest.warns(UnknownText, match="100%"):
        pair.embed("EFEF")
    assert pair.unknown(["ACGT", " A U \n", "\U0001f600"]) == [0, 0.5, 1]


@pytest.mark.parametrize("verb", ["detect", "score", "embed", "corrupt", "fill"])
def test_every_verb_says_it_once(verb: str, dna: Path, lab: Lab) -> None:  # noqa: F811
    texts = ["ACGU ACGU[MASK]", "UUUU[MASK]", "ACGTacgtACGTacgt[MASK]"]
    code, out, err = lab(verb, dna, *texts, "--json", "--device", "cpu")
    shares = [json.loads(line)["unknown"] for line in out.splitlines()]
    assert (code, err.count("note: ")) == (0, 1 + (verb == "fill" and "without a mask" in err))
    assert shares[0] > 0.1
    assert shares[1] > shares[0] > shares[2]
