"""The package that a docstring comes from: texts, hidden names, splits by modules."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from electra_lab.datasets import docstring_origin
from electra_lab.datasets._splits import number_of
from electra_lab.datasets.docstring_origin import PACKAGES, DocstringOrigin
from electra_lab.sources.docstrings import installed_files
from registry import datasets
from registry.errors import DataError
from registry.signature import validate
from tests.electra_lab.datasets.written import write

LONG = "A sentence that is long enough to be an example."


def package(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: list[str]) -> None:
    """Write modules with the given docstrings; `a__b` is the module b of the package a."""
    files = []
    for name, texts in sorted(modules.items()):
        path = name.replace("__", "/")
        functions = "".join(f'def f():\n    """{text}"""\n' for text in texts)
        files.append((write(folder / f"{path}.py", functions), f"python/{path}.py"))
    monkeypatch.setattr(docstring_origin, "installed_files", lambda: files)


def many(*packages: str, modules: int = 10, docstrings: int = 2) -> dict[str, list[str]]:
    """Return `modules` modules of each package with `docstrings` numbered docstrings each."""
    found, number = dict[str, list[str]](), 0
    for name in packages:
        for n in range(modules):
            found[f"{name}__m{n}"] = [f"Number {number + i}. {LONG}" for i in range(docstrings)]
            number += docstrings
    return found


def read(**options: Any) -> dict[str, list[Any]]:
    dataset = DocstringOrigin(**{"packages": ["one", "two"], "held_out": 0.2} | options)
    return {split: list(dataset.read(split)) for split in dataset.splits}


def texts(found: dict[str, list[Any]]) -> list[str]:
    return [example.text for examples in found.values() for example in examples]


def test_every_docstring_has_its_package_and_modules_are_in_one_split(tmp_path: Path, monkeypatch: Any) -> None:
    modules = many("one", "two", "three")
    package(tmp_path, monkeypatch, **modules)
    found = read()
    known = {text: name.split("__")[0] for name, texts in modules.items() for text in texts}
    places = []
    for split, number in {"train": 12, "validation": 4, "test": 4}.items():
        assert Counter(example.label for example in found[split]) == {"one": number, "two": number}
        assert all(example.label == known[example.text] for example in found[split])
        places.append({example.place for example in found[split]})
    assert sum(map(len, places)) == len(set().union(*places)) == 20
    assert found["train"][0].place == str(tmp_path / "one" / f"m{found['train'][0].place[-4]}.py")


def test_modules_that_do_not_fit_a_share_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of a module decides its split, not its position."""
    modules = many("one", "two", docstrings=1)
    package(tmp_path, monkeypatch, **modules)
    found = read()
    order = sorted((f"m{n}" for n in range(10)), key=lambda name: number_of(f"one.{name}"))
    for split, modules_held in (("validation", order[:2]), ("test", order[2:4])):
        held = {Path(example.place).stem for example in found[split] if example.label == "one"}
        assert held == {*modules_held}
    modules["one__large"] = [f"{LONG} It is large: {n}." for n in range(10)]
    package(tmp_path, monkeypatch, **modules)
    found = read()
    assert sum("large" in example.text for example in found["train"]) == 10
    for split in ("validation", "test"):
        assert Counter(example.label for example in found[split]) == {"one": 4, "two": 2}


def test_a_package_with_too_few_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, **many("one"), two__m0=[LONG])
    for other in ("two", "nothing"):
        with pytest.raises(DataError, match=f"^the package '{other}' has too few .* for a split validation"):
            read(packages=["one", other])


def test_most_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = many("one", "two", modules=30)
    package(tmp_path, monkeypatch, **modules)
    found = read(most=20)
    assert Counter(example.label for examples in found.values() for example in examples) == {"one": 20, "two": 20}
    own = [text for name, texts in modules.items() for text in texts if name.startswith("one")]
    assert {*texts(found)} & {*own} == {*sorted(own, key=number_of)[:20]}
    length = len(f"Number 1. {LONG}")
    assert len(texts(read(min_characters=length + 1))) == 110
    cut = texts(read(max_characters=28))
    assert {*cut} >= {"Number 1. A sentence that is", "Number 11. A sentence that"}
    assert len(cut) == 120
    assert DocstringOrigin(packages=["one", "two"], min_characters=1, max_characters=3)._cleaned("Asentence") == "Ase"


