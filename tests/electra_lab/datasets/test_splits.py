"""Examples that are held out for validation, and ids."""

from collections.abc import Iterator
from typing import Any

import pytest

from electra_lab.datasets._splits import Entry, Splits, number_of
from electra_lab.sources.files import BadInput
from registry import TextExample
from registry.errors import DataError


class Listed(Splits[TextExample]):
    def __init__(self, held_out: float, *, on_error: Any = None, **sources: list[str | TextExample | BadInput]) -> None:
        super().__init__(held_out, on_error)
        self.sources = sources

    def _sources(self) -> list[str]:
        return [*self.sources]

    def _examples(self, source: str) -> Iterator[Entry[TextExample]]:
        for item in self.sources[source]:
            example = TextExample(item) if isinstance(item, str) else item
            yield example if isinstance(example, BadInput) else (example.text, example)

    def _place(self, source: str) -> str:
        return f"the list {source}"


def texts(dataset: Any, split: str) -> list[str]:
    return [example.text for example in dataset.read(split)]


MANY: list[Any] = [f"text {n}" for n in range(5000)]


def test_a_share_of_train_is_held_out_where_there_is_no_validation() -> None:
    dataset = Listed(0.1, train=MANY, test=["one"])
    assert dataset.splits == ["train", "validation", "test"]
    train, validation = texts(dataset, "train"), texts(dataset, "validation")
    assert sorted(train + validation) == sorted(MANY)
    assert 430 < len(validation) < 570  # 500, with a standard deviation of 21
    assert train == [text for text in MANY if text in {*train}]
    assert texts(dataset, "test") == ["one"]
    assert [example.id for example in dataset.read("validation")] == [str(n) for n in range(len(validation))]


@pytest.mark.parametrize("sources", [{"train": MANY, "validation": ["a"]}, {"validation": ["a"]}, {"test": MANY}])
def test_nothing_is_held_out_otherwise(sources: dict[str, list[Any]]) -> None:
    dataset = Listed(0.5, **sources)
    assert dataset.splits == [*sources]
    assert {split: texts(dataset, split) for split in dataset.splits} == sources
    assert Listed(0.0, train=MANY).splits == ["train"]


def test_the_key_alone_decides() -> None:
    """Neither order, other examples nor process matter; a larger share only adds held-out examples."""
    held = {*texts(Listed(0.1, train=MANY), "validation")}
    assert {*texts(Listed(0.1, train=MANY[::-2]), "validation")} == held & {*MANY[::-2]}
    assert held < {*texts(Listed(0.3, train=MANY), "validation")}
    twice = Listed(0.1, train=MANY + MANY)
    assert not {*texts(twice, "train")} & {*texts(twice, "validation")}
    assert [round(number_of(key), 6) for key in ("", "a text", "\ud800")] == [0.306153, 0.797467, 0.955319]


def test_ids_are_unique() -> None:
    dataset = Listed(0.0, test=[TextExample("a", id="x"), TextExample("b"), TextExample("c", id="x", place="file:3")])
    with pytest.raises(DataError, match=r"file:3: another example also has the id 'x'"):
        list(dataset.read("test"))
    with pytest.raises(DataError, match=r"file:2: another example also has the id '0'"):
        list(Listed(0.0, test=["a", TextExample("b", id="0", place="file:2")]).read("test"))


@pytest.mark.parametrize(
    ("dataset", "split", "reason"),
    [
        (Listed(0.0, test=[]), "test", r"test\.$"),
        (Listed(0.001, train=["a"]), "validation", r"validation, as held_out is 0\.001\."),
        (Listed(0.999, train=["a"]), "train", r"train, as held_out is 0\.999\."),
    ],
)
def test_a_split_without_examples(dataset: Listed, split: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"the list {next(iter(dataset.sources))}: there are no examples for {reason}"):
        list(dataset.read(split))


def rows(split: str, number: int, **bad: int) -> list[Any]:
    made: list[Any] = [TextExample(f"{split} {n}", None, "a", "", f"{split}:{n}") for n in range(number)]
    made[bad["broken"]] = BadInput(f"{split}:{bad['broken']}", "is broken", "Mend it.")
    made[bad["unlabelled"]] = TextExample("b", place=f"{split}:{bad['unlabelled']}")
    made[bad["twice"]] = TextExample("c", None, "a", "1", f"{split}:{bad['twice']}")
    return made


def test_all_bad_rows_are_named_at_once() -> None:
    made = rows("train", 60, broken=3, unlabelled=7, twice=5)
    for on_error, cure in (("stop", ["To leave such rows out, set on_error: skip."]), (None, [])):
        with pytest.raises(DataError) as refused:
            list(Listed(0.0, on_error=on_error, train=made).read("train"))
        first, second, third, *rest = str(refused.value).splitlines()
        assert first == "train:3: is broken. Mend it."
        assert [line.split(": ")[0] for line in (second, third)] == ["train:5", "train:7"]
        assert rest == cure
    made[10:50] = [BadInput(f"train:{n}", "is broken", "Mend it.") for n in range(10, 50)]
    with pytest.raises(DataError) as refused:
        list(Listed(0.0, train=made).read("train"))
    *_, last, number = lines = str(refused.value).splitlines()
    assert len(lines) == 21
    assert last.startswith("train:26:")
    assert number == "23 more; there are 43."


def test_bad_rows_may_be_skipped_and_are_counted_once() -> None:
    made = rows("train", 60, broken=3, unlabelled=7, twice=5)
    for held_out in (0.0, 0.3):
        dataset = Listed(held_out, on_error="skip", train=made, test=["x"])
        read = [row.place for split in dataset.splits for row in dataset.read(split)]
        skipped = [row.place for split in dataset.splits for row in dataset.skipped[split]]
        assert sorted(read + skipped) == sorted(["", *(f"train:{n}" for n in range(60))])
        assert {"train:3", "train:7"} <= {*skipped} <= {"train:3", "train:5", "train:7"}
        assert "train:3" in [row.place for row in dataset.skipped["train"]]
        assert dataset.skipped["test"] == []


def test_labels_may_be_missing_everywhere_and_in_the_test() -> None:
    known, unknown = TextExample("a", label="x"), TextExample("b")
    assert texts(Listed(0.0, train=[unknown, unknown]), "train") == ["b", "b"]
    assert texts(Listed(0.0, test=[known, unknown]), "test") == ["a", "b"]
    for split in ("train", "validation", "dev"):
        with pytest.raises(DataError, match="has no label, but others of its split have one"):
            texts(Listed(0.0, **{split: [known, unknown]}), split)
    assert texts(Listed(0.0, on_error="skip", test=[known, unknown]), "test") == ["a"]
