"""From a validated ablation to its plan: its runs, its statistical power, and the keys of measures."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from electra_lab.analysis.power import detectable
from electra_lab.analysis.results import cell_result, expected, read
from electra_lab.assembly.build import sketch
from electra_lab.config.load import load
from electra_lab.config.source import read_file
from electra_lab.jobs.sweeps import plan as plan_module
from electra_lab.jobs.sweeps import run
from electra_lab.jobs.sweeps.file import Ablation, load_ablation
from electra_lab.jobs.sweeps.plan import checked, plan_of, write_plan
from electra_lab.presentation.text import number
from electra_lab.storage.ablation_folder import AblationFolder
from registry import discovery, measures, objectives, samplers
from registry.errors import ConfigError
from tests.electra_lab.jobs.sweeps.small import write
from tests.electra_lab.presentation.synthetic import SCALES, add_references, score, write_folder
from tests.helpers import write_experiment

SAMPLER = """
from registry import samplers

@samplers.register("planned")
def planned(logits, rng, /):
    '''Draw.'''
    return logits.argmax(-1)
"""
MEASURE = """
from registry import Metric, measures

@measures.register("planned")
class Planned:
    '''Measure.'''
    metrics = {"reference_auc": Metric("an AUC")}
    same_rows = False
    def __init__(self, /): ...
    def references(self, base): return {}
    def prepare(self, *_): ...
    def measure(self, *_): return {}
"""
SMALL, LARGE = "generator.scale=0.5", "generator.scale=1.0"
WITHOUT_SAME_ROWS = [("  - {type: fixed_corruption, steps: 4}\n", ""), ("  - {type: detection_probe, rows: 8}\n", "")]


def made(folder: Path, *changes: tuple[str, str], **sections: str) -> Ablation:
    """Check the small ablation with parts of its text replaced."""
    file = write(folder, **sections)
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return checked(load_ablation(file))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    return made(tmp_path_factory.mktemp("small"))


def test_a_plan_has_what_the_file_says(small: Ablation) -> None:
    plan = plan_of(small)
    assert (plan.format, plan.name, plan.question, plan.base) == (1, "sizes", "Does it run?", "tiny.yaml")
    assert (plan.budget, plan.keys, plan.seeds, plan.imports) == ({"steps": 8}, ["generator.scale"], [0, 1], [])
    assert (plan.baseline, plan.metric) == (SMALL, "corruption_auc")
    smaller, larger = plan.variants
    assert (smaller.label, smaller.changes, smaller.differs) == (SMALL, {"generator.scale": 0.5}, {})
    assert (larger.label, larger.changes) == (LARGE, {"generator.scale": 1.0})
    assert larger.differs == {"generator.dim": (8, 16), "generator.heads": (1, 2)}
    corruption, pretraining, probe = plan.measures
    assert (corruption.type, corruption.options["steps"]) == ("fixed_corruption", 4)
    assert (probe.type, probe.options["rows"]) == ("detection_probe", 8)
    ids = {name: cell.id for name, cell in small.references["fixed_corruption"].items()}
    assert list(ids) == ["small", "large"]
    assert [measure.references for measure in (corruption, pretraining, probe)] == [ids, {}, {}]
    assert plan.references == list(ids.values())
    assert [(cell.variant, cell.seed) for cell in plan.cells] == [(SMALL, 0), (LARGE, 0), (SMALL, 1), (LARGE, 1)]


def test_a_chosen_metric_and_names_without_lists(tmp_path: Path) -> None:
    change = ("{generator.scale: [0.5, 1.0]}", "{a: {}, b: {generator.scale: 1.0}}")
    plan = plan_of(made(tmp_path, change, more="metric: probe_auc\nbaseline: b\n"))
    assert (plan.metric, plan.baseline, plan.keys, plan.axis) == ("probe_auc", "b", [], {})


DECLARES = """
from registry import Metric, objectives

for name, higher in (("up", True), ("down", False)):
    @objectives.register(name)
    class Declares(objectives.get("electra").component):
        "ELECTRA with metrics."
        metrics = {"probe_auc": Metric(), "agreement": Metric(higher_is_better=higher)}
