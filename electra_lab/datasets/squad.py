"""SQuAD, the Stanford Question Answering Dataset."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra_lab.datasets._splits import Entry, NamedFiles, attempted
from electra_lab.datasets._texts import id_of
from electra_lab.sources.files import BYTE_ORDER_MARK, BadInput, Files
from electra_lab.sources.records import kind_of, value_of, whole_text
from registry import Answer, QuestionExample, datasets


@datasets.register("squad", yields=QuestionExample)
@dataclass(kw_only=True, eq=False)
class Squad(NamedFiles[QuestionExample]):
    """SQuAD 1.1 and 2.0 and others in their JSON format, plain or compressed (.gz, .xz, .bz2, .zst).

    Questions with `is_impossible: true` have no answer; the answers of questions without `answers` are unknown.

    train, validation, test  a file, a pattern, or a folder (all its .json files); relative to the fine-tuning file
    on_error                 treatment of a question that cannot be an example: `stop`, or `skip`; of several answers,
                             only those that are not at their place in the context are skipped
    held_out                 share of train for validation if it has no file, chosen by a hash of the articles' titles
    """

    extensions = (".json",)

    def _options(self) -> dict[str, Any]:
        return {"on_error": self.on_error}

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Entry[QuestionExample]]:
        top = str(file)
        for n, article in enumerate(_items(_parsed(files, file), top, "data")):
            place = f"{file}: data[{n}]"
            paragraphs = _items(article, place, "paragraphs")
            for m, paragraph in enumerate(paragraphs):
                inner = f"{place}.paragraphs[{m}]"
                context = _text(paragraph, inner, "context")
                title = article.get("title") or context
                for k, question in enumerate(_items(paragraph, inner, "qas")):
                    example = attempted(self._example, question, context, file, f"{inner}.qas[{k}]")
                    yield example if isinstance(example, BadInput) else (str(title), example)

    def _example(self, question: Any, context: str, file: Path, place_in_file: str) -> QuestionExample:
        """Return an example. Raises BadInput."""
        name = id_of(value_of(question, place_in_file, "id"), "id", place_in_file)
        if not name:
            raise BadInput(place_in_file, "the field 'id' is empty")
        place = f"{file}: question {name}"
        asked = _text(question, place, "question")
        impossible = question.get("is_impossible") or False
        if not isinstance(impossible, bool):
            raise BadInput(place, f"the field 'is_impossible' is {kind_of(impossible)}, not true or false")
        # Unknown answers, no answer, or a list of them.
        if not impossible and "answers" not in question:
            return QuestionExample(asked, context, (), False, name, place)
        answers = [] if impossible else _items(question, place, "answers")
        if not impossible and not answers:
            cure = 'Set "is_impossible": true if it has none, or remove "answers" if they are unknown.'
            raise BadInput(place, "the list of answers is empty", cure)
        # Answers at a wrong place may be skipped if others are left.
        read = [attempted(_answer, answer, context, place) for answer in answers]
        wrong = [answer for answer in read if isinstance(answer, BadInput)]
        right = [answer for answer in read if isinstance(answer, Answer)]
        if wrong and not (self.on_error == "skip" and right):
            raise wrong[0]
        return QuestionExample(asked, context, tuple(right), True, name, place)

    def submission(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """Return the input of the official scripts: a JSON object of the predicted texts by the questions' ids."""
        texts = {answer["id"]: answer["prediction"] for answer in predictions}
        return f"{split}.json", json.dumps(texts, ensure_ascii=False, indent=1) + "\n"


def _parsed(files: Files, file: Path) -> Any:
    """Return the content of a JSON file. Raises BadInput, at file:line."""
    content = b"".join(files.blocks(file)).removeprefix(BYTE_ORDER_MARK)
    try:
        return json.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{file}:{line}", f"byte {error.start} is not UTF-8", "Convert the file.") from None
    except json.JSONDecodeError as error:
        reason = f"is not JSON ({error.msg} at column {error.colno})"
        raise BadInput(f"{file}:{error.lineno}", reason) from None
    except (ValueError, RecursionError):
        raise BadInput(str(file), "is JSON that Python cannot read") from None


def _items(record: Any, place: str, field: str) -> list[Any]:
    items = value_of(record, place, field)
    if not isinstance(items, list):
        raise BadInput(place, f"the field '{field}' is {kind_of(items)}, not a list")
    return items


def _text(record: Any, place: str, field: str) -> str:
    return whole_text(value_of(record, place, field), field, place)


def _answer(answer: Any, context: str, place: str) -> Answer:
    """Return an answer that is at its place. Raises BadInput."""
    text, start = _text(answer, place, "text"), value_of(answer, place, "answer_start")
    if isinstance(start, bool) or not isinstance(start, int):
        raise BadInput(place, f"the field 'answer_start' is {kind_of(start)}, not a whole number")
    if not text or start < 0 or not context.startswith(text, start):
        raise BadInput(place, f"the answer '{text}' is not in its context at character {start}")
    return Answer(text, start)
