"""Components are listed without importing them: from their source, and from the metadata of installed packages."""

import json
import sys
from pathlib import Path

import pytest

from electra_lab.config.load import load
from registry import ALL, backbones, load_plugin, masking_strategies, samplers, schedules
from registry.core import Registry
from registry.errors import ConfigError, DuplicateName, LabError, PluginError
from registry.listing import Listing, _scan, first_line, read, short
from tests.helpers import ROOT, python, write_experiment
from tests.registry.conftest import GOOD, Packages


@pytest.mark.parametrize("registry", [samplers, masking_strategies], ids=lambda r: r.plural)
def test_a_listing_read_from_source_says_what_the_import_says(registry: Registry):
    read = {name: registry._built_in(path) for name, path in registry._home_files().items()}
    assert read
    for name, listing in read.items():
        entry = registry.get(name)
        assert (listing.summary, listing.place) == (entry.summary, entry.place)


def test_a_listing_passes_over_definitions_that_register_nothing(tmp_path: Path):
    file = tmp_path / "late.py"
    file.write_text(
        '@cache\ndef helper():\n    """No."""\n\n\n@backbones.register("late")\ndef other():\n    """Another kind."""\n'
        '\n\n@samplers.register("later")\ndef later():\n    """Another name."""\n'
        '\n\n@registry.samplers.register("late")\ndef late():\n    """Yes."""\n'
    )
    assert samplers._built_in(file) == Listing("late", "Yes.", f"{file}:16")
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    assert samplers._built_in(empty) == Listing("empty", "(registers nothing)", f"{empty}:1")


def test_every_registry_lists_at_least_one_documented_component():
    for registry in ALL:
        assert registry.listings(), registry.plural
        assert all(listing.summary and listing.summary != "(registers nothing)" for listing in registry.listings())