"""


def test_metrics_that_do_not_exist_or_are_declared_twice_are_refused(tmp_path: Path, monkeypatch) -> None:
    """Those of objectives exist as well."""
    (tmp_path / "declares.py").write_text(DECLARES)
    monkeypatch.setattr(discovery, "_loaded", {})
    vary = ("{generator.scale: [0.5, 1.0]}", "{a: {objective: {type: up}}, b: {objective: {type: down}}}")
    metric = "metric: agreements\nimports: [declares.py]\n"
    with objectives.isolated():
        with pytest.raises(ConfigError) as refused:
            made(tmp_path, vary, more=metric)
        places = [line.split(": ")[1:3] for line in str(refused.value).splitlines()]
        assert [place[0] for place in places] == ["measure.2", "vary", "metric"]
        assert "'agreement'" in str(refused.value)
        alone = [("{generator.scale: [0.5, 1.0]}", "{a: {objective: {type: up}}, b: {generator.scale: 1.0}}")]
        fixed = metric.replace("agreements", "agreement")
        assert plan_of(made(tmp_path, *alone, *WITHOUT_SAME_ROWS[1:], more=fixed)).metric == "agreement"


def test_planned_costs_are_those_of_each_cells_own_networks(small: Ablation, done: tuple[Path, Path]) -> None:
    """Computed for the largest vocabulary that the file allows; the runs may have found fewer words."""
    cells = {(cell.variant, cell.seed): cell for cell in plan_of(small).cells}
    assert cells[SMALL, 0].parameters == cells[SMALL, 1].parameters
    assert cells[SMALL, 0].parameters["generator"] < cells[LARGE, 0].parameters["generator"]
    assert cells[SMALL, 0].parameters["discriminator"] == cells[LARGE, 0].parameters["discriminator"]
    assert cells[SMALL, 0].flops == 8 * small.sketches[SMALL].flops.per_step
    assert cells[LARGE, 1].flops == 8 * small.sketches[LARGE].flops.per_step > 8 * small.sketches[SMALL].flops.per_step
    folder = AblationFolder(done[1])
    for planned in folder.plan.cells:
        ran = folder.run(planned.id).provenance()
        assert planned.steps == ran.steps
        full = ran.data.vocab_size == 200
        assert (planned.parameters == ran.parameters) == full
        assert (planned.flops == ran.flops) == full
        assert planned.parameters["total"] >= ran.parameters["total"]
        assert (planned.flops or 0) >= ran.flops


def test_what_is_trained_for_measures_comes_first(small: Ablation) -> None:
    references = [*small.references["fixed_corruption"].values()]
    ids = [cell.id for cell in references]
    assert [cell.id for cell in small.pieces] == [*ids, *(cell.id for cell in small.cells)]
    assert list(small.sketches) == [SMALL, LARGE, *ids]
    for name, cell in zip(("small", "large"), references, strict=True):
        assert cell.variant == f"reference of fixed_corruption ({name})"
        assert cell.id.startswith(f"reference-of-fixed_corruption-{name}-s20201-")
        assert small.loaded[cell.id].config.objective.type == "mlm"
        assert small.loaded[cell.id].config.train.steps == 4
        assert small.loaded[cell.id].config.name == "sizes"
    assert [small.loaded[cell.id].config.discriminator.sizes.dim for cell in references] == [2, 24]


@pytest.mark.parametrize("budget", ["{steps: 8}", "{tokens: 256}", "{flops: 8.0e+6}", "{paper_flops: 8.0e+6}"])
def test_references_train_for_as_many_steps_as_the_base(tmp_path: Path, budget: str) -> None:
    """For any budget of cells: with equal FLOPs, a small network would train for far too long."""
    found = made(tmp_path, ("fixed_corruption, steps: 4", "fixed_corruption"), ("{steps: 8}", budget))
    steps = sketch(found.base).steps
    assert steps == found.sketches[SMALL].steps  # the base
    for cell in found.references["fixed_corruption"].values():
        train = found.loaded[cell.id].config.train
        assert (train.steps, train.tokens, train.flops, train.paper_flops) == (steps, None, None, None)
        assert found.sketches[cell.id].steps == steps


def test_every_piece_is_written_complete(small: Ablation, tmp_path: Path) -> None:
    folder = AblationFolder.create(tmp_path)
    plan = write_plan(small, folder)
    assert folder.plan == plan == plan_of(small).model_copy(update={"seals": plan.seals})
    assert plan.seals.keys() == {cell.id for cell in small.pieces}
    assert {file.stem for file in (tmp_path / "plan").iterdir()} == {cell.id for cell in small.pieces}
    for cell in small.pieces:
        assert load(folder.experiment(cell.id)).config == small.loaded[cell.id].config
    assert read_file(tmp_path / "ablation.yaml").plain() == read_file(small.path).plain()
    for name in (small.path.name, "tiny.yaml"):
        assert (tmp_path / "files" / name).read_bytes() == small.path.with_name(name).read_bytes()


def test_the_folder_alone_gives_the_same_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With plug-ins, a pilot and changes of --set, after the project is gone."""
    monkeypatch.setattr(discovery, "_loaded", {})
    project = tmp_path / "project"
    (project / "plugs").mkdir(parents=True)
    for name, code in (("samplers", SAMPLER), ("measures", MEASURE)):
        (project / "plugs" / f"{name}.py").write_text(code)
    write_folder(project / "pilot", SCALES, range(3))
    base = write(project / "sub", more="power: {pilot: ../pilot}\nmetric: reference_auc")
    text = base.read_text().replace(
        "set: {", "imports: [../plugs/measures.py, ../plugs/samplers.py]\nset: {train: {log_every: 3}, "
    )
    text = text.replace("train.log_every: 2", "sampler.type: planned").replace(
        "[{type: pretraining}]", "[{type: planned}]"
    )
    base.write_text(text.replace("  - {type: pretraining}\n", "  - {type: planned}\n"))
    overrides = ["seeds=[3, 4]", "train.log_every=4", "train.clip_norm=0.5"]
    before = checked(load_ablation(base, overrides))
    folder = AblationFolder.create(tmp_path / "out")
    plan = write_plan(before, folder)
    spread = expected(plan).sd
    shutil.rmtree(project)
    moved = Path(shutil.move(tmp_path / "out", tmp_path / "moved"))
    discovery._loaded.clear()  # as in another process
    for registry in (samplers, measures):
        monkeypatch.delitem(registry._entries, "planned")
    after = checked(load_ablation(moved / "ablation.yaml"))
    assert [cell.id for cell in after.cells] == [cell.id for cell in before.cells]
    assert list(after.served) == list(before.served)
    again = plan_of(after)
    assert [measure.key for measure in again.measures] == [measure.key for measure in plan.measures]
    assert (again.imports, again.sd) == (plan.imports, spread)
    # The pieces and the measures use the copies in the folder.
    for cell in before.pieces:
        loaded = load(AblationFolder(moved).experiment(cell.id))
        assert [path.parent for path in loaded.config.imports] == [moved / "plugins"] * len(loaded.config.imports)
    assert len(loaded.config.imports) == 1
    assert all((moved / file).is_file() for file in plan.imports)
    # Another change is added to the earlier ones.
    write_plan(checked(load_ablation(moved / "ablation.yaml", ["train.log_every=5"])), AblationFolder(moved))
    last = load_ablation(moved / "ablation.yaml")
    train = last.loaded[last.cells[0].id].config.train
    assert (last.config.seeds, train.log_every, train.clip_norm) == ([3, 4], 5, 0.5)


