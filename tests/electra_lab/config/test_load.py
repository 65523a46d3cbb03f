"""A file becomes a complete config, or one error that names every line to correct."""

import re
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from electra_lab.config.load import absolute, dump, load, sentences
from electra_lab.config.source import Mark, parse, with_overrides
from registry import discovery, samplers, signature
from registry.errors import ConfigError, PluginError
from tests.helpers import EXPERIMENT, experiment_text, line_of, write_experiment

LAST = len(EXPERIMENT.splitlines())

PLUGIN = """\
from pathlib import Path

from registry import samplers


@samplers.register("plugged")
def plugged(logits, rng, /, *, table: Path = Path("table"), maybe: int | None = 3):
    \"\"\"A sampler with a path.\"\"\"
"""


def problems(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(path, overrides)
    return str(refused.value).splitlines()


def only_problem(path: Path, *overrides: str) -> str:
    [problem] = problems(path, *overrides)
    return problem


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discovery, "_loaded", {})
    path = tmp_path / "plugs/plug.py"
    path.parent.mkdir()
    path.write_text(PLUGIN)
    with samplers.isolated():
        yield path


def test_a_minimal_experiment_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = load(write_experiment(tmp_path / "folder")).config
    assert (config.name, config.seed, config.data.sequence_length) == ("tiny", 0, 16)
    assert config.corpus.keywords()["paths"] == [tmp_path / "folder/corpus.txt"]
    assert config.masking.keywords() == {"mask_prob": 0.15, "replace_prob": 0.85, "random_prob": 0.0}
    assert config.optimizer.type == "adamw"
    assert config.optimizer.keywords() == {"weight_decay": 0.01, "betas": (0.9, 0.999), "epsilon": 1e-6}
    assert config.data.store == tmp_path / "runs/.store"


def test_all_errors_of_a_file_come_at_once_each_at_its_line(tmp_path: Path):
    sections = {
        "name": "Tiny One", "tokenizer": "{type: wordpeice}", "data": "{sequence_length: many}",
        "embedding": "{dmi: 8, dropout: 1.0}", "discriminator": "{type: bert, dim: 16, depth: 1, heads: 3}",
        "masking": "{type: replace_prob, mask_prob: 1.5}", "sampler": "{type: gumbel, temprature: 2.0}",
        "objective": "{generator_weight: 1}", "train": "{steps: 1, micro_batch_size: 3}",
    }  # fmt: skip
    path = write_experiment(tmp_path, **sections)
    expected = {
        "name": 'must match pattern .*, is "Tiny One"\\.',
        "tokenizer.type": "no tokenizer is called 'wordpeice'. Did you mean 'wordpiece'\\? Known: .*",
        "data.sequence_length": 'must be an integer, is "many"\\.',
        "embedding.dropout": "must be less than 1, is 1\\.",
        "embedding.dmi": "unknown parameter. Did you mean 'dim'\\? .*",
        "discriminator.heads": "3 heads do not divide dim 16\\.",
        "masking.mask_prob": "must be less than or equal to 1, is 1.5\\.",
        "sampler.temprature": "unknown parameter. Did you mean 'temperature'\\? Known: temperature\\.",
        "objective.type": "is required: it names the objective\\.",
        "train.micro_batch_size": "must divide batch_size 128\\.",
    }
    lines = problems(path)
    assert len(set(lines)) == len(lines) == len(expected)
    for key, reason in expected.items():
        place = re.escape(f"{path}:{line_of(key.split('.')[0])}: {key}: ")
        assert any(re.fullmatch(place + reason, line) for line in lines), key


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("steps=3", "'train.steps'?"), ("every=3", "'evaluate.every' or 'checkpoint.every'?"),
        ("data.held=3", "'held_out'?"), ("train.seed=3", "'seed'?"), ("generator={scle: 0.5}", "'scale'?"),
        ("mesking={}", "'masking'?"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_refused_with_the_one_that_is_meant(tmp_path: Path, override: str, meant: str):
    said = problems(write_experiment(tmp_path), override)[0]
    assert said.startswith(f"--set {override}: {override.split('=')[0]}")
    assert f": unknown parameter. Did you mean {meant} Known" in said


def test_a_misspelt_type_is_recognized(tmp_path: Path):
    said = problems(write_experiment(tmp_path, sampler="{tyspe: gumbel}"))
    hint = f":{line_of('sampler')}: sampler.tyspe: unknown parameter. Did you mean 'type'?"
    assert any(hint in line for line in said)


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({"data": "{sequence_length: 20}", "objective": "{type: mlm}",
          "masking": "{type: replace_prob, replace_prob: 0.8, random_prob: 0.3}",
          "schedules": "{sampler.k: {type: linear, start: 1.0, end: 2.0}, masking.mask_prob: {type: linear, start: "
                       "0.5, end: 2.0}, learning_rate: {warmup_steps: 2}}"},
         "data.sequence_length generator masking.random_prob sampler schedules.sampler.k schedules.masking.mask_prob "
         "schedules.learning_rate"),
        ({"objective": "{type: two_stage, generator_steps: 1}", "generator": "{type: unigram}", "sampler": "null"},
         "embedding.tie generator.type sampler objective.generator_steps"),
        ({"objective": "{type: mlm}", "generator": "null", "sampler": "null",
          "schedules": "{learning_rate: {warmup_steps: 2}}"}, "schedules.learning_rate"),
        # Consequences of a missing part are not reported.
        ({"generator": "null", "objective": "{type: two_stage, generator_steps: 9}"}, "generator"),
        ({"sampler": "null", "schedules": "{sampler.temperature: {type: linear, start: 2.0, end: 1.0}, "
                                          "learning_rate: {warmup_steps: 0}}"}, "sampler"),
    ],
)  # fmt: skip
def test_all_conflicts_come_at_once_too(tmp_path: Path, sections: dict[str, str], keys: str):
    found = problems(write_experiment(tmp_path, **sections))
    assert [line.split(": ")[1] for line in found] == keys.split()


