"""Answers: rows, labels, predictions, questions without an answer, refusals."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import example as of_old
from hypothesis import strategies as st
from torch.nn import functional as F

from electra_lab.data.task_rows import TaskRows
from electra_lab.tasks._spans import Independent, Joint
from electra_lab.tasks.question_answering import QuestionAnswering
from electra_lab.testing.tasks import TEXT, WORDS, encoder, question_examples
from electra_lab.tokenizers.bpe import bpe
from electra_lab.tokenizers.unigram import unigram
from electra_lab.tokenizers.wordpiece import wordpiece
from registry import Answer, Batch, QuestionExample, Results, Row
from registry.errors import DataError
from tests.electra_lab.data.test_text_encoder import of

Head = Literal["joint", "independent"]


def task(head: Head = "joint", *, unanswerable: bool = True, **options: Any) -> QuestionAnswering:
    made = QuestionAnswering(head=head, **options)
    made.set_labels({"unanswerable": unanswerable})
    return made


def asked(context: str, *answers: str, question: str = "what?", name: str = "q") -> QuestionExample:
    found = tuple(Answer(text, context.index(text)) for text in answers)
    return QuestionExample(question, context, found, id=name, place=f"squad.json:{name}")


def rows_of(given: QuestionAnswering, examples: list[QuestionExample], length: int = 16) -> list[list[Row]]:
    rows: Any = given.rows(examples, encoder(), length)
    return rows


def gold(given: QuestionAnswering, row: Row) -> dict[str, Any]:
    """Return correct and confident outputs of the layers on top."""
    labels: Any = row.labels
    outputs: dict[str, Any] = {"no_answer": np.float32(20 * labels.get("no_answer", 0) - 10)}
    if given.joint:
        sure = 0.0 if labels["start"] else -9.0
        both = {name: np.array([labels[name] or len(row.tokens) - 2, 1], np.float32) for name in ("start", "end")}
        return {**outputs, "score": np.array([sure, -np.inf]), "first": both["start"], "last": both["end"]}
    for name in ("start", "end"):
        outputs[name] = np.zeros(len(row.tokens), np.float32)
        outputs[name][labels[name]] = 9
    return outputs


def judged(given: QuestionAnswering, examples: list[QuestionExample], length: int = 16) -> Results:
    rows = rows_of(given, examples, length)
    outputs = []
    for windows in rows:
        outputs.append([gold(given, row) for row in windows])
    return given.results(examples, rows, outputs)


@st.composite
def examples(draw: st.DrawFn) -> list[QuestionExample]:
    """Draw questions about texts with odd spaces and characters; answers begin and end with a word."""
    found = []
    for n in range(draw(st.integers(1, 3))):
        word = st.sampled_from([*WORDS, "Åse's", "naïve", "1,000", "(so)", "\u200d", "东京"])
        number = draw(st.integers(1, 40))  # hypothesis mostly draws short lists
        words = draw(st.lists(word, min_size=number, max_size=number))
        context, places = "", []
        for written in words:
            context += draw(st.sampled_from(["", " ", "  ", "\n"]))
            context += " " if places and not context[-1].isspace() else ""
            places.append((len(context), len(context) + len(written)))
            context += written
        answers: tuple[Answer, ...] = ()
        if draw(st.booleans()):
            first = draw(st.integers(0, len(words) - 1))
            last = draw(st.integers(first, min(first + 2, len(words) - 1)))
            answers = (Answer(context[places[first][0] : places[last][1]], places[first][0]),)
        question = " ".join(draw(st.lists(word, max_size=12)))
        found.append(QuestionExample(question, context, answers, id=f"q{n}"))
    return found


@settings(deadline=None, max_examples=60)
@given(
    drawn=examples(),
    length=st.integers(24, 48),
    options=st.sampled_from([{"head": "joint"}, {"head": "independent"}, {"head": "independent", "no_answer": "cls"}]),
    stride=st.integers(4, 40),
)
def test_right_outputs_give_the_right_answers(
    drawn: list[QuestionExample], length: int, options: dict[str, Any], stride: int
) -> None:
    """Literally as in the context, in any windows.

    Answers are no longer than the context that a token has in its best window, and begin and end with a token.
    """
    given_task = task(**options, stride=stride, max_query=4)
    for example in drawn:
        (context,), room = encoder().texts([example.context]), length - 7
        for answer in example.answers:
            end = answer.start + len(answer.text)
            inside = [at for at in context.offsets if at[1] > answer.start and at[0] < end]
            assume(inside and (inside[0][0], inside[-1][1]) == (answer.start, end) and len(inside) <= room // 4)
    found = judged(given_task, drawn, length)
    for example, prediction in zip(drawn, found.predictions, strict=True):
        assert prediction["prediction"] == (example.answers[0].text if example.answers else "")
        assert prediction["correct"]
    assert found.metrics["f1"] == found.metrics["exact_match"] == found.metrics["best_f1"] == 1.0
    assert found.metrics.get("missed_answers", 0.0) == 0.0


# Letters that normalizers take apart, join or expand: accents, ligatures, jamo, Indic signs, half-width Japanese.
LETTERS = [
    "a", "é", "ﬁ", "½", "İ", "ß", "한", "\u1112\u1161\u11ab", "ㅋㅠ", "ｶﾞ", "か", "م", "क्ष", "ന\u0d4d\u200d", "字",
    "❤\ufe0f",
]  # fmt: skip
MARKS = ["\u0301", "\u0327", "\u064e\u0651", "\u093f", "\u05b8", "\u20dd", "\u3099"]
cluster = st.tuples(st.sampled_from(LETTERS), st.sampled_from(["", "", *MARKS])).map("".join)
marked_words = st.tuples(st.sampled_from(["", "", "", *MARKS]), st.lists(cluster, min_size=1, max_size=4).map("".join))
sentence = st.lists(
    st.tuples(marked_words.map("".join), st.sampled_from([" ", "  ", "\u3000"])), min_size=1, max_size=5
)
KNOWN = [f"the cafe sat on the mat, {''.join(LETTERS)}"] * 20
TOKENIZERS = {
    "uncased": lambda: wordpiece(KNOWN, vocab_size=200),
    "cased": lambda: wordpiece(KNOWN, vocab_size=200, lowercase=False),
    "bpe": lambda: bpe(KNOWN, vocab_size=400),
    "unigram": lambda: unigram(KNOWN, vocab_size=100, lowercase=True),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_answers_are_the_text_as_it_was_written(kind: str) -> None:
    """With all of its marks, even if the tokenizer drops, joins or expands some."""
    reading, asking = of(TOKENIZERS[kind]()), task("independent", max_answer=200)

    @settings(deadline=None, max_examples=150)
    @of_old(drawn=[("cafe\u0301", " "), ("b", " ")], ends=(0, 0))
    @given(drawn=sentence, ends=st.tuples(st.integers(0, 4), st.integers(0, 4)))
    def whole_words(drawn: list[tuple[str, str]], ends: tuple[int, int]) -> None:
        first, last = sorted(min(end, len(drawn) - 1) for end in ends)
        before = "".join(word + space for word, space in drawn[:first])
        answer = "".join(word + space for word, space in drawn[first : last + 1]).rstrip()
        context = "".join(word + space for word, space in drawn)
        asked = QuestionExample("?", context, (Answer(answer, len(before)),), id="q")
        rows: Any = asking.rows([asked], reading, 512)
        found = asking.results([asked], rows, [[gold(asking, row) for row in rows[0]]])
        assert found.predictions[0]["prediction"] == answer

    whole_words()


@settings(deadline=None, max_examples=40)
@given(drawn=examples(), length=st.integers(8, 64), stride=st.integers(1, 40), query=st.integers(1, 12))
def test_rows_hold_the_question_and_all_of_the_context(
    drawn: list[QuestionExample], length: int, stride: int, query: int
) -> None:
    cls, sep = encoder().vocabulary.cls_id, encoder().vocabulary.sep_id
    for example, rows in zip(drawn, rows_of(task(stride=stride, max_query=query), drawn, length), strict=True):
        question, context = encoder().texts([example.question, example.context])
        kept = question.ids[: min(query, length // 2)]
        covered: dict[int, int] = {}
        for row in rows:
            assert len(row.tokens) <= length
            begin = row.keep.begin
            assert list(row.tokens[:begin]) == [cls, *kept, sep]
            assert row.tokens[-1] == sep
            assert list(row.segments) == [0] * begin + [1] * (len(row.tokens) - begin)
            assert row.keep.cut == (len(kept) < len(question.ids))
            covered |= {row.keep.window.first + n: token for n, token in enumerate(row.tokens[begin:-1])}
            labels: Any = row.labels
            if labels["start"]:
                answer, shift = example.answers[0], row.keep.window.first - begin
                held = range(answer.start, answer.start + len(answer.text))
                inside = [n for n, offsets in enumerate(context.offsets) if {*range(*offsets)} & {*held}]
                assert [labels["start"] + shift, labels["end"] + shift] == [inside[0], inside[-1]]
            assert labels["no_answer"] == (not example.answers)
        assert [covered[place] for place in range(len(context.ids))] == context.ids


def one_token_words(number: int) -> str:
    return " ".join(["the"] * number)


@pytest.mark.parametrize(
    ("before", "answer", "after", "places"),
    [
        (3, "old cat", 7, [(6, 7), (0, 0)]),
        (4, "cat", 7, [(7, 7), (3, 3)]),
        (0, "the", 11, [(3, 3), (0, 0)]),
        (7, "old cat", 3, [(0, 0), (6, 7)]),  # it ends at the first token after the first window
        (6, "old cat", 4, [(9, 10), (5, 6)]),
    ],
)
def test_a_context_in_two_windows_by_hand(before: int, answer: str, after: int, places: list[tuple[int, int]]) -> None:
    """[CLS], a question of one token and two [SEP] leave room for eight; the next window begins four later."""
    context = f"{one_token_words(before)} {answer} {one_token_words(after)}".strip()
    cls, sep = encoder().vocabulary.cls_id, encoder().vocabulary.sep_id
    (the,), ids = (text.ids for text in encoder().texts(["the", context]))
    assert len(ids) == 12
    first, second = rows_of(task(), [asked(context, answer, question="the")], 12)[0]
    assert first.tokens == [cls, the, sep, *ids[:8], sep]
    assert second.tokens == [cls, the, sep, *ids[4:], sep]
    assert first.segments == second.segments == [0] * 3 + [1] * 9
    assert [(row.labels["start"], row.labels["end"]) for row in (first, second)] == places


def test_tokens_beside_the_answer_are_not_part_of_it() -> None:
    (row,) = rows_of(task(), [asked("old,cat,old", "cat", question="the")])[0]
    assert len(row.tokens) == 3 + 5 + 1
    assert (row.labels["start"], row.labels["end"]) == (5, 5)


def test_the_first_answer_is_trained_and_any_is_right() -> None:
    example, given_task = asked(TEXT, "seven small dogs", "dogs"), task("independent", unanswerable=False)
    (row,) = rows_of(given_task, [example], 64)[0]
    offsets, begin, labels = row.keep.context.offsets, row.keep.begin, dict[str, Any](row.labels)
    assert "no_answer" not in labels
    assert TEXT[offsets[labels["start"] - begin][0] : offsets[labels["end"] - begin][1]] == "seven small dogs"
    first, last = TEXT.index("dogs"), TEXT.index("dogs") + 4
    dogs = [n for n, (start, end) in enumerate(offsets) if start == first or end == last]
    outputs = np.zeros((2, len(row.tokens)))
    outputs[[0, 1], [begin + dogs[0], begin + dogs[-1]]] = 5
    found = given_task.results([example], [[row]], [[dict(zip(("start", "end"), outputs, strict=True))]])
    assert found.predictions[0]["prediction"] == "dogs"
    assert found.predictions[0]["label"] == ["seven small dogs", "dogs"]
    assert found.metrics["exact_match"] == 1.0
    assert "best_f1" not in found.metrics
    assert not found.tables


def test_answers_that_cannot_be_found_and_cut_questions_are_counted() -> None:
    assert [len(text.ids) for text in encoder().texts(["seven", "seven small"])] == [5, 10]
    examples = [asked(TEXT, "seven", name="1"), asked(TEXT, "seven small", name="2"), asked(TEXT, name="3")]
    assert judged(task(max_answer=5), examples, 64).metrics["missed_answers"] == 0.5
    joined = one_token_words(30)
    assert judged(task(), [asked(joined, joined)], 16).metrics["missed_answers"] == 1.0  # not completely in any window
    # An answer of dropped characters is trained at [CLS].
    dropped = asked("the \u200d cat", "\u200d")
    (row,) = rows_of(task(), [dropped])[0]
    assert (row.labels["start"], row.labels["end"], row.labels["no_answer"]) == (0, 0, 0.0)
    assert judged(task(), [dropped]).metrics["missed_answers"] == 1.0
    examples = [asked(TEXT, "cat", question=one_token_words(number), name=str(number)) for number in (2, 3, 4, 5)]
    assert judged(task(max_query=3), examples, 64).metrics["cut_questions"] == 0.5
    assert judged(task(), examples, 9).metrics["cut_questions"] == 0.25  # half a row


def odds(given_task: QuestionAnswering, numbers: list[float]) -> Results:
    """Judge four questions whose best spans are right, right, wrong and empty."""
    wrong = replace(asked("the cat", name="3"), answers=(Answer("cat", 4),))
    examples = [asked("cat", "cat", name="1"), asked("cat", name="2"), wrong, asked("", name="4")]
    rows = rows_of(given_task, examples, 16)
    outputs = []
    for (row,), number in zip(rows, numbers, strict=True):
        place = np.array([row.keep.begin])  # of the first token, which covers all of "cat" and "the"
        score = np.array([0.0 if row.keep.context.ids else -np.inf])
        outputs.append([{"no_answer": np.float32(number), "score": score, "first": place, "last": place}])
    return given_task.results(examples, rows, outputs)


def test_questions_without_an_answer_by_hand() -> None:
    """The answers are right, wrongly given, wrong ("the" for "cat") and rightly none."""
    found = odds(task(threshold=1.0), [0.0, 1.0, 2.0, 3.0])
    assert [prediction["prediction"] for prediction in found.predictions] == ["cat", "cat", "", ""]
    assert [prediction["correct"] for prediction in found.predictions] == [True, False, False, True]
    assert [prediction["span"] for prediction in found.predictions] == ["cat", "cat", "the", ""]
    assert [prediction["no_answer"] for prediction in found.predictions] == [0.0, 1.0, 2.0, 3.0]
    assert found.predictions[3]["certainty"] == pytest.approx(1 / (1 + np.exp(-3)))
    half = ("f1", "exact_match", "answerable_f1", "answerable_exact_match", "unanswerable_accuracy")
    half += ("constant_f1", "constant_exact_match")  # of always answering nothing
    best = {"best_f1": 0.75, "best_exact_match": 0.75}
    assert found.metrics == {**dict.fromkeys(half, 0.5), **best, "cut_questions": 0.0, "missed_answers": 0.0}
    assert [list(row) for row in found.tables[0].rows] == [["F1", 1.0, 0.5, 0.0, 0.75], ["EM", 1.0, 0.5, 0.0, 0.75]]
    mute = odds(task(threshold=-1.0), [0.0, 1.0, 2.0, 3.0])
    assert not any(prediction["prediction"] for prediction in mute.predictions)
    assert (mute.metrics["f1"], mute.metrics["best_f1"]) == (0.5, 0.75)


def test_a_question_is_answerable_if_one_window_says_so() -> None:
    given_task, example = task(threshold=0.0), asked(one_token_words(14), "the")
    rows = rows_of(given_task, [example], 14)
    assert len(rows[0]) > 1
    for least in (-1.0, 1.0):
        outputs = [gold(given_task, row) | {"no_answer": np.float32(least)} for row in rows[0]]
        outputs[0]["no_answer"] = np.float32(5)
        prediction = given_task.results([example], rows, [outputs]).predictions[0]
        assert (prediction["prediction"] == "") == (least > 0)
        assert prediction["no_answer"] == least


def test_cls_against_the_best_span() -> None:
    given_task = task("independent", no_answer="cls", threshold=1.0)
    example = asked("the cat", "the")
    rows = rows_of(given_task, [example])
    begin = rows[0][0].keep.begin
    for at_cls, silent in ((3.9, False), (4.1, True)):
        start, end = np.zeros((2, len(rows[0][0].tokens)))
        start[[0, begin]], end[[0, begin]] = (at_cls, 3.0), (0.0, 0.0)
        prediction = given_task.results([example], rows, [[{"start": start, "end": end}]]).predictions[0]
        assert prediction["no_answer"] == pytest.approx(at_cls - 3)
        assert prediction["prediction"] == ("" if silent else "the")


def test_the_loss_has_the_official_weights() -> None:
    given_task = task("independent")
    rows = [row for rows_ in rows_of(given_task, question_examples()) for row in rows_]
    batch: Batch = next(iter(TaskRows(rows).in_order(5, torch.device("cpu"))))
    draw, labels = torch.Generator().manual_seed(0), batch.labels
    start, end = torch.randn(2, *batch.tokens.shape, generator=draw)
    logits = torch.randn(5, generator=draw)
    terms = given_task.losses({"start": start, "end": end, "no_answer": logits}, batch)
    found = sum(float(term.sum) / int(term.count) * float(term.weight) for term in terms.values())
    spans = (F.cross_entropy(start, labels["start"]) + F.cross_entropy(end, labels["end"])) / 2
    none = F.binary_cross_entropy_with_logits(logits, labels["no_answer"].float())
    assert found == pytest.approx(float(spans + 0.5 * none), rel=1e-5)


def test_the_head_depends_on_what_was_learned() -> None:
    examples = question_examples()
    for learned, has in ((examples, True), ([example for example in examples if example.answers], False)):
        given_task = QuestionAnswering(max_answer=7, beam=3)
        given_task.set_labels(given_task.fit_labels(learned))
        head = given_task.head(8, 0.5)
        assert isinstance(head, Joint)
        assert (head.no_answer is not None) == has
        assert (head.longest, head.beam, head.dropout.p) == (7, 3, 0.5)
    assert isinstance(task("independent").head(8, 0.1), Independent)
    assert task("independent", no_answer="cls").head(8, 0.1).no_answer is None


def test_what_cannot_be_used() -> None:
    example = replace(asked("the cat sat", "cat"), place="train.json:3")
    for answers, text, start in (
        ((Answer("cat", 5),), "cat", 5),
        ((Answer("cat", 4), Answer("at", -2)), "at", -2),
        ((Answer("", 4),), "", 4),
    ):
        said = rf"^train\.json:3: the answer '{text}' is not in its context at character {start}\."
        with pytest.raises(DataError, match=said):
            rows_of(task(), [replace(example, answers=answers)])
    with pytest.raises(DataError, match=r"^squad\.json:2: the answer is not known"):
        QuestionAnswering().fit_labels([asked("the cat", "cat"), replace(asked("a", name="2"), labelled=False)])
    with pytest.raises(ValueError, match="no_answer: cls needs head: independent"):
        QuestionAnswering(head="joint", no_answer="cls")


def test_questions_without_an_answer_that_training_lacks_are_errors() -> None:
    """As in the official script: a text is always wrong, no text is right."""
    given_task = task("independent", unanswerable=False)
    examples = [asked("the cat", "cat", name="1"), asked("old cat", name="2"), asked("", name="3")]
    found = judged(given_task, examples)
    assert [prediction["correct"] for prediction in found.predictions] == [True, False, True]
    assert found.metrics["exact_match"] == pytest.approx(2 / 3)
    assert found.metrics["unseen_labels"] == pytest.approx(2 / 3)
    assert "unseen_labels" not in judged(task("independent"), examples).metrics


@pytest.mark.parametrize(("segmentation", "f1"), [("words", 0.0), ("mixed", 0.8)])
def test_f1_counts_the_segments_that_are_asked_for(segmentation: Any, f1: float) -> None:
    given_task = task("independent", unanswerable=False, segmentation=segmentation)
    example = asked("在上海", "上海")
    (row,) = rows_of(given_task, [example])[0]
    start, end = np.zeros((2, len(row.tokens)), np.float32)
    start[row.keep.begin] = end[len(row.tokens) - 2] = 9
    found = given_task.results([example], [[row]], [[{"start": start, "end": end}]])
    assert found.predictions[0]["prediction"] == "在上海"
    assert found.metrics["f1"] == pytest.approx(f1)