def test_a_section_replaces_its_keys_and_a_key_goes_into_its_section() -> None:
    changes: dict[str, object] = {"train.batch_size": 2, "train.log_every": 5, "optimizer.eps": 1}
    plan_module._put(changes, "train", {"steps": 4, "batch_size": 3})
    plan_module._put(changes, "optimizer", {"type": "sgd"})
    assert changes == {"train.batch_size": 3, "train.log_every": 5, "train.steps": 4, "optimizer": {"type": "sgd"}}
    plan_module._put(changes, "optimizer.momentum", 0)
    assert changes["optimizer"] == {"type": "sgd", "momentum": 0}


def keys(found: Ablation) -> dict[str, str]:
    return {measure.type: measure.key for measure in plan_of(found).measures}


ALL = {"fixed_corruption", "pretraining", "detection_probe"}
# A change of the file, replaced sections of the base, and the measures whose numbers depend on it.
CHANGES: dict[str, tuple[tuple[str, str] | None, dict[str, str], set[str]]] = {
    "name": (("name: sizes", "name: other"), {}, set()),
    "variants": (("[0.5, 1.0]", "[0.5, 1.0, 2.0]"), {}, set()),
    "seeds": (("[0, 1]", "[7]"), {}, set()),
    "store": (None, {"data": "{sequence_length: 16, held_out: 0.3, store: elsewhere}"}, set()),
    "an option": (("rows: 8", "rows: 9"), {}, {"detection_probe"}),
    "its references": (("set: {", "set: {train.learning_rate: 0.01, "), {}, {"fixed_corruption"}),
    "one of them": (("steps: 4", "steps: 4, large: 2.0"), {}, {"fixed_corruption"}),
    "the text": (None, {"data": "{sequence_length: 16, held_out: 0.2, store: store}"}, ALL),
    "another text": (None, {"corpus": "{type: text_files, paths: [sizes.yaml]}"}, ALL),
    "the tokenizer": (None, {"tokenizer": "{type: wordpiece, vocab_size: 150}"}, ALL),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_key_changes_with_everything_that_its_numbers_depend_on(small: Ablation, tmp_path: Path, case: str) -> None:
    change, sections, changed = CHANGES[case]
    made(tmp_path, *[change] * bool(change), **sections)
    found = keys(checked(load_ablation(tmp_path / "sizes.yaml")))
    assert {type for type, key in found.items() if key != keys(small)[type]} == changed


PLUGIN = """\
from registry import Metric, measures


@measures.register("mine")
class Mine:
    "A measure."
    same_rows, metrics = False, {"mine": Metric("luck")}
    def __init__(self, /): ...
    def references(self, base): return {}
"""


def test_a_key_changes_with_the_code_of_its_plug_in_and_no_other(tmp_path: Path, monkeypatch) -> None:
    def found(mine: str, other: str) -> dict[str, str]:
        monkeypatch.setattr(discovery, "_loaded", {})  # as in another process
        (tmp_path / "mine.py").write_text(PLUGIN + mine)
        (tmp_path / "other.py").write_text(other)
        with measures.isolated():
            change = ("{type: fixed_corruption, steps: 4}", "{type: mine}")
            return keys(made(tmp_path, change, more="imports: [mine.py, other.py]"))

    before, other, mine = found("", ""), found("", "# changed\n"), found("# changed\n", "")
    assert before == other
    assert {type for type in before if before[type] != mine[type]} == {"mine"}


def test_a_file_that_cannot_be_built_names_every_variant_once(tmp_path: Path) -> None:
    """Networks are sketched from shapes and refuse values that their schemas allow."""
    write_experiment(tmp_path)
    odd = "{type: transformer, dim: 12, depth: 1, heads: 4, rotary: true}"
    with pytest.raises(ConfigError) as error:
        made(tmp_path, ("{generator.scale: [0.5, 1.0]}", f"{{discriminator: [{odd}, {{}}]}}"))
    [line] = str(error.value).splitlines()
    assert "rotary positions need an even" in line
    assert line.count("(in the variant ") == 1


@pytest.mark.parametrize(
    ("vary", "own"),
    [
        ("{generator.scale: [0.5, 1.0]}", False),
        ("{train.learning_rate: [1.0e-4, 1.0e-3]}", False),
        ("{objective.discriminator_weight: [10, 50]}", False),
        ("{masking.mask_prob: [0.15, 0.25]}", True),
        ("{objective.type: [electra, electra_masked_only]}", True),
        ("{data.sequence_length: [8, 16]}", True),
        ("{evaluate.tokens: [64, 128]}", True),
    ],
)
def test_a_loss_at_mask_compares_cells_unless_their_tests_differ(tmp_path: Path, vary: str, own: bool) -> None:
    """A detection metric never does, as each generator makes its own test."""
    plan = plan_of(made(tmp_path, ("{generator.scale: [0.5, 1.0]}", vary), *WITHOUT_SAME_ROWS))
    assert plan.metric == "generator_mask_loss"
    assert plan.metrics["generator_mask_loss"].comparable != own
    assert not plan.metrics["discriminator_auc"].comparable
    assert {"unigram_mask_entropy", "unigram_auc"} <= plan.trivial


def powered(folder: Path, power: str) -> Ablation:
    return checked(load_ablation(write(folder, seeds="[0, 1, 2, 3, 4]", more=power)))


def test_by_a_stated_deviation(tmp_path: Path) -> None:
    found = powered(tmp_path, "power: {sd: 0.02}")
    assert (plan_of(found).sd, plan_of(found).pilot) == (0.02, "")
    size = detectable(5, 1) or 0
    said = f"{number(0.02 * size)} in corruption_auc, judging by the file (standard deviation of paired differences"
    assert said in run.dry_run(tmp_path / "sizes.yaml", [], tmp_path / "out", "cpu", None, None)


def rename(pilot: Path, old: str, new: str) -> None:
    """Give a metric of a pilot another name."""
    for file in (pilot / "plan.json", *pilot.glob("cells/*/measures.json")):
        file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))