def test_a_missing_section_is_reported_at_the_file_even_with_a_set(tmp_path: Path):
    path = tmp_path / "f.yaml"
    path.write_text(re.sub("(?m)^masking.*\n", "", experiment_text()))
    assert only_problem(path) == only_problem(path, "train.steps=2") == f"{path}:1: masking: is required."


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("train.steps=1.5", "train.steps: must be an integer, is 1.5."),
        ("optimizer.betas=[0.9, 1.0]", "optimizer.betas.1: must be less than 1, is 1."),
        ("optimizer.lr=1", "optimizer.lr: unknown parameter. Known: betas, epsilon, weight_decay."),
        ("schedules=linear", 'schedules: must be a mapping of keys to values, is "linear".'),
        ("schedules.learning_rate=3", "schedules.learning_rate: must be a mapping such as {type: constant}."),
        ("schedules.learning_rate.type=~", "schedules.learning_rate.type: is required: it names the schedule."),
        ("seed=9223372036854775808", "seed: must be less than 9223372036854775808, is 9223372036854775808."),
        ("sampler=gumbel", "sampler: must be a mapping such as {type: gumbel}."),
        ("sampler=gmbel", "sampler: must be a mapping such as {type: argmax}."),
        ("corpus.paths=[]", "corpus.paths: must have at least 1 item, not 0."),
        ("imports=x.py", 'imports: must be a list, is "x.py".'), ("name=../up", None), ("name=''", None),
        ("data.sequence_length=17", "data.sequence_length: 17 is above embedding.max_length 16."),
        ("masking.random_prob=0.5", "masking.random_prob: replace_prob + random_prob is 1.35; it may be at most 1."),
    ],
)  # fmt: skip
def test_a_wrong_value_is_reported_where_it_was_written(tmp_path: Path, override: str, reason: str | None):
    problem = only_problem(write_experiment(tmp_path), override)
    assert problem.startswith(f"--set {override}: {override.split('=')[0].split('.')[0]}")
    assert reason is None or problem == f"--set {override}: {reason}"


@pytest.mark.parametrize(
    ("budget", "said"),
    [("", "none is set"), ("steps: 1, tokens: 5, ", "steps and tokens are set"),
     ("flops: 1e9, paper_flops: 1e9, ", "flops and paper_flops are set")],
)  # fmt: skip
def test_training_ends_by_exactly_one_budget(tmp_path: Path, budget: str, said: str):
    path = write_experiment(tmp_path, train=f"{{{budget}batch_size: 2}}")
    assert re.match(f"{path}:{line_of('train')}: train: set one of .*; {said}.$", only_problem(path))


@pytest.mark.parametrize("budget", ["steps", "tokens", "flops", "paper_flops"])
def test_a_childs_budget_replaces_its_parents(tmp_path: Path, budget: str):
    other = "tokens" if budget == "steps" else "steps"
    path = write_experiment(tmp_path, train=f"{{{other}: 700, batch_size: 2}}")
    (tmp_path / "child.yaml").write_text(f"extends: {path.name}\ntrain: {{{budget}: 500, {other}: null}}\n")
    for loaded in (load(tmp_path / "child.yaml"), load(path, [f"train.{budget}=500"])):
        train = loaded.config.train
        assert (getattr(train, budget), getattr(train, other), train.batch_size) == (500, None, 2)


