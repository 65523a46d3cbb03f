"""SQuAD: both versions, answers at wrong positions, and malformed files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from electra_lab.datasets.squad import Squad
from registry import Answer, QuestionExample
from registry.errors import DataError
from tests.electra_lab.datasets.written import CONTEXT, answer, article, articles, question, squad, write


def test_answers_no_answers_and_unknown_ones(tmp_path: Path) -> None:
    known = question("a", answers=[answer("London"), answer("in London")], is_impossible=False)
    none = question("b", answers=[], is_impossible=True, plausible_answers=[answer("Ada")])
    without = question("d", is_impossible=True)
    unknown = question("c")
    place = f"{tmp_path / 'dev.json'}: question"
    file = write(tmp_path / "dev.json", articles(article(known, none, unknown, without)))
    answers = Answer("London", 16), Answer("in London", 13)
    assert list(Squad(test=file).read("test")) == [
        QuestionExample("Who or what is a?", CONTEXT, answers, True, "a", f"{place} a"),
        QuestionExample("Who or what is b?", CONTEXT, (), True, "b", f"{place} b"),
        QuestionExample("Who or what is c?", CONTEXT, (), False, "c", f"{place} c"),
        QuestionExample("Who or what is d?", CONTEXT, (), True, "d", f"{place} d"),
    ]


@pytest.mark.parametrize(("text", "start"), [("London", 15), ("London", -7), ("Paris", 16), ("", 3), ("London.x", 16)])
def test_an_answer_that_is_not_at_its_place(text: str, start: int, tmp_path: Path) -> None:
    wrong = question("a", answers=[answer(text, start)])
    other = question("b", answers=[answer(text, start), answer("Ada")])
    reason = f"the answer '{text}' is not in its context at character {start}. "
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'dev.json'}: question a: {reason}")):
        list(squad(tmp_path, wrong).read("validation"))
    kept = list(squad(tmp_path, wrong, other, on_error="skip").read("validation"))
    assert [(example.id, example.answers) for example in kept] == [("b", (Answer("Ada", 0),))]


def test_offsets_count_characters(tmp_path: Path) -> None:
    context = "🙂 grüße 你好"
    found = article(question("a", answers=[{"text": "你好", "answer_start": 8}]), context=context)
    dataset = Squad(test=write(tmp_path / "a.json", articles(found)))
    assert next(iter(dataset.read("test"))).answers == (Answer("你好", 8),)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"answers": []}, 'the list of answers is empty. Set "is_impossible": true'),
        ({"answers": {}}, "the field 'answers' is an object, not a list"),
        ({"answers": ["Ada"]}, "is text, not an object with fields"),
        ({"answers": [{"text": "Ada"}]}, "has no field 'answer_start'"),
        ({"answers": [{"text": "Ada", "answer_start": "0"}]}, "the field 'answer_start' is text, not a whole number"),
        ({"question": None}, "the field 'question' is null, not text"),
        ({"is_impossible": "false"}, "the field 'is_impossible' is text, not true or false"),
    ],
)
def test_a_wrong_question_is_named(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path / 'dev.json'}: question a: {reason}"):
        list(squad(tmp_path, question("a") | fields).read("validation"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"data": [\n{"paragraphs": [}', ":2: is not JSON (Expecting value at column 17)"),
        ("[]", ": is a list, not an object with fields"),
        ('{"date": []}', ": has no field 'data'. Did you mean 'date'?"),
        ('{"data": [1]}', ": data[0]: is a number, not an object with fields"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', ": data[0].paragraphs[0]: has no field 'context'"),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [{}]}]}]}',
         ": data[0].paragraphs[0].qas[0]: has no field 'id'"),
        ("1" * 5000, ": is JSON that Python cannot read"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(content: str, reason: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", content)
    with pytest.raises(DataError, match=re.escape(f"{file}{reason}")):
        list(Squad(test=file).read("test"))


def test_whole_articles_are_held_out(tmp_path: Path) -> None:
    found = []
    for n in range(200):
        found.append(article(*(question(f"{n}-{m}") for m in range(3)), title=f"title {n}"))
    dataset = Squad(train=write(tmp_path / "a.json", articles(*found)), held_out=0.3)
    train = {example.id.split("-")[0] for example in dataset.read("train")}
    validation = {example.id.split("-")[0] for example in dataset.read("validation")}
    assert not train & validation
    assert len(train | validation) == 200
    assert 40 < len(validation) < 80


def test_the_predictions_that_the_official_scripts_read(tmp_path: Path) -> None:
    found = [{"id": "a", "prediction": "grüße", "certainty": 0.5}, {"id": "b", "prediction": ""}]
    name, text = squad(tmp_path, question("a")).submission("validation", found)
    assert name == "validation.json"
    assert json.loads(text) == {"a": "grüße", "b": ""}
    assert "grüße" in text
