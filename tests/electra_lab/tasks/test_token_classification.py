"""Tags for words: windows, labels, predictions, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import accuracy_score
from seqeval.metrics import f1_score as seqeval_f1

from electra_lab.data.task_rows import TaskRows
from electra_lab.tasks.token_classification import IGNORED, TokenClassification
from electra_lab.testing.tasks import WORDS, encoder, words_examples
from registry import Batch, Results, Row, WordsExample
from registry.errors import DataError

TAGS = ["O", "B-X", "I-X", "B-Y", "I-Y"]
DROPPED = "\u200d"  # a character that BERT's normaliser removes

words = st.sampled_from([*WORDS, "x" * 40, "Åse's", DROPPED])
pairs = st.tuples(words, st.sampled_from(TAGS))
sentences = st.integers(0, 25).flatmap(lambda number: st.lists(pairs, min_size=number, max_size=number))


def task(**options: Any) -> TokenClassification:
    made = TokenClassification(**options)
    made.set_labels({"tags": TAGS, "usual": "O"})
    return made


def example(pairs: list[tuple[str, str]], name: str = "") -> WordsExample:
    return WordsExample(tuple(word for word, _ in pairs), tuple(tag for _, tag in pairs), name, f"a.txt:{name}")


def gold(rows: list[list[Row]], wrong: int = 0) -> list[list[dict[str, Any]]]:
    """Return logits that prefer each label, or the tag `wrong` places after it; elsewhere they prefer the last."""
    table = np.eye(len(TAGS), dtype=np.float32) * 9

    def outputs(row: Row) -> dict[str, Any]:
        labels: Any = row.labels["tags"]
        return {"logits": np.stack([table[(label + wrong) % len(TAGS) if label >= 0 else -1] for label in labels])}

    return [list(map(outputs, windows)) for windows in rows]


def judged(given: TokenClassification, examples: list[WordsExample], length: int = 16, wrong: int = 0) -> Results:
    rows: Any = given.rows(examples, encoder(), length)
    return given.results(examples, rows, gold(rows, wrong))


@settings(deadline=None, max_examples=40)
@given(texts=st.lists(sentences, min_size=1, max_size=4), length=st.integers(8, 40), stride=st.integers(1, 50))
def test_right_logits_give_the_right_tags(texts: list[list[tuple[str, str]]], length: int, stride: int) -> None:
    """For sentences in any number of windows; a word without tokens is tagged O."""
    examples = [example(text, str(n)) for n, text in enumerate(texts)]
    found = judged(task(stride=stride), examples, length)
    for sentence, prediction in zip(examples, found.predictions, strict=True):
        tags = ["O" if word == DROPPED else tag for word, tag in zip(sentence.words, sentence.tags or (), strict=True)]
        assert prediction["prediction"] == tags
        assert prediction["correct"] == (tags == prediction["label"] == list(sentence.tags or ()))
    kept = [pair for text in texts for pair in text if pair[0] != DROPPED]
    number = max(sum(map(len, texts)), 1)
    assert found.metrics["dropped_words"] == pytest.approx((sum(map(len, texts)) - len(kept)) / number)
    if all(tag == "O" for text in texts for word, tag in text if word == DROPPED):
        assert found.metrics["f1"] == (1.0 if any(tag != "O" for _, tag in kept) else 0.0)
        assert found.metrics["accuracy"] == (1.0 if any(texts) else 0.0)


@settings(deadline=None, max_examples=40)
@given(text=sentences, length=st.integers(8, 40), stride=st.integers(1, 50))
def test_each_word_is_labelled_once_at_its_first_token(text: list[tuple[str, str]], length: int, stride: int) -> None:
    sentence = example(text)
    encoded = encoder().words([sentence.words])[0]
    rows = task(stride=stride).rows([sentence], encoder(), length)[0]
    seen: list[tuple[int, int]] = []
    for row in rows:
        labels: Any = row.labels["tags"]
        assert len(labels) == len(row.tokens) <= length
        seen += [(row.keep[place], label) for place, label in enumerate(labels) if label != IGNORED]
        for place, word in row.keep.items():
            assert row.tokens[place] == encoded.ids[encoded.words.index(word)]
    assert seen == [(word, TAGS.index(text[word][1])) for word in dict.fromkeys(encoded.words)]


def test_predictions_and_tables() -> None:
    examples = words_examples()
    found = judged(task(), examples, wrong=1)
    assert [prediction["words"] for prediction in found.predictions] == [list(example.words) for example in examples]
    assert not any(prediction["correct"] for prediction in found.predictions)
    assert found.metrics["accuracy"] < 0.1
    assert found.metrics["f1"] == 0.0
    tags = [[*example.tags] for example in examples]
    none = [["O"] * len(of_sentence) for of_sentence in tags]
    constant = {"constant_accuracy": accuracy_score(tags, none), "constant_f1": seqeval_f1(tags, none, zero_division=0)}
    assert constant.items() <= found.metrics.items()
    (table,) = found.tables
    assert [row[0] for row in table.rows] == ["X", "Y"]
    sure = [prediction["certainty"] for prediction in found.predictions]
    assert sure == pytest.approx([1 / (1 + 4 * np.exp(-9))] * len(sure))


def test_entities_have_every_kind_of_tag_of_their_types() -> None:
    """CoNLL-2000 has I-LST only in its test."""
    given = TokenClassification()
    facts = given.fit_labels([example([("the", "O"), ("cat", "B-X"), ("sat", "I-X"), ("mat", "B-LST")], "1")])
    assert facts == {"tags": ["B-LST", "B-X", "I-LST", "I-X", "O"], "usual": "O"}
    given.set_labels(facts)
    assert given.rows([example([("cat", "B-LST"), ("sat", "I-LST")], "2")], encoder(), 16)
    assert given.fit_labels([example([("cat", "S-X"), ("sat", "B-Y")], "1")])["tags"] == ["B-X", "B-Y", "S-X", "S-Y"]
    # A word without tokens is tagged O, even where another tag is more frequent.
    facts = given.fit_labels([example([("the", "B-X"), ("cat", "B-X"), ("sat", "O")])])
    assert facts == {"tags": ["B-X", "O"], "usual": "O"}


def test_plain_tags_are_judged_word_by_word() -> None:
    given = TokenClassification(scheme="plain")
    examples = [example([("the", "DT"), ("cat", "NN"), ("sat", "VB"), ("mat", "NN"), (DROPPED, "VB")], "1")]
    given.set_labels(given.fit_labels(examples))
    assert (given.tags, given.usual) == (["DT", "NN", "VB"], "NN")  # the first of equally frequent ones
    rows: Any = given.rows(examples, encoder(), 16)
    outputs = [[{"logits": np.tile([0.0, 1.0, 0.0], (len(rows[0][0].tokens), 1))}]]
    found = given.results(examples, rows, outputs)
    assert found.predictions[0]["prediction"] == ["NN"] * 5
    assert found.metrics == {"accuracy": 0.4, "constant_accuracy": 0.4, "dropped_words": 0.2}
    assert given.metrics.keys() == found.metrics.keys() | {"unseen_labels"}
    dt, nn, vb = map(list, found.tables[0].rows)
    assert (dt, vb) == (["DT", 0.0, 0.0, 0.0, 1, 0], ["VB", 0.0, 0.0, 0.0, 2, 0])
    assert nn == ["NN", pytest.approx(4 / 7), 0.4, 1.0, 2, 5]


def test_dropout_is_before_the_last_layer() -> None:
    head = task().head(6, 0.5)
    states = torch.ones(2, 9, 6)
    given: Any = None  # the batch
    assert not torch.equal(head(states, given), head(states, given))
    assert torch.equal(head.eval()(states, given), head(states, given))


def test_the_loss_is_the_cross_entropy_of_labelled_places() -> None:
    given = task()
    rows = [row for windows in given.rows(words_examples(), encoder(), 16) for row in windows]
    batch: Batch = next(iter(TaskRows(rows).in_order(3, torch.device("cpu"))))
    logits = torch.randn(*batch.tokens.shape, len(TAGS), generator=torch.Generator().manual_seed(0))
    (term,) = given.losses({"logits": logits}, batch).values()
    labels = batch.labels["tags"]
    expected = -sum(logits[i, j].log_softmax(0)[labels[i, j]] for i, j in (labels >= 0).nonzero().tolist())
    assert float(term.sum) == pytest.approx(float(expected), rel=1e-5)
    assert int(term.count) == int((labels >= 0).sum())


def test_tags_that_training_lacks_are_errors() -> None:
    """In the entities, the words and the table, but not in the loss."""
    given = TokenClassification()
    given.set_labels({"tags": ["B-X", "I-X", "O"], "usual": "O"})
    texts = [[("the", "B-X"), ("cat", "B-Z"), ("sat", "I-Z")], [("the", "O"), ("mat", "B-X")]]
    examples = [example(text, str(n)) for n, text in enumerate(texts)]
    rows: Any = given.rows(examples, encoder(), 16)
    assert [rows[0][0].labels["tags"][place] for place in sorted(rows[0][0].keep)] == [0, IGNORED, IGNORED]
    tags = [["B-X", "O", "B-X"], ["O", "B-X"]]
    outputs = []
    for (row,), wanted in zip(rows, tags, strict=True):
        logits = np.zeros((len(row.tokens), 3))
        for place, word in row.keep.items():
            logits[place, given.tags.index(wanted[word])] = 1
        outputs.append([{"logits": logits}])
    found = given.results(examples, rows, outputs)
    truth = [list(example.tags or ()) for example in examples]
    assert found.metrics["f1"] == seqeval_f1(truth, tags) == pytest.approx(2 * 2 / (3 + 3))
    assert found.metrics["accuracy"] == 3 / 5
    assert found.metrics["unseen_labels"] == given.truncation(examples, rows)["unseen_labels"] == 2 / 5
    assert ["Z", 0.0, 0.0, 0.0, 1, 0] in [list(row) for row in found.tables[0].rows]
    assert "unseen_labels" not in given.truncation(examples[1:], rows[1:])


@pytest.mark.parametrize("tag", ["NN", "B-", "U-X"])
def test_a_tag_of_no_entity_is_refused(tag: str) -> None:
    wrong = WordsExample(("the", "cat"), ("O", tag), "7", "train.txt:5")
    with pytest.raises(DataError, match=rf"train\.txt:5: the tag '{tag}' is neither O.*scheme: plain"):
        TokenClassification().fit_labels([wrong])
    assert TokenClassification(scheme="plain").fit_labels([wrong])["tags"] == sorted(["O", tag])


def test_what_cannot_be_learned() -> None:
    with pytest.raises(DataError, match=r"^b\.txt:2: the sentence has no tags"):
        TokenClassification().fit_labels([WordsExample(("the",), ("O",)), WordsExample(("the",), None, "", "b.txt:2")])
    with pytest.raises(DataError, match="no words"):
        TokenClassification().fit_labels([WordsExample((), ())])