# Paths and plug-ins


def test_paths_hold_from_the_file_that_wrote_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    write_experiment(tmp_path / "parents", "base.yaml", data="{sequence_length: 16, store: kept}")
    child = tmp_path / "children/child.yaml"
    child.parent.mkdir()
    child.write_text("extends: ../parents/base.yaml\nseed: 3\n")
    config = load(Path("../children/child.yaml")).config
    assert config.corpus.keywords()["paths"] == [tmp_path / "parents/corpus.txt"]
    assert config.data.store == tmp_path / "parents/kept"

    child.write_text("extends: ../parents/base.yaml\ncorpus: {paths: [a.txt, ../b.txt, /c.txt]}\n")
    config = load(child, ["data.store=mine"]).config
    assert config.corpus.keywords()["paths"] == [tmp_path / "children/a.txt", tmp_path / "b.txt", Path("/c.txt")]
    assert config.data.store == here / "mine"


def test_an_error_in_a_file_that_another_one_extends_names_both(tmp_path: Path) -> None:
    parent, middle, child = (tmp_path / f"{name}.yaml" for name in ("parent", "middle", "child"))
    middle.write_text("extends: parent.yaml\nseed: 3\n")
    child.write_text("extends: middle.yaml\nseed: x\n")
    write_experiment(tmp_path, "parent.yaml", sampler="{type: gumble}")
    with pytest.raises(ConfigError) as said:
        load(child)
    of_parent, of_child = sorted(str(said.value).splitlines(), key=lambda line: "child.yaml:2:" in line)
    assert str(parent) in of_parent.partition(": ")[0]
    assert str(middle) in of_parent
    assert "parent.yaml" not in of_child
    with pytest.raises(ConfigError) as said:
        load(middle)
    assert str(said.value).startswith(f"{parent}:")
    assert str(middle) in str(said.value)


def test_a_name_on_the_hub_stays_one_unless_a_folder_is_called_so(tmp_path: Path) -> None:
    child = tmp_path / "child.yaml"
    corpus = "corpus: {type: hugging_face, path: somebody/texts}"
    child.write_text(f"extends: {write_experiment(tmp_path).name}\n{corpus}\n")
    assert load(child).config.corpus.keywords()["path"] == "somebody/texts"
    (tmp_path / "somebody").mkdir()
    assert load(child).config.corpus.keywords()["path"] == str(tmp_path / "somebody" / "texts")


@pytest.mark.parametrize("bad", ["~no_such_user_here/x", '"a\\0b"'])
def test_a_path_that_cannot_be_one_is_reported_without_a_traceback(tmp_path: Path, bad: str):
    path = write_experiment(tmp_path, data=f"{{sequence_length: 16, store: {bad}}}")
    assert re.fullmatch(rf"{re.escape(str(path))}:4: data\.store: .* is not a usable path \(.*\)\.", only_problem(path))
    path = write_experiment(tmp_path, imports=f"[{bad}]")
    assert only_problem(path).startswith(f"{path}:{LAST + 1}: imports.0: ")


@pytest.mark.parametrize("name", ["t\udcc3\udcbc", "\ud800"])  # as an old-fashioned locale reads it; nobody can read it
def test_a_path_that_is_not_utf8_is_said_to_be_so_only_if_it_is_not(monkeypatch, name: str) -> None:
    for encoding, cure in (("utf-8", "Rename"), ("ascii", "PYTHONUTF8=1")):
        monkeypatch.setattr(sys, "getfilesystemencoding", lambda encoding=encoding: encoding)
        with pytest.raises(ConfigError) as refused:
            absolute(Path(name), ("data", "store"), Mark("a.yaml:3", Path("/there")))
        assert str(refused.value).startswith(
            f"a.yaml:3: data.store: the path /there/{name} is not {encoding}".replace("utf-8", "UTF-8")
        )
        assert cure in str(refused.value)


def test_a_plug_in_is_loaded_and_its_paths_resolve(tmp_path: Path, plugin: Path):
    path = write_experiment(tmp_path / "folder", imports="[../plugs/plug.py]", sampler="{type: plugged, table: t}")
    loaded = load(path)
    assert [p.file for p in loaded.plugins] == [plugin]
    assert loaded.config.imports == [plugin]
    assert loaded.config.sampler.keywords() == {"table": tmp_path / "folder/t", "maybe": 3}


