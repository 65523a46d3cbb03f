"""Every built-in task that trains obeys the laws of tasks."""

from typing import Any

from electra_lab.testing import TaskContract
from registry import tasks


class TestTextClassification(TaskContract):
    name = "text_classification"


class TestTextClassificationOfTwo(TestTextClassification):
    labels = "no", "yes", "yes", "no", "no"


class TestTextRegression(TaskContract):
    name, labels = "text_regression", (0.0, 2.5, 5.0, 1.0, 2.5, -3.5)


class TestTokenClassification(TaskContract):
    name = "token_classification"


class TestTokenClassificationPlain(TaskContract):
    name, options = "token_classification", {"scheme": "plain", "stride": 2}


class TestQuestionAnswering(TaskContract):
    name, options = "question_answering", {"beam": 2}


class TestQuestionAnsweringIndependent(TaskContract):
    name, options = "question_answering", {"head": "independent", "stride": 3}


class TestQuestionAnsweringByCls(TaskContract):
    name, options = "question_answering", {"head": "independent", "no_answer": "cls", "threshold": 0.5}


class TestQuestionAnsweringAsInTransformers(TaskContract):
    name, options = "question_answering", {"head": "transformers"}


class TestQuestionAnsweringAnswerable(TaskContract):
    """SQuAD 1.1."""

    name, options = "question_answering", {"beam": 3, "max_query": 2, "max_answer": 4}

    def examples(self) -> list[Any]:
        return [example for example in super().examples() if example.answers]


class TestQuestionAnsweringAnswerableIndependent(TestQuestionAnsweringAnswerable):
    options = {"head": "independent"}  # noqa: RUF012  # read, never changed


def test_every_task_that_trains_has_its_suite() -> None:
    suites = [suite for suite in globals().values() if isinstance(suite, type) and issubclass(suite, TaskContract)]
    trainable = {name for name in tasks.names() if tasks.get(name).declared["trains"]}
    assert trainable == {suite.name for suite in suites if suite is not TaskContract}
