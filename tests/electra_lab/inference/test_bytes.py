"""A pair whose tokenizer reads bytes: what people see are letters, and a run and its export read the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

import electra_lab
from electra_lab.data.texts import tokenize
from electra_lab.data.vocabulary import masks_take_words
from electra_lab.export.export import export
from electra_lab.inference.pair import Pair
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run

TEXTS = ["the [MASK] sat", "the cat [MASK]", "[MASK] caf\u00e9", "the[MASK] sat", "the cat"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair, Path]:
    """A run and its export. The learning rate is high, so that the generator knows some words."""
    folder = tmp_path_factory.mktemp("bytes")
    train = "{steps: 60, batch_size: 8, precision: fp32, learning_rate: 0.01}"
    with for_a_module():
        file = experiment(folder, tokenizer="{type: bpe, vocab_size: 400}", train=train, checkpoint="{every: 60}")
        made = run(file, folder / "run")
        exported = export(made, folder / "exported").path
    return electra_lab.load(made, device="cpu"), electra_lab.load(exported, device="cpu"), exported


@pytest.mark.parametrize("text", TEXTS)
def test_a_run_its_export_and_transformers_read_the_same(pairs: tuple[Pair, Pair, Path], text: str) -> None:
    one, two, exported = pairs
    [mine], [its] = (tokenize(pair.tokenizer, [text], with_masks=True) for pair in (one, two))
    assert (mine.ids, mine.offsets) == (its.ids, its.offsets)
    theirs = AutoTokenizer.from_pretrained(exported / "generator")
    assert mine.ids == theirs(text, add_special_tokens=False)["input_ids"]
    if "[MASK]" in text:
        assert one.fill(text).filled == two.fill(text).filled
        start, end = mine.offsets[mine.ids.index(one.vocabulary.mask_id)]
        assert text[start:end] == "[MASK]"


def test_no_byte_is_shown_as_a_glyph(pairs: tuple[Pair, Pair, Path]) -> None:
    pair, *_ = pairs
    for result in (pair.fill("the [MASK] sat on the [MASK]", top=50), pair.corrupt("the cat sat on a caf\u00e9")):
        for shown in (str(result), result._repr_html_().split("title=")[0]):
            assert "\u0120" not in shown
    for found in pair.corrupt(["the cat number five sat on the mat"] * 5, mask_prob=0.5):
        for i, written in found.written.items():
            assert written == pair.tokenizer.decode([pair.vocabulary.mask_id, pair.tokenizer.token_to_id(
                found.inputs[i])], skip_special_tokens=False).removeprefix("[MASK]")  # fmt: skip
        assert found.replaced == [i in found.written for i in range(len(found.tokens))]


def test_a_filled_text_has_one_space_between_words(pairs: tuple[Pair, Pair, Path]) -> None:
    pair, *_ = pairs
    found = pair.fill("the [MASK] sat", top=400)
    assert {each.written for each in found.candidates[0]} >= {" the", " cat", "a", "."}
    for best in found.candidates[0]:
        assert replace(found, candidates=[[best]]).filled == f"the{best.written} sat"


@pytest.mark.parametrize(
    ("options", "text", "tokens"),
    [
        ("{type: bytes}", "the [MASK] sat", ["t", "h", "e", "\u0120", "[MASK]", "\u0120", "s", "a", "t"]),
        ("{type: kmers, k: 2}", "AC [MASK] GT", ["AC", "[MASK]", "GT"]),
    ],
)
def test_a_space_that_no_token_implies_stays(options: str, text: str, tokens: list[str], tmp_path: Path) -> None:
    file = tmp_path / "letters.txt"
    file.write_text("".join(f"the cat sat ACGT{number} GATTACA\n\n" for number in range(60)))
    sections = {
        "corpus": f"{{type: text_files, paths: [{file}]}}",
        "data": f"{{sequence_length: 16, held_out: 0.3, overlap: 1.0, store: {tmp_path}}}",
        "train": "{steps: 4, batch_size: 2}",
    }
    made = run(experiment(tmp_path, tokenizer=options, **sections), tmp_path / "run")
    pair = electra_lab.load(made, device="cpu")
    assert tokenize(pair.tokenizer, [text], with_masks=True)[0].tokens == tokens
    found = pair.fill(text, top=300)
    assert {each.written for each in found.candidates[0]} >= ({" ", "a"} if text[0] == "t" else {"A", "AC"})
    for best in found.candidates[0]:
        assert replace(found, candidates=[[best]]).filled == text.replace("[MASK]", best.written)


def test_the_first_letter_has_its_own_verdict(pairs: tuple[Pair, Pair, Path]) -> None:
    pair, *_ = pairs
    found = pair.detect("zebra sat")
    assert found.tokens[:2] == ["\u0120", "z"]
    assert found.offsets[:3] == [(0, 0), (0, 1), (1, 2)]
    shown = [span for span in found.spans() if span.text]
    assert (shown[0].text, shown[0].strength) == ("z", found.probabilities[1])
    assert pair.detect(" zebra").offsets[0] == (0, 1), "a space that is there"


def test_pieces_of_sentences_too() -> None:
    """Metaspace, as in SentencePiece."""
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "<unk>", "\u2581", "\u2581the", "\u2581sat", "z", "o"]
    tokenizer = Tokenizer(models.Unigram([(word, -float(i)) for i, word in enumerate(words)], unk_id=4))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(words[:4])
    masks_take_words(tokenizer, "[MASK]")
    [masked] = tokenize(tokenizer, ["the [MASK] sat"], with_masks=True)
    assert masked.ids == [6, 3, 7]
    [zoo] = tokenize(tokenizer, ["zoo"])
    assert (zoo.tokens, zoo.offsets) == (["\u2581", "z", "o", "o"], [(0, 0), (0, 1), (1, 2), (2, 3)])
