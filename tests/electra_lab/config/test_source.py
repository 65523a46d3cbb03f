"""YAML 1.2, line marks, `extends` and `--set`."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from electra_lab.config.source import (
    LONGEST_PLACE,
    MAX_BYTES,
    Node,
    mark_at,
    parse,
    read_file,
    to_yaml,
    with_overrides,
)
from registry.errors import ConfigError, command

HERE = Path("folder")


def plain(text: str) -> Any:
    return parse(text, "f.yaml", HERE).plain()


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(refused: str | Path) -> str:
    with pytest.raises(ConfigError) as error:
        read_file(refused) if isinstance(refused, Path) else parse(refused, "f.yaml", HERE)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("5e6", 5e6), ("1.5E+3", 1500.0), (".5", 0.5), ("5.", 5.0), ("-0.0", -0.0), ("010", 10),
        ("0o10", 8), ("0x1F", 31), ("-7", -7), ("+7", 7), ("no", "no"), ("yes", "yes"), ("on", "on"),
        ("Off", "Off"), ("true", True), ("False", False), ("tRue", "tRue"), ("12:30", "12:30"),
        ("2001-01-01", "2001-01-01"), ("1_000", "1_000"), ("0b11", "0b11"), ("-0x10", "-0x10"), ("~", None),
        ("null", None), ("Null", None), ("nil", "nil"), ("=", "="), ("<<", "<<"), (".", "."), ("e5", "e5"),
        ("1e", "1e"), ("infinity", "infinity"), ("٣", "٣"),
    ],
)  # fmt: skip
def test_plain_scalars_are_read_by_yaml_1_2(text: str, value: Any):
    for got in (plain(f"a: {text}")["a"], plain(f"[{text}]")[0]):
        assert got == value
        assert type(got) is type(value)


def test_quoted_and_block_scalars_and_keys_are_text_and_a_missing_value_is_null():
    for text in ("1", "1e5", "true", "null", "~", "", ".inf", "0o7"):
        assert plain(f"a: '{text}'") == plain(f'a: "{text}"') == {"a": text}
    assert plain("a: |\n  3\nb: >-\n  4\nc:\n") == {"a": "3\n", "b": "4", "c": None}
    assert plain("1: a\nno: b\n~: c") == {"1": "a", "no": "b", "~": "c"}


@pytest.mark.parametrize("text", [".inf", "-.INF", "+.Inf", ".nan", ".NaN", "1e999", "-1e999"])
def test_non_finite_numbers_are_refused_and_huge_ones(text: str):
    assert refusal(f"a: 1\nb: {text}") == f"f.yaml:2: {text} is not a finite number."
    assert refusal("a: " + "9" * 5000) == "f.yaml:1: a number of 5000 digits is too large."
    assert plain("9" * 40) == int("9" * 40)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3: a: appears twice; first at f.yaml:1."),
        ("x:\n  a: 1\n  'a': 2", "f.yaml:3: a: appears twice; first at f.yaml:2."),
        ("a: 1\nb: !!python/object/apply:os.system [ls]", "f.yaml:2: the tag tag:yaml.org,2002:python/object/apply"),
        ("!mine\na: 1", "f.yaml:1: the tag !mine is not allowed; write plain values"),
        ("a: !!str 3", "f.yaml:1: the tag tag:yaml.org,2002:str is not allowed"),
        ("!mine a: 1", "f.yaml:1: a key must be a word."), ("? [a]\n: 1", "f.yaml:1: a key must be a word."),
        ("a: 1\nb: [", "f.yaml:2: is not valid YAML"),
        ("a: b: c", "f.yaml:1: is not valid YAML: mapping values are not allowed here."),
        ("a: *x", "f.yaml:1: is not valid YAML: found undefined alias 'x'."),
        ("a: 1\n---\nb: 2", "f.yaml:2: is not valid YAML"), ("a: 1\n\tb: 2", "f.yaml:2: is not valid YAML"),
        ("a: 1\nb: \x07", "f.yaml:2: the character '\\x07' is not allowed in YAML."),
        ("\x00", "f.yaml:1: the character '\\x00' is not allowed in YAML."),
        ("", "f.yaml: is empty."), ("# nothing\n", "f.yaml: is empty."),
        ("&a [*a]", "f.yaml:1: is nested more than 50 deep."), ("[" * 3000, "f.yaml: is nested more than 50 deep."),
        ("[" * 60 + "]" * 60, "f.yaml:1: is nested more than 50 deep."),
        ('a: "\\UFFFFFFFF"', "f.yaml: is not valid YAML"),
        ("%YAML 1." + "9" * 5000 + "\n---\na", "f.yaml: is not valid YAML"),
        ('b: 1\na: "\\ud800"', "f.yaml:2: an escape is half of a surrogate pair"),
        ('"\\ud800": 1', "f.yaml:1: an escape is half of a surrogate pair"),
    ],
    ids=lambda text: repr(text)[:30],
)  # fmt: skip
def test_text_that_yaml_or_the_lab_refuses_is_reported_with_its_line(text: str, reason: str):
    assert refusal(text).startswith(reason)


def test_deep_nesting_is_refused():
    for depth in (60, 3000):  # below and above Python's recursion limit
        assert refusal("[" * depth + "]" * depth).endswith("is nested more than 50 deep.")
    assert len(plain(f"[{'[], {}, ' * 2000}]")) == 4000


def test_alias_bombs_are_refused_before_they_grow():
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    assert "has more than 20000 values" in refusal(laughs)
    long = f"a: &a {'x' * 500_000}\nb: [{', '.join(['*a'] * 1000)}]"
    assert "has more than 20000 values" in refusal(long)


def test_files_that_extend_one_another_are_at_most_fifty(tmp_path: Path):
    for number in range(52):
        written(tmp_path / f"{number}.yaml", f"extends: {number + 1}.yaml\n" if number < 51 else "a: 1\n")
    assert read_file(tmp_path / "1.yaml").plain() == {"a": 1}
    assert refusal(tmp_path / "0.yaml").startswith(f"{tmp_path / '50.yaml'}:1: extends: ")


def test_honest_aliases_are_expanded_and_a_surrogate_pair_of_escapes_is_one_character_as_in_json():
    assert plain("a: &a {b: 1}\nc: [*a, *a]") == {"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]}
    assert plain('"\\ud83d\\ude00"') == "😀"


def test_files_that_are_not_an_experiment_or_cannot_be_read(tmp_path: Path):
    cases: dict[str, tuple[str | bytes | None, str]] = {
        "list.yaml": ("- a\n- b\n", ":1: an experiment file is a mapping of keys to values."),
        "empty.yaml": ("", ": is empty."),
        "latin.yaml": (b"a: 1\nb: \xe9\n", ":2: is not UTF-8 text (byte 8)."),
        "large.yaml": ("#" * MAX_BYTES + "\n", f": is larger than {MAX_BYTES} bytes; that is not an experiment file."),
        "": (None, ": is a folder, not an experiment file."),
        "none.yaml": (None, ": cannot be read (No such file or directory)."),
        "a\0b": (None, ": cannot be read (embedded null byte)."),
    }
    for name, (text, reason) in cases.items():
        path = tmp_path / name if text is None else written(tmp_path / name, text)
        assert refusal(path) == f"{path}{reason}"
    assert "is larger than" in refusal(Path("/dev/zero"))  # which is not read to the end


@pytest.mark.parametrize("wrong", ["mine.yml", "mine.yam", "mien.yaml"])
def test_a_file_of_a_similar_name_is_suggested(tmp_path: Path, wrong: str):
    right = written(tmp_path / "mine.yaml", "a: 1\n")
    written(tmp_path / "other.txt", "")
    hint = f"Did you mean {right}?"
    assert refusal(tmp_path / wrong) == f"{tmp_path / wrong}: cannot be read (No such file or directory). {hint}"
    child = written(tmp_path / "sub" / "child.yaml", f"extends: ../{wrong}\n")
    place = tmp_path / "sub" / ".." / wrong
    hint = f"Did you mean {place.with_name('mine.yaml')}?"
    assert refusal(child) == f"{child}:1: extends: the file {place} does not exist. {hint}"


@pytest.mark.parametrize("name", ["experiments/bert_small", "experiments/ablations/sampler"])
def test_a_shipped_file_that_is_not_here_comes_with_the_command_that_copies_it(tmp_path: Path, name: str):
    copied = command("new", name.removeprefix("experiments/"))
    assert refusal(tmp_path / f"{name}.yaml").endswith(copied)
    assert refusal(written(tmp_path / "child.yaml", f"extends: {name}.yaml\n")).endswith(copied)


def test_a_byte_order_mark_is_skipped(tmp_path: Path):
    assert read_file(written(tmp_path / "bom.yaml", b"\xef\xbb\xbfa: 1\n")).plain() == {"a": 1}


def test_marks_name_the_line_of_each_key_and_item(tmp_path: Path):
    path = written(tmp_path / "f.yaml", "# comment\na:\n  b:\n    - 1\n    - x: 2\nc: {d: 3}\n")
    marks = {loc: str(mark) for loc, mark in read_file(path).marks()}
    lines = {("a",): 2, ("a", "b"): 3, ("a", "b", 0): 4, ("a", "b", 1, "x"): 5, ("c",): 6, ("c", "d"): 6}
    for loc, line in lines.items():
        assert marks[loc] == f"{path}:{line}"
    assert str(mark_at(dict(read_file(path).marks()), ("a", "b", 7, "y"))) == f"{path}:3"


def test_extends_merges_mappings_and_replaces_lists(tmp_path: Path):
    written(tmp_path / "base.yaml", "a: {x: 1, y: {z: 2}}\nlist: [1, 2, 3]\nonly: here\nmap: {k: 1}\n")
    child = written(tmp_path / "sub/child.yaml", "extends: ../base.yaml\na: {y: {w: 3}}\nlist: [4]\nmap: ~\n")
    root = read_file(child)
    assert root.plain() == {"a": {"x": 1, "y": {"z": 2, "w": 3}}, "list": [4], "only": "here", "map": None}
    marks, base = dict(root.marks()), tmp_path / "sub/../base.yaml"
    places = {("a", "x"): f"{base}:1", ("a", "y", "w"): f"{child}:2", ("list",): f"{child}:3", ("only",): f"{base}:3"}
    assert {loc: str(marks[loc]) for loc in places} == places
    assert marks[("only",)].folder == base.parent


@pytest.mark.parametrize(
    ("parent", "reason"),
    [
        ("none.yaml", "the file {here}/none.yaml does not exist."), ("[a.yaml]", "must be the path of one file."),
        ("~", "must be the path of one file."), ("child.yaml", "forms a circle through"),
        ("back.yaml", "forms a circle through"), ('"a\\0b"', "the file {here}/a\0b does not exist."),
    ],
)  # fmt: skip
def test_a_bad_parent_is_reported_at_the_line_of_extends(tmp_path: Path, parent: str, reason: str):
    child = written(tmp_path / "child.yaml", f"a: 1\nextends: {parent}\n")
    back = written(tmp_path / "back.yaml", "extends: child.yaml\n")
    place = f"{back}:1: " if parent == "back.yaml" else f"{child}:2: "
    assert refusal(child).startswith(f"{place}extends: {reason.format(here=tmp_path)}")


def overridden(text: str, *overrides: str) -> Any:
    return with_overrides(parse(text, "f.yaml", HERE), overrides).plain()


@pytest.mark.parametrize(
    ("text", "overrides", "value"),
    [
        ("a: {b: 1, c: 2}", ["a.b=3"], {"a": {"b": 3, "c": 2}}),
        ("a: 1", ["x.y.z=[1, {k: no}]"], {"a": 1, "x": {"y": {"z": [1, {"k": "no"}]}}}),
        ("a: 1", ["a=1e-4", "a=2e-4"], {"a": 2e-4}), ("a: 1", ["a='1'", "b==x=y"], {"a": "1", "b": "=x=y"}),
        ("a: {b: 1}", ["a={c: 2}"], {"a": {"b": 1, "c": 2}}), ("a: {b: 1}", ["a=~"], {"a": None}),
        ("net: {type: a, x: 1}", ["net.type=b", "net.y=2"], {"net": {"type": "b", "y": 2}}),
    ],
)  # fmt: skip
def test_set_lays_one_value_over_the_file(text: str, overrides: list[str], value: Any):
    assert overridden(text, *overrides) == value


def test_set_marks_what_it_wrote_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    marks = dict(with_overrides(parse("a: {b: 1, c: 2}\nd: 4", "f.yaml", HERE), ["a.b=3"]).marks())
    assert str(marks[("a", "b")]) == "--set a.b=3"
    assert marks[("a", "b")].folder == tmp_path
    assert [str(marks[loc]) for loc in [(), ("a", "c"), ("d",)]] == ["f.yaml:1", "f.yaml:1", "f.yaml:2"]


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("a", "write it as a.b=value."), ("", "write it as a.b=value."), ("=1", "write it as a.b=value."),
        (".a=1", "write it as a.b=value."), ("a..b=1", "write it as a.b=value."), ("a=", "has no value."),
        ("a=[1", "is not valid YAML"), ("a=.nan", ".nan is not a finite number."), ("a=!!str x", "the tag"),
        (".".join("a" * 1000) + "=1", "is nested more than 50 deep."),
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_a_bad_set_is_refused_by_its_own_words(override: str, reason: str):
    with pytest.raises(ConfigError) as refused:
        overridden("a: 1", override)
    shown = override if len(override) <= LONGEST_PLACE else f"{override[:LONGEST_PLACE]}…"
    assert str(refused.value).startswith(f"--set {shown}: {reason}")


YAMLISH = st.text(
    st.one_of(st.sampled_from("[]{}:,-?&*!|>'\"%@#~ \n\t\\aux01e.<="), st.characters(codec="utf-8")), max_size=60
)


@given(st.one_of(YAMLISH, st.text(st.characters(), max_size=40)))
@example('"\\UFFFFFFFF"')
@example('"\\xff\\uffff"')
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_node_or_a_config_error(text: str):
    try:
        node = parse(text, "f.yaml", HERE)
    except ConfigError:
        return
    assert isinstance(node, Node)
    json.dumps(node.plain(), allow_nan=False).encode()


TEXT = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ["1e5", "0o7", "010", "no", "~", ".inf", "=", "<<"]
)
NUMBER = st.integers(-(10**38), 10**38) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=150, deadline=None)
def test_json_and_our_own_yaml_are_read_back_as_they_were_written(value: Any):
    for text in (json.dumps(value), json.dumps(value, indent=2), to_yaml(value)):
        assert repr(plain(text)) == repr(value)


@pytest.mark.parametrize(
    ("section", "base", "own", "merged"),
    [
        ("net", "{type: a, deep: {x: 1}, w: 2}", "{type: a, w: 3}", {"type": "a", "deep": {"x": 1}, "w": 3}),
        ("net", "{type: a, deep: {x: 1}, w: 2}", "{w: 3}", {"type": "a", "deep": {"x": 1}, "w": 3}),
        ("net", "{type: a, deep: {x: 1}, w: 2}", "{type: b, w: 3}", {"type": "b", "w": 3}),
        # A key that is set replaces those that it excludes; null sets nothing.
        ("train", "{steps: 5, batch_size: 2}", "{epochs: 3}", {"batch_size": 2, "epochs": 3}),
        ("train", "{steps: 5, batch_size: 2}", "{epochs: ~}", {"steps": 5, "batch_size": 2, "epochs": None}),
        # A section without type has its default type.
        ("optimizer", "{weight_decay: 0.1}", "{type: adafactor}", {"type": "adafactor"}),
        ("optimizer", "{weight_decay: 0.1}", "{type: adamw}", {"weight_decay": 0.1, "type": "adamw"}),
        ("schedules", "{learning_rate: {warmup_steps: 5}}", "{learning_rate: {type: cosine}}",
         {"learning_rate": {"type": "cosine"}}),
        ("launcher", "{workers: 2}", "{type: ray}", {"type": "ray"}),
        ("generator", "{scale: 0.5}", "{type: bert}", {"scale": 0.5, "type": "bert"}),
    ],
)  # fmt: skip
def test_a_changed_type_replaces_the_whole_mapping(tmp_path: Path, section, base, own, merged):
    written(tmp_path / "base.yaml", f"{section}: {base}\n")
    child = written(tmp_path / "own.yaml", f"extends: base.yaml\n{section}: {own}\n")
    assert read_file(child).plain() == overridden(f"{section}: {base}", f"{section}={own}") == {section: merged}