def test_listing_imports_no_component_and_a_lookup_imports_exactly_one(tmp_path: Path):
    script = """
import json, sys, registry
def loaded():
    return {m for m in sys.modules if m.startswith("electra_lab.") and m.count(".") == 2} | ({"torch"} & {*sys.modules})
for r in registry.ALL:
    r.listings(), r.names()
listing = sorted(loaded())
registry.schedules.get("linear")
print(json.dumps([listing, sorted(loaded())]))
"""
    done = python("-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listing, lookup = json.loads(done.stdout)
    assert listing == []
    assert lookup == ["electra_lab.schedules.linear"]


def test_a_name_is_read_for_its_own_registry_only(tmp_path: Path):
    file = tmp_path / "two.py"
    file.write_text('@samplers.register("two", unbiased=True)\ndef two():\n    """Two."""\n')
    assert read(file, "samplers", "two") == Listing("two", "Two.", f"{file}:1")
    assert read(file, "backbones", "two") is None
    assert read(file, "samplers", "tow") is None


@pytest.mark.parametrize("data", [None, b"def (", b"\x00", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_or_parsed_has_no_listing(tmp_path: Path, data: bytes | None):
    file = tmp_path / "broken.py"
    if data is not None:
        file.write_bytes(data)
    assert read(file, "samplers", "broken") is None


def test_a_path_is_short_below_the_working_directory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert short(tmp_path / "a" / "b.py") == "a/b.py"
    assert short(tmp_path.parent / "b.py") == str(tmp_path.parent / "b.py")


def test_a_component_needs_no_docstring():
    assert [first_line(text) for text in (None, "", " \n", "One.\n\nTwo.")] == ["", "", "", "One."]


def listing(name: str) -> Listing:
    return next(found for found in samplers.listings() if found.name == name)


def refusal(name: str, kind: type[LabError] = PluginError) -> str:
    with pytest.raises(kind) as refused:
        samplers.get(name)
    assert type(refused.value) is kind
    assert refused.value.exit_code == 2
    return str(refused.value)


def test_an_offer_is_listed_without_an_import_and_imported_when_it_is_asked_for(packages: Packages) -> None:
    packages.install(offered=GOOD, other="raise RuntimeError('nobody asked')")
    assert "offered" in samplers.names()
    found = listing("offered")
    assert (found.summary, found.package, found.problem) == ("One of a package.", "shop 1.2", None)
    assert found.place == "shop_offered"
    samplers.get("gumbel")
    assert "shop_offered" not in sys.modules
    entry = samplers.get("offered")
    assert (entry.package, entry.file.name, entry.line) == ("shop 1.2", "shop_offered.py", 4)
    assert entry is samplers.get("offered")
    assert "shop_other" not in sys.modules
    after = listing("offered")
    assert (after.summary, after.package, after.problem) == ("One of a package.", "shop 1.2", None)
    assert after.place.endswith("shop_offered.py:4")


def good(name: str, before: str = "") -> str:
    return before + GOOD.replace("{name}", name)


def shop(packages: Packages, **modules: str) -> None:
    """Write the metadata of a package whose entry points name these modules."""
    packages.write("shop", "1.2", {f"electra_lab.samplers:{name}": module for name, module in modules.items()})


def test_modules_inside_packages(packages: Packages) -> None:
    """The packages around a module are not executed to list it or to read its summary."""
    modules = {"inner": "shop.parts.inner", "outer": "shop.all", "front": "shop.front", "last": "shop.last"}
    shop(packages, **modules)
    packages.module("shop/__init__.py", "")
    packages.module("shop/parts/__init__.py", "")
    packages.module("shop/parts/inner.py", good("inner"))
    packages.module("shop/all/__init__.py", "import shop.all.outer\n")
    packages.module("shop/all/outer.py", good("outer"))
    packages.module("shop/front/__init__.py", good("front"))
    packages.module("shop/last.py", good("last", "import shop.all\n"))
    assert [listing(name).summary for name in modules] == ["One of a package.", "", *["One of a package."] * 2]
    assert not [name for name in sys.modules if name.split(".")[0] == "shop"]
    for name in reversed(modules):  # `last` imports an offered module, in which an inner module registers the component
        assert samplers.get(name).package == "shop 1.2"
    assert samplers.get("outer").file.name == "outer.py"


BROKEN = [
    ("import no_such_module_here\n", "1: ModuleNotFoundError: No module named 'no_such_module_here'"),
    ("x = 1\nfrom registry import no_such_thing\n", "2: ImportError: cannot import name 'no_such_thing'"),
    ("x = 1\n\ndef (:\n", "3: SyntaxError: invalid syntax"),
    ("import sys\n\nsys.exit(0)\n", "3: SystemExit: 0"),
    ("raise GeneratorExit\n", "1: GeneratorExit: "),
    ("def f():\n    return 1 / 0\n\n\nf()\n", "2: ZeroDivisionError: division by zero"),
    (GOOD.replace("heat: float", "heat"), "4: broken: option 'heat' has no type; write for example"),
    (GOOD.replace("logits, rng", "scores"), "4: broken: must take (logits, rng) before its options, takes (scores)."),
    (GOOD.replace('"{name}"', '"gumbel"'), "4: sampler 'gumbel' is already defined at electra_lab/samplers/gumbel.py:"),
]


@pytest.mark.parametrize(("text", "reported"), BROKEN, ids=[reported.split(":")[1].strip() for _, reported in BROKEN])
def test_a_broken_module_is_named_with_package_file_and_line(packages: Packages, text: str, reported: str) -> None:
    packages.install(broken=text, offered=GOOD)
    said = refusal("broken")
    where = packages.folder / "shop_broken.py"
    assert said.startswith(f"sampler 'broken' of the installed package shop 1.2 cannot be loaded: {where}:{reported}")
    assert "shop_broken" not in sys.modules
    assert refusal("broken") == said, "asking again gives another answer"
    # ... and other names are not affected.
    assert samplers.get("offered").package == "shop 1.2"
    assert samplers.get("gumbel").package is None
    assert {"broken", "offered", "gumbel"} <= set(samplers.names())
    assert listing("broken").package == "shop 1.2"


def test_a_broken_module_leaves_nothing_half_registered_in_any_registry(packages: Packages) -> None:
    other = """\
from registry import generators, schedules

@generators.register("half")
class Half:
    \"""Half a generator.\"""

    def __init__(self, vocabulary, /): ...

@schedules.register("half")
def half(progress, /):
    \"""Half a schedule.\"""

"""
    packages.install(broken=GOOD + other + "raise RuntimeError('late')\n")
    assert refusal("broken").endswith("RuntimeError: late")
    assert not any(entry.name in ("half", "broken") for components in ALL for entry in components.plugged_in())
    assert refusal("broken").endswith("RuntimeError: late"), "the second time, it counted as taken or loaded"


def test_a_broken_helper_is_reported_at_its_own_line_and_its_half_is_gone(packages: Packages) -> None:
    packages.install(broken=GOOD + "\nimport shop_helper\n")
    helper = packages.module("shop_helper.py", "x = 1\nraise ValueError('no luck')\n")
    assert refusal("broken").endswith(f"cannot be loaded: {helper}:2: ValueError: no luck")
    assert not samplers.plugged_in()
    packages.module("shop_helper.py", "x = 1\n")
    assert samplers.get("broken").package == "shop 1.2"


def test_a_module_that_is_missing_or_does_not_register_the_name(packages: Packages) -> None:
    packages.install(absent="", silent="x = 1\n", misspelt=good("mispelt"))
    assert "No module named 'shop_absent'" in refusal("absent")
    assert listing("absent").package == "shop 1.2"
    for name in ("silent", "misspelt"):
        said = f"sampler '{name}' of the installed package shop 1.2 cannot be loaded: shop_{name} does not register"
        assert refusal(name).startswith(said)
        assert refusal(name).startswith(said)


def test_two_packages_that_offer_one_name(packages: Packages) -> None:
    packages.install("shop", "1.2", common=GOOD)
    packages.install("stall", "0.1", common=GOOD, own=GOOD)
    reported = listing("common").problem or ""
    assert "'common' is offered by" in reported
    assert {"shop 1.2", "stall 0.1"} == set(reported.split("offered by ")[1].split(". Uninstall")[0].split(" and "))
    assert refusal("common", DuplicateName) == reported
    assert not {"shop_common", "stall_common"} & set(sys.modules)
    assert samplers.get("own").package == "stall 0.1"


def test_the_same_name_in_two_registries_is_no_conflict(packages: Packages) -> None:
    points = {"electra_lab.samplers:both": "shop_both", "electra_lab.corpora:both": "shop_text"}
    packages.write("shop", "1.2", points | {"other_tool.samplers:two": "shop_two"})
    packages.module("shop_both.py", good("both"))
    assert listing("both").problem is None
    assert samplers.get("both").package == "shop 1.2"
    assert "both" not in backbones.names()
    assert all("two" not in components.names() for components in ALL)


def test_a_built_in_wins_over_an_offer_and_the_listing_says_so(packages: Packages) -> None:
    """In a fresh process, which has imported neither."""
    packages.write("shop", "1.2", {"electra_lab.schedules:linear": "shop_linear"})
    packages.module("shop_linear.py", "raise RuntimeError('nobody asked')")
    code = (
        f"import sys; from registry import schedules; sys.path.insert(0, {str(packages.folder)!r})\n"
        "(found,) = [found for found in schedules.listings() if found.name == 'linear']\n"
        "entry = schedules.get('linear')\n"
        "print(found.place, found.problem, entry.package, entry.component.__module__, sep='\\n')"
    )
    done = python("-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    place, problem, *entry = done.stdout.splitlines()
    assert place.startswith("electra_lab/schedules/linear.py:")
    assert problem == f"schedule 'linear' of the installed package shop 1.2 is hidden by the built-in at {place}."
    assert entry == ["None", "electra_lab.schedules.linear"]
    assert schedules.names().count("linear") == 1


def test_neither_a_plug_in_file_nor_another_module_may_take_an_offered_name(packages: Packages, tmp_path: Path) -> None:
    packages.install(offered=GOOD, thief=good("offered"))
    mine = tmp_path / "mine.py"
    mine.write_text(good("offered"))
    with pytest.raises(DuplicateName, match=r"mine\.py:4: sampler 'offered' is already defined at shop_offered \(ins"):
        load_plugin(mine)
    assert "sampler 'offered' is already defined at shop_offered" in refusal("thief")
    assert samplers.get("offered").file.name == "shop_offered.py"


def test_a_package_may_be_found_twice(packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable checkout next to an installed copy: Python imports the first on the path."""
    packages.install(offered=GOOD)
    second = Packages(tmp_path / "second")
    second.install("shop", "1.3", offered=GOOD)
    monkeypatch.syspath_prepend(str(second.folder))
    assert listing("offered").package == "shop 1.3"
    assert listing("offered").problem is None
    assert samplers.get("offered").file == second.folder / "shop_offered.py"


def test_damaged_metadata_is_skipped(packages: Packages) -> None:
    packages.install("damaged", offered_not=GOOD)
    (packages.folder / "damaged-1.2.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00 no metadata \x00")
    torn = packages.write("torn", "1", {"electra_lab.samplers:torn": "torn"})
    (torn / "entry_points.txt").write_bytes(b"[electra_lab.samplers\n\xff = = =\n")
    nameless = packages.write("nameless", "1", {})
    (nameless / "METADATA").unlink()
    (packages.folder / "hollow-1.dist-info").mkdir()
    packages.install(offered=GOOD)
    assert samplers.get("offered").package == "shop 1.2"
    assert {"gumbel", "offered"} <= set(samplers.names())
    assert listing("offered").package == "shop 1.2"


@pytest.mark.parametrize(
    "line",
    ["no spaces = shop", "a-b = shop", "odd = shop:attribute", "odd = shop.sub-part", "odd = 1+1", "odd =", "= shop",
     "odd = not a module"],
)  # fmt: skip
def test_an_odd_entry_point_never_breaks_a_listing_or_another_name(packages: Packages, line: str) -> None:
    odd = packages.write("odd", "1", {})
    (odd / "entry_points.txt").write_text(f"[electra_lab.samplers]\n{line}\neven = odd_even\n")
    packages.module("odd_even.py", good("even"))
    packages.install(offered=GOOD)
    for name in samplers.names():
        if name in ("odd", "a-b", "no spaces", ""):
            with pytest.raises(LabError):
                samplers.get(name)
    assert samplers.listings()
    assert samplers.get("even").package == "odd 1"
    assert samplers.get("offered").package == "shop 1.2"


def test_an_experiment_uses_it_and_remembers_the_package(packages: Packages, tmp_path: Path) -> None:
    packages.install(offered=GOOD, other="raise RuntimeError('nobody asked')")
    loaded = load(write_experiment(tmp_path, sampler="{type: offered, heat: 2.0}"))
    (plugin,) = loaded.plugins
    assert (plugin.package, plugin.file.name) == ("shop 1.2", "shop_offered.py")
    assert plugin.source == (packages.folder / "shop_offered.py").read_bytes()
    assert load(write_experiment(tmp_path, sampler="{type: gumbel}")).plugins == ()


def test_an_experiment_with_a_broken_package_is_refused_at_its_line(packages: Packages, tmp_path: Path) -> None:
    packages.install(broken=GOOD.replace("heat: float", "heat"))
    file = write_experiment(tmp_path, sampler="{type: broken}")
    with pytest.raises(ConfigError, match=rf"{file}:\d+: sampler\.type: .* package shop 1\.2 .*shop_broken\.py:4"):
        load(file)


@pytest.mark.parametrize("helper", ["shop_helper.py", "shop/__init__.py"])
def test_components_of_a_failing_helper_are_gone_too(packages: Packages, helper: str) -> None:
    """An enclosing or imported module registers a component and fails; Python forgets it, and so must the lab."""
    module = "shop.inner" if "/" in helper else "shop_inner"
    packages.write("shop", "1.2", {"electra_lab.samplers:inner": module})
    packages.module(helper, good("extra") + "\nraise ValueError('no luck')\n")
    packages.module(module.replace(".", "/") + ".py", "import shop_helper\n" + good("inner"))
    said = refusal("inner")
    assert said.endswith("ValueError: no luck")
    assert "extra" not in samplers.names()
    assert refusal("inner") == said


def test_a_module_may_register_through_another_of_its_package(packages: Packages) -> None:
    packages.write("facade", "1.0", {"electra_lab.samplers:behind": "facade_plugin"})
    packages.module("facade_plugin.py", "import facade_inner\n")
    packages.module("facade_inner.py", good("behind"))
    assert samplers.get("behind").package == "facade 1.0"


def test_a_contested_name_affects_no_other_of_its_module(packages: Packages) -> None:
    packages.write("one", "1.0", {"electra_lab.samplers:own": "one_all", "electra_lab.samplers:contested": "one_all"})
    packages.module("one_all.py", good("own") + good("contested"))
    packages.write("two", "2.0", {"electra_lab.samplers:contested": "two_missing"})
    assert samplers.get("own").package == "one 1.0"
    with pytest.raises(DuplicateName, match=r"is offered by (one 1\.0 and two 2\.0|two 2\.0 and one 1\.0)"):
        samplers.get("contested")


def test_a_run_is_not_resumed_with_another_version_of_a_package(packages: Packages, tmp_path: Path) -> None:
    from electra_lab.jobs.pretraining import execute

    packages.install(offered=GOOD)
    data = "{sequence_length: 16, held_out: 0.3, store: store}"
    file = write_experiment(tmp_path, sampler="{type: offered}", data=data)
    run = execute.run(file, [], tmp_path / "run", "cpu")
    execute.resume(run, "cpu")
    metadata = packages.folder / "shop-1.2.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "9.0"))
    _scan.cache_clear()
    with samplers.isolated():
        samplers._entries.pop("offered")
        sys.modules.pop("shop_offered")
        with pytest.raises(ConfigError, match=r"shop_offered\.py \(shop 9\.0\): the plug-ins have changed"):
            execute.resume(run, "cpu")