def test_by_a_pilot(tmp_path: Path) -> None:
    written = write_folder(tmp_path / "there" / "pilot", SCALES, (0, 1, 2))
    pilot = add_references(written, lambda reference, variant, seed: score(variant, seed + reference))
    rename(pilot, "reference_auc", "other")
    rename(pilot, "auc", "corruption_auc")
    errors = [d.error for d in read(pilot).comparisons.against("corruption_auc").values()]
    found = powered(tmp_path / "here", "power: {pilot: ../there/pilot}")
    plan = plan_of(found)
    known = expected(plan)
    assert known is not None
    assert known.sd == pytest.approx(math.sqrt(sum(3 * (error or 0) ** 2 for error in errors) / len(errors)))
    assert (known.source, plan.pilot) == (f"by the pilot {pilot}", str(pilot))
    # The report of an ablation whose pilot was damaged or removed later does without; a new start is refused.
    (pilot / "plan.json").write_text("{")
    for _ in range(2):
        assert expected(plan) is None
        with pytest.raises(ConfigError, match=r"sizes\.yaml:\d+: power\.pilot: .*pilot is not an ablation that has"):
            plan_of(found)
        shutil.rmtree(pilot, ignore_errors=True)


@pytest.mark.parametrize(
    ("power", "reason"),
    [
        ("{}", "power: needs either `sd` or `pilot`."),
        ("{sd: 0.1, pilot: there}", "power: needs either `sd` or `pilot`."),
        ("{sd: 0}", "power.sd: must be greater than 0"),
        (
            "{pilot: nowhere}",
            "power.pilot: {folder}/nowhere is not an ablation that has corruption_auc of two variants",
        ),
        ("{pilot: pilot}", "power.pilot: {folder}/pilot is not an ablation that has corruption_auc of two variants"),
    ],
)
def test_mistakes_are_named_at_their_line(tmp_path: Path, power: str, reason: str) -> None:
    write_folder(tmp_path / "pilot", SCALES, (0, 1))
    with pytest.raises(ConfigError) as error:
        plan_of(powered(tmp_path, f"power: {power}"))
    assert reason.format(folder=tmp_path) in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'sizes.yaml'}:")