def test_a_text_of_several_modules_belongs_to_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, **many("one", "two"), one__x=[LONG, LONG], two__x=[LONG])
    found = [example for examples in read().values() for example in examples if example.text == LONG]
    assert [(example.label, Path(example.place).name) for example in found] == [("one", "x.py")]


def test_a_package_inside_another_counts_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, **many("one", "one__two", "onelike"), one=[LONG])
    found = read(packages=["one", "one.two"])
    counts = Counter((example.label, "two" in example.place) for examples in found.values() for example in examples)
    assert counts == {("one", False): 21, ("one.two", True): 20}


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("torch.nn is of PyTorch, and so is torch.optim.", "package is of package, and so is package.optim."),
        ("TORCH_NN or nn_torch or asyncio's Email", "package_package or package_package or package's package"),
        ("running annotations, torchvision and NNModule", "running annotations, torchvision and NNModule"),
        ("nn2 and 2nn, émail and emails", "nn2 and 2nn, émail and emails"),
        ("see :class:`~torch.nn.Module`", "see :class:`~package.Module`"),
    ],
)
def test_names_are_hidden(text: str, hidden: str) -> None:
    assert docstring_origin._pattern(["torch.nn", "asyncio", "email"]).sub("package", text) == hidden


def test_names_are_hidden_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, **many("one", "two"), one__x=[f"{LONG} One.two and TWO."])
    assert f"{LONG} package and package." in texts(read())
    assert f"{LONG} One.two and TWO." in texts(read(hide_names=False))


def test_every_option_is_in_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, **many("one", "two"))
    default: dict[str, Any] = {"packages": ["one", "two"]}
    others = [{}, {"most": 10}, {"min_characters": 1}, {"max_characters": 99}, {"hide_names": False}, {"held_out": 0.3}]
    found = {DocstringOrigin(**default | options).fingerprint() for options in others}
    found.add(DocstringOrigin(packages=["two", "one"]).fingerprint())
    monkeypatch.setattr(docstring_origin, "FORMAT", 0)
    assert len(found | {DocstringOrigin(**default).fingerprint()}) == 8


def test_a_module_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, **many("one", "two"))
    dataset = DocstringOrigin(packages=["one", "two"], held_out=0.2)
    dataset.fingerprint()
    write(tmp_path / "one" / "m3.py", "")
    with pytest.raises(DataError, match=r"m3\.py: changed while it was read\."):
        list(dataset.read("train"))
    dataset.fingerprint()
    before = list(dataset.read("train"))
    write(tmp_path / "one" / "m4.py", "")
    dataset.fingerprint()
    assert list(dataset.read("train")) != before


@pytest.mark.parametrize("packages", [["one"], [], ["one", "two/three"], ["one", ".two"], ["one", ""]])
def test_packages_that_cannot_be(packages: list[str]) -> None:
    with pytest.raises(ValidationError):
        validate(datasets.get("docstring_origin").schema, {"packages": packages})
    with pytest.raises(ValueError, match="one is listed twice"):
        DocstringOrigin(packages=["one", "two", "one"])


def test_the_packages_of_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tested with two of the small ones; reading all of them takes several seconds."""
    installed = installed_files()
    names = {name.removeprefix("python/").replace("/", ".") for _, name in installed}
    for wanted in PACKAGES:
        assert sum(name.startswith(f"{wanted}.") for name in names) >= 15, wanted
    chosen = ("asyncio", "xml")
    files = [document for document in installed if document[1].startswith(("python/asyncio/", "python/xml/"))]
    monkeypatch.setattr(docstring_origin, "installed_files", lambda: files)
    assert {*chosen} < {*PACKAGES}
    found = read(packages=[*chosen])
    for split, least in {"train": 120, "validation": 12, "test": 12}.items():
        counts = Counter(example.label for example in found[split])
        assert min(counts[name] for name in chosen) > least
    assert not any("asyncio" in text for text in texts(found))
    assert max(map(len, texts(found))) <= 500