def test_a_missing_or_broken_plug_in_is_reported_with_file_and_line(tmp_path: Path, plugin: Path):
    path = write_experiment(tmp_path, imports="[plugs/none.py]")
    assert only_problem(path) == f"{path}:{LAST + 1}: imports.0: the file {tmp_path}/plugs/none.py does not exist."
    plugin.write_text("x = 1\nraise ValueError('no luck')\n")
    with pytest.raises(PluginError, match=r"plug\.py:2: ValueError: no luck"):
        load(write_experiment(tmp_path, imports="[plugs/plug.py]"))


def test_a_null_over_a_default_and_a_default_path_survive_the_filled_in_config(tmp_path: Path, plugin: Path):
    path = write_experiment(tmp_path / "folder", imports="[../plugs/plug.py]", sampler="{type: plugged, maybe: ~}")
    loaded = load(path)
    assert loaded.config.sampler.keywords()["maybe"] is None
    filled = tmp_path / "runs/config.yaml"
    filled.parent.mkdir()
    filled.write_text(dump(loaded.config), encoding="utf-8")
    assert load(filled).config == loaded.config


def test_errors_come_in_line_order_whatever_the_order_of_the_keys(tmp_path: Path) -> None:
    """Twelve lines, so that line 9 must come before line 10; an error without a line belongs to the first."""
    wrong = {"name": "Tiny", "data": "{held_out: 2}", "sampler": "{type: gumbl}", "train": "{steps: 0}", "corpus": "3"}
    lines = write_experiment(tmp_path, **wrong).read_text().splitlines()
    path = tmp_path / "turned.yaml"
    path.write_text("\n".join(line for line in reversed(lines) if not line.startswith("masking")))
    found = problems(path)
    places = [int(line.split(":")[1]) for line in found]
    assert places == sorted(places)
    keys = [line.split(": ")[1].split(".")[0] for line in found]
    assert keys == ["masking", "train", "sampler", "data", "corpus", "name"]


def test_the_errors_of_one_file_stand_together(tmp_path: Path) -> None:
    write_experiment(tmp_path, "base.yaml", sampler="{type: gumbl}", masking="{type: replace_prob, mask_prob: 2}")
    child = tmp_path / "child.yaml"
    child.write_text("extends: base.yaml\n\nname: Child\ntrain: {steps: 0}\n")
    keys = [line.split(": ")[1] for line in problems(child, "seed=-1")]
    assert keys == ["name", "train.steps", "seed", "masking.mask_prob", "sampler.type"]


@pytest.mark.parametrize(
    ("place", "file", "line"),
    [
        ("a.yaml:12", "a.yaml", 12), ("C:/a: b.yaml:3", "C:/a: b.yaml", 3), ("--set a.b=3", "--set a.b=3", 0),
        ("--set a=x:4", "--set a=x:4", 0), ("plan", "plan", 0),
    ],
)  # fmt: skip
def test_a_mark_knows_its_file_and_line(place: str, file: str, line: int) -> None:
    mark = Mark(place, Path())
    assert (mark.file, mark.line) == (file, line)


def test_a_sentence_appears_once_and_braces_stay() -> None:
    root = with_overrides(parse(EXPERIMENT, "f.yaml", Path()), ["train.steps={}"])
    marks = dict(root.marks())
    error = signature.problems(
        [(("train", "steps"), "is {odd}.", {}), (("train", "steps"), "is {odd}.", {}), ((), "is bad.", 3)]
    )
    assert isinstance(error, ValidationError)
    assert str(sentences(error, marks)) == "--set train.steps={}: train.steps: is {odd}.\nf.yaml:1: is bad."
    assert (
        str(sentences(signature.problem(("nowhere", "at", 3), "is bad."), marks)) == "f.yaml:1: nowhere.at.3: is bad."
    )


def test_a_long_override_leaves_room_for_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--set train\.steps=a{288}…: train\.steps: must be an integer"):
        load(write_experiment(tmp_path), [f"train.steps={'a' * 10_000}"])


def test_of_many_or_long_errors_the_beginnings_are_shown_with_their_number() -> None:
    wrong = [((f"key{number}",), "is bad." * 1000, 3) for number in range(500)]
    root = parse("a: 1", "f.yaml", Path())
    *shown, last = str(sentences(signature.problems(wrong), dict(root.marks()))).splitlines()
    assert len(shown) == 20
    assert max(map(len, shown)) == 3000
    assert "500" in last
