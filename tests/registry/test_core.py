"""Names of components: registered, listed, looked up, refused."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path

import pytest

from registry import samplers, schedules, trackers
from registry.core import Registry
from registry.errors import BadSignature, DuplicateName, UnknownName
from registry.listing import short
from tests.helpers import python


@pytest.fixture(autouse=True)
def _isolated():
    with samplers.isolated():
        yield


def mine(logits, rng, /, *, sharpness: float = 2.0):
    """Draw as I like.

    A second paragraph.
    """


def test_a_registered_component_is_found_and_listed_with_its_schema_and_place():
    assert samplers.register("mine")(mine) is mine
    entry = samplers.get("mine")
    assert entry.component is mine
    assert entry.file == Path(__file__)
    assert entry.line == mine.__code__.co_firstlineno
    assert entry.place.endswith(f"test_core.py:{entry.line}")
    assert entry.summary == "Draw as I like."
    assert entry.schema().model_dump() == {"sharpness": 2.0}
    assert {"argmax", "gumbel", "mine", "temperature"} <= set(samplers.names())
    assert samplers.names() == sorted(samplers.names()) == [listing.name for listing in samplers.listings()]
    listing = next(listing for listing in samplers.listings() if listing.name == "mine")
    assert (listing.summary, listing.place.split(":")[0]) == ("Draw as I like.", short(Path(__file__)))


def test_a_built_in_first_looked_up_inside_isolated_is_still_known_afterwards(tmp_path: Path):
    inside = 'with schedules.isolated():\n    schedules.get("linear")\n'
    done = python("-c", f'from registry import schedules\n{inside}print(schedules.get("linear").name)', cwd=tmp_path)
    assert done.stdout == "linear\n", done.stderr


def test_two_plug_ins_with_one_name_are_refused_naming_both_places():
    samplers.register("mine")(mine)

    def other(logits, rng, /):
        """Another."""

    with pytest.raises(DuplicateName, match=r"Choose another name\.") as refused:
        samplers.register("mine")(other)
    for place in (mine.__code__.co_firstlineno, other.__code__.co_firstlineno):
        assert f"test_core.py:{place}" in str(refused.value)
    assert samplers.get("mine").component is mine


def test_a_plug_in_cannot_take_the_name_of_a_built_in_even_before_it_is_imported(tmp_path: Path):
    stolen = (
        'from registry import schedules\n\n\n@schedules.register("linear")\ndef linear(progress, /):\n    "Stolen."\n'
    )
    (tmp_path / "thief.py").write_text(stolen)
    done = python("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import thief", cwd=tmp_path)
    assert "DuplicateName: thief.py:4: schedule 'linear' is already defined at" in done.stderr
    assert "schedules/linear.py:" in done.stderr


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(UnknownName, match=r"^no sampler is called 'gumbl'\. Did you mean 'gumbel'\? Known: argmax, "):
        samplers.get("gumbl")


@pytest.mark.parametrize("name", ["", "__init__", "_uniform", "../core", "gumbel.py", "electra_lab.samplers.gumbel"])
def test_a_lookup_reaches_nothing_but_components(name: str):
    with pytest.raises(UnknownName):
        samplers.get(name)


def test_a_home_module_that_does_not_register_its_own_name_is_refused():
    strange = Registry("thing", "things", home="electra_lab.config", lead=(), contract="Thing")
    with pytest.raises(UnknownName, match=r"electra_lab\.config\.origins does not register a thing called 'origins'"):
        strange.get("origins")


@pytest.mark.parametrize("name", ["my-sampler", "my sampler", "1st", "", "a.b", "a/b"])
def test_a_bad_name_is_refused_where_it_is_written(name: str):
    with pytest.raises(BadSignature, match=rf"test_core\.py:{mine.__code__.co_firstlineno}: .*letters, digits and _"):
        samplers.register(name)(mine)


def test_a_docstring_a_name_and_a_function_or_class_are_required():
    def silent(logits, rng, /): ...

    with pytest.raises(BadSignature, match=rf"test_core\.py:{silent.__code__.co_firstlineno}: .*no docstring"):
        samplers.register("silent")(silent)
    assert "silent" not in samplers.names()
    with pytest.raises(BadSignature, match=r'test_core\.py:\d+: .*@samplers\.register\("name"\)'):
        samplers.register(mine)
    with pytest.raises(BadSignature, match="only a function or a class"):
        samplers.register("mine")(partial(mine))


def test_an_argument_that_the_registry_does_not_know_is_refused_with_the_known_ones():
    place = rf"tests/registry/test_core\.py:{mine.__code__.co_firstlineno}"
    reason = r"samplers\.register has no argument 'unbaised'\. Did you mean 'unbiased'\? Known: unbiased\."
    with pytest.raises(BadSignature, match=f"^{place}: {reason}$"):
        samplers.register("mine", unbaised=True)(mine)
    assert "mine" not in samplers.names()

    def flat(progress, /):
        """Always one."""

    with schedules.isolated(), pytest.raises(BadSignature, match=r"schedules\.register has no argument 'unbiased'\. K"):
        schedules.register("flat", unbiased=True)(flat)


def test_a_component_declares_what_it_says_and_otherwise_the_default():
    samplers.register("mine")(mine)
    assert samplers.get("mine").declared == {"unbiased": False}
    with samplers.isolated():
        samplers.register("exact", unbiased=True)(mine)
        assert samplers.get("exact").declared == {"unbiased": True}
    declared = samplers.get("gumbel").declared["unbiased"]
    assert (declared(temperature=1.0), declared(temperature=2.0)) == (True, False)


def test_a_class_is_at_its_own_line_however_it_is_registered() -> None:
    class Drawn:
        """Draws."""

        def __init__(self, logits, rng, /): ...

    first = samplers.register("first")(Drawn) and samplers.get("first").line
    second = samplers.register("second")(Drawn) and samplers.get("second").line
    assert first == second == inspect.getsourcelines(Drawn)[1]


def test_a_class_without_a_method_of_its_contract_is_refused_at_its_line():
    class Forgetful:
        """A tracker that records nothing."""

        rewinds = False
        close = None

        def check(self): ...

        def start(self, run, /): ...

    with trackers.isolated():
        for method in ("record", "close"):
            with pytest.raises(BadSignature, match=rf"test_core\.py:\d+: tracker 'forgetful' has no {method};"):
                trackers.register("forgetful")(Forgetful)
            setattr(Forgetful, method, lambda self, *_: None)
        trackers.register("forgetful")(Forgetful)