def test_it_changes_no_cell(tmp_path: Path) -> None:
    one, other = powered(tmp_path / "a", ""), powered(tmp_path / "a", "power: {sd: 0.1}")
    assert [cell.id for cell in one.pieces] == [cell.id for cell in other.pieces]


def test_cells_keep_what_each_document_contributes(done: tuple[Path, Path]) -> None:
    """The same documents for all cells, so that intervals can account for the choice of documents, too."""
    folder = AblationFolder(done[1])
    found = [cell_result(folder, folder.plan, cell.id).documents for cell in folder.plan.cells]
    parts = [f"corruption_auc_{name}" for name in ("small", "large", "unigram")]
    others = {"corruption_auc", "probe_auc", "head_auc", "corruption_rarity", "corruption_chance", "probe_chance"}
    assert {frozenset(metrics) for metrics in found} == {frozenset({*parts, *others})}
    assert len({len(metrics[name]) for metrics in found for name in parts}) == 1
    for cell, documents in zip(folder.plan.cells, found, strict=True):
        whole = documents["corruption_auc"]
        assert len(whole) > 2
        assert whole == pytest.approx(np.mean([documents[part] for part in parts], axis=0))
        for name, numbers in documents.items():
            value = cell_result(folder, folder.plan, cell.id).metrics[name]
            assert abs(sum(numbers) / len(numbers) - value) < 0.1
